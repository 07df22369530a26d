#!/bin/bash
# Checks ptbench on real GPUs: all kernels against plain loops in double precision and against their limits, training steps of
# GPT-2 124M and of a Llama-like 1B model in bf16, CUPTI's capture against a second look at its own spans, CUDA graphs, NCCL,
# copies, and every parallel strategy with one rank. With several GPUs also collectives by algorithm and size, pairs, steps and
# every strategy over 2 and over all of them, their losses compared with those of one rank and the same batch.
#
#   tests/gpu/run.sh [-o FOLDER] [-n GPUS] [-t SECONDS] [--only PART] [--no-floors] [--tiny]
#
# In a bundle it is run-gpu-tests.sh and uses the bundle's program; PTBENCH names another one; else it builds one with
# -DPTB_GPU=cuda in build-gpu. FOLDER (default: gpu-results) gets results.db, summary.txt and, in `parts`, the logs.
# -n: GPUs to use (default: all that the program can, so CUDA_VISIBLE_DEVICES counts). -t: the deadline, not counting the build:
# 360 s for one GPU, 1260 s for two, 2160 s for more. The most important parts come first; what no longer fits is a failure.
# --only PART: parts whose names begin so, others neither run nor judged; `--only attention` takes less than a minute.
# --no-floors: speeds are printed and not judged, as always on other GPUs than an H100 or H200. --tiny: small shapes, which try
# the script itself, without a deadline unless -t sets one.
#
# Exit code, of several the first: 1 a result was wrong; 5 a part failed, or what it has to show was missing; 6 out of time;
# 4 a floor was missed; 0 none of these. 2: the options were not understood; 3: no GPU can be used here, or nothing was built.
set -u
export LC_ALL=C
here=$(cd "$(dirname "$0")" && pwd)
judge=$here/judge.sh
[ -e "$judge" ] || judge=$here/libexec/gpu-judge.sh # in a bundle
. "$judge" || exit 3
out=gpu-results gpus= deadline= floors=yes tiny= only=
usage() { sed -n '2,/^set -u/s/^# \{0,1\}//p' "$0" >&2; exit 2; }
while [ $# -gt 0 ]; do
    case $1 in
    -o | -n | -t | --only) [ $# -ge 2 ] || usage ;;
    esac
    case $1 in
    -o) out=$2; shift 2 ;;
    -n) gpus=$2; shift 2 ;;
    -t) deadline=$2; shift 2 ;;
    --only) only=$2; shift 2 ;;
    --no-floors) floors="no: --no-floors"; shift ;;
    --tiny) tiny=yes floors="no: --tiny"; shift ;;
    *) usage ;;
    esac
done
case $gpus$deadline in *[!0-9]*) usage ;; esac
mkdir -p "$out" && out=$(cd "$out" && pwd) || exit 3
db=$out/results.db summary=$out/summary.txt logs=$out/parts
rm -rf "$db" "$db"-wal "$db"-shm "$logs" "$summary"
mkdir -p "$logs"
: >"$logs/.parts" && : >"$logs/.figures" && : >"$logs/.tables" || exit 3

# ---- what is said, and where it comes to stand in the summary

