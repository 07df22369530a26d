#!/bin/bash
# Checks ptbench on real GPUs, in at most 6 minutes on one of them: all kernels against plain loops in double precision
# and against their limits, NCCL, CUPTI's capture, training steps of GPT-2 124M and of a Llama-like 1B model in bf16, copies,
# every parallel strategy with one rank. With several GPUs also collectives between them, and steps and every strategy over 2
# and over all of them. Losses of the strategies are compared, in f32 and in bf16, and what they cost stands side by side.
#
#   tests/gpu/run.sh [-o FOLDER] [-n GPUS] [--only PART] [--no-floors] [--tiny]
#
# In a bundle it is run-gpu-tests.sh and uses the bundle's program; PTBENCH names another one; else it builds one with
# -DPTB_GPU=cuda in build-gpu. FOLDER (default: gpu-results) gets results.db, summary.txt and a log of each part.
# Exit code: 0 all parts passed; 1 a result was wrong or a floor was missed; 3 no GPU can be used here; 5 a part died or
# ran out of time. --no-floors: speeds are printed and not judged (other GPUs than an H100 or H200, the simulated device).
# --only PART: parts whose names begin so, others neither run nor judged; `--only attention` takes less than a minute.
# --tiny: small shapes, which try the script itself; implies --no-floors.
set -u
here=$(cd "$(dirname "$0")" && pwd)
out=gpu-results gpus= floors=yes tiny= only=
while [ $# -gt 0 ]; do
    case $1 in
    -o) out=$2; shift 2 ;;
    -n) gpus=$2; shift 2 ;;
    --only) only=$2; shift 2 ;;
    --no-floors) floors=no; shift ;;
    --tiny) tiny=yes floors=no; shift ;;
    *) sed -n '2,14s/^# \{0,1\}//p' "$0" >&2; exit 2 ;;
    esac
done
mkdir -p "$out" && out=$(cd "$out" && pwd) || exit 3
db=$out/results.db summary=$out/summary.txt
rm -f "$db" "$db"-wal "$db"-shm
: >"$summary"
say() { echo "$*" | tee -a "$summary"; }

# ---- the program

if [ -n "${PTBENCH:-}" ]; then
    program=$PTBENCH
elif [ -x "$here/bin/ptbench" ]; then
    program=$here/bin/ptbench
else
    source=$(cd "$here/../.." && pwd)
    say "building with nvcc in $source/build-gpu"
    cmake -S "$source" -B "$source/build-gpu" -DPTB_GPU=cuda -DPTB_TESTS=OFF -DCMAKE_BUILD_TYPE=Release >"$out/build.log" 2>&1 &&
        cmake --build "$source/build-gpu" --target ptbench -j "$(nproc)" >>"$out/build.log" 2>&1 || {
        tail -20 "$out/build.log" >&2
        say "the build failed: $out/build.log"
        exit 3
    }
    program=$source/build-gpu/ptbench
fi
started=$SECONDS worst=0 parts=0 failed=0
worse() { [ "$1" -gt "$worst" ] && worst=$1; return 0; }

# wanted PART: whether --only asks for it, or nothing.
wanted() { [[ $1 == "$only"* ]]; }

# part NAME SECONDS [OPTION...]: `ptbench run OPTION...` into the database. Skipped cases are counted: none may be silent.
part() {
    local name=$1 limit=$2 code=0 verdict=passed counts
    wanted "$name" || return 0
    shift 2
    [ -z "$tiny" ] || limit=$((limit * 10)) # it tries the script, on whatever machine
    parts=$((parts + 1))
    timeout -k 10 "$limit" "$program" run "$@" --db "$db" --label "$name" >"$out/$name.log" 2>&1 || code=$?
    counts=$(grep -oE '[0-9]+ cases? measured.*failed' "$out/$name.log" | tail -1)
    case $code in
    0) ;;
    124 | 137) verdict="out of time after $limit s"; worse 5 ;;
    1) verdict="WRONG"; worse 1 ;;
    5) verdict="died"; worse 5 ;;
    *) verdict="could not run (exit code $code)"; worse 5 ;;
    esac
    [ $code = 0 ] || failed=$((failed + 1))
    say "$(printf '%-28s %-24s %s  (%d s)' "$name" "$verdict" "$counts" $((SECONDS - started)))"
    [ $code = 0 ] || grep -E 'error|wrong|WRONG|FAILED' "$out/$name.log" | head -5 | sed 's/^/    /' | tee -a "$summary"
    grep -oE 'skipped: .*' "$out/$name.log" | sort | uniq -c | sed 's/^/    /' | tee -a "$summary"
}

