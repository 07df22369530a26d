# Training over real processes: 1, 2 and 4 ranks with the same global batch give the same losses up to rounding and
# equal parameters on all ranks, in f32 and bf16; so do microbatches; overlap and recomputation change no bit; communication has the volume of the closed form; a rank whose
# gradients are not reduced is noticed; what cannot be divided is refused.
# ctest: waits 60
# ctest: unsanitized
set -u
helper=$PTB_TESTBIN/mpi_helper_step
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export OMPI_MCA_orte_tmpdir_base=$work # as in run_common.sh
export ASAN_OPTIONS=detect_leaks=0
device=${PTB_TEST_DEVICE:-host}
small="--device $device --deterministic --layers 2 --hidden 32 --heads 2 --sequence 16 --vocab 64 --bucket 16K --lr 0.003"
measured=$small
small="$small --peak 1e11"

fail() {
    echo "FAILED: $*"
    exit 1
}
# run NAME RANKS OPTIONS...: output in $work/NAME; what the program says on standard error too
run() {
    name=$1 ranks=$2
    shift 2
    timeout 300 mpirun --allow-run-as-root --oversubscribe --bind-to none --mca mpi_yield_when_idle 1 -np "$ranks" \
        "$helper" "$@" >"$work/$name" 2>&1
}
value() { # value NAME KIND KEY
    awk -v kind="$2" -v key="$3" '$1 == kind && $2 == key { print $3 }' "$work/$1"
}
# Largest relative difference of the losses of two runs; "bad" unless both have the same number of finite ones, at least 20
# (where a profiler records the spans, it does so in steps after those).
difference() {
    awk '$1 == "loss" && FNR == NR { first[$2] = $3; n++ }
         $1 == "loss" && FNR != NR { m++; d = ($3 - first[$2]) / first[$2]; if (d < 0) d = -d; if (d > most) most = d
                                     if (!($3 + 0 > 0)) bad = 1 }
         END { if (n < 20 || m != n || bad) print "bad"; else printf "%.3g\n", most }' "$work/$1" "$work/$2"
}
close_to() { # close_to A B LIMIT
    d=$(difference "$1" "$2")
    [ "$d" != bad ] || fail "$1 and $2 do not have as many losses, 20 at least: $(cat "$work/$1" "$work/$2")"
    awk -v d="$d" -v limit="$3" 'BEGIN { exit !(d < limit) }'
}

for n in 1 2 4; do
    run ranks$n $n $small || fail "$n ranks: $(cat "$work/ranks$n")"
    [ "$(value ranks$n verdict 22)" = 0 ] || fail "$n ranks: $(grep verdict "$work/ranks$n")"
    [ "$(value ranks$n fact buckets)" = 7 ] || fail "$n ranks: 112128 bytes are 7 buckets of 16 KiB at most"
    # Parameters are not padded in this shape: a ring sends 2 (n - 1) / n of 4 bytes each.
    wanted=$(awk -v n=$n -v p="$(value ranks$n metric parameters)" 'BEGIN { print 2 * (n - 1) / n * 4 * p }')
    [ "$(value ranks$n metric comm_volume)" = "$wanted" ] || fail "$n ranks: volume $(value ranks$n metric comm_volume)"
done
for n in 2 4; do
    close_to ranks1 ranks$n 1e-5 || fail "losses of 1 and $n ranks differ by $(difference ranks1 ranks$n)"
    echo "1 and $n ranks: losses within $(difference ranks1 ranks$n)"
done
awk '$1 == "loss" && $2 == 0 { exit !($3 > 4.0 && $3 < 4.3) }' "$work/ranks1" || fail "does not begin near ln 64 = 4.16"

# Overlap, threads of the kernels and the size of buckets change no bit; only when they reduce.
for options in "--no-overlap" "--threads 2" "--bucket 1M"; do
    [ $device = host ] || [ "$options" != "--threads 2" ] || continue
    run other 2 $small $options || fail "$options: $(cat "$work/other")"
    [ "$(difference ranks2 other)" = 0 ] || fail "$options: losses differ by $(difference ranks2 other)"
    [ "$(value other fact parameters_hash)" = "$(value ranks2 fact parameters_hash)" ] || fail "$options: parameters"
    case $options in
    --no-overlap)
        [ $device != host ] || [ "$(value other metric overlap)" = 0 ] ||
            fail "overlap $(value other metric overlap) without overlap"
        ;;
    esac
done
# Other communicators and algorithms sum in another order; the host has some.
for options in "--comm mpi" "--algo ring"; do
    [ $device = host ] || continue
    run other 2 $small $options || fail "$options: $(cat "$work/other")"
    [ "$(value other verdict 22)" = 0 ] || fail "$options: $(grep verdict "$work/other")"
    close_to ranks1 other 1e-5 || fail "$options: losses differ by $(difference ranks1 other)"
