# The script that checks real GPUs (tests/gpu). Once on simulated ones with small shapes: every part runs, and what it has to show
# is there. Then a stand-in for the program plays back what that run recorded, as if an H200 had measured it, with one thing
# changed at a time: each exit code is seen, and what is wrong is said by name.
# ctest: waits 60
. "$PTB_SOURCE/tests/mpi/run_common.sh"
script=$PTB_SOURCE/tests/gpu/run.sh

# ---- the simulated device

code=0
PTBENCH=$PTBENCH timeout 1500 bash "$script" -o results -n 2 --tiny >out 2>err || code=$?
[ "$code" = 0 ] && [ ! -s err ] || { fail "exit code $code"; cat out err; }
summary=results/summary.txt
has $summary "exit code 0: all is right"
has $summary "20 parts, "
has $summary "0 wrong, 0 failed or missing, 0 out of time, 0 below a floor (floors judged: no: --tiny)"
for part in kernels-{gpt2,llama,moe,rotary} step-{gpt2-124m,llama3-1b,graph} attention-{wgmma,mma}-{64,128} all-reduce-one-rank copies \
    steps-2 steps-graph-2 collectives-2 pairs-2 reference-2 strategies-2 strategies-f32-2; do
    grep -qE "^$part +passed +[1-9][0-9]* cases? measured \(0 wrong\)" out || { fail "$part did not pass"; grep "^$part" out; }
done
has $summary "SIMULATED"
grep -qE '^    attention +block +f32 .* plain$' $summary || fail "no line of attention in f32"
grep -qE '^    combine +block +f16 ' $summary || fail "no line of a mixture in f16"
grep -qE '^copies: d2h .* B +[0-9.]+ GB/s$' $summary || fail "no rate of copies"
grep -qE '^step-gpt2-124m: [0-9.]+ ms, [0-9.]+ tokens/s, MFU [0-9.]+ %' $summary || fail "no figures of the step"
grep -qE 'second look at the spans: the same; overlap [0-9.]+ %; recording cost -?[0-9.]+ %' $summary || fail "no second look at two ranks"
for part in step-graph steps-graph-2; do
    grep -qE "^$part: enqueued [0-9.]+ ms, as a graph [0-9.]+ ms; .*; [1-9][0-9]* nodes recorded, 0 of" $summary || fail "no graph beside $part"
done
grep -qE '^    all_reduce +tree +65536 B +[0-9.]+ +tree/' $summary || fail "no bandwidth of the tree"
grep -qE '^    all_reduce +default, not registered +65536 B +[0-9.]+ ' $summary || fail "no bandwidth without registration"
grep -qE '^    peer +2 +[0-9.]+ \(. to .\) +[0-9.]+ \(. to .\)$' $summary || fail "no extremes of the pairs"
has $summary "rows not confirmed"
# Losses of all strategies, in f32 and in bf16, and what they cost.
for strategy in ddp zero1 zero2 fsdp hsdp async local-sgd "tp +tp=2" "tp[+]sp +tp=2" "cp +cp=2" "ep +ep=2"; do
    [ "$(grep -cE "^    $strategy .* losses .* ok\$" $summary)" -ge 2 ] || fail "losses of $strategy were not compared"
    grep -qE "^    $strategy +(dense|mixture|tp=2 +dense|[ct]p=2 +dense|ep=2 +mixture)? *[0-9.]+ +[0-9.]+ +([0-9.]+|n/a) " $summary ||
        grep -qE "^    $strategy +(dense|mixture) +[0-9.]+ +[0-9.]+ " $summary || fail "no step time of $strategy"
done
for row in zero1 "tp[+]sp .tp=2." "ep .ep=2. all_to_all"; do
    sed -n '/^Strategies side by side/,$p' $summary | grep -qE "^$row .* [0-9.]+ +[0-9.]+\$" || fail "no row of $row beside the others"
done
[ -s results/results.db ] || fail "no results are kept"

# Only some parts, and one GPU: strategies of one rank.
code=0
PTBENCH=$PTBENCH timeout 1500 bash "$script" -o some -n 1 --tiny --only strategies-f32 >out 2>err || code=$?
[ "$code" = 0 ] || { fail "exit code $code"; cat out err; }
has some/summary.txt "1 parts, "
grep -qE "^strategies-f32-1 +passed +13 cases" out || fail "not every strategy ran with one rank"
[ "$(grep -cE ' losses .* ok$' some/summary.txt)" = 13 ] || fail "losses of one rank were not compared"

# GPUs are those that the program can use.
code=0
PTB_SIM=devices=3 CUDA_VISIBLE_DEVICES=1 PTBENCH=$PTBENCH bash "$script" -o none -n 2 --tiny >out 2>err || code=$?
[ "$code" = 3 ] || fail "exit code $code for two GPUs of which one can be used"
has err "-n 2, but 1 GPU(s) can be used here"

# ---- the stand-in