# rows LABEL COLUMN...: these columns of the measured cases of a part, tab-separated, from the CSV export.
rows() {
    local label=$1
    shift
    "$program" export "$label" --db "$db" --format csv 2>/dev/null | awk -v label="$label" -v wanted="$(printf '%s\t' "$@")" '
        function fields(line,    n, c, i, quoted, text) {
            n = 1; text = ""; quoted = 0
            for (i = 1; i <= length(line); i++) {
                c = substr(line, i, 1)
                if (c == "\"") quoted = !quoted
                else if (c == "," && !quoted) { field[n++] = text; text = "" }
                else text = text c
            }
            field[n] = text
            return n
        }
        { sub(/\r$/, "") }
        NR == 1 { n = fields($0); for (i = 1; i <= n; i++) place[field[i]] = i; w = split(wanted, want, "\t") - 1; next }
        { fields($0)
          if (field[place["label"]] != label || field[place["state"]] != "ok") next
          line = ""
          for (i = 1; i <= w; i++) line = line (i > 1 ? "\t" : "") (want[i] in place ? field[place[want[i]]] : "")
          print line }'
}

# floor WHAT VALUE LEAST: in per cent.
floor() {
    local mark=ok
    if [ "$floors" = yes ] && ! awk -v v="$2" -v l="$3" 'BEGIN { exit !(v + 0 >= l) }'; then
        mark="BELOW THE FLOOR"
        failed=$((failed + 1))
        worse 1
    fi
    say "$(printf '    %-52s %7.1f %%  (floor %s %%)  %s' "$1" "${2:-0}" "$3" "$mark")"
}

# ---- what is here

say "ptbench on GPUs, $(date -u +%Y-%m-%dT%H:%M:%SZ), $(uname -n)"
"$program" version >"$out/version.log" 2>&1 || { cat "$out/version.log" >&2; exit 3; }
sed 's/^/    /' "$out/version.log" >>"$summary"
"$program" doctor >"$out/doctor.log" 2>&1
sed 's/^/    /' "$out/doctor.log" >>"$summary"
grep -i gpu "$out/doctor.log" | sed 's/^/    /'
if [ -z "$gpus" ]; then gpus=$(nvidia-smi -L 2>/dev/null | grep -c '^GPU'); fi
[ "${gpus:-0}" -ge 1 ] || gpus=1
say "$gpus GPU(s)"

# ---- one GPU

one=(--np 1 --device cuda)
big=256M small=1M
gpt2=(--model gpt2-124m) gpt2_rows=4096 gpt2_batch=32 gpt2_steps=20
llama=(--model llama3-1b --sequence 4096) llama_rows=4096 llama_batch=2 llama_steps=10
moe=(--model deepseek-moe-16b --sequence 2048) moe_rows=2048
wide=(--model llama3-8b --sequence 4096) wide_rows=4096
strategy_model=("device = cuda" "model = gpt2-124m") strategy_few=("layers = 2") strategy_batch=8 strategy_steps=10
strategy_experts=8
kernel_time=(--max-time 60ms)
if [ -n "$tiny" ]; then
    kernel_time=(-n 2 -w 1)
    big=64K small=1000
    gpt2=(--model tiny) gpt2_rows=128 gpt2_batch=2 gpt2_steps=4
    llama=(--model tiny --norm rmsnorm --positions rotary --activation swiglu --kv-heads 2 --biases no --tied no)
    llama_rows=128 llama_batch=2 llama_steps=4
    moe=(--model tiny --experts 4 --top-k 2) moe_rows=128
    wide=(--model tiny --heads 1) wide_rows=128
    strategy_model=("device = cuda" "peak = 1e12" "layers = 1" "hidden = 32" "heads = 4" "sequence = 32" "vocab = 64") strategy_few=()
    strategy_batch=2 strategy_steps=4
fi
part all-reduce-one-rank 30 all_reduce --np 1 --comm nccl --bytes 8,$small,$big --max-time 200ms
part copies 40 pairs "${one[@]}" --paths h2d,d2h,d2d --bytes $small,$big --max-time 500ms
# Every kernel of three models in every type; wrong results are found by the benchmark's own check.
part kernels-gpt2 70 kernels "${one[@]}" "${gpt2[@]}" --rows $gpt2_rows --precision bf16,f16,f32 "${kernel_time[@]}"
part kernels-llama 60 kernels "${one[@]}" "${llama[@]}" --rows $llama_rows --precision bf16 "${kernel_time[@]}"
# Attention alone, by the kernels of this GPU and by those of single warps, in heads of 64 and of 128.
for kernels in wgmma mma; do
    PTBENCH_CUDA_ATTENTION=$kernels part attention-$kernels-64 20 kernels "${one[@]}" "${gpt2[@]}" --rows $gpt2_rows \
        --precision bf16,f16 --max-time 100ms --kernel attention,attention_gradient
    PTBENCH_CUDA_ATTENTION=$kernels part attention-$kernels-128 20 kernels "${one[@]}" "${wide[@]}" --rows $wide_rows \
        --precision bf16 --max-time 100ms --kernel attention,attention_gradient
