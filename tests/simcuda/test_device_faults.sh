#!/bin/bash
# Faults of a GPU while `ptbench run` works: each has a message with its cause and what to do, ends the run with
# the exit code of its kind, and keeps what was finished.
# ctest: waits 16
set -u
work=$(mktemp -d) && trap 'rm -rf "$work"' EXIT
failed=0
fail() {
    echo "FAIL: $*"
    sed 's/^/    /' "$work/err"
    failed=1
}

# One run of two ranks, a GPU each; its exit code in $code.
attempt() { # faults options...
    rm -f "$work"/x.db*
    PTB_SIM="devices=2,$1" "$PTBENCH" run all_reduce --comm nccl --np 2 -b 1K -e 64K -f 64 -o sum -n 2 -w 1 \
        --mode latency --timeout 5s "${@:2}" --db "$work/x.db" >"$work/out" 2>"$work/err"
    code=$?
}
expect() { # exit-code words...
    [ $code -eq "$1" ] || fail "exit code $code, wanted $1"
    for words in "${@:2}"; do
        grep -qE -- "$words" "$work/err" || fail "nothing said of '$words'"
    done
}

attempt rank=9
expect 0
calls=$("$PTBENCH" export --db "$work/x.db" last | grep -c '"state": "ok"')
[ "$calls" -ge 4 ] || fail "only $calls cases without a fault"

attempt memory=64 -b 64M -e 64M
expect 3 'skipped: not enough memory: 1 rank on this GPU needs about 0.21 GB .* and 0.06 GB can be used'
attempt ecc=30,rank=1
expect 5 'cudaErrorECCUncorrectable' 'on GPU 1' 'nvidia-smi -q -d ECC' 'ptbench run --resume'
attempt launch=9,rank=0
expect 5 'cudaErrorLaunchFailure' 'on GPU 0' 'compute-sanitizer' 'ptbench run --resume'
attempt lost=98,rank=0 # in ptbench's own calls, not in NCCL's
expect 5 'on GPU 0' 'Xid' 'ptbench run --resume'
attempt hang=40,rank=1
expect 5 'no progress for 5 s in all_reduce|did not' 'ptbench run --resume'

# A run that lost a GPU goes on where it was.
PTB_SIM=devices=2 "$PTBENCH" run --resume last --db "$work/x.db" >"$work/out" 2>"$work/err"
code=$?
expect 0
[ "$("$PTBENCH" export --db "$work/x.db" last | grep -c '"state": "ok"')" -eq "$calls" ] || fail "resumed, not complete"
exit $failed
