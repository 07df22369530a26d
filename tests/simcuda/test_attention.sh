#!/bin/bash
# Attention on the simulated device, which has warp groups: the kernels for single warps, which other GPUs and
# dropout take, compute the same cases. Asking for kernels that there are not is refused.
set -u
failed=0
PTBENCH_CUDA_ATTENTION=mma PTB_TEST_DEVICE=cuda "$PTB_TESTBIN/unit_test_kernels_attention" || failed=1
out=$(mktemp)
PTBENCH_CUDA_ATTENTION=tma PTB_TEST_DEVICE=cuda "$PTB_TESTBIN/unit_test_kernels_attention" >"$out" 2>&1 && failed=1
grep -q "PTBENCH_CUDA_ATTENTION=tma: expected wgmma" "$out" || { head "$out"; failed=1; }
rm -f "$out"
exit $failed
