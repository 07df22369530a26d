#!/bin/sh
# Row, elementwise, loss and optimizer kernels of the host against the memory and the arithmetic of the machine, on one
# and on two threads: tests/bench/rows.sh [BUILD_FOLDER] [KERNEL]. Prints ratios with their spread, asserts nothing.
# Run on a quiet machine with 4 GB of free memory.
set -eu
build=$(cd "${1:-build}" && pwd)
for threads in 1 2; do
    "$build/tests/bench_helper_kernels_rows" $threads ${2:+"$2"}
done
