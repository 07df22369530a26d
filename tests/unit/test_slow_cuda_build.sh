# The program for real GPUs, its device code optimised as users build it. Slow: nvcc takes some 9 minutes of a core for it,
# and `sh bootstrap.sh test` builds the same sources with few optimisations, since no GPU runs them there.
set -u
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
for cuda in "${CUDA_HOME:-}" /usr/local/cuda /opt/cuda; do
    [ -n "$cuda" ] && [ -x "$cuda/bin/nvcc" ] && break
    cuda=
done
[ -n "$cuda" ] || { echo "skipped: no nvcc in CUDA_HOME, /usr/local/cuda or /opt/cuda"; exit 77; }
cmake -S "$PTB_SOURCE" -B "$folder" -DCMAKE_BUILD_TYPE=Release -DPTB_TESTS=OFF -DPTB_GPU=cuda >"$folder/log" 2>&1 &&
    cmake --build "$folder" --target ptbench -j "$(nproc)" >"$folder/log" 2>&1 || { tail -40 "$folder/log"; exit 1; }
"$folder/ptbench" version || exit 1
"$folder/ptbench" version | grep -q "Ofc" && { echo "the device code is not optimised"; exit 1; }
exit 0
