#!/bin/sh
# Step rate against the best matrix product of the same type on the same threads, interleaved in one process:
# tests/bench/step_rate.sh [BUILD_FOLDER]. Prints ratios with their spread, asserts nothing. Run on a quiet machine.
set -eu
build=$(cd "${1:-build}" && pwd)
run() {
    echo "== $*"
    OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 "$build/tests/bench_helper_step_rate" "$@"
}
run
run --threads 2
for threads in 1 2; do
    run --model gpt2-124m --sequence 64 --batch 4 --threads $threads
    run --model gpt2-124m --sequence 256 --batch 4 --threads $threads
    run --model gpt2-124m --sequence 256 --batch 4 --threads $threads --precision bf16
done
