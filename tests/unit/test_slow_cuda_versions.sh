#!/bin/bash
# The program built with another CUDA toolkit than the machine's and another NCCL: PTB_OTHER_CUDA names the toolkit's folder
# (with bin/nvcc), PTB_OTHER_NCCL a folder with include/nccl.h and, to be found at run time, lib/libnccl.so.2 (a wheel
# nvidia-nccl-cu12 has it in nvidia/nccl). Then the simulated device under the same headers, and the tests of its libraries.
# Slow: some 20 minutes of a core.
set -u
cuda=${PTB_OTHER_CUDA:-} nccl=${PTB_OTHER_NCCL:-}
[ -n "$cuda" ] && [ -n "$nccl" ] ||
    { echo "skipped: PTB_OTHER_CUDA and PTB_OTHER_NCCL name no toolkit and no NCCL"; exit 77; }
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
fail() { echo "FAIL: $1"; [ ! -f "$folder/log" ] || tail -40 "$folder/log"; exit 1; }
# build KIND TARGET...: with both, in $folder/KIND.
build() {
    local kind=$1
    shift
    cmake -S "$PTB_SOURCE" -B "$folder/$kind" -DCMAKE_BUILD_TYPE=Release -DPTB_GPU="$kind" -DCUDAToolkit_ROOT="$cuda" \
        -DPTB_NCCL_INCLUDE="$nccl/include" -DPTB_DEBUG=-g1 >"$folder/log" 2>&1 &&
        cmake --build "$folder/$kind" --target "$@" -j "$(nproc)" >"$folder/log" 2>&1 || fail "PTB_GPU=$kind does not build"
    rm "$folder/log"
}
wanted_cuda=$("$cuda/bin/nvcc" --version | sed -n 's/.*release \([0-9.]*\),.*/\1/p')
wanted_nccl=$(awk '$2 ~ /^NCCL_(MAJOR|MINOR|PATCH)$/ { v = v sep $3; sep = "." } END { print v }' "$nccl/include/nccl.h")

build cuda ptbench
"$folder/cuda/ptbench" version | awk '$1 == "cuda" || $1 == "nccl" { print $2 }' | tr '\n' ' ' | tee "$folder/said"
[ "$(cat "$folder/said")" = "$wanted_cuda $wanted_nccl " ] || fail "built with these, not with $wanted_cuda and $wanted_nccl"
if [ -e "$nccl/lib/libnccl.so.2" ]; then
    LD_LIBRARY_PATH=$nccl/lib "$folder/cuda/ptbench" doctor >"$folder/log" 2>&1
    grep -E "^(ok|warning) +nccl +NCCL $wanted_nccl, " "$folder/log" || fail "doctor does not find that NCCL"
fi

build sim gpu_tests
(cd "$folder/sim" && ctest -R '^simcuda\.' -LE slow --output-on-failure -j "$((2 * $(nproc)))") >"$folder/log" 2>&1 ||
    fail "the simulated device under these headers"
grep -E "tests passed|Skipped" "$folder/log"
exit 0
