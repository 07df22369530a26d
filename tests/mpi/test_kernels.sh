#!/bin/bash
# `ptbench run kernels` on two ranks: right results, a limit for each kernel, the farthest from it first in the tables;
# what a model does not call is skipped by name.
. "$PTB_SOURCE/tests/mpi/run_common.sh"
# Small, but so large that no kernel is as short as a step of a coarse clock.
small=(--model tiny --hidden 64 --heads 4 --rows 512 --sequence 32 --max-time 20ms)

try 0 "$PTBENCH" run kernels --np 2 "${small[@]}" --kernel norm,add,adamw,matmul,attention --precision f32,bf16
has err "(0 wrong)"
has_not err "WRONG"
try 0 "$PTBENCH" show --width 200
has out "kernels of tiny with hidden 64, heads 4, sequence 32, 512 rows, 1 thread on each of 2 ranks"
# Before the state stand the share of the limit and that of the fastest sample; products have theirs in GFLOP/s, the others in GB/s.
awk '/^kernel +layer/ { inside = 1; next } inside && !NF { exit }
     inside && $NF == "ok" { rows++; if ($(NF - 2) + 0 < last) bad = "not in order: " $0; last = $(NF - 2) + 0
                             wanted = $1 ~ /^(matmul|attention)/ ? "GFLOP/s" : "GB/s"
                             if ($(NF - 3) != wanted) bad = "unit: " $0; if ($(NF - 2) !~ /^[0-9.]+$/ || !($(NF - 1) + 0 > 0 && $(NF - 1) + 0 >= last)) bad = "no share: " $0 }
     END { if (bad != "" || rows != 18) { print rows " rows; " bad; exit 1 } }' out >wrong ||
    { fail "$(cat wrong)"; cat out; }
try 0 "$PTBENCH" report last --output page
has page/index.html "Each kernel alone, farthest from its limit first"

# Threads of a rank are not bound to one core.
try 0 "$PTBENCH" run kernels --np 1 "${small[@]}" --kernel add --threads 2
try 0 "$PTBENCH" show
has out "bind-to none"
try 0 "$PTBENCH" run kernels --np 1 "${small[@]}" --kernel route,add
has err "skipped: the model has no experts"
try 2 "$PTBENCH" run kernels --np 1 --model tiny --rows 65
has err "--rows 65 are not whole sequences of 64"
try 2 "$PTBENCH" run kernels --np 1 --kernel normm
has err "did you mean 'norm'"
finish