done
[ "$(value ranks1 metric overlap)" = nan ] || fail "overlap of 1 rank is $(value ranks1 metric overlap), not undefined"

# A recorded step that is replayed, where the device has graphs: the host has none.
if [ $device != host ]; then
    for n in 2 8; do
        run enqueued $n $small || fail "$n ranks: $(cat "$work/enqueued")"
        run replayed $n $small --graph || fail "--graph: $(cat "$work/replayed")"
        close_to ranks1 replayed 1e-5 || fail "--graph: losses of 1 and $n ranks differ by $(difference ranks1 replayed)"
        [ "$(difference enqueued replayed)" = 0 ] || fail "--graph: losses differ by $(difference enqueued replayed)"
        [ "$(value enqueued fact parameters_hash)" = "$(value replayed fact parameters_hash)" ] || fail "--graph: parameters"
        [ "$(value enqueued metric comm_volume)" = "$(value replayed metric comm_volume)" ] || fail "--graph: volume"
    done
fi

# Microbatches, recomputation, precision, and the reduction's type.
run micro 2 $small --micro-batches 4 || fail "$(cat "$work/micro")"
close_to ranks1 micro 1e-5 || fail "microbatches: losses differ by $(difference ranks1 micro)"
wanted=$(value ranks2 metric comm_volume)
[ "$(value micro metric comm_volume)" = "$wanted" ] || fail "microbatches: volume $(value micro metric comm_volume)"
run full 2 $small --recompute full || fail "$(cat "$work/full")"
[ "$(difference ranks2 full)" = 0 ] || fail "recomputation: losses differ by $(difference ranks2 full)"
[ "$(value full fact parameters_hash)" = "$(value ranks2 fact parameters_hash)" ] || fail "recomputation: parameters"
for n in 1 2; do
    run bf16_$n $n $small --precision bf16 --reduce-type bf16 || fail "bf16: $(cat "$work/bf16_$n")"
    [ "$(value bf16_$n verdict 22)" = 0 ] || fail "bf16: $(grep verdict "$work/bf16_$n")"
done
close_to ranks1 bf16_1 2e-2 || fail "bf16 and f32: losses differ by $(difference ranks1 bf16_1)"
close_to bf16_1 bf16_2 5e-3 || fail "bf16 on 1 and 2 ranks: losses differ by $(difference bf16_1 bf16_2)"
awk -v a="$(value bf16_2 metric comm_volume)" -v b="$wanted" 'BEGIN { exit !(2 * a == b) }' ||
    fail "bf16 moves $(value bf16_2 metric comm_volume) bytes, f32 $wanted"
echo "bf16: within $(difference ranks1 bf16_1) of f32, 1 and 2 ranks within $(difference bf16_1 bf16_2)"
# 2^24 overflows f16: the first steps are skipped on all ranks, until the scale fits.
run f16 2 $small --precision f16 --loss-scale 16777216 --clip 1 || fail "f16: $(cat "$work/f16")"
[ "$(value f16 verdict 22)" = 0 ] || fail "f16: $(grep verdict "$work/f16")"
awk -v n="$(value f16 metric skipped_steps)" '
    $1 == "loss_scale" { if ($2 == 0 && $3 != 16777216) exit 1; if ($2 > 0 && $3 == last / 2) halved++
                         else if ($2 > 0 && $3 != last) exit 1; last = $3 }
    END { exit !(n >= 2 && (halved == n || halved == n - 1)) }' "$work/f16" || # the last step may have been skipped
    fail "f16: $(value f16 metric skipped_steps) steps skipped; $(grep loss_scale "$work/f16")"
