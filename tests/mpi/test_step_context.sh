# Sequences split over real processes: each way of attention gives the losses of one rank up to rounding, over ptbench's own
# communicator and MPI's; heads that cannot be divided are skipped with the arithmetic.
# ctest: waits 11
# ctest: unsanitized
set -u
helper=$PTB_TESTBIN/mpi_helper_step
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export OMPI_MCA_orte_tmpdir_base=$work # as in run_common.sh
export ASAN_OPTIONS=detect_leaks=0
model="--deterministic --layers 2 --hidden 32 --heads 4 --sequence 16 --vocab 64 --bucket 16K --lr 0.003 --pack --peak 1e11"

fail() {
    echo "FAILED: $*"
    exit 1
}
run() { # run NAME RANKS OPTIONS...: output in $work/NAME
    name=$1 ranks=$2
    shift 2
    timeout 300 mpirun --allow-run-as-root --oversubscribe --bind-to none --mca mpi_yield_when_idle 1 -np "$ranks" \
        "$helper" $model "$@" >"$work/$name" 2>&1
}
# Whether two runs have as many losses, 20 at least, that differ by less than 1e-5.
same_losses() {
    awk '$1 == "loss" && FNR == NR { first[$2] = $3; n++ }
         $1 == "loss" && FNR != NR { m++; d = $3 / first[$2] - 1; if (!(d < 1e-5 && d > -1e-5)) bad = 1 }
         END { exit n < 20 || m != n || bad }' "$work/$1" "$work/$2"
}

run alone 1 || fail "one rank: $(cat "$work/alone")"
for split in ring,host all_gather,host all_to_all,host ring_all_to_all,host ring,mpi all_to_all,mpi; do
    way=${split%,*} comm=${split#*,}
    run split 4 --strategy cp --context $way --comm $comm || fail "$way over $comm: $(cat "$work/split")"
    same_losses alone split || fail "$way over $comm: losses are not those of one rank: $(cat "$work/split")"
    grep -q "^fact context $way\$" "$work/split" || fail "$way over $comm: $(grep '^fact' "$work/split")"
    echo "$way over $comm: losses of one rank"
done
timeout 300 "$PTBENCH" run step --np 3 --strategy cp --context all_to_all --layers 1 --hidden 32 --heads 4 --sequence 18 \
    --db "$work/split.db" >"$work/heads" 2>&1
[ $? = 3 ] && grep -q "4 heads over 3 ranks: 4 / 3 = 1 remainder 1" "$work/heads" || fail "4 heads, 3 ranks: $(cat "$work/heads")"
