#!/bin/bash
# Conformance of the communicator nccl on simulated GPUs: one start of 8 processes sweeps worlds of 1 to 8 ranks.
# ctest: spins
set -u
command -v mpirun >/dev/null || { echo "no mpirun"; exit 77; }
export PMIX_MCA_gds=hash PTB_TEST_DEVICE=cuda PTB_SIM=${PTB_SIM:-devices=8}
timeout 540 mpirun --allow-run-as-root --oversubscribe -np 8 --mca mpi_yield_when_idle 1 \
    "$PTB_TESTBIN/conformance_helper_conformance" nccl
code=$?
[ $code -eq 0 ] || echo "conformance: exit $code"
exit $code
