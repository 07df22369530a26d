#!/bin/bash
# What overlapping communication with compute brings: 2 ranks on two hosts (network namespaces) joined by a link of
# RATE; each strategy with overlap on and off, in turns, ROUNDS times, and on shared memory once more for comparison.
# Printed: exposed communication of a step off and on and how much of it overlap hides (median of the rounds' values
# and their spread), the step's time beside the bound without communication (measured in the same processes).
#
# usage: tests/bench/overlap.sh [BUILD [ROUNDS [RATE [STRATEGIES]]]]   as root, on a machine that does nothing else
#   BUILD build, ROUNDS 3, RATE 1gbit, STRATEGIES "ddp fsdp"
# The batch is chosen so that computing takes about twice as long as the transfer: BATCH_ddp, BATCH_fsdp override it.
build=$(realpath "${1:-build}")
rounds=${2:-3} rate=${3:-1gbit} strategies=${4:-ddp fsdp}
export PTBENCH=$build/ptbench PTB_SOURCE
PTB_SOURCE=$(cd "$(dirname "$0")/../.." && pwd)
. "$PTB_SOURCE/tests/mpi/run_common.sh"
. "$PTB_SOURCE/tests/mpi/netns.sh"
hosts_up 2
limit() { # RATE of both cards; "" takes the limit away
    local h
    for h in 0 1; do
        tc -n "$hosts_prefix-h$h" qdisc del dev eth0 root 2>/dev/null
        [ -z "$1" ] || tc -n "$hosts_prefix-h$h" qdisc add dev eth0 root tbf rate "$1" burst 15kb latency 20ms || exit 1
    done
}
# A rank a core, its communication thread included.
step() { # DB HOSTS OPTION...
    local db=$1 where=$2
    shift 2
    "$hosts_on" h0 mpirun --allow-run-as-root "${hosts_mca[@]}" --bind-to none -H "$where" sh -c \
        'exec taskset -c "$OMPI_COMM_WORLD_RANK" "$@"' sh "$PTBENCH" run step --comm host -n 6 -w 2 --db "$db" "$@" \
        >"$folder/log" 2>&1 || { cat "$folder/log"; exit 1; }
}
limit "$rate"
for strategy in $strategies; do
    batch=BATCH_$strategy
    batch=${!batch:-$([ "$strategy" = ddp ] && echo 60 || echo 90)}
    for ((round = 1; round <= rounds; round++)); do
        step "$folder/link.db" h0:1,h1:1 --strategy "$strategy" --batch "$batch"
        step "$folder/link.db" h0:1,h1:1 --strategy "$strategy" --batch "$batch" --no-overlap
    done
    for ((round = 1; round <= rounds; round++)); do
        step "$folder/shm.db" h0:2 --strategy "$strategy" --batch "$batch"
        step "$folder/shm.db" h0:2 --strategy "$strategy" --batch "$batch" --no-overlap
    done
done
for where in link shm; do
    "$PTBENCH" export --db "$folder/$where.db" $("$PTBENCH" runs --db "$folder/$where.db" | awk '$1 + 0 > 0 { print $1 }') >"$folder/$where.json"
done
python3 - "$folder" "$rate" <<'PYTHON'
import json, statistics, sys
folder, rate = sys.argv[1:]
def spread(values, form="%.1f"):
    return (form + " [" + form + "-" + form + "]") % (statistics.median(values), min(values), max(values))
for where, words in (("link", "two hosts, " + rate), ("shm", "one host, shared memory")):
    cases = {}
    for run in json.load(open(f"{folder}/{where}.json"))["runs"]:
        for case in run["repetitions"][0]["cases"]:
            metrics = {m["name"]: m["value"] for m in case["metrics"]}
            key = case["params"]["strategy"], case["params"]["batch"]
            cases.setdefault(key, {"yes": [], "no": []})[case["params"]["overlap"]].append(metrics)
    for (strategy, batch), two in cases.items():
        on, off = two["yes"], two["no"]
        hidden = [100 * (1 - a["exposed_comm"] / b["exposed_comm"]) for a, b in zip(on, off)]
        print(f"{strategy}, global batch {batch}, {words}: exposed communication off "
              f"{spread([m['exposed_comm'] for m in off])} ms, on {spread([m['exposed_comm'] for m in on])} ms: "
              f"hidden {spread(hidden)} %")
        print(f"    step off {spread([m['step'] for m in off])} ms, on {spread([m['step'] for m in on])} ms; "
              f"bound without communication {spread([m['ideal_step'] for m in on])} ms; "
              f"efficiency on {spread([100 * m['ideal_step'] / m['step'] for m in on])} %")
PYTHON
