# Counters of links around cases, on simulated machines: what the algorithm implies is what the links count, within a
# host over NVLinks and between two hosts over 8 rails each; a rail that does another's work shows; what cannot be counted is
# said once; the expected peak follows from the machine.
. "$PTB_SOURCE/tests/mpi/run_common.sh"
. "$PTB_SOURCE/tests/mpi/netns.sh"
machines=$PTB_SOURCE/tests/simcuda/machines
few=(-n 2 -w 1 --place out --mode latency)

# what_is DATABASE PYTHON...: runs the lines with `cases`: key -> (facts, metrics).
what_is() {
    "$PTBENCH" export --db "$1" $(seq "$("$PTBENCH" runs --db "$1" | grep -c complete)") >export.json
    { cat <<'PYTHON'; echo "$2"; } >check.py
import json
cases = {}
for run in json.load(open("export.json"))["runs"]:
    for repetition in run["repetitions"]:
        for case in repetition["cases"]:
            assert case["state"] == "ok", (case["key"], case["state"], case["reason"])
            cases[case["key"]] = (case["facts"], {m["name"]: m["value"] for m in case["metrics"]})
def of(*words):
    found = [v for k, v in cases.items() if k.startswith(words[0]) and all(w in k + "/" for w in words)]
    assert len(found) == 1, (words, list(cases))
    return found[0]
def near(value, wanted, most=0.002):
    assert abs(value - wanted) <= most * wanted, (value, wanted)
PYTHON
    python3 check.py || fail "what is stored of the links"
}

# ---- one host with NVSwitch
"$PTB_SOURCE/tests/simcuda/make_sysfs.sh" "$machines/nvswitch.ini" "$folder/sys"
# What was to go over the links follows from what NCCL tells that it ran; not every version tells.
export PTB_SYSFS=$folder/sys PTB_SIM=nccl_version=22809,devices=8,machine=$machines/nvswitch.ini
try 0 "$PTBENCH" run all_reduce --np 8 --comm nccl --algo ring,tree,nvls --bytes 4M "${few[@]}" --db one.db
for bench in all_gather reduce_scatter; do
    try 0 "$PTBENCH" run $bench --np 8 --comm nccl --algo ring,symmetric --bytes 4M "${few[@]}" --db one.db
done
for bench in all_to_all broadcast gather; do
    try 0 "$PTBENCH" run $bench --np 8 --comm nccl --bytes 4M "${few[@]}" --db one.db
done
try 0 "$PTBENCH" run all_reduce --np 8 --comm nccl --bytes 4M "${few[@]}" --db one.db
try 0 "$PTBENCH" run all_reduce --np 4 --comm nccl --algo ring -G --bytes 8M "${few[@]}" --db one.db
try 0 "$PTBENCH" run pairs --np 2 --device cuda --paths send,peer,h2d --pairs ring --bytes 4M -n 2 -w 1 --mode latency --db one.db
try 0 "$PTBENCH" run step --np 2 --device cuda --layers 2 --hidden 256 --heads 4 --sequence 32 --vocab 512 -n 2 -w 1 \
    --algo ring --db one.db
what_is one.db '
S = 4 << 20
for algorithm, edge, peak, moved in (("ring", 2 * 7 / 8, 450, 1.75), ("tree", 2 * 7 / 8, 450, 1.75), ("nvls", 9 / 8, 700, 1.125)):
    facts, metrics = of("all_reduce", f"algo={algorithm}/", "ranks=8/")
    near(metrics["nvlink_implied"], 8 * edge * S, 1e-9)
    near(metrics["nvlink_bytes"], 8 * edge * S)
    near(metrics["nvlink_ratio"], 1)
    near(metrics["nvlink_least"], 8 * edge * S / 144, 0.01)
    near(metrics["expected"], peak, 1e-9)
    assert facts["expected_how"] == f"a GPU moves {moved} S over 18 NVLinks 4.0 x 25 GB/s", facts
    assert facts["nvlinks"].startswith("144; "), facts
    assert "rails" not in facts and "not_counted" not in facts
for bench, sent, peak in (("all_gather", 7, 450), ("reduce_scatter", 7, 450), ("all_to_all", 7, 450), ("broadcast", 7, 450),
                          ("gather", 7 / 8, 450)):
    facts, metrics = of(bench + "/", *(["algo=ring/"] if bench in ("all_gather", "reduce_scatter") else []))
    near(metrics["nvlink_implied"], sent * S, 1e-9)
    near(metrics["nvlink_ratio"], 1, 0.01)
    near(metrics["expected"], peak, 1e-9)
