#!/bin/bash
# Faults of a GPU while `ptbench run` works: each has a message with its cause and what to do, ends the run with
# the exit code of its kind, and keeps what was finished.
# ctest: waits 60
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
expect 3 'skipped: not enough memory: 1 rank on this GPU needs about 0.20 GB .* and 0.06 GB can be used'
attempt ecc=30,rank=1
expect 5 'cudaErrorECCUncorrectable' 'on GPU 1' 'nvidia-smi -q -d ECC' 'ptbench run --resume'
attempt launch=9,rank=0
expect 5 'cudaErrorLaunchFailure' 'on GPU 0' 'compute-sanitizer' 'ptbench run --resume'
attempt lost=98,rank=0
expect 5 'on GPU 0' 'Xid' 'ptbench run --resume'
attempt hang=40,rank=1
expect 5 'no progress for 5 s in all_reduce|did not' 'ptbench run --resume'

# A run that lost a GPU goes on where it was.
PTB_SIM=devices=2 "$PTBENCH" run --resume last --db "$work/x.db" >"$work/out" 2>"$work/err"
code=$?
expect 0
[ "$("$PTBENCH" export --db "$work/x.db" last | grep -c '"state": "ok"')" -eq "$calls" ] || fail "resumed, not complete"

# A wish to stop is no fault of a GPU.
rm -f "$work"/x.db*
PTB_SIM=devices=2 "$PTBENCH" run all_reduce --comm nccl --np 2 --bytes 4K -n 10000000 -w 1 --mode latency \
    --db "$work/x.db" >"$work/out" 2>"$work/err" &
sleep 3
kill -TERM $!
wait $!
code=$?
expect 5 'stopping: the case in flight is dropped' 'ptbench run --resume'
! grep -q Xid "$work/err" || fail "stopping looks like a lost GPU"

# A fault of one rank alone, at each stage of its way from opening the device to the end of the first case: in calls of
# ptbench, of NCCL's and in between. The others do not wait for what never comes.
small() { # faults: a small run of what is named
    rm -f "$work"/x.db*
    PTB_SIM="devices=2,rank=1,$1" "$PTBENCH" run "${what[@]}" --np 2 -n 2 -w 1 --timeout 20s --db "$work/x.db" \
        >"$work/out" 2>"$work/err"
    code=$?
}
alone() { # exit-code faults words
    small "$2"
    expect "$1" "$3"
    ! grep -q 'no progress' "$work/err" || fail "$2: ended by a time limit alone"
}
what=(all_reduce --comm nccl --bytes 4K --place out --mode latency)
for lost in 8 11 14 19 23 27 32 34 39; do
    alone 5 lost=$lost 'on GPU 1.*Xid'
done
# Of each case that needs a communicator which could not be opened it is said why.
what=(all_reduce --comm nccl --bytes 4K,64K --place out --mode latency)
small full=2
expect 3 '^\[2/2\].*FAILED: communicator nccl could not be opened: .*out of memory'
what=(all_reduce --comm nccl --bytes 4K --place out --mode latency -G)
for full in 1 2 3 5 6; do # a full GPU
    alone 3 full=$full 'maller'
done
what=(step --device cuda --layers 1 --hidden 32 --heads 2 --vocab 64 --sequence 16 --batch 4)
for lost in 40 90 150 250; do
    alone 5 lost=$lost 'on GPU 1.*Xid'
done
for full in 1 5 9 13; do
    alone 3 full=$full 'maller'
    grep -q 'skipped: an allocation failed' "$work/err" || fail "full=$full: another reason"
done
# No memory is left beside the model to measure a peak with; the steps are kept.
for full in 17 18 19 20 21 22; do
    small full=$full
    grep -q 'say --peak' "$work/err" && break
done
expect 0 'say --peak' '1 case measured \(0 wrong\)'
"$PTBENCH" show --db "$work/x.db" last >"$work/out" 2>"$work/err" || fail "what was measured cannot be shown"
small lt_none=1 # nor is there a library to measure one with
expect 0 'cuBLASLt has no algorithm' '1 case measured \(0 wrong\)'

# A dry run knows the memory of the GPU.
PTB_SIM=devices=2,memory=64 "$PTBENCH" run all_reduce --comm nccl --np 2 --bytes 4K,64M --place out --dry-run >"$work/err"
[ "$(grep -c 'skipped: not enough memory: 1 rank on this GPU needs' "$work/err")" = 1 ] || fail "all_reduce: not foreseen"
PTB_SIM=devices=2,memory=64 "$PTBENCH" run "${what[@]}" --np 2 --dry-run >"$work/err"
grep -q 'skipped: needs 0.0675 GB a rank' "$work/err" || fail "step: not foreseen"
exit $failed
