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

# The NCCL that the header is of, as 22809.
built=$("$PTBENCH" version | awk '$1 == "nccl" { split($2, v, "."); print v[1] * 10000 + v[2] * 100 + v[3] }')
[ -n "$built" ] || { echo "FAIL: ptbench version does not tell NCCL's"; exit 1; }

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

# An NCCL that lacks functions
attempt no_function=ncclAlltoAll 0 run all_to_all --comm nccl --np 2 -b 1K -e 1K -n 2 -w 1 --place out
says err "(0 wrong)"
"$PTBENCH" export --db "$work/x.db" last >"$work/out"
says out "ncclSend and ncclRecv, grouped"
[ "$built" -lt 22800 ] || says out '"nccl_lacks": "2.28: ncclAlltoAll"'
attempt no_function=ncclCommWindow 0 run all_reduce --comm nccl -R --np 2 "${coll[@]}"
says err "(0 wrong)"
"$PTBENCH" export --db "$work/x.db" last >"$work/out"
says out '"buffers": "registered"'
attempt no_function=ncclCommWindow 0 doctor
says out "lacks what came with "
says out "2.27: ncclCommWindowRegister"
attempt nccl_version=22304 0 doctor
! grep -q "cannot tell which algorithm" "$work/out" || fail "2.23 can tell"
attempt no_function=ncclCommRegister 3 run all_reduce --comm nccl --np 2 "${coll[@]}"
says err "NCCL has no ncclCommRegister (the program itself): it is too old, 2.19 or later is needed"

# The oldest NCCL that will do, one that will not, and one that is newer than the header of the build.
attempt nccl_version=21903 0 run all_gather --comm nccl --np 2 --algo default,ring,collnet_direct,pat -b 1K -e 1K -n 2 -w 1 --place out
says err "2 cases measured (0 wrong), 2 skipped"
says err "NCCL can be asked for pat for all_gather from 2.24 on, and this is 2.19.3"
says err "NCCL can be asked for collnet_direct for all_gather from 2.20 on, and this is 2.19.3"
"$PTBENCH" export --db "$work/x.db" last >"$work/out"
says out '"nccl_lacks": "2.22: ncclGroupSimulateEnd; 2.27: ncclCommWindowRegister; 2.28: ncclAlltoAll, ncclGather, ncclScatter"'
says out '"algorithm": "ring (not confirmed: NCCL before 2.23 cannot tell what it ran)"'
attempt nccl_version=21903 0 doctor
says out "NCCL 2.19.3, SIMULATED, the program itself"
says out "it cannot tell which algorithm ran (2.23 and later can)"
attempt nccl_version=21805 3 run all_reduce --comm nccl --np 2 "${coll[@]}"
says err "NCCL 2.18.5 (the program itself) is too old: 2.19 or later is needed"
attempt nccl_version=29901 0 doctor
says out "NCCL 2.99.1, SIMULATED, the program itself; this program was built with "
[ "$built" -ge 22800 ] || says out "; so it lacks what came with "
[ "$built" -lt 22800 ] || ! grep -q "lacks what came" "$work/out" || fail "a newer NCCL lacks something"

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
