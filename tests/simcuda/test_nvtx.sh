#!/bin/bash
# What a tool that listens to NVTX (Nsight Systems) is told: the work of a step by its name, phase, axis and unit, whether or not
# CUPTI can be had; each collective by its name and bytes; every range ends, and in order where ranges nest.
# ctest: waits 15
. "$PTB_SOURCE/tests/mpi/run_common.sh"
export PTB_SIM=devices=8 NVTX_INJECTION64_PATH=$PTB_TESTBIN/nvtx_listener.so
[ -z "${PTB_SANITIZE:-}" ] || export ASAN_OPTIONS=detect_leaks=0
step=(run step --device cuda --np 2 --layers 1 --hidden 32 --heads 2 --sequence 16 --vocab 64 --batch 4 --bucket 16K --peak 1e11
    -n 2 -w 1 --max-time 100ms --share-gpu --db runs.db)
# listen NAME PROGRAM...: what the ranks' processes were heard to say is in NAME
listen() {
    local name=$1
    shift
    PTB_NVTX_HEARD=$folder/said try 0 "$@"
    has err "1 case measured (0 wrong)"
    cat said.* >"$name"
    rm said.*
}
listen step "$PTBENCH" "${step[@]}"
has step " all_reduce backward dp unit 0"
has step " all_reduce backward dp unit 1"
has step " block.forward forward unit 1"
has step " block.backward backward unit 1"
grep -q "^push all_reduce 16384 bytes$" step || fail "a bucket has no range of its own"
PTB_SIM=devices=8,cupti_busy=1 listen busy "$PTBENCH" "${step[@]}"
has busy " all_reduce backward dp unit 0"
listen micro "$PTBENCH" "${step[@]}" --micro-batches 2
has micro " block.forward forward unit 1 microbatch 1"
listen graph "$PTBENCH" "${step[@]}" --graph
grep -q "^start [0-9]* graph$" graph || fail "a graph's launch has no range"
listen collective "$PTBENCH" run all_gather --np 2 --comm nccl --bytes 4K -n 6 -w 1 --place out --share-gpu --db runs.db
grep -q "^push all_gather 4096 bytes$" collective || fail "a collective has no range"
for name in step busy micro graph collective; do
    awk '$1 == "start" { open++ } $1 == "end" { open-- } $1 == "push" { depth++ } $1 == "pop" && --depth < 0 { bad = 1 }
         END { exit open || depth || bad }' $name || fail "$name: a range that never ends, or ends twice"
done
finish
