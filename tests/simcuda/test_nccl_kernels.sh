#!/bin/bash
# Whether NCCL ran a kernel on symmetric windows, by the kernel's name, which CUPTI tells of recorded steps and the driver of
# captured graphs: confirmed, refuted (windows there were, and NCCL told of the call and of no kernel, but another ran), and
# concluded as ever where nobody tells the name. Such kernels are communication of their axis.
# ctest: waits 60
. "$PTB_SOURCE/tests/mpi/run_common.sh"
"$PTBENCH" version | awk '$1 == "nccl" { split($2, v, "."); exit !(v[1] > 2 || v[2] >= 27) }' ||
    { echo "skipped: built with the header of an NCCL without windows"; exit 77; }
step=(step --device cuda --layers 1 --hidden 32 --heads 2 --sequence 16 --vocab 64 --batch 4 --seed 3 --peak 1e11)
graph=(--comm nccl -G --bytes 64K --place out)

# case_of NAME SETTINGS BENCH OPTION...: NAME.json has the case.
case_of() {
    local name=$1 settings=$2
    shift 2
    PTB_SIM=devices=8,$settings try 0 "$PTBENCH" run "$@" --np 2 --share-gpu -n 3 -w 2 --db runs.db --json "$name.json"
    has err "1 case measured (0 wrong), 0 skipped, 0 failed"
}
for version in 22707 22809 22907 23007; do
    case_of step_$version nccl_version=$version "${step[@]}"
    case_of graph_$version nccl_version=$version all_gather "${graph[@]}"
done
case_of fsdp nccl_version=22809 "${step[@]}" --strategy fsdp
case_of step_graph nccl_version=22809 "${step[@]}" --graph --trace
try 0 "$PTBENCH" export last --format perfetto --output step_graph.trace --db runs.db
case_of reduced nccl_version=22809 all_reduce "${graph[@]}" -m 3
case_of ring nccl_version=22809 all_reduce "${graph[@]}" --algo ring

# Windows, on which no kernels of their own run: NCCL tells it, or it does not.
untold=nccl_version=22809,nccl_symmetric=2,nccl_kernel=1
case_of told nccl_version=22809,nccl_symmetric=2 all_reduce "${graph[@]}" --algo symmetric
case_of step_refuted $untold "${step[@]}"
case_of graph_refuted $untold all_reduce "${graph[@]}"
case_of asked $untold all_reduce "${graph[@]}" --algo symmetric
try 0 "$PTBENCH" show last --db runs.db
has out "asked symmetric, ran another, by its kernel's name"
case_of older nccl_version=22707,nccl_symmetric=2,nccl_kernel=1 all_reduce "${graph[@]}" --algo symmetric

# Nobody tells the name.
case_of refused nccl_version=22809,cupti_refuse=10,cupti_error=35 "${step[@]}" # kernels
case_of dropped nccl_version=22809,cupti_room=50 "${step[@]}"
case_of no_driver nccl_version=22809,no_library=libcuda all_reduce "${graph[@]}"
case_of no_names nccl_version=22707,no_function=cuFuncGetName all_reduce "${graph[@]}" --algo symmetric
case_of enqueued nccl_version=22809 all_reduce --comm nccl --bytes 64K --place out

cat >check.py <<'PYTHON'
import json, sys
bad = 0
def check(name, **wanted):
    global bad
    facts = json.load(open(name + ".json"))["runs"][0]["repetitions"][0]["cases"][0]["facts"]
    for fact, value in wanted.items():
        is_as_wanted = fact not in facts if value is None else facts.get(fact) == value
        if not is_as_wanted:
            print(f"FAIL: {name}: {fact} is {facts.get(fact)!r}, not {value!r}")
            bad += 1
STEPS, GRAPH = "kernel name (recorded steps): ", "kernel name (captured graph): "
AR, AG, RS = "AllReduce_RSxLDMC_AGxSTMC_sum_f32", "AllGather_STMC", "ReduceScatter_LDMC_sum_f32"
for version in 22707, 22809, 22907, 23007:
    family = "ncclSymDevKernel_" if version < 22800 else "ncclSymkDevKernel_"
    check(f"step_{version}", algorithm="symmetric", algorithm_from=STEPS + family + AR, buffers="symmetric window", replaced=None)
    check(f"graph_{version}", algorithm="symmetric", algorithm_from=GRAPH + family + AG, buffers="symmetric window", replaced=None)
check("fsdp", algorithm="symmetric", algorithm_from=STEPS + "ncclSymkDevKernel_" + RS)
check("step_graph", algorithm="symmetric", algorithm_from=STEPS + "ncclSymkDevKernel_" + AR)
check("reduced", algorithm="symmetric", algorithm_from=GRAPH + "ncclSymkDevKernel_" + AR)
check("ring", algorithm="ring", algorithm_from=None, replaced=None)

OTHER, ORDINARY = "other (not symmetric, by its kernel's name)", "ncclDevKernel_AllReduce_Sum_f32_RING_LL"
check("told", algorithm="ring", algorithm_from=None, replaced="asked symmetric, ran ring/ll128")
check("step_refuted", algorithm=OTHER, algorithm_from=STEPS + ORDINARY, replaced=None, implied="unknown: algorithm " + OTHER)
check("graph_refuted", algorithm=OTHER, algorithm_from=GRAPH + ORDINARY, replaced=None)
for name in "asked", "older":
    check(name, algorithm=OTHER, algorithm_from=GRAPH + ORDINARY, replaced="asked symmetric, ran another, by its kernel's name")

concluded = "concluded: on windows, and NCCL told of the call, not of a kernel"
for name in "refused", "dropped", "no_driver", "enqueued":
    check(name, algorithm="symmetric", algorithm_from=concluded)
check("no_names", algorithm="symmetric (not confirmed: NCCL 2.27 tells nothing of kernels on windows)", algorithm_from=None)

spans = [e for e in json.load(open("step_graph.trace"))["traceEvents"] if e["ph"] == "X"]
communication = [e for e in spans if e["cat"] == "communication"]
buckets = [e for e in communication if e["name"] == "all_reduce"]
if len(buckets) < 6 or {e["args"]["axis"] for e in communication} != {1} or any("nccl" in e["name"] for e in spans):
    print("FAIL: kernels on windows are not the communication of axis 1:", len(buckets), {e["name"] for e in spans})
    bad += 1
sys.exit(bad > 0)
PYTHON
python3 check.py || fail "what names of kernels tell"
finish
