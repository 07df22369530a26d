#!/bin/sh
# The runner against a bare MPI loop over the same buffers, 2 ranks, as ratios with their spread over rounds.
# usage: tests/bench/runner_vs_bare.sh [BUILD_FOLDER] [ROUNDS]   (on a machine that does nothing else)
build=${1:-build}
root=
[ "$(id -u)" -ne 0 ] || root=--allow-run-as-root
exec mpirun $root -n 2 --bind-to core -x MALLOC_MMAP_MAX_=0 -x MALLOC_TRIM_THRESHOLD_=8589934592 \
    -x MALLOC_TOP_PAD_=268435456 -x GLIBC_TUNABLES=glibc.malloc.hugetlb=1 \
    "$build/tests/bench_helper_runner_vs_bare" "${2:-11}"
