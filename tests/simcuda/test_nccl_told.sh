#!/bin/bash
# What NCCL runs for what is asked, and its inside, as each of its versions tells a profiler plug-in: the interfaces 1 (2.23)
# to 6 (2.29 and later), and none before. The scenarios are in helper_nccl_told.c.
# ctest: spins
helper=$PTB_TESTBIN/simcuda_helper_nccl_told
. "$PTB_SOURCE/tests/simcuda/nccl_scenario.sh"

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
