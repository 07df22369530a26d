#!/bin/bash
# `ptbench run` with the communicator nccl on simulated GPUs: devices and communicators that go together, what the tables
# say of what ran, graphs, and the outcome of a failing NCCL.
. "$PTB_SOURCE/tests/mpi/run_common.sh"
export PTB_SIM=devices=8,nccl_version=22809 # not every version tells what it ran
db=(--db "$folder/runs.db")
short=(-n 6 -w 1 --place out --share-gpu)

try 0 "$PTBENCH" run all_reduce --np 2 --comm mpi,host,nccl --bytes 4K "${short[@]}" "${db[@]}"
has err "comm=nccl place=out bytes=4K ranks=2"
has err "3 cases measured (0 wrong), 0 skipped"
try 0 "$PTBENCH" show last "${db[@]}"
has out "[SIMULATED DEVICE]"
has out "used a SIMULATED device"

# A device that is named takes the communicators that move its memory; the others are skipped with the reason.
try 0 "$PTBENCH" run broadcast --np 2 --device cuda --bytes 4K "${short[@]}" "${db[@]}"
has err "1 case measured (0 wrong), 0 skipped"
try 0 "$PTBENCH" run all_reduce --np 2 --device cuda --comm mpi,host,nccl --bytes 4K "${short[@]}" "${db[@]}"
has err "is not CUDA-aware, so it cannot move memory of the device cuda"
has err "communicator host moves memory of the device host, not of cuda"
has err "1 case measured (0 wrong), 2 skipped"

# What ran where something else was asked.
try 0 "$PTBENCH" run all_reduce --np 4 --comm nccl --algo ring/ll,nvls_tree --channels 3 --bytes 64K "${short[@]}" "${db[@]}"
try 0 "$PTBENCH" show last "${db[@]}"
has out "asked nvls_tree, ran nvls/simple"
has_not out "asked ring/ll"
try 0 "$PTBENCH" run all_to_all --np 2 --comm nccl --place in --bytes 64K -n 6 -w 1 --share-gpu --comm nccl,host "${db[@]}"
has err "NCCL exchanges with sends and receives"

for bench in all_gather reduce_scatter reduce all_to_all all_to_all_v gather scatter barrier sendrecv; do
    options=(--bytes 4K)
    [ $bench = barrier ] && options=()
    try 0 "$PTBENCH" run $bench --np 3 --comm nccl "${options[@]}" -n 6 -w 1 --share-gpu "${db[@]}"
    has err "(0 wrong)"
done
try 0 "$PTBENCH" run all_reduce --np 2 --comm nccl --count 1000,0,7 -m 3 -z --no-register -u 1 "${short[@]}" "${db[@]}"
has err "3 cases measured (0 wrong)"
for bench in all_reduce all_gather all_to_all; do # replayed while work begins late, which shows what is not ordered
    PTB_SIM=devices=8,delay=100 try 0 "$PTBENCH" run $bench --np 3 --comm nccl -G -m 2 --count 4000,7 "${short[@]}" "${db[@]}"
    has err "graph=yes"
    has err "2 cases measured (0 wrong)"
done
try 3 "$PTBENCH" run all_reduce --np 2 --comm host,nccl -G --bytes 4K "${short[@]}" "${db[@]}"
has err "--graph needs a GPU stream capture, and device 'host' has none"
try 2 "$PTBENCH" run all_reduce --np 2 --comm nccl --algo rign --bytes 4K "${short[@]}" "${db[@]}"
has err "no chosen communicator has an algorithm 'rign'"

# Kernels on windows take one place for all ranks, so large buffers begin alike; where an algorithm is forced it is what runs.
for bench in all_reduce all_gather reduce_scatter; do
    try 0 "$PTBENCH" run $bench --np 3 --comm nccl --algo default,ring,symmetric --bytes 6M -n 2 -w 1 --share-gpu --db windows.db
    has err "6 cases measured (0 wrong), 0 skipped"
    try 0 "$PTBENCH" export last --db windows.db
    [ "$(grep -c '"algorithm": "symmetric"' out)" = 4 ] || fail "$bench: not four symmetric"
    [ "$(grep -c '"algorithm_from": "concluded' out)" = 4 ] || fail "$bench: not four concluded"
    [ "$(grep -c '"algorithm": "ring"' out)" = 2 ] || fail "$bench: not two rings"
    [ "$(grep -c '"buffers": "symmetric window"' out)" = 4 ] || fail "$bench: not four on windows"
    [ "$(grep -c '"buffers": "registered"' out)" = 2 ] || fail "$bench: not two registered"
done
try 0 "$PTBENCH" run all_reduce --np 2 --comm nccl --algo symmetric --no-register --bytes 4K "${short[@]}" "${db[@]}"
try 0 "$PTBENCH" show last "${db[@]}"
has out "asked symmetric, ran ring/ll"
try 3 "$PTBENCH" run all_reduce --np 2 --comm nccl --algo symmetric -d i32 --bytes 4K "${short[@]}" "${db[@]}"
has err "symmetric kernels have sums of f32, f16 and bf16"

# Events of NCCL's inside that end long after the step are counted and said; the breakdown does not need them.
PTB_SIM=devices=8,nccl_version=22809,nccl_slow_proxy=300 try 0 "$PTBENCH" run step --device cuda --np 2 --layers 1 --hidden 64 --heads 2 \
    --sequence 32 --vocab 256 --max-time 100ms --share-gpu "${db[@]}"
has err "events of NCCL's inside: 0 did not fit, "
try 0 "$PTBENCH" export last "${db[@]}"
has_not out '"capture_nccl_late": "0"'
has out '"capture_nccl_dropped": "0"'
has out '"capture_dropped": "0"'
# Two ranks on one GPU, which ptbench allows when asked, and this NCCL does not.
PTB_SIM=devices=1,nccl_version=22809 try 3 "$PTBENCH" run all_reduce --np 2 --comm nccl --bytes 4K "${short[@]}" "${db[@]}"
has err "ranks 0 and 1 are on one GPU"
has err "which NCCL does not take"
PTB_SIM=devices=1 try 0 "$PTBENCH" run all_reduce --np 1 --comm nccl --bytes 4K "${short[@]}" "${db[@]}"
has err "1 case measured (0 wrong)"

# NCCL fails: what was measured before is kept.
export PTB_SIM=devices=8,ncclerr=12
try 5 "$PTBENCH" run all_reduce --np 2 --comm nccl --bytes 4K,8K,16K "${short[@]}" "${db[@]}"
has err "remote process exited or there was a network error"
has err "To run only what is missing"
finish