# say parts|figures|tables TEXT, or lines on standard input. Tables stand in the summary alone.
say() {
    local text
    if [ $# -gt 1 ]; then text=${*:2}; else text=$(cat && echo .) && text=${text%.} && text=${text%$'\n'}; fi
    [ $# -gt 1 ] || [ -n "$text" ] || return 0
    echo "$text" >>"$logs/.$1"
    [ "$1" = tables ] || echo "$text"
}
# short NUMBER: with one digit after the point, n/a where there is none.
short() { [[ $1 =~ ^-?[0-9] ]] && printf '%.1f' "$1" || echo n/a; }
declare -A count=([wrong]=0 [failed]=0 [late]=0 [floor]=0)
problems=() parts=0 device= built=
# problem wrong|failed|late|floor TEXT
problem() {
    count[$1]=$((count[$1] + 1))
    problems+=("$(printf '%-7s %s' "$1" "$2")")
    echo "    -> $1: $2"
}
verdict() {
    code=0
    [ "${count[floor]}" = 0 ] || code=4
    [ "${count[late]}" = 0 ] || code=6
    [ "${count[failed]}" = 0 ] || code=5
    [ "${count[wrong]}" = 0 ] || code=1
}

# ---- the program and its GPUs

# unusable REASON...: nothing can be checked here.
unusable() {
    echo "$*" | tee "$summary" >&2
    exit 3
}
if [ -n "${PTBENCH:-}" ]; then
    program=$PTBENCH
elif [ -x "$here/bin/ptbench" ]; then
    program=$here/bin/ptbench
else
    source=$(cd "$here/../.." && pwd)
    echo "building with nvcc in $source/build-gpu"
    cmake -S "$source" -B "$source/build-gpu" -DPTB_GPU=cuda -DPTB_TESTS=OFF -DCMAKE_BUILD_TYPE=Release >"$logs/build.log" 2>&1 &&
        cmake --build "$source/build-gpu" --target ptbench -j "$(nproc)" >>"$logs/build.log" 2>&1 || {
        tail -20 "$logs/build.log" >&2
        unusable "the build failed: $logs/build.log"
    }
    program=$source/build-gpu/ptbench built=", after a build of $SECONDS s"
fi
started=$SECONDS
"$program" version >"$logs/version.log" 2>&1 || unusable "$program does not run: $(head -3 "$logs/version.log")"
timeout -k 5 90 "$program" doctor >"$logs/doctor.log" 2>&1
usable=$(sed -nE 's/^[a-z]+ +gpus .*[^0-9]([0-9]+) GPUs? can be used.*/\1/p' "$logs/doctor.log")
if [ -z "$usable" ]; then
    reason=$(sed -nE 's/^[a-z]+ +gpus +//p' "$logs/doctor.log")
    unusable "${reason:-no GPU can be used: $(sed -nE 's/^[a-z]+ +gpu build +//p' "$logs/doctor.log" | head -1)}" \
        "(all that doctor says: $logs/doctor.log)"
fi
[ "${gpus:-1}" -ge 1 ] && [ "${gpus:-1}" -le "$usable" ] || unusable "-n $gpus, but $usable GPU(s) can be used here"
gpus=${gpus:-$usable}
if [ -z "$deadline" ]; then
    deadline=360
    [ "$gpus" -lt 2 ] || deadline=1260
    [ "$gpus" -lt 3 ] || deadline=2160
    [ -z "$tiny" ] || deadline=100000
fi

# The summary is written whatever ends the script: first what a reader wants to know, tables last.
write_summary() {
    local ended=$? word
    verdict
    case $code in
    0) word="all is right" ;;
    1) word="A RESULT WAS WRONG" ;;
    4) word="all results are right, but a FLOOR WAS MISSED" ;;
    5) word="a PART FAILED or something was missing" ;;
    6) word="OUT OF TIME" ;;
    esac
    [ -n "${is_done:-}" ] || { code=5 word="INTERRUPTED"; [ "$ended" = 0 ] || code=$ended; }
    {
        echo "ptbench on $gpus of $usable GPU(s), $(date -u +%Y-%m-%dT%H:%M:%SZ), $(uname -n): ${device:-no part said which GPU}"
        grep -E '^(broken|warning|ok) +(gpus|nccl|cublaslt|cupti)' "$logs/doctor.log" | sed -E 's/^[a-z]+ +/    /'
        grep -E '^broken' "$logs/doctor.log" | sed 's/^/    /'
        echo
        echo "exit code $code: $word"
        echo "$parts parts, $((SECONDS - started)) of $deadline s$built: ${count[wrong]} wrong, ${count[failed]} failed or missing," \
            "${count[late]} out of time, ${count[floor]} below a floor (floors judged: $floors)"
        [ ${#problems[@]} = 0 ] || printf '    %s\n' "${problems[@]}"
        echo
        cat "$logs/.figures"
        echo
        echo "Parts"
        cat "$logs/.parts"
        cat "$logs/.tables"
        echo
        echo "Built so:"
        sed 's/^/    /' "$logs/version.log"
    } >"$summary"
    echo
    sed -n "/^exit code/,/^\$/p" "$summary"
    echo "summary: $summary; all results: $db"
    exit $code
}
trap write_summary EXIT
trap 'exit 130' INT TERM
echo "ptbench on $gpus of $usable GPU(s), at most $deadline s$built"

# wanted PART: whether --only asks for it, or nothing.
wanted() { [[ $1 == "$only"* ]]; }

# part NAME SECONDS [OPTION...]: `ptbench run OPTION...` into the database, then its rows as $logs/NAME.csv. Skipped cases are
# said: none may be silent.
part() {
    local name=$1 limit=$2 code=0 verdict=passed left counts began=$SECONDS
    wanted "$name" || return 0
    shift 2
    parts=$((parts + 1))
    left=$((deadline - SECONDS + started))
    if [ $left -lt 3 ]; then
        say parts "$(printf '%-28s NOT RUN' "$name")"
        problem late "$name was not run: the $deadline s are over"
        return 0
    fi
    [ -z "$tiny" ] || limit=$((limit * 10)) # it tries the script, on whatever machine
    [ "$limit" -le $left ] || limit=$left
    timeout -k 10 "$limit" "$program" run "$@" --db "$db" --label "$name" >"$logs/$name.log" 2>&1 || code=$?
    counts=$(grep -oE '[0-9]+ cases? measured.*failed' "$logs/$name.log" | tail -1)
    [ $code != 137 ] || [ $((SECONDS - began)) -ge "$limit" ] || code=9 # killed, and not by the limit
    case $code in
    0) ;;
    124 | 137) verdict="OUT OF TIME" && problem late "$name took longer than $limit s" ;;
    1) verdict=WRONG && problem wrong "$name: see $logs/$name.log" ;;
    5) verdict=DIED && problem failed "$name died: see $logs/$name.log" ;;
    *) verdict="COULD NOT RUN" && problem failed "$name could not run, exit code $code: see $logs/$name.log" ;;
    esac
    say parts "$(printf '%-28s %-14s %s  (%d s, at %d)' "$name" "$verdict" "$counts" $((SECONDS - began)) $((SECONDS - started)))"
    [ $code = 0 ] || grep -E 'error|wrong|WRONG|FAILED' "$logs/$name.log" | head -5 | sed 's/^/    /' | say parts
    grep -oE 'skipped: .*' "$logs/$name.log" | sed 's/  ([0-9].*//' | sort | uniq -c | sed 's/^/    /' | say parts
    timeout 60 "$program" export "$name" --db "$db" --format csv >"$logs/$name.csv" 2>/dev/null
    device=${device:-$(rows "$name" fact.device | head -1)}
}

