# Shared by the tests of the communicator nccl: scenarios of $helper, a program of several ranks, on simulated GPUs.
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
        "$helper" "$2" >"$log" 2>&1 || code=$?
    if [ $code != 0 ] || { [ -n "${4:-}" ] && ! grep -qF -- "$4" "$log"; }; then
        echo "FAIL: $2 on $1 ranks with '$3': exit $code${4:+, and is to say '$4'}"
        sed 's/^/    /' "$log" | head -30
        failures=$((failures + 1))
    fi
}
