# What goes over the network cards of two hosts (network namespaces, whose only card is virtual) beside what the algorithm
# implies, by the kernel's counters; nothing is expected of cards whose rate is made up; where no card is, it is said once.
# ctest: waits 6
# ctest: unsanitized
# ctest: many starts
. "$PTB_SOURCE/tests/mpi/run_common.sh"
. "$PTB_SOURCE/tests/mpi/netns.sh"
hosts_up 2
joined() { # HOSTS OPTION...
    local where=$1
    shift
    try 0 "$hosts_on" h0 mpirun --allow-run-as-root "${hosts_mca[@]}" --bind-to none -H "$where" "$PTBENCH" run "$@" \
        -n 3 -w 1 --mode latency --db "$folder/two.db"
}
joined h0:2,h1:2 all_reduce --comm host,mpi --algo ring --bytes 8M --place out
has_not err "not all links can be counted"
joined h0:1,h1:1 broadcast --comm host --algo tree --bytes 8M
joined h0:1,h1:1 sendrecv --comm mpi --pattern one-way --bytes 8M
joined h0:1,h1:1 step --layers 2 --hidden 256 --heads 4 --sequence 32 --vocab 512 --comm host
"$PTBENCH" export --db two.db 1 2 3 4 >export.json
cat >check.py <<'PYTHON'
import json
S = 8 << 20
def near(value, wanted, most):
    assert wanted * 0.999 <= value <= wanted * (1 + most), (value, wanted)
seen = 0
for run in json.load(open("export.json"))["runs"]:
    for case in run["repetitions"][0]["cases"]:
        facts, metrics = case["facts"], {m["name"]: m["value"] for m in case["metrics"]}
        bench, comm = case["bench"], case["params"]["comm"]
        implied = {"all_reduce": 2 * 2 * 3 / 4 * S, "broadcast": S, "sendrecv": S, "step": None}[bench]
        print(case["key"], facts["implied"], metrics.get("rail_ratio"))
        if bench == "step": # one edge of a ring of two in each direction, or as much of another algorithm
            implied = 2 * metrics["comm_volume"]
        near(metrics["rail_implied"], implied, 0.001)
        # Ethernet's frames of 1500 bytes hold 1448 of payload; segmentation is counted before or after.
        near(metrics["rail_ratio"], 1, 0.12)
        assert abs(metrics["rail_eth0"] - metrics["rail_bytes"]) < 1
        if bench != "step":
            assert facts["rails"].startswith("2; ") or bench in ("broadcast", "sendrecv"), facts
            wanted = "which host sends most by this algorithm" if bench == "broadcast" else "the rate of a network card is not known"
            assert facts["expected_how"] == "unknown: " + wanted, facts
        assert "expected" not in metrics
        seen += 1
assert seen == 6, seen
PYTHON
python3 check.py >checked 2>&1 || { fail "what is stored of the links"; cat checked; }
try 0 "$PTBENCH" show --db two.db --width 200 1
has out "ring: 2(n-1)/n S over each of 4 edges, 2 between hosts"

# One host has nothing to count, and hears nothing of it.
try 0 "$PTBENCH" run all_reduce --np 2 --comm host --bytes 64K -n 3 -w 1 --db here.db
has_not err "links can be counted"
"$PTBENCH" export --db here.db >export.json
has export.json '"implied": "no link: the ranks share the memory of one host"'
has_not export.json rail_
finish