# ---- shapes

one=(--np 1 --device cuda)
big=256M small=1M sizes="8 1048576 268435456"
gpt2=(--model gpt2-124m) gpt2_rows=4096 gpt2_batch=32 gpt2_steps=20
llama=(--model llama3-1b --sequence 4096) llama_rows=4096 llama_batch=2 llama_steps=10
moe=(--model deepseek-moe-16b --sequence 2048) moe_rows=2048
wide=(--model llama3-8b --sequence 4096) wide_rows=4096
strategy_model=("device = cuda" "model = gpt2-124m") strategy_few=("layers = 2") strategy_batch=8 strategy_steps=10
strategy_experts=8
kernel_time=(--max-time 60ms)
if [ -n "$tiny" ]; then
    kernel_time=(-n 2 -w 1)
    big=64K small=1000 sizes="8 1000 65536"
    gpt2=(--model tiny) gpt2_rows=128 gpt2_batch=2 gpt2_steps=4
    llama=(--model tiny --norm rmsnorm --positions rotary --activation swiglu --kv-heads 2 --biases no --tied no)
    llama_rows=128 llama_batch=2 llama_steps=4
    moe=(--model tiny --experts 4 --top-k 2) moe_rows=64
    wide=(--model tiny --heads 1) wide_rows=128
    strategy_model=("device = cuda" "peak = 1e12" "layers = 1" "hidden = 32" "heads = 4" "sequence = 32" "vocab = 64") strategy_few=()
    strategy_batch=2 strategy_steps=4
fi

# suite FILE LINE... "" NAME BENCH LINE... "" NAME BENCH LINE...: a section for each group, the first group's lines in all of them.
suite() {
    local file=$1 line begins= shared=()
    shift
    while [ $# -gt 0 ] && [ -n "$1" ]; do shared+=("$1") && shift; done
    for line in "$@"; do
        case $begins in
        name) echo "[$line]" && begins=bench ;;
        bench) printf '%s\n' "bench = $line" "${shared[@]}" && begins= ;;
        *) [ -n "$line" ] && echo "$line" || begins=name ;;
        esac
    done >"$file"
}

# ---- one GPU

dense="matmul matmul_input_gradient matmul_weight_gradient norm norm_gradient attention attention_gradient merge activation
    activation_gradient add dropout convert permute embedding embedding_gradient cross_entropy loss_gradient adamw sgd"
