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
times err 1 "ptbench: error: NCCL (libnccl.so.2) is not on this machine; the communicator nccl needs it"
says err "LD_LIBRARY_PATH ("
says err "/usr/local/cuda"
says err "pip install nvidia-nccl-cu"
attempt no_library=libnccl 0 run all_reduce --comm host --np 2 "${coll[@]}"
says err "(0 wrong)"
attempt no_library=libnccl 3 run "${step[@]}" --np 2
says err "NCCL (libnccl.so.2) is not on this machine"
attempt no_library=libnccl 0 doctor
says out "NCCL (libnccl.so.2) is not on this machine"
attempt memory=2048 0 doctor
says out ", SIMULATED, the program itself"
says out "GPUs 0 to 1: simulated GPU, 2 GiB"
attempt seed=1 0 doctor
says out "GPUs 0 to 1: simulated GPU, 16 GiB"
! grep -q "PCIe 0" "$work/out" || fail "a PCIe that nothing is known of is told"
attempt memory=2048 0 run all_reduce --comm nccl --np 2 "${coll[@]}"
says err "[SIMULATED DEVICE]"

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

# Plug-ins that are loaded, by what they export and whatever their name; nothing is said of what NCCL uses of them. The
# environment is stored whole.
fake() { # FILE SYMBOL...
    local file=$1
    shift
    printf 'int %s;\n' "$@" >"$work/fake.c"
    cc -shared -fPIC -o "$work/$file" "$work/fake.c" || fail "no compiler for $file"
}
long=$(printf 'x%.0s' $(seq 150))
attempt seed=1 0 run all_reduce --comm nccl --np 2 "${coll[@]}"
"$PTBENCH" export --db "$work/x.db" last >"$work/out"
says out '"nccl_net": "NCCL'"'"'s own, no plug-in is loaded"'
says out '"nccl_tuner": "none is loaded"'
fake libnccl-ofi-tuner.so ncclTunerPlugin_v3
fake libnccl-net-made-up.so ncclNetPlugin_v10 ncclNetPlugin_v9 ncclCollNetPlugin_v10
fake libother.so ncclTunerPlugin_v4
LD_PRELOAD="$work/libnccl-ofi-tuner.so:$work/libnccl-net-made-up.so" attempt seed=1 0 run all_reduce --comm nccl --np 2 "${coll[@]}"
"$PTBENCH" export --db "$work/x.db" last >"$work/out"
says out '"nccl_net": "libnccl-net-made-up.so is loaded: ncclNetPlugin_v10, v9"'
says out '"nccl_tuner": "libnccl-ofi-tuner.so is loaded: ncclTunerPlugin_v3"'
LD_PRELOAD="$work/libother.so" NCCL_TUNER_PLUGIN=other NCCL_DEBUG_FILE=/$long NCCL_TOPO_FILE=/$long NCCL_IB_HCA=mlx5_0 \
    attempt seed=1 0 run all_reduce --comm nccl --np 2 "${coll[@]}"
"$PTBENCH" export --db "$work/x.db" last >"$work/out"
says out '"nccl_tuner": "libother.so is loaded: ncclTunerPlugin_v4"'
python3 - "$work/out" "$long" <<'PYTHON' || fail "the environment is cut"
import json, sys
run = json.load(open(sys.argv[1]))["runs"][0]
facts = run["repetitions"][0]["cases"][0]["facts"]
names = ["nccl_environment"] + [f"nccl_environment_{i}" for i in range(2, 17)]
whole = "".join(facts[n] for n in names if n in facts)
for text in ("NCCL_TUNER_PLUGIN=other", f"NCCL_DEBUG_FILE=/{sys.argv[2]}", "NCCL_IB_HCA=mlx5_0", f"NCCL_TOPO_FILE=/{sys.argv[2]}"):
    assert text in whole, (text, whole)
PYTHON

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
