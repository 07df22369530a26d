#!/bin/bash
# Conformance of the communicators mpi and host: one start of 8 processes sweeps worlds of 1 to 8 ranks (under
# sanitizers some of them: is_swept in conformance.h).
# ctest: spins
set -u
command -v mpirun >/dev/null || { echo "no mpirun"; exit 77; }
export PMIX_MCA_gds=hash
timeout 540 mpirun --allow-run-as-root --oversubscribe -np 8 --mca mpi_yield_when_idle 1 \
    "$PTB_TESTBIN/conformance_helper_conformance" mpi,host
code=$?
[ $code -eq 0 ] || echo "conformance: exit $code"
exit $code