done
part kernels-moe 40 kernels "${one[@]}" "${moe[@]}" --rows $moe_rows --precision bf16 "${kernel_time[@]}" \
    --kernel route,route_gradient,dispatch,dispatch_gradient,combine,combine_gradient,expert_order,matmul,matmul_input_gradient,matmul_weight_gradient
part step-gpt2-124m 60 step "${one[@]}" "${gpt2[@]}" --batch $gpt2_batch --precision bf16 \
    --min-iters $gpt2_steps --max-iters $gpt2_steps
part step-llama3-1b 90 step "${one[@]}" "${llama[@]}" --batch $llama_batch --precision bf16 \
    --min-iters $llama_steps --max-iters $llama_steps

# ---- parallel strategies

# suite FILE RANKS LINE...: the strategies of a dense model and of a mixture that RANKS allow, with these
# lines in every section. Axes that cut heads, sequences or experts get 4 or 2 ranks; odd numbers cut none of them.
suite() {
    local file=$1 n=$2 cut=$2
    shift 2
    local lines=("$@")
    [ $((n % 2)) = 0 ] && cut=2
    [ $((n % 4)) = 0 ] && cut=4
    section() { # NAME LINE...
        echo "[$1]"
        echo "bench = step"
        printf '%s\n' "${lines[@]}" "${@:2}" ""
    }
    mixture=("experts = $strategy_experts" "top-k = 2" "balance = 0.01" "balance-statistics = global")
    {
        section "data parallel" "strategy = ddp,zero1,zero2,fsdp,hsdp"
        section "data parallel, not in step" "strategy = async,local-sgd"
        section mixture "strategy = ddp,fsdp" "${mixture[@]}"
        if [ $cut = 1 ] || [ $((n % 2)) = 0 ]; then
            section tensor "strategy = tp,tp+sp" "mesh = tp=$cut"
            section context "strategy = cp" "mesh = cp=$cut"
            section experts "strategy = ep" "mesh = ep=$cut" "${mixture[@]}"
        fi
        [ "$n" -lt 8 ] || [ $((n % 4)) != 0 ] || section triple "strategy = fsdp" "mesh = tp=2,cp=2"
    } >"$file"
}

# same_losses LABEL PERCENT: the first and the last loss of every strategy against ddp's of the same model. Those that do
# not train in step have losses of their own after the first step.
same_losses() {
    wanted "$1" || return 0
    local bad
    rows "$1" param.strategy param.mesh fact.experts 'loss_first [nats]' 'loss_last [nats]' | awk -F'\t' -v limit="$2" '
        function off(a, b) { return 100 * (a > b ? a - b : b - a) / b }
        $1 == "ddp" { first[$3] = $4; last[$3] = $5 }
        { own = $1 == "async" || $1 == "local-sgd"; first_off = off($4, first[$3]); last_off = off($5, last[$3])
          wrong = !(first_off <= limit && (own || last_off <= limit))
          printf "    %-10s %-16s %-8s losses %9.6f and %9.6f, off ddp by %.1e and %s %%  %s\n", $1, $2,
                 $3 + 0 ? "mixture" : "dense", $4, $5, first_off, own ? "n/a" : sprintf("%.1e", last_off),
                 wrong ? "WRONG" : "ok" }' >"$out/$1.losses"
    tee -a "$summary" <"$out/$1.losses"
    bad=$(grep -c WRONG "$out/$1.losses")
    [ -s "$out/$1.losses" ] || bad=1 # nothing was compared
    [ "$bad" = 0 ] || { failed=$((failed + 1)); worse 1; }
}

