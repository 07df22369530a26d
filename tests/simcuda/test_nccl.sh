#!/bin/bash
# The communicator nccl on the simulated device: what it refuses, buffers, parts of the world, and faults. The scenarios
# are in helper_nccl.c.
# ctest: spins
helper=$PTB_TESTBIN/simcuda_helper_nccl
. "$PTB_SOURCE/tests/simcuda/nccl_scenario.sh"

scenario 4 refused ""
# What older libraries lack is done another way, or refused by name.
scenario 2 older ""
for version in 22304 22705; do scenario 2 older "nccl_version=$version"; done
scenario 2 older "nccl_version=21903" "NCCL 2.19.3 cannot run nvls for this all_reduce here"
scenario 2 gpu_direct "" "NCCL reads NCCL_NET_GDR_LEVEL once a process"
scenario 2 buffers ""
scenario 2 buffers "nccl_symmetric=0"
for version in 22606 22707 22907 23007; do
    scenario 2 buffers "nccl_version=$version"
    scenario 2 buffers "nccl_version=$version,nccl_symmetric=0"
done
scenario 3 windows ""
scenario 2 windows "nccl_version=23007"
scenario 2 misplaced_all_reduce "" "send buffer of ncclAllReduce lies in window 1 at 4096 on rank 0, in window 1 at 8192 on rank 1"
scenario 2 misplaced_all_gather "" "receive buffer of ncclAllGather lies in window 2 at 8192 on rank 0, in window 2 at 12288 on"
scenario 2 misplaced_reduce_scatter "" "send buffer of ncclReduceScatter lies in window 1 at 4096 on rank 0, in window 1 at 8192"
scenario 2 unequal_windows "" "mismatched windows: of window 3 rank 0 registered 4096 bytes, rank 1 8192"
scenario 5 split ""
scenario 1 split ""
scenario 2 host_stream "" "this stream is of the device host"
scenario 3 lost "ncclerr=2" "remote process has closed the connection"
scenario 3 lost "nccl_hang=2" "all_reduce of 4096 f32, this rank's call 2, did not end within 1 s"
scenario 4 lost "nccl_hang=2" \
    "is aborted; all 4 ranks came to call 2, all_reduce of 4096 f32, of communicator nccl: a GPU, a link or the network hangs"
scenario 4 missing "" "is aborted; 1 of 4 ranks did not come to call 2, all_reduce of 4096 f32, of communicator nccl: rank 2 (host"
grep -q "GPU 0000:3a:00) has come to call 1, all_reduce of 4096 f32" "$log" || { echo "FAIL: missing:"; cat "$log"; failures=1; }
grep -qE "rank [0-3] says which ranks are missing" "$log" || { echo "FAIL: missing, said by all:"; cat "$log"; failures=1; }
scenario 2 queued "nccl_hang=2,delay=500" "did not end within 1 s"
scenario 2 dead "dead_link=0-1" "all 2 ranks came to call 1"
scenario 3 mismatch "" \
    "rank 0 called ncclAllReduce of 16 ncclFloat32, sum, rank 1 called ncclAllReduce of 17 ncclFloat32, sum"
scenario 2 messages "" \
    "rank 0 called ncclSend of 8 ncclFloat32 to rank 1, which called ncclRecv of 4 ncclFloat32 from it"
scenario 2 late "late_rank=1" \
    "NCCL's communicator was not made within 0.3 s: all 2 ranks came to open communicator nccl, and got no further"
[ "$failures" = 0 ] || { echo "$failures checks failed"; exit 1; }