untyped="loss_statistics sum_squares update_begin"
mixture="route_gradient dispatch dispatch_gradient combine combine_gradient matmul matmul_input_gradient matmul_weight_gradient"
mixture_untyped="route expert_order balance_loss"

# Every kernel in every type; wrong results are found by the benchmark's own check.
part kernels-gpt2 70 kernels "${one[@]}" "${gpt2[@]}" --rows $gpt2_rows --precision bf16,f16,f32 "${kernel_time[@]}"
need kernels-gpt2 param.kernel,param.precision $(each "$dense" "bf16 f16 f32") $(each "$untyped" f32)
part step-gpt2-124m 60 step "${one[@]}" "${gpt2[@]}" --batch $gpt2_batch --precision bf16 --trace \
    --min-iters $gpt2_steps --max-iters $gpt2_steps
part step-llama3-1b 90 step "${one[@]}" "${llama[@]}" --batch $llama_batch --precision bf16 --trace \
    --min-iters $llama_steps --max-iters $llama_steps
part kernels-llama 60 kernels "${one[@]}" "${llama[@]}" --rows $llama_rows --precision bf16 "${kernel_time[@]}"
need kernels-llama param.kernel,param.precision $(each "$dense rotary" bf16) $(each "$untyped" f32)

# Attention alone, by warp groups where the GPU has them and by single warps, in heads of 64 and of 128.
attention_kinds="wgmma mma"
case ${device:-unknown} in *sm_90,* | unknown) ;; *) attention_kinds=mma ;; esac
for kernels in $attention_kinds; do
    PTBENCH_CUDA_ATTENTION=$kernels part attention-$kernels-64 20 kernels "${one[@]}" "${gpt2[@]}" --rows $gpt2_rows \
        --precision bf16,f16 --max-time 100ms --kernel attention,attention_gradient
    PTBENCH_CUDA_ATTENTION=$kernels part attention-$kernels-128 20 kernels "${one[@]}" "${wide[@]}" --rows $wide_rows \
        --precision bf16,f16 --max-time 100ms --kernel attention,attention_gradient
    for width in 64 128; do
        need attention-$kernels-$width param.kernel,param.precision $(each "attention attention_gradient" "bf16 f16")
        for type in bf16 f16; do attention_is attention-$kernels-$width $type $kernels; done
    done
done
for part in kernels-gpt2 kernels-llama; do
    for type in bf16 f16; do attention_is $part $type "${attention_kinds%% *}"; done
    attention_is $part f32 plain
done

# graph_steps PART RANKS: the same steps enqueued and as a CUDA graph, by products that do not depend on time.
graph_steps() {
    suite "$logs/$1.ini" "device = cuda" "model = ${gpt2[1]}" "batch = $((gpt2_batch / 2 * $2))" "precision = bf16" \
        "deterministic = yes" "min-iters = $gpt2_steps" "max-iters = $gpt2_steps" "" enqueued step "" graph step "graph = yes"
    part "$1" $((30 + 10 * $2)) "$logs/$1.ini" --np "$2"
}

# Graphs beside what is enqueued: steps, and an all-reduce.
graph_steps step-graph 1
suite "$logs/all-reduce-one-rank.ini" "comm = nccl" "bytes = 8,$small,$big" "max-time = 200ms" \
    "" enqueued all_reduce "" graph all_reduce "graph = yes"
part all-reduce-one-rank 30 "$logs/all-reduce-one-rank.ini" --np 1
need all-reduce-one-rank param.graph,bytes,param.place $(each ",8 ,${sizes##* } yes,8 yes,${sizes##* }" "out in")
part copies 40 pairs "${one[@]}" --paths h2d,d2h,d2d --bytes $small,$big --max-time 500ms
need copies param.path,bytes $(each "h2d d2h d2d" "${sizes#* }")
part kernels-moe 60 kernels "${one[@]}" "${moe[@]}" --balance 0.01 --rows $moe_rows --precision bf16,f16,f32 "${kernel_time[@]}" \
    --kernel "$(tr -s '\n ' , <<<"$mixture $mixture_untyped" | sed 's/,$//')"
need kernels-moe param.kernel,param.precision $(each "$mixture" "bf16 f16 f32") $(each "$mixture_untyped" f32)
part kernels-rotary 20 kernels "${one[@]}" "${llama[@]}" --rows $llama_rows --precision f16,f32 "${kernel_time[@]}" --kernel rotary
need kernels-rotary param.kernel,param.precision rotary,f16 rotary,f32

