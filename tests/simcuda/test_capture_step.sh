#!/bin/bash
# What CUPTI records of a training step, as a user gets it: every communication kernel of a ddp step on axis dp, in phase
# backward, with its bucket; what NCCL did inside belongs to the same operations; a step that is recorded as a graph is broken
# down as the enqueued one is, piece by piece; parts that cannot be known are missing, not 0; a CUPTI that cannot be used, or
# refuses in the middle, costs the breakdown and neither the case nor its steps.
# ctest: waits 60
. "$PTB_SOURCE/tests/mpi/run_common.sh"
export PTB_SIM=devices=8
step=(run step --device cuda --np 2 --layers 1 --hidden 32 --heads 2 --sequence 16 --vocab 64 --batch 4 --bucket 16K --seed 3
    --peak 1e11 -n 3 -w 3 --max-time 100ms --share-gpu --trace --db runs.db)

# measure NAME SETTINGS OPTION...: NAME.json has the case, NAME.trace its spans, NAME.said what was said.
measure() {
    local name=$1 settings=$2
    shift 2
    PTB_SIM=devices=8$settings try 0 "$PTBENCH" "${step[@]}" --json "$name.json" "$@"
    has err "1 case measured (0 wrong), 0 skipped, 0 failed"
    mv err "$name.said"
    try 0 "$PTBENCH" export last --format perfetto --output "$name.trace" --db runs.db
    has "$name.trace" '"rank 0 [SIMULATED DEVICE]"'
}
# Of kernels on symmetric windows, which nobody asks for where an algorithm is named, NCCL tells nothing of the inside.
measure enqueued "" --algo ring
measure graph "" --algo ring --graph
measure blind ",cupti_subscribed=1" --graph
measure one_by_one ",cupti_subscribed=1"
measure room ",cupti_room=50"
measure busy ",cupti_busy=1"
measure refused ",cupti_refuse=17,cupti_error=35" # the last kind that is asked for: overhead
measure first_refused ",cupti_refuse=39,rank=1"   # external correlation
has blind.said "is not known whose they are"
has blind.said "CUPTI says to cuptiSubscribe: CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED (39); another profiler"
has_not graph.said "is not known whose they are"
has_not one_by_one.said "is not known whose they are"
has busy.said "the step cannot be broken down: CUPTI says to cuptiActivityRegisterCallbacks: "
has refused.said "the step cannot be broken down: CUPTI says to cuptiActivityEnable: CUPTI_ERROR_INSUFFICIENT_PRIVILEGES (35)"
has refused.said "NVreg_RestrictProfilingToAdminUsers=0"
has first_refused.said "CUPTI_ERROR_NOT_COMPATIBLE (14)"

cat >check.py <<'PYTHON'
import collections, json, sys
bad = 0
def check(what, fine, *seen):
    global bad
    if not fine:
        print("FAIL:", what, *seen)
        bad += 1
def case(name):
    return json.load(open(name + ".json"))["runs"][0]["repetitions"][0]["cases"][0]
def metrics(name):
    return {m["name"]: m["value"] for m in case(name)["metrics"]}
def facts(name):
    return {k: int(v) for k, v in case(name)["facts"].items() if v.isdigit()}
def spans(name):
    return [e for e in json.load(open(name + ".trace"))["traceEvents"] if e["ph"] == "X"]
def by_step(events, *names):
    found = collections.defaultdict(list)
    for e in events:
        found[e["pid"], e["args"]["iteration"]].append(tuple(e.get(n, e["args"].get(n)) for n in names))
    return {step: sorted(all, key=str) for step, all in found.items()}
PARTS = "forward", "backward", "optimizer", "exposed_comm", "comm", "other", "step"

def check_step(name):
    f, m = facts(name), metrics(name)
    check(name + ": dropped", f["capture_dropped"] == 0)
    communication = [e for e in spans(name) if e["cat"] == "communication"]
    steps = by_step([e for e in communication if e["name"] == "all_reduce"], "unit", "axis", "phase", "bytes")
    check(name + ": six steps of two ranks", len(steps) == 12, sorted(steps))
    check(name + ": several buckets", f["buckets"] > 2)
    for step, all in steps.items():
        check(name + ": each bucket once", [s[0] for s in all] == sorted(range(f["buckets"]), key=str), step, all)
        check(name + ": axis dp, phase backward", {s[1:3] for s in all} == {(1, "backward")}, step, all)
        check(name + ": bytes", sum(s[3] for s in all) == m["comm_volume"], step, all)
    check(name + ": all communication on axis dp", {e["args"]["axis"] for e in communication} == {1})
    for part in PARTS:
        check(name + ": " + part, m[part] is not None and (m[part] > 0 or part == "exposed_comm"), m[part])

check_step("enqueued")
check_step("graph")
check_step("one_by_one")
check("no graph", facts("enqueued")["captured_graph_nodes"] == 0)
f = facts("graph")
check("all of it from the graph", f["captured_graph_nodes"] == f["captured_kernels"] + f["captured_copies"], f)
check("every node is known", f["capture_unknown_nodes"] == 0, f)

# Piece by piece: work of a rank's step, wherever it was launched from.
WORK = "compute", "communication", "optimizer", "copy"
def work(name):
    all = by_step([e for e in spans(name) if e["cat"] in WORK], "cat", "name", "tid", "phase", "unit", "axis", "bytes")
    ranks = {}
    for (rank, step), pieces in all.items():
        check(name + ": the same in each step", ranks.setdefault(rank, pieces) == pieces, rank, step)
    return ranks
enqueued, graph = work("enqueued"), work("graph")
check("work", len(enqueued) == 2 and len(enqueued[0]) > 50, enqueued)
for rank in enqueued:
    check("what the graph ran", enqueued[rank] == graph.get(rank),
          set(enqueued[rank]) ^ set(graph.get(rank, [])))

# What NCCL did inside of the buckets' operations.
inside = [e for e in spans("enqueued") if e["cat"] == "inside"]
check("NCCL's inside", len(inside) > 50, len(inside))
check("its operations", {(e["args"]["axis"], e["args"]["phase"]) for e in inside} == {(1, "backward")},
      {(e["name"], e["args"]["axis"], e["args"]["phase"]) for e in inside})
mine = {(e["pid"], e["args"]["iteration"], e["args"]["unit"]) for e in spans("enqueued") if e["cat"] == "communication"}
theirs = {(e["pid"], e["args"]["iteration"], e["args"]["unit"]) for e in inside}
check("they are operations of the step", theirs <= mine, theirs - mine)
check("each of them", len(theirs) >= 12 * facts("enqueued")["buckets"], len(theirs))

# Unknown is missing.
for name in "blind", "room", "busy", "refused", "first_refused":
    m = metrics(name)
    for part in PARTS:
        check(name + ": " + part + " is unknown", m.get(part) is None, m.get(part))
    check(name + ": the steps are timed", m["tokens_per_s"] > 0 and m["loss_last"] < m["loss_first"])
check("nodes of nobody", facts("blind")["capture_unknown_nodes"] > 50)
check("dropped records", facts("room")["capture_dropped"] > 100)
sys.exit(bad > 0)
PYTHON
python3 check.py || fail "what was recorded is not what must be"
finish