# strategies RANKS SECONDS: all of them on so many GPUs, few layers in f32 and the whole model in bf16.
strategies() {
    local n=$1
    suite "$out/strategies-f32-$n.ini" "$n" "${strategy_model[@]}" "${strategy_few[@]}" "batch = $((strategy_batch * n))" \
        "precision = f32" "deterministic = yes" "min-iters = 5" "max-iters = 5" "warmup = 0"
    part "strategies-f32-$n" "$2" "$out/strategies-f32-$n.ini" --np "$n"
    [ "$n" = 1 ] || [ $((n % 2)) = 0 ] || say "    tp, tp+sp, cp and ep are left out: an odd number of GPUs cuts no heads"
    same_losses "strategies-f32-$n" 0.01
    suite "$out/strategies-$n.ini" "$n" "${strategy_model[@]}" "batch = $((strategy_batch * n))" "precision = bf16" \
        "min-iters = $strategy_steps" "max-iters = $strategy_steps" "warmup = 2"
    part "strategies-$n" "$2" "$out/strategies-$n.ini" --np "$n"
    same_losses "strategies-$n" 2
    wanted "strategies-$n" || return 0
    "$program" show "strategies-$n" --db "$db" --width 160 2>/dev/null |
        awk '/^(Which strategy wins here|Strategies side by side|Training steps)$/ { inside = $1 != "Training" } inside' |
        tee -a "$summary"
}
[ "$gpus" -ge 2 ] || strategies 1 100

# ---- several

if [ "$gpus" -ge 2 ]; then
    for n in 2 $([ "$gpus" -gt 2 ] && echo "$gpus"); do
        part collectives-$n 120 all_reduce all_gather reduce_scatter sendrecv all_to_all --np "$n" --comm nccl \
            --bytes 8,$small,$big --max-time 200ms
        part pairs-$n 90 pairs --np "$n" --device cuda --bytes $big --max-time 200ms
        part steps-$n 90 step --np "$n" --device cuda "${gpt2[@]}" --batch $((gpt2_batch * n)) --precision bf16 \
            --min-iters $gpt2_steps --max-iters $gpt2_steps
        strategies "$n" 300
    done
fi

# ---- figures

say ""
wanted copies && say "copies (GB/s):" && rows copies param.path bytes 'bandwidth [GB/s]' | awk -F'\t' '{ printf "    %-4s %11s B  %8.1f\n", $1, $2, $3 }' | tee -a "$summary"
for part in kernels-gpt2 kernels-llama kernels-moe attention-{wgmma,mma}-{64,128}; do
    wanted $part || continue
    say ""
    say "$part: kernel, layer, type, sizes, median us, per cent of its limit (fastest sample):"
    rows $part param.kernel param.layer param.precision fact.sizes median_ns 'best_of_limit [%]' |
        awk -F'\t' '{ printf "    %-24s %-12s %-5s %-24s %10.1f  %6.1f\n", $1, $2, $3, $4, $5 / 1e3, $6 }' | tee -a "$summary"
done
say ""
say "floors (H100, H200): memory-bound kernels 75 % of a copy, attention 35 % and its gradient 30 % of the best product"
# Small kernels are over before the memory is busy: those that take less than 10 us are listed above and not judged.
for part in kernels-gpt2 kernels-llama; do
    wanted $part || continue
    while IFS=$'\t' read -r kernel layer type ns percent; do
        case $kernel in
        attention) floor "$part $kernel $layer $type" "$percent" 35 ;;
        attention_gradient) floor "$part $kernel $layer $type" "$percent" 30 ;;
        matmul*) ;;
        *) awk -v n="$ns" 'BEGIN { exit !(n >= 10000) }' && floor "$part $kernel $layer $type" "$percent" 75 ;;
        esac
    done < <(rows $part param.kernel param.layer param.precision median_ns 'best_of_limit [%]' | grep -v $'\tf32\t')
done
for part in step-gpt2-124m:40 step-llama3-1b:50; do
    label=${part%:*}
    wanted $label || continue
    # Another separator than the tab, of which several in a row would count as one.
    IFS=$'\037' read -r mfu sheet tokens ms overhead unattributed dropped < <(rows "$label" 'mfu [%]' 'mfu_datasheet [%]' \
        'tokens_per_s [tokens/s]' 'step [ms]' 'capture_overhead [%]' fact.capture_unattributed fact.capture_dropped | tr '\t' '\037')
    say "    $label: ${tokens:-n/a} tokens/s, recorded step ${ms:-n/a} ms (+${overhead:-n/a} %), MFU ${mfu:-n/a} % of the" \
        "measured product, ${sheet:-n/a} % of the data sheet; $unattributed kernels without a unit, $dropped records dropped"
    floor "$label MFU" "$mfu" "${part#*:}"
done

say ""
say "$parts parts, $failed failures, $((SECONDS - started)) s; all results: $db"
exit $worst
