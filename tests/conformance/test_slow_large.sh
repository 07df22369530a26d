#!/bin/bash
# More than 2^31 elements (i8) on 2 ranks for mpi and host: the MPI library counts in int, so such calls are cut, and that is
# recorded. Needs about 14 GiB.
set -u
command -v mpirun >/dev/null || { echo "no mpirun"; exit 77; }
have=$(awk '/MemAvailable/ { print int($2 / 1048576) }' /proc/meminfo)
[ "$have" -ge 16 ] || { echo "needs 16 GiB of free memory, there are $have"; exit 77; }
code=0
for backend in mpi host; do
    timeout 1700 mpirun --allow-run-as-root --oversubscribe -np 2 --mca mpi_yield_when_idle 1 \
        "$PTB_TESTBIN/conformance_helper_large" $backend 2147483663 || code=1
done
exit $code