# On windows NCCL does not tell which of its kernels ran, so what is known is what none of them can exceed.
for bench, algorithm, moved, peak in (("all_reduce", "default", 1.125, 700), ("all_gather", "symmetric", 0.875, 450),
                                      ("reduce_scatter", "symmetric", 0.875, 450)):
    facts, metrics = of(bench + "/", f"algo={algorithm}/")
    assert facts["algorithm"] == "symmetric" and "nvlink_implied" not in metrics and metrics["nvlink_bytes"] > 0, facts
    assert facts["expected_how"] == f"at most: a GPU moves {moved} S over 18 NVLinks 4.0 x 25 GB/s", facts
    near(metrics["expected"], peak, 1e-9)
facts, metrics = of("all_reduce", "graph=yes") # replays count too
near(metrics["nvlink_implied"], 4 * 2 * 3 / 4 * 2 * S, 1e-9)
near(metrics["nvlink_ratio"], 1, 0.01)
facts, metrics = of("pairs/path=send/", "from=0/")
near(metrics["nvlink_implied"], S, 1e-9)
near(metrics["nvlink_ratio"], 1, 0.01)
near(metrics["expected"], 450, 1e-9)
facts, metrics = of("pairs/path=peer/", "from=1/")
near(metrics["nvlink_ratio"], 1, 0.01)
facts, metrics = of("pairs/path=h2d/", "from=0/")
near(metrics["expected"], 63.0, 0.001)
assert facts["expected_how"] == "a GPU moves 1 S over PCIe 5 x16 of 63 GB/s", facts
facts, metrics = of("step/")
assert facts["implied"].startswith("ring: "), facts
near(metrics["nvlink_implied"], 2 * metrics["comm_volume"], 1e-9)
near(metrics["nvlink_ratio"], 1, 0.02)
assert "expected" not in metrics and "expected_how" not in facts
'
try 0 "$PTBENCH" show --db one.db --width 240 1
has out "Expected: a GPU moves 1.75 S over 18 NVLinks 4.0 x 25 GB/s"
try 0 "$PTBENCH" report --db one.db 1 --output page
has page/index.html "Expected: a GPU moves 1.75 S over 18 NVLinks 4.0 x 25 GB/s"

# ---- without counters, without links: said once, nothing stored
{ cat "$machines/nvswitch.ini"; echo "no_counters = 1"; } >blind.ini
PTB_SIM=nccl_version=22809,devices=8,machine=$folder/blind.ini try 0 "$PTBENCH" run all_reduce --np 2 --comm nccl --bytes 1M,2M "${few[@]}" --db blind.db
[ "$(grep -c "not all links can be counted" err)" = 1 ] || fail "not said once: $(cat err)"
has err "rank 0 on $(hostname): 18 of 18 NVLinks have no counters that NVML gives to this user"
what_is blind.db '
assert len(cases) == 2
for facts, metrics in cases.values():
    assert not [name for name in metrics if name.startswith("nvlink")], metrics
    assert facts["not_counted"].startswith("rank 0: 18 of 18 NVLinks"), facts
    near(metrics["expected"], 450, 1e-9)
'
PTB_SIM=nccl_version=22809,devices=4,machine=$machines/pcie.ini try 0 "$PTBENCH" run all_reduce --np 2 --comm nccl --algo ring --bytes 1M "${few[@]}" --db pcie.db
has_not err "NVLink" # none is missing
what_is pcie.db '
facts, metrics = of("all_reduce")
assert facts["expected_how"] == "a GPU moves 1 S over PCIe 4 x16 of 31.5 GB/s, no NVLink", facts
near(metrics["expected"], 31.508, 0.001)
'
# A link that is down takes its part of the peak, for all.
{ cat "$machines/nvswitch.ini"; echo "gpu1.dead_link = 5"; } >dead.ini
PTB_SIM=nccl_version=22809,devices=8,machine=$folder/dead.ini try 0 "$PTBENCH" run all_reduce --np 2 --comm nccl --algo ring --bytes 1M "${few[@]}" --db dead.db
what_is dead.db '
facts, metrics = of("all_reduce")
near(metrics["expected"], 425, 1e-9)
near(metrics["nvlink_ratio"], 1, 0.01)
assert facts["nvlinks"].startswith("35; "), facts
'

