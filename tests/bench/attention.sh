#!/bin/sh
# Rates of attention on the host against the processor's peak of fused multiply-adds, interleaved in one process, on 1
# thread and on all: tests/bench/attention.sh [BUILD_FOLDER]. Prints ratios with their spread, asserts nothing. Run on
# a quiet machine. HELPER_ROUNDS: rounds; HELPER_SHAPE: only shapes whose name contains this.
set -eu
build=$(cd "${1:-build}" && pwd)
for threads in 1 $(nproc); do
    "$build/tests/bench_helper_attention" "$threads"
done