# ---- parallel strategies

# strategy_suite FILE RANKS LINE...: the strategies of a dense model and of a mixture that RANKS allow, with these lines in every
# section. Axes that cut heads, sequences or experts get 4 or 2 ranks; odd numbers cut none of them.
mixed=("experts = $strategy_experts" "top-k = 2" "balance = 0.01" "balance-statistics = global")
strategy_suite() {
    local file=$1 n=$2 cut=$2 groups
    [ $((n % 2)) = 0 ] && cut=2
    [ $((n % 4)) = 0 ] && cut=4
    groups=("" "data parallel" step "strategy = ddp,zero1,zero2,fsdp,hsdp"
        "" "data parallel, not in step" step "strategy = async,local-sgd" "" mixture step "strategy = ddp,fsdp" "${mixed[@]}")
    if [ "$cut" = 1 ] || [ $((n % 2)) = 0 ]; then
        groups+=("" tensor step "strategy = tp,tp+sp" "mesh = tp=$cut" "" context step "strategy = cp" "mesh = cp=$cut"
            "" experts step "strategy = ep" "mesh = ep=$cut" "${mixed[@]}")
    fi
    [ "$n" -lt 8 ] || [ $((n % 4)) != 0 ] || groups+=("" triple step "strategy = fsdp" "mesh = tp=2,cp=2")
    suite "$file" "${@:3}" "${groups[@]}"
}

# strategies RANKS SECONDS: all of them on so many GPUs, few layers in f32 and the whole model in bf16; in f32 against one rank
# that has the whole batch.
strategies() {
    local n=$1 f32=strategies-f32-$1 reference=strategies-f32-$1 lines
    lines=("${strategy_model[@]}" "${strategy_few[@]}" "batch = $((strategy_batch * n))" "precision = f32" "deterministic = yes"
        "min-iters = 5" "max-iters = 5" "warmup = 0")
    if [ "$n" -gt 1 ] && wanted "$f32"; then
        reference=reference-$n
        suite "$logs/$reference.ini" "${lines[@]}" "" dense step "strategy = ddp" "" mixture step "strategy = ddp" "${mixed[@]}"
        only= part "$reference" 60 "$logs/$reference.ini" --np 1
    fi
    strategy_suite "$logs/$f32.ini" "$n" "${lines[@]}"
    part "$f32" "$2" "$logs/$f32.ini" --np "$n"
    [ "$n" = 1 ] || [ $((n % 2)) = 0 ] || say parts "    tp, tp+sp, cp and ep are left out: an odd number of GPUs cuts no heads"
    need_strategies "$f32" "$n"
    same_losses "$f32" "$reference" 0.01
    strategy_suite "$logs/strategies-$n.ini" "$n" "${strategy_model[@]}" "batch = $((strategy_batch * n))" "precision = bf16" \
        "min-iters = $strategy_steps" "max-iters = $strategy_steps" "warmup = 2"
    part "strategies-$n" "$2" "$logs/strategies-$n.ini" --np "$n"
    need_strategies "strategies-$n" "$n"
    same_losses "strategies-$n" "strategies-$n" 2
    wanted "strategies-$n" && [ -e "$logs/strategies-$n.csv" ] || return 0
    figures "strategies-$n" median_ns 'mfu [%]' 'tokens_per_s [tokens/s]'
    {
        echo "strategies-$n: strategy, mesh, step ms, MFU %, exposed communication ms, overlap %"
        rows "strategies-$n" param.strategy param.mesh fact.experts median_ns 'mfu [%]' 'exposed_comm [ms]' 'overlap [%]' | awk -F'\037' '
            { printf "    %-10s %-16s %-8s %10.3f  %6.2f  %10s  %s\n", $1, $2, $3 + 0 ? "mixture" : "dense", $4 / 1e6, $5,
                     $6 == "" ? "n/a" : sprintf("%.3f", $6), $7 == "" ? "n/a" : sprintf("%.1f", $7) }'
    } | say figures
    { echo && "$program" show "strategies-$n" --db "$db" --width 160 2>/dev/null |
        awk '/^(Which strategy wins here|Strategies side by side|Training steps)$/ { inside = $1 != "Training" } inside'; } | say tables
}

# ---- several

