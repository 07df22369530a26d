# Suites of GPUs: one rank a GPU unless told otherwise, no part that cannot run, and a word about them where a run measures
# processors alone.
# ctest: waits 2
. "$PTB_SOURCE/tests/mpi/run_common.sh"
plan() { # SUITE RANKS: its plan for simulated machines of so many GPUs, of a size that the steps need
    PTB_SIM="devices=$2,memory=150000" try 0 "$PTBENCH" run "$1" --dry-run --db none.db
    has out "on $2 rank"
    has_not err "nothing of this run is on them"
}
plan gpu-quick 3
grep skipped out | grep -v 'needs [48] ranks; this run has 3$' && fail "gpu-quick skips something else on one host"
has out "pairs/path=peer-kernel"
has out "step/strategy=ddp"
plan gpu-quick 1
has out "needs ranks>=2; this run has 1"
plan gpu-ci 2
grep skipped out && fail "gpu-ci skips something"
for suite in gpu-standard gpu-cluster; do
    plan $suite 4
    grep skipped out | grep -v 'needs hosts>=2; this run has 1$' | grep -v 'needs 8 ranks; this run has 4$' |
        grep -v 'in place, all_to_all needs equal parts' && fail "$suite skips something else on one host"
done

# By the communicators of a collective, too.
PTB_SIM=devices=3 try 0 "$PTBENCH" run all_reduce --comm mpi,nccl --bytes 64K --place out --dry-run --db none.db
has out "on 3 ranks"
has_not err "nothing of this run is on them"

PTB_SIM=devices=2 try 0 "$PTBENCH" run ci --np 2 --dry-run --db none.db
has err "this machine has GPUs, and nothing of this run is on them"

# A part that asks for a GPU is measured, on as many ranks as there are GPUs.
cat >mine.ini <<'END'
[all_reduce]
requires = gpu>=2
comm = nccl
bytes = 64K
place = out
iters = 3

[more]
bench = all_reduce
requires = gpu>=3
comm = nccl
bytes = 64K
END
PTB_SIM=devices=2 try 0 "$PTBENCH" run mine.ini --db mine.db
has err "needs gpu>=3; this run has 2"
has err "1 case measured (0 wrong), 1 skipped"
try 0 "$PTBENCH" show last --db mine.db
has out "2 ranks"
finish
