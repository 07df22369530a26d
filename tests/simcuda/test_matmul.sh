#!/bin/bash
# Linear layers on the simulated device: with all that cuBLASLt fuses, without fused GELU and bias gradients,
# and without cuBLASLt, where ptbench's own kernel makes all products.
set -u
failed=0
for settings in "" lt_plain=1 lt_none=1; do
    echo "PTB_SIM=$settings"
    PTB_TEST_DEVICE=cuda PTB_SIM=$settings "$PTB_TESTBIN/unit_test_kernels_matmul" || failed=1
done
echo "algorithms chosen by time"
PTBENCH_CUBLASLT_SEARCH=time PTB_TEST_DEVICE=cuda "$PTB_TESTBIN/unit_test_kernels_matmul" || failed=1
out=$(mktemp)
PTBENCH_CUBLASLT_SEARCH=best PTB_TEST_DEVICE=cuda "$PTB_TESTBIN/unit_test_kernels_matmul" >"$out" 2>&1 && failed=1
grep -q "PTBENCH_CUBLASLT_SEARCH=best: expected time" "$out" || failed=1
rm -f "$out"
exit $failed