# ---- NVLinks from GPU to GPU, four between some two, one between others
of_direct() {
    PTB_SIM=nccl_version=22809,devices=4,machine=$machines/direct.ini try 0 "$PTBENCH" run "$@" --np 4 -n 2 -w 1 --mode latency --db direct.db
}
of_direct all_reduce --comm nccl --algo ring,tree,nvls --bytes 4M --place out
of_direct all_to_all --comm nccl --bytes 4M --place out
of_direct all_gather --split div:2 --comm nccl --algo ring --bytes 4M --place out
of_direct pairs --device cuda --paths send --pairs ring --bytes 4M
what_is direct.db '
def said(wanted, how, *words):
    facts, metrics = of(*words)
    near(metrics["expected"], wanted, 1e-9)
    assert facts["expected_how"] == how, facts
    near(metrics["nvlink_ratio"], 1, 0.01)
said(100, "1.5 S over 4 rings of direct NVLinks 2.0, each 25 GB/s", "all_reduce", "algo=ring/")
said(150, "2 S over 8 chains of direct NVLinks 2.0, each 25 GB/s", "all_reduce", "algo=tree/")
said(75, "0.25 S between two GPUs over 1 direct NVLink 2.0 x 25 GB/s", "all_to_all/")
said(100, "0.5 S over 4 rings of direct NVLinks 2.0, each 25 GB/s", "all_gather/")
said(100, "1 S between two GPUs over 4 direct NVLinks 2.0 x 25 GB/s", "pairs/", "from=0/")
said(25, "1 S between two GPUs over 1 direct NVLink 2.0 x 25 GB/s", "pairs/", "from=1/")
facts, metrics = of("all_reduce", "algo=nvls/")
assert "expected" not in metrics
assert facts["expected_how"] == "unknown: it goes through an NVSwitch, which these GPUs do not have", facts
'
# Ranks 0 and 2, and with links that are down or lead where nobody knows.
direct() { # MACHINE-LINE... : two ranks on GPUs 0 and 2
    { cat "$machines/direct.ini"; printf '%s\n' "$@"; } >changed.ini
    rm -f changed.db
    CUDA_VISIBLE_DEVICES=0,2 PTB_SIM=nccl_version=22809,devices=4,machine=$folder/changed.ini try 0 "$PTBENCH" run all_reduce --np 2 --comm nccl \
        --algo ring --bytes 1M "${few[@]}" --db changed.db
}
direct "gpu0.peers = 2 1 2 1 2 3" "gpu2.peers = 3 3 0 0 0 1" "gpu2.dead_link = 3"
what_is changed.db '
facts, metrics = of("all_reduce")
assert facts["expected_how"] == "1 S over 2 rings of direct NVLinks 2.0, each 25 GB/s", facts
near(metrics["expected"], 50, 1e-9)
'
direct "gpu0.peers = 1 1 1 1 1 1" "gpu2.peers = 3 3 3 3 3 3"
what_is changed.db '
facts, metrics = of("all_reduce")
assert facts["expected_how"] == "at most: 1 S from 1 to 1 GPUs over 0 NVLinks x 25, 1 slots x 15.8 GB/s", facts
near(metrics["expected"], 15.754, 0.001)
'
direct "gpu0.peers = 9 9 9 9 9 9"
what_is changed.db '
facts, metrics = of("all_reduce")
assert facts["expected_how"] == "unknown: where 6 of 6 NVLinks lead is not told by NVML", facts
assert "expected" not in metrics
'

# ---- two hosts, a rail for each GPU
[ "$failures" = 0 ] || finish # not to be skipped where hosts cannot be made
hosts_up 2
for h in h0 h1; do
    "$PTB_SOURCE/tests/simcuda/make_sysfs.sh" "$machines/rails.ini" "$folder/sys-$h"