cat >stand-in <<'END'
#!/bin/bash
label=$2
case $1 in
version) echo "a stand-in" ;;
doctor) echo "${SAYS:-ok       gpus           ${GPUS:-1} GPUs can be used, driver 1}" ;;
run)
    while [ $# -gt 1 ] && [ "$1" != --label ]; do shift; done
    echo "$2" >>"$FROM.runs"
    [ "$2" != "${SLOW:-}" ] || exec sleep 60
    [ "$2" != "${FAILS:-}" ] || { echo "ptbench: error: made to fail"; exit "$CODE"; }
    echo "1 case measured (0 wrong), 0 skipped, 0 failed"
    ;;
export)
    case $label in strategies*-1) label=${label%1}2 ;; esac
    case $* in
    *perfetto*) cat "$FROM/$label.trace.json" ;;
    *json*) echo "${LOST:-}" ;;
    *) cat "$FROM/$label.csv" ;;
    esac
    ;;
esac
END
chmod +x stand-in

# edit PART COLUMN VALUE [TEXT]: that column gets the value in the rows that hold the text, where it has one.
edit() {
    awk -v column="$2" -v value="$3" -v text="${4:-}" '
        function quote(s) { return s ~ /,/ ? "\"" s "\"" : s }
        function fields(line,    n, c, i, quoted, s) {
            n = 1; s = ""; quoted = 0
            for (i = 1; i <= length(line); i++) {
                c = substr(line, i, 1)
                if (c == "\"") quoted = !quoted
                else if (c == "," && !quoted) { field[n++] = s; s = "" }
                else s = s c
            }
            field[n] = s
            return n
        }
        NR == 1 { n = fields($0); for (i = 1; i <= n; i++) if (field[i] == column) place = i; print; next }
        !place || !index($0, text) { print; next }
        { n = fields($0)
          if (field[place] != "") field[place] = value
          line = quote(field[1])
          for (i = 2; i <= n; i++) line = line "," quote(field[i])
          print line }' "played/$1.csv" >edited && mv edited "played/$1.csv"
}
# An H200 that reaches every floor.
mkdir h200
cp results/parts/*.csv results/parts/*.trace.json h200/
sed -i 's/simulated GPU/NVIDIA H200/; s/\r$//' h200/*.csv
mv h200 played
for part in kernels-gpt2 kernels-llama kernels-moe; do edit $part 'best_of_limit [%]' 90; done
for part in step-gpt2-124m step-llama3-1b; do edit $part 'mfu [%]' 60; done
for part in copies all-reduce-one-rank collectives-2; do # with the sizes that are meant for real ones
    edit $part bytes 1048576 bytes=1000/
    edit $part bytes 268435456 bytes=65536/
done
mv played h200

# again CODE OPTION...: the script with the stand-in, which plays back what lies in `played`; afterwards that is as it was.
again() {
    local wanted=$1
    shift
    rm -rf r played.runs
    : >played.runs
    code=0
    FROM=$PWD/played PTBENCH=$PWD/stand-in timeout 300 bash "$script" -o r "$@" >out 2>err || code=$?
    [ "$code" = "$wanted" ] || { fail "exit code $code instead of $wanted: $*"; sed -n '1,30p' r/summary.txt; cat err; }
    [ "$wanted" = 2 ] || [ "$wanted" = 3 ] || [ ! -s err ] || { fail "the script's own errors:"; cat err; }
    rm -rf played
    cp -r h200 played
}
rm -rf played && cp -r h200 played
summary=r/summary.txt

again 0
has $summary "exit code 0: all is right"
has $summary "of 360 s: 0 wrong, 0 failed or missing, 0 out of time, 0 below a floor (floors judged: yes)"
GPUS=4 again 5 -n 4 --only steps-4
has $summary "of 2160 s: "
has $summary "failed  steps-4"

# Nothing to run on.
SAYS="warning  gpus           no GPU can be used: the driver's library is not there. Benchmarks of the host work" again 3
has err "no GPU can be used: the driver's library is not there"
[ ! -s played.runs ] || fail "parts ran without a GPU"
SAYS="ok       gpu build      built without GPU back-ends" again 3
has err "built without GPU back-ends"
again 2 --every
again 2 --only nothing
has err "no part's name begins with nothing"
code=0
PTBENCH=/bin/false bash "$script" -o nothing >out 2>err || code=$?
[ "$code" = 3 ] || fail "exit code $code for a program that does not run"

# A floor that is missed, of a kernel and of a step; on other GPUs none is judged, and warp groups are for Hopper alone.
edit kernels-gpt2 'best_of_limit [%]' 74 kernel=adamw/layer=optimizer/precision=f16
again 4 --only kernels-gpt2
has $summary "exit code 4"
has $summary "floor   kernels-gpt2 adamw optimizer f16 74.0 % (floor 75 %)"
edit step-llama3-1b 'mfu [%]' 49.9
again 4 --only step-llama
has $summary "floor   step-llama3-1b MFU 49.9 % (floor 50 %)"
for part in kernels-gpt2 step-gpt2-124m; do
    edit $part fact.device "NVIDIA A100, 80 GiB, sm_80, GPU-1"
    edit $part fact.attention_kernels mma wgmma
    edit $part fact.attention_grad_kernels mma wgmma
    edit $part 'mfu [%]' 1
done
edit kernels-llama fact.attention_kernels mma wgmma
edit step-llama3-1b fact.attention_kernels mma
edit step-llama3-1b fact.attention_grad_kernels mma
again 0
has $summary "floors judged: no: they are for H100 and H200, this is NVIDIA A100"
has $summary "attention-wgmma is left out: NVIDIA A100"
has $summary "MFU 1.0 %"

# What is missing is a failure.
sed -i '/kernel=norm\/layer=block\/precision=bf16/d' played/kernels-gpt2.csv
again 5 --only kernels-gpt2
has $summary "failed  kernels-gpt2 has no row of norm,bf16"
edit step-gpt2-124m 'mfu [%]' ""
again 5 --only step-gpt2
has $summary "failed  step-gpt2-124m MFU is missing (floor 40 %)"
: >played/copies.csv
again 5 --only copies
has $summary "failed  copies has no row of h2d,1048576"
edit attention-wgmma-64 fact.attention_kernels mma
again 5 --only attention-wgmma
has $summary "failed  attention-wgmma-64 in bf16: asked for attention by wgmma, but attention took mma"

# A part that fails, that says WRONG, that takes too long; wrong comes before all else.
FAILS=copies CODE=5 again 5 --only copies
has $summary "failed  copies died"
FAILS=copies CODE=3 again 5 --only copies
has $summary "failed  copies could not run, exit code 3"
edit step-gpt2-124m 'mfu [%]' 1
FAILS=step-graph CODE=1 again 1 --only step-g
has $summary "wrong   step-graph"
has $summary "floor   step-gpt2-124m MFU"
SLOW=kernels-gpt2 again 6 -t 3
has $summary "late    kernels-gpt2 took longer than 3 s"
has $summary "late    strategies-1 was not run: the 3 s are over"
[ "$(cat played.runs)" = kernels-gpt2 ] || fail "parts ran after the deadline"

# The capture: what it lost, and numbers that its spans do not bear out.
edit step-gpt2-124m fact.capture_dropped 7
edit step-gpt2-124m fact.capture_nccl_late 3
again 5 --only step-gpt2
has $summary "failed  step-gpt2-124m: 7 records were dropped"
has $summary "failed  step-gpt2-124m: 3 of NCCL's events came late"
sed -i '0,/"cat": "compute", .*"phase": "backward"/s/"phase": "backward"/"phase": "none"/' played/step-gpt2-124m.trace.json
again 5 --only step-gpt2
has $summary "1 recorded kernels belong to no unit or phase"
edit steps-2 'overlap [%]' 99
GPUS=2 again 1 --only steps-2
has $summary "wrong   steps-2: overlap 99, but its spans say"
edit step-gpt2-124m fact.capture "none: no permission"
again 5 --only step-gpt2
has $summary "failed  step-gpt2-124m: nothing was captured: none: no permission"
LOST='"spans_dropped": 9' again 5 --only step-gpt2
has $summary "failed  step-gpt2-124m: its trace is not whole"
edit step-gpt2-124m 'forward [ms]' 0
again 1 --only step-gpt2
has $summary "wrong   step-gpt2-124m: forward 0, but its spans say"
has $summary "parts add up to"

# A replayed step with other losses, or with zeros that nobody measured.
edit step-graph 'loss_last [nats]' 3 graph=yes
again 1 --only step-graph
has $summary "losses of replayed steps are others"
edit step-graph fact.capture_unknown_nodes 5 graph=yes
again 5 --only step-graph
has $summary "failed  step-graph: 5 recorded nodes of the graph belong to no work"
edit step-graph 'forward [ms]' 0
again 1 --only step-graph
has $summary "wrong   step-graph: forward 0 ms"

# Between GPUs: a strategy that trains something else, what NCCL replaced and what nobody knows, an algorithm that is missing.
edit strategies-f32-2 'loss_last [nats]' 3 strategy=zero2
GPUS=2 again 1 --only strategies-f32
has $summary "wrong   strategies-f32-2: 1 losses are not those of reference-2"
edit collectives-2 fact.algorithm "ring (not confirmed: nobody says)" all_gather/
edit collectives-2 fact.protocol "" all_gather/
sed -i '/algo=tree/d' played/collectives-2.csv
GPUS=2 again 5 --only collectives
has $summary "6 of 51 rows not confirmed: all_gather default"
grep -qE '^    all_gather +default +268435456 B +[0-9.]+ +ring .not confirmed: nobody says.' $summary || fail "no row of what nobody knows"
has $summary "failed  collectives-2 has no row of all_reduce,tree,,,8"
finish
