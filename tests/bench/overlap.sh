#!/bin/bash
# What overlapping communication with compute brings: 2 ranks on two hosts (network namespaces) joined by a link of
# RATE; each strategy with overlap on and off, in turns, ROUNDS times, and on shared memory once more for comparison.
# Printed: exposed communication of a step off and on and how much of it overlap hides (median of the rounds' values
# and their spread), the step's time beside the bound without communication (measured in the same processes).
#
# usage: tests/bench/overlap.sh [BUILD [ROUNDS [RATE [STRATEGIES]]]]   as root, on a machine that does nothing else
#   BUILD build, ROUNDS 3, RATE 1gbit, STRATEGIES "ddp fsdp tp tp+sp ep"
# What is switched on and off: gradients beside backward and parameters beside forward (ddp, fsdp), the sums of one chunk
# of the tokens beside the products of the next (tp, tp+sp: --tensor-chunks CHUNKS, 4), tokens on their way beside shared
# experts and the gradients of weights (ep). Of tp and ep the exposed communication is that of their axis.
# Batch and rate are chosen so that computing takes about twice as long as the transfer: BATCH_ddp, BATCH_fsdp, BATCH_tp,
# BATCH_ep override the batch. What tp sends grows with the batch as its computing does, so its link is RATE_tp, 4gbit.
build=$(realpath "${1:-build}")
rounds=${2:-3} rate=${3:-1gbit} strategies=${4:-ddp fsdp tp tp+sp ep}
export PTBENCH=$build/ptbench PTB_SOURCE
PTB_SOURCE=$(cd "$(dirname "$0")/../.." && pwd)
. "$PTB_SOURCE/tests/mpi/run_common.sh"
. "$PTB_SOURCE/tests/mpi/netns.sh"
hosts_up 2
limit() { # RATE of both cards; "" takes the limit away
    local h burst=15kb
    [[ $1 =~ ^([0-9]+)gbit$ ]] && burst=$((15 * BASH_REMATCH[1]))kb # as long a burst at every rate
    for h in 0 1; do
        tc -n "$hosts_prefix-h$h" qdisc del dev eth0 root 2>/dev/null
        [ -z "$1" ] || tc -n "$hosts_prefix-h$h" qdisc add dev eth0 root tbf rate "$1" burst "$burst" latency 20ms || exit 1
    done
}
# A rank a core, its communication thread included.
step() { # DB HOSTS OPTION...
    local db=$1 where=$2
    shift 2
    "$hosts_on" h0 mpirun --allow-run-as-root "${hosts_mca[@]}" --bind-to none -H "$where" sh -c \
        'exec taskset -c "$OMPI_COMM_WORLD_RANK" "$@"' sh "$PTBENCH" run step --comm host -n 6 -w 2 --timeout 600 --db "$db" "$@" \
        >"$folder/log" 2>&1 || { cat "$folder/log"; exit 1; }
}
for strategy in $strategies; do
    kind=${strategy%+sp}
    case $kind in
    tp) batch=16 on=(--tensor-chunks "${CHUNKS:-4}") off=(--tensor-chunks 1) model=() ;;
    ep) batch=32 on=() off=(--no-expert-overlap) model=(--experts 8 --top-k 2 --shared-experts 1) ;;
    fsdp) batch=90 on=() off=(--no-overlap) model=() ;;
    *) batch=60 on=() off=(--no-overlap) model=() ;;
    esac
    asked=BATCH_$kind
    batch=${!asked:-$batch} link=$rate
    [ "$kind" != tp ] || link=${RATE_tp:-4gbit}
    limit "$link"
    for place in link:h0:1,h1:1 shm:h0:2; do
        for ((round = 1; round <= rounds; round++)); do
            for switch in on off; do
                declare -n options=$switch
                step "$folder/${place%%:*}-$switch-$link.db" "${place#*:}" --strategy "$strategy" --batch "$batch" \
                    "${model[@]}" "${options[@]}"
            done
        done
    done
done
for db in "$folder"/*.db; do
    "$PTBENCH" export --db "$db" $("$PTBENCH" runs --db "$db" | awk '$1 + 0 > 0 { print $1 }') >"${db%.db}.json"
done
python3 - "$folder" <<'PYTHON'
import glob, json, os, statistics, sys
def spread(values, form="%.1f"):
    return (form + " [" + form + "-" + form + "]") % (statistics.median(values), min(values), max(values))
cases = {}
for file in sorted(glob.glob(sys.argv[1] + "/*.json")):
    where, switch, rate = os.path.basename(file)[:-len(".json")].split("-")
    for run in json.load(open(file))["runs"]:
        for case in run["repetitions"][0]["cases"]:
            key = case["params"]["strategy"], case["params"]["batch"], where, rate
            metrics = {m["name"]: m["value"] for m in case["metrics"]}
            cases.setdefault(key, {"on": [], "off": []})[switch].append(metrics)
for (strategy, batch, where, rate), two in cases.items():
    on, off = two["on"], two["off"]
    exposed = {"tp": "exposed_tp", "tp+sp": "exposed_tp", "ep": "exposed_ep"}.get(strategy, "exposed_comm")
    hidden = [100 * (1 - a[exposed] / b[exposed]) for a, b in zip(on, off)]
    words = "two hosts, " + rate if where == "link" else "one host, shared memory"
    print(f"{strategy}, global batch {batch}, {words}: {exposed} off {spread([m[exposed] for m in off])} ms, "
          f"on {spread([m[exposed] for m in on])} ms: hidden {spread(hidden)} %")
    print(f"    step off {spread([m['step'] for m in off])} ms, on {spread([m['step'] for m in on])} ms, on / off "
          f"{spread([a['step'] / b['step'] for a, b in zip(on, off)], '%.3f')}"
          + ("" if strategy == "ep" else  # what experts compute depends on what others send: no bound
             f"; bound without communication {spread([m['ideal_step'] for m in on])} ms; "
             f"efficiency on {spread([100 * m['ideal_step'] / m['step'] for m in on])} %"))
PYTHON
