# The script that checks real GPUs, tried on simulated ones with small shapes: every part runs, and what it prints is there.
. "$PTB_SOURCE/tests/mpi/run_common.sh"
code=0
PTBENCH=$PTBENCH timeout 1500 bash "$PTB_SOURCE/tests/gpu/run.sh" -o results -n 2 --tiny >out 2>err || code=$?
[ "$code" = 0 ] || { fail "exit code $code"; cat out err; }
has out "16 parts, 0 failures"
for part in all-reduce-one-rank copies kernels-gpt2 kernels-llama attention-{wgmma,mma}-{64,128} kernels-moe step-gpt2-124m \
    step-llama3-1b collectives-2 pairs-2 steps-2 strategies-2 strategies-f32-2; do
    grep -qE "^$part +passed +[1-9][0-9]* cases? measured \(0 wrong\)" out || { fail "$part did not pass"; grep "^$part" out; }
done
has out "SIMULATED"
grep -qE '^    attention +block +bf16' out || fail "no line of attention"
grep -qE '^    d2h .* B +[0-9.]+$' out || fail "no rate of copies"
grep -qE 'step-gpt2-124m: [0-9.]+ tokens/s, recorded step [0-9.]+ ms' out || fail "no figures of the step"
# Losses of all strategies, in f32 and in bf16, and what they cost.
for strategy in ddp zero1 zero2 fsdp hsdp async local-sgd "tp +tp=2" "tp[+]sp +tp=2" "cp +cp=2" "ep +ep=2"; do
    [ "$(grep -cE "^    $strategy .* losses .* ok\$" out)" -ge 2 ] || fail "losses of $strategy were not compared"
done
for row in zero1 "tp[+]sp .tp=2." "ep .ep=2. all_to_all"; do
    sed -n '/^Strategies side by side/,$p' out | grep -qE "^$row .* [0-9.]+ +[0-9.]+\$" || fail "no row of $row beside the others"
done
[ -s results/results.db ] && [ -s results/summary.txt ] || fail "no results are kept"

# Only some parts, and one GPU: strategies of one rank.
code=0
PTBENCH=$PTBENCH timeout 1500 bash "$PTB_SOURCE/tests/gpu/run.sh" -o some -n 1 --tiny --only strategies-f32 >out 2>err || code=$?
[ "$code" = 0 ] || { fail "exit code $code"; cat out err; }
has out "1 parts, 0 failures"
grep -qE "^strategies-f32-1 +passed +13 cases" out || fail "not every strategy ran with one rank"
[ "$(grep -cE ' losses .* ok$' out)" = 13 ] || fail "losses of one rank were not compared"

# A wrong program is told at once.
code=0
PTBENCH=/bin/false bash "$PTB_SOURCE/tests/gpu/run.sh" -o nothing >out 2>err || code=$?
[ "$code" = 3 ] || fail "exit code $code for a program that does not run"
finish
