#!/bin/sh
# Matrix products of GPT-2 124M's linear layers, the host kernels beside oneDNN, OpenBLAS and BLIS, in turn in one
# process: tests/bench/matmul.sh [BUILD_FOLDER [THREADS ...]]. Prints rates and ratios with their spread, asserts nothing.
# Run on a quiet machine. OpenBLAS and BLIS are compared where their OpenMP builds are installed (Debian:
# libopenblas0-openmp, libblis4-openmp) or where HELPER_OPENBLAS and HELPER_BLIS say.
set -eu
build=$(cd "${1:-build}" && pwd)
[ $# -eq 0 ] || shift
first_of() {
    for path in "$@"; do
        [ ! -e "$path" ] || { echo "$path"; return; }
    done
}
: "${HELPER_OPENBLAS=$(first_of /usr/lib/*/openblas-openmp/libopenblas.so.0 /usr/lib64/libopenblaso.so.0)}"
: "${HELPER_BLIS=$(first_of /usr/lib/*/blis-openmp/libblis.so.4 /usr/lib64/libbliso.so.4)}"
export HELPER_OPENBLAS HELPER_BLIS
# A kernel type forced on OpenBLAS would be compared in place of its choice. BLIS 0.9 does not know newer processors
# with AVX-512 and takes plain C for them; its kernels for Skylake serve those.
unset OPENBLAS_CORETYPE
if [ -z "${BLIS_ARCH_TYPE:-}" ] && grep -q avx512f /proc/cpuinfo; then
    export BLIS_ARCH_TYPE=skx
fi
for threads in "${@:-1 2}"; do
    for count in $threads; do
        for rows in 256 1024; do
            OMP_NUM_THREADS=$count OPENBLAS_NUM_THREADS=$count BLIS_NUM_THREADS=$count \
                "$build/tests/bench_helper_matmul" "$count" "$rows"
        done
    done
done