# Memory: as predicted, in every category on every rank, and by the closed forms (bytes a parameter, padding apart).
for name in ranks2:16 micro:16 bf16_2:18 f16:18; do
    what=${name%:*} bytes=${name#*:}
    [ "$(value "$what" metric memory_ratio)" = 1 ] || fail "$what: memory $(grep -E "peak|predicted" "$work/$what")"
    awk -v got="$(value "$what" metric state_per_parameter)" -v wanted="$bytes" \
        'BEGIN { exit !(got >= wanted && got < 1.01 * wanted) }' ||
        fail "$what: $(value "$what" metric state_per_parameter) bytes a parameter"
    [ "$(grep -c "^peak_memory_by_rank" "$work/$what")" = 2 ] || fail "$what: memory is not there for both ranks"
done
awk '$1 == "metric" { v[$2] = $3 }
     END { if (v["matmul_peak"] != 2e11) exit 1
           r = v["mfu"] / (100 * v["flops_per_s"] / v["matmul_peak"]); exit !(r > 0.9999 && r < 1.0001) }' "$work/ranks2" ||
    fail "mfu is not flops_per_s / matmul_peak: $(cat "$work/ranks2")"

# The parts of a step sum to it, and it takes nearly all of the time by the helper's clock, and no more. Spans of other devices
# come from a profiler.
if [ $device = host ]; then
    awk '$1 == "metric" { v[$2] = $3 }
         END { sum = v["forward"] + v["backward"] + v["optimizer"] + v["exposed_comm"] + v["input"] + v["other"] + v["imbalance"]
               if (sum < 0.99999 * v["step"] || sum > 1.00001 * v["step"] || v["imbalance"] < -1e-6) exit 1
               exit !(sum > 0.5 * v["middle_step"] && sum < 1.00001 * v["middle_step"]) }' "$work/ranks2" ||
        fail "parts do not add up: $(cat "$work/ranks2")"
fi

# The plant, in a communicator of the host: with the communicator of the test all is well until rank 1 keeps its own gradients.
if [ $device = host ]; then
    run sound 2 $small --comm faulty || fail "$(cat "$work/sound")"
    [ "$(difference ranks2 sound)" = 0 ] || fail "the test's communicator changes results by itself"
    export HELPER_FAULT=1
    run plant 2 $small --comm faulty || fail "$(cat "$work/plant")"
    unset HELPER_FAULT
    close_to ranks1 plant 1e-5 && fail "a skipped all-reduce leaves the losses as they are"
    grep -q "^verdict 22 1 rank 1's parameters differ from rank 0's after 20 steps" "$work/plant" ||
        fail "a skipped all-reduce was not noticed: $(grep verdict "$work/plant")"
fi

# Real text: 20 finite losses and equal parameters are checked (whether it can be learnt is the text's affair), and this one
# can be.
run text 2 $measured --vocab 256 --data "$PTB_SOURCE/strategies/transformer/model.c" || fail "$(cat "$work/text")"
[ "$(value text verdict 21)" = 0 ] || fail "text: $(grep verdict "$work/text")"
awk -v peak="$(value text metric matmul_peak)" 'BEGIN { exit !(peak > 0 && peak != 2e11) }' ||
    fail "matmul_peak $(value text metric matmul_peak) is not measured"
awk '$1 == "loss" && $2 == 0 { first = $3 } $1 == "loss" { last = $3 } END { exit !(last < first - 0.1) }' "$work/text" ||
    fail "text: the loss did not fall: $(grep loss "$work/text")"

refused() { # refused PATTERN RANKS OPTIONS...
    pattern=$1 ranks=$2
    shift 2
    run refused "$ranks" "$@"
    [ $? = 2 ] || fail "$* was not refused with exit code 2: $(cat "$work/refused")"
    grep -q -- "$pattern" "$work/refused" || fail "$* was refused with: $(cat "$work/refused")"
}
# The same on every device.
if [ $device = host ]; then
    refused "--batch 8 does not divide over 3 data-parallel ranks: 8 = 3 x 2 + 2; use 6 or 9" 3 $small --batch 8
    refused "--batch 8 does not divide over 2 data-parallel ranks x 3 microbatches = 6 parts: 8 = 6 x 1 + 2; use 6 or 12" 2 $small --batch 8 \
        --micro-batches 3
    refused "--heads 3 does not divide --hidden 32" 1 $small --heads 3
    refused "did you mean 'gpt2-124m'" 1 --model gpt2-125m
    refused "ends at step --lr-steps, which must be after --lr-warmup" 1 $small --lr-schedule cosine
    refused "--lr-min 0.1 is above --lr 0.003" 1 $small --lr-schedule cosine --lr-steps 100 --lr-min 0.1
    refused "--peak is the rate of one type, and --precision f32,bf16 has several" 1 $small --precision f32,bf16
    refused "'f8' is not a value of precision; did you mean .*'f16'" 1 $small --precision f8
    refused "not a regular file" 1 $small --vocab 256 --data /dev/null
    refused "cannot be read" 1 $small --vocab 256 --data "$work/nothing"
    refused "'ddp'" 1 $small --strategy dpp
    refused "no all-reduce of that name; did you mean .*'ring'" 1 $small --algo rong
    refused "'host'" 1 $small --comm hosts
    refused "more than can be counted" 1 --sequence 16777216 --batch 16777216 --vocab 16777216
fi
run tf32 1 $small --precision tf32
if [ "$device" = host ]; then
    grep -q "^skipped the kernels host have no TF32" "$work/tf32" || fail "TF32 on the host: $(cat "$work/tf32")"
else
    close_to ranks1 tf32 1e-2 || fail "losses in f32 and tf32 differ by $(difference ranks1 tf32)"
    [ "$(difference ranks1 tf32)" != 0 ] || fail "tf32 is f32"
fi
# More than this machine has: skipped with the figure, before anything is allocated.
run huge 1 --layers 100 --hidden 65536 --heads 64 --batch 1 --sequence 64
grep -q "^skipped needs .* GB a rank (parameters" "$work/huge" || fail "too large a model: $(cat "$work/huge")"
echo "all good"
