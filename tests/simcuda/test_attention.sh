#!/bin/bash
# Attention on the simulated device, which has warp groups: the kernels for single warps, which other GPUs and
# dropout take, compute the same cases. Asking for kernels that there are not is refused.
set -u
failed=0
PTBENCH_CUDA_ATTENTION=mma PTB_TEST_DEVICE=cuda "$PTB_TESTBIN/unit_test_kernels_attention" || failed=1
out=$(mktemp)
PTBENCH_CUDA_ATTENTION=tma PTB_TEST_DEVICE=cuda "$PTB_TESTBIN/unit_test_kernels_attention" >"$out" 2>&1 && failed=1
grep -q "PTBENCH_CUDA_ATTENTION=tma: expected wgmma" "$out" || { head "$out"; failed=1; }

# Which kernels ran is stored: those of a step, and of a row of `kernels`.
folder=$(mktemp -d)
step=(step --np 1 --device cuda --layers 1 --hidden 128 --heads 2 --sequence 16 --vocab 64 --batch 2 -n 2 -w 1)
row=(kernels --np 1 --device cuda --model tiny --rows 64 --kernel attention,attention_gradient -n 2 -w 1)
stored() { # FACT VALUE CHOICE BENCH OPTION...
    local fact=$1 value=$2
    PTBENCH_CUDA_ATTENTION=$3 "$PTBENCH" run "${@:4}" --db "$folder/db" >"$out" 2>&1 &&
        "$PTBENCH" export last --db "$folder/db" --format json >"$out" && grep -q "\"$fact\": *\"$value\"" "$out" && return
    echo "no $fact $value after $*:"
    tail -40 "$out"
    failed=1
}
stored attention_kernels wgmma "" "${step[@]}" --precision bf16
stored attention_grad_kernels mma mma "${step[@]}" --precision bf16
stored attention_grad_kernels mma "" "${step[@]}" --precision bf16 --dropout 0.1
stored attention_kernels plain "" "${step[@]}"
stored attention_kernels wgmma "" "${row[@]}" --precision bf16
stored attention_kernels wgmma wgmma "${row[@]}" --precision bf16

# Where only warp groups are asked for and they cannot be had, nothing else takes their place.
refused() { # REASON OPTION...
    local code=0
    PTBENCH_CUDA_ATTENTION=wgmma "$PTBENCH" run "${@:2}" --db "$folder/refused" >"$out" 2>&1 || code=$?
    [ "$code" = 3 ] && grep -qF "PTBENCH_CUDA_ATTENTION=wgmma, but attention of" "$out" && grep -qF "$1" "$out" && return
    echo "exit code $code, or no '$1', after $*:"
    tail -40 "$out"
    failed=1
}
refused "they compute in bf16 and f16 alone" "${row[@]}"
refused "they have no dropout" "${step[@]}" --precision bf16 --dropout 0.1
refused "not whole pieces of 16 bytes" "${row[@]}" --precision bf16 --hidden 80
rm -rf "$out" "$folder"
exit $failed
