#!/bin/bash
# A machine that lacks one of NVIDIA's libraries, or has an older one: what needs it says which, where it was looked
# for and what to do; everything else works.
# ctest: waits 13
set -u
work=$(mktemp -d) && trap 'rm -rf "$work"' EXIT
failed=0
fail() {
    echo "FAIL: $*"
    sed 's/^/    /' "$work/out" "$work/err"
    failed=1
}
# attempt SETTINGS CODE COMMAND...: ptbench COMMAND ends with that exit code.
attempt() {
    local sim=$1 wanted=$2 code=0
    shift 2
    rm -f "$work"/x.db*
    PTB_SIM="devices=2,$sim" PTBENCH_DB="$work/x.db" timeout 100 "$PTBENCH" "$@" >"$work/out" 2>"$work/err" || code=$?
    [ "$code" = "$wanted" ] || fail "'$*' with $sim: exit code $code, wanted $wanted"
}
says() { grep -qF -- "$2" "$work/$1" || fail "nothing said of '$2'"; }
times() { [ "$(grep -cF -- "$3" "$work/$1")" = "$2" ] || fail "'$3' is not said $2 times"; }

coll=(-b 1K -e 1K -o sum -n 2 -w 1 --place out)
step=(step --device cuda --layers 1 --hidden 64 --heads 2 --sequence 32 --vocab 256 --max-time 100ms)

# NCCL
attempt no_library=libnccl 3 run all_reduce --comm nccl --np 2 "${coll[@]}"
times err 1 "NCCL (libnccl.so.2) is not on this machine; the communicator nccl needs it"
says err "LD_LIBRARY_PATH ("
says err "/usr/local/cuda"
says err "pip install nvidia-nccl-cu"
attempt no_library=libnccl 0 run all_reduce --comm host --np 2 "${coll[@]}"
says err "(0 wrong)"
attempt no_library=libnccl 3 run "${step[@]}" --np 2
says err "NCCL (libnccl.so.2) is not on this machine"
attempt no_library=libnccl 0 doctor
says out "NCCL (libnccl.so.2) is not on this machine"
attempt seed=1 0 doctor
says out ", SIMULATED, the program itself"

# An older NCCL
attempt no_function=ncclAlltoAll 0 run all_to_all --comm nccl --np 2 -b 1K -e 1K -n 2 -w 1 --place out
says err "(0 wrong)"
"$PTBENCH" export --db "$work/x.db" last >"$work/out"
says out "ncclSend and ncclRecv, grouped"
says out '"nccl_lacks": "ncclAlltoAll"'
attempt no_function=ncclCommWindow 0 run all_reduce --comm nccl -R --np 2 "${coll[@]}"
says err "(0 wrong)"
"$PTBENCH" export --db "$work/x.db" last >"$work/out"
says out '"buffers": "registered"'
attempt no_function=ncclCommWindow 0 doctor
says out "it lacks ncclCommWindowRegister, ncclCommWindowDeregister"
attempt nccl_version=22205 0 doctor
says out "NCCL 2.22.5"
says out "it cannot tell which algorithm ran (2.23 and later can)"
attempt nccl_version=22304 0 doctor
! grep -q "cannot tell which algorithm" "$work/out" || fail "2.23 can tell"
attempt no_function=ncclCommRegister 3 run all_reduce --comm nccl --np 2 "${coll[@]}"
says err "NCCL has no ncclCommRegister (the program itself): it is too old, 2.19 or later is needed"

# cuBLASLt
attempt no_library=libcublasLt 3 run "${step[@]}" --np 1
says err "cuBLASLt (libcublasLt.so."
says err "linear layers on a GPU need it"
attempt no_library=libcublasLt 0 run all_reduce --comm nccl --np 2 "${coll[@]}"
attempt no_library=libcublasLt 0 doctor
says out "cuBLASLt (libcublasLt.so."

# CUPTI: a step is timed, and not broken down.
attempt no_library=libcupti 0 run "${step[@]}" --np 1
says err "the step cannot be broken down: CUPTI (libcupti.so."
attempt no_library=libcupti 0 doctor
says out "CUPTI (libcupti.so."

# NVML: a run goes on, and nothing is known of links.
attempt no_library=libnvidia-ml 0 run all_reduce --comm nccl --np 2 "${coll[@]}"
attempt no_library=libnvidia-ml 0 doctor
says out "the driver's library libnvidia-ml.so.1 is not there"
exit $failed
