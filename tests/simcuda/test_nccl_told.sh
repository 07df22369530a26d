#!/bin/bash
# What NCCL runs for what is asked, and its inside, as each of its versions tells a profiler plug-in: the interfaces 1 (2.23)
# to 6 (2.29 and later), and none before. The scenarios are in helper_nccl_told.c.
# ctest: spins
set -u
command -v mpirun >/dev/null || { echo "no mpirun"; exit 77; }
export PMIX_MCA_gds=hash
failures=0
log=$(mktemp)
trap 'rm -f "$log"' EXIT

# scenario RANKS NAME SETTINGS [MESSAGE]: ends well, and says MESSAGE.
scenario() {
    local code=0
    PTB_SIM="devices=8${3:+,$3}" timeout 100 mpirun --allow-run-as-root --oversubscribe -np "$1" --mca mpi_yield_when_idle 1 \
        "$PTB_TESTBIN/simcuda_helper_nccl_told" "$2" >"$log" 2>&1 || code=$?
    if [ $code != 0 ] || { [ -n "${4:-}" ] && ! grep -qF -- "$4" "$log"; }; then
        echo "FAIL: $2 on $1 ranks with '$3': exit $code${4:+, and is to say '$4'}"
        sed 's/^/    /' "$log" | head -30
        failures=$((failures + 1))
    fi
}

scenario 4 choices "nccl_version=22809" "NCCL has no algorithm 'rign'; did you mean 'ring'"
for version in 22304 22403 22606 22707 22809 23007; do # interfaces 1 to 6
    scenario 2 choices "nccl_version=$version"
    scenario 2 several "nccl_version=$version"
    scenario 2 exchange "nccl_version=$version"
    scenario 2 untold "nccl_version=$version,nccl_kernel=1"
    scenario 2 spans "nccl_version=$version,nccl_pxn=1"
done
scenario 2 untold "nccl_version=22304,nccl_number=9"
scenario 2 untold "nccl_version=22809,nccl_kernel=2"
scenario 2 untold "nccl_version=22907,nccl_kernel=2"
scenario 2 unconfirmed "nccl_version=22205"
NCCL_PROFILER_PLUGIN=none scenario 2 unconfirmed ""
scenario 3 spans "nccl_version=22809,slow_rank=1:2000"
scenario 2 slow_proxies "nccl_version=22809,nccl_slow_proxy=300"
[ "$failures" = 0 ] || { echo "$failures checks failed"; exit 1; }