done
# Each rank sees the machine of its host; FAULT_h1 is for the second host alone.
cat >ranked <<END
#!/bin/sh
name=\$(hostname)
export PTB_SYSFS=$folder/sys-\$name PTB_SIM=nccl_version=22809,devices=8,machine=$machines/rails.ini
[ "\$name" = h1 ] && PTB_SIM=\$PTB_SIM\$FAULT_h1
exec "\$@"
END
chmod +x ranked
joined() { # RANKS_PER_HOST OPTION...
    local each=$1
    shift
    try 0 "$hosts_on" h0 mpirun --allow-run-as-root "${hosts_mca[@]}" --oversubscribe --bind-to none -x FAULT_h1 \
        -H "h0:$each,h1:$each" "$folder/ranked" "$PTBENCH" run "$@" -n 2 -w 1 --mode latency --db "$folder/two.db"
    [ -s two.db ] || { fail "nothing was stored, though the run ended well: $*"; sed 's/^/    /' out err; }
}
export FAULT_h1=
joined 8 all_reduce --comm nccl --algo ring --bytes 4M --place out
joined 8 all_to_all --comm nccl --bytes 4M --place out
joined 4 all_reduce --comm nccl --algo nvls --bytes 4M --place out
joined 2 all_reduce --comm nccl --algo tree --bytes 4M --place out
joined 2 pairs --device cuda --paths send --pairs across --bytes 4M
what_is two.db '
S = 4 << 20
headers = 1 + 58 / 4096
facts, metrics = of("all_reduce", "algo=ring/")
edge = 2 * 15 / 16 * S
near(metrics["nvlink_implied"], 14 * edge, 1e-9)
near(metrics["nvlink_ratio"], 1)
near(metrics["rail_implied"], 2 * edge, 1e-9)
near(metrics["rail_ratio"], headers)
assert facts["rails"].startswith("16; "), facts
for rail in range(8): # two hosts, each an eighth of its edge
    near(metrics[f"rail_mlx5_{rail}/1"], 2 * edge / 8 * headers, 0.01)
near(metrics["rail_least"], edge / 8 * headers, 0.01)
near(metrics["rail_most"], edge / 8 * headers, 0.01)
near(metrics["expected"], 400, 1e-9)
assert facts["expected_how"] == "a host moves 1.875 S over 8 rails x 400 Gb/s", facts
facts, metrics = of("all_to_all/")
near(metrics["nvlink_implied"], 16 * 7 / 16 * S, 1e-9)
near(metrics["rail_implied"], 16 * 8 / 16 * S, 1e-9)
near(metrics["nvlink_ratio"], 1, 0.01)
near(metrics["rail_ratio"], headers, 0.005)
near(metrics["expected"], 15 / 8 * 8 * 50 / 8, 1e-9) # 8 rails x 400 Gb/s / 8 GPUs
facts, metrics = of("all_reduce", "algo=tree/")
near(metrics["nvlink_implied"], 2 * 2 * S, 1e-9)
near(metrics["rail_implied"], 2 * S, 1e-9)
near(metrics["rail_ratio"], headers)
facts, metrics = of("all_reduce", "algo=nvls/")
near(metrics["nvlink_implied"], 8 * 5 / 4 * S, 1e-9)
near(metrics["nvlink_ratio"], 1)
near(metrics["rail_implied"], 2 * S, 1e-9)
near(metrics["rail_ratio"], headers)
near(metrics["expected"], 1.75 / (1 / 200), 1e-9)
assert facts["expected_how"] == "a host moves 1 S over 4 rails x 400 Gb/s", facts
facts, metrics = of("pairs/", "from=1/", "to=3/")
near(metrics["rail_ratio"], headers, 0.01)
near(metrics["expected"], 50, 1e-9)
assert facts["rails"].endswith("most: h0 mlx5_1/1"), facts
'
# Host h1 has rail 3 down, and its traffic goes over rail 4.
rm -f two.db
FAULT_h1=,wrong_rail=3:4 joined 8 all_reduce --comm nccl --algo ring --bytes 4M --place out
what_is two.db '
facts, metrics = of("all_reduce")
edge = 2 * 15 / 16 * (4 << 20) * (1 + 58 / 4096)
near(metrics["rail_ratio"], 1 + 58 / 4096)
assert metrics["rail_least"] == 0, metrics
near(metrics["rail_most"], 2 * edge / 8, 0.01)
near(metrics["rail_mlx5_3/1"], edge / 8, 0.01)
near(metrics["rail_mlx5_4/1"], 3 * edge / 8, 0.01)
assert facts["rails"] == "16; least: h1 mlx5_3/1, most: h1 mlx5_4/1", facts
'
try 0 "$PTBENCH" show --db two.db --width 240
has out "16; least: h1 mlx5_3/1, most: h1 mlx5_4/1"
finish
