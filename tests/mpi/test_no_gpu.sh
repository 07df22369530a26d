# Without a GPU: what a build for GPUs, and one without GPU back-ends, say to somebody who asks for one.
# ctest: waits 3
. "$PTB_SOURCE/tests/mpi/run_common.sh"
built=$("$PTBENCH" version | awk '$1 == "gpu" { print $2 }')
case $built in
off)
    try 2 "$PTBENCH" run step --np 1 --device cuda --db none.db
    has err "built with the device host alone"
    has err "-DPTB_GPU=cuda"
    try 3 "$PTBENCH" run gpu-quick --np 2 --db none.db
    has err "needs gpu; no GPU can be used here"
    ;;
cuda)
    if [ -e /dev/nvidia0 ]; then
        echo "skipped: this machine has a GPU"
        exit 77
    fi
    timeout 300 "$PTBENCH" doctor >out 2>err
    has out "gpu"
    grep -i 'gpu' out | grep -qi 'driver' || { fail "doctor does not say why:"; cat out; }
    try 3 "$PTBENCH" run step --np 1 --device cuda --layers 1 --hidden 64 --heads 1 --db none.db
    has err "driver"
    try 3 "$PTBENCH" run gpu-quick --np 2 --db none.db
    has err "needs gpu; no GPU can be used here"
    # The host's half works as ever.
    try 0 "$PTBENCH" run all_reduce --np 2 --comm host --algo direct --bytes 64 --place out -n 3 --db host.db
    has err "(0 wrong)"
    ;;
*) echo "skipped: simulated GPUs are always there"; exit 77 ;;
esac
finish