# collectives RANKS: by size, by algorithm, without registered memory and as a graph.
collectives() {
    local part=collectives-$1 name groups=()
    for name in all_reduce all_gather reduce_scatter sendrecv all_to_all; do groups+=("" "$name" $name); done
    suite "$logs/$part.ini" "comm = nccl" "bytes = 8,$small,$big" "max-time = 200ms" "${groups[@]}" \
        "" algorithms all_reduce "algo = ring,tree" "" "not registered" all_reduce "register = no" "" graph all_reduce "graph = yes"
    part "$part" 180 "$logs/$part.ini" --np "$1"
    wanted "$part" && [ -e "$logs/$part.csv" ] || return 0
    need "$part" bench,param.algo,param.register,param.graph,bytes $(each "all_reduce,default,, all_gather,default,,
        reduce_scatter,default,, sendrecv,,, all_to_all,default,, all_reduce,ring,, all_reduce,tree,, all_reduce,default,no,
        all_reduce,default,,yes" "$sizes")
    {
        echo "$part: bus bandwidth in GB/s out of place (latency in us up to 8 B), and what ran"
        rows "$part" bench param.algo param.pattern param.register param.graph param.place bytes median_ns 'busbw [GB/s]' \
            fact.algorithm fact.protocol fact.channels fact.buffers fact.call | awk -F'\037' '
            $6 == "in" { next }
            { how = $2 $3 ($4 == "no" ? ", not registered" : "") ($5 == "yes" ? ", graph" : "")
              rate = $7 <= 8 ? sprintf("%.1f us", $8 / 1e3) : $9 == "" ? "n/a" : sprintf("%.2f", $9)
              ran = ($10 == "" ? $14 : $10) ($11 == "" ? "" : "/" $11) ($12 == "" ? "" : ", channels " $12) ($13 == "" ? "" : ", " $13)
              printf "    %-15s %-24s %11d B  %10s  %s\n", $1, how, $7, rate, ran }'
        name_rows "$part" "not confirmed" '$1 ~ /not confirmed/'
        name_rows "$part" "replaced by NCCL" '$2 != "" || $3 != ""'
    } | say figures
}

# ---- what comes of it; where the deadline nears, the parts above have been kept

know_gpu
[ "$attention_kinds" != mma ] || say parts "attention-wgmma is left out: $device has no warp groups"
echo "Figures (floors judged: $floors)" | say figures
for part in kernels-gpt2 kernels-llama kernels-moe; do kernel_floors $part; done
for part in kernels-gpt2 kernels-llama kernels-moe kernels-rotary attention-{wgmma,mma}-{64,128}; do kernel_table $part; done

step_figures step-gpt2-124m 40
step_figures step-llama3-1b 50
capture step-gpt2-124m 1
capture step-llama3-1b 1

graph_figures step-graph
wanted all-reduce-one-rank && rows all-reduce-one-rank param.place bytes param.graph median_ns | awk -F'\037' '
    { key = $1 " " $2; if ($3 == "yes") graph[key] = $4; else { order[++n] = key; enqueued[n] = $4 } }
    END { for (i = 1; i <= n; i++) {
              where = order[i] ~ /^in/ ? "in place" : "out of place"
              with = order[i] in graph ? sprintf("%.1f", graph[order[i]] / 1e3) : "n/a"
              sub(/.* /, "", order[i])
              printf "all-reduce of one rank, %s, %s B: enqueued %.1f us, as a graph %s us\n", where, order[i], enqueued[i] / 1e3, with } }' | say figures
wanted copies && figures copies 'bandwidth [GB/s]' && rows copies param.path bytes 'bandwidth [GB/s]' |
    awk -F'\037' '{ printf "copies: %-4s %11s B  %8.1f GB/s\n", $1, $2, $3 }' | say figures

if [ "$gpus" -lt 2 ]; then
    strategies 1 100
else
    for n in 2 $([ "$gpus" -gt 2 ] && echo "$gpus"); do
        part steps-$n 90 step --np "$n" --device cuda "${gpt2[@]}" --batch $((gpt2_batch * n)) --precision bf16 --trace \
            --min-iters $gpt2_steps --max-iters $gpt2_steps
        step_figures steps-$n ""
        capture steps-$n "$n"
        graph_steps steps-graph-$n "$n"
        graph_figures steps-graph-$n
        collectives "$n"
        part pairs-$n 90 pairs --np "$n" --device cuda --bytes $big --max-time 200ms
        extremes pairs-$n
        strategies "$n" 300
    done
fi
if [ $parts = 0 ]; then
    trap - EXIT
    echo "no part's name begins with $only; parts are named in $0" >&2
    exit 2
fi
is_done=yes
