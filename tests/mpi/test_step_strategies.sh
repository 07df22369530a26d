#!/bin/bash
# Every strategy over real processes, as a user runs them: one run with a suite of small models on 1, 4 and 8 ranks. The
# losses of every strategy are those of one rank with the same global batch; what a rank sends on each axis and what it keeps
# of the model's state are the closed forms; facts and tables name the strategy and its mesh; the same run twice gives the
# same bits; meshes that fit nothing are refused with the arithmetic and exit code 2.
# ctest: waits 25
# ctest: unsanitized
. "$PTB_SOURCE/tests/mpi/run_common.sh"
export ASAN_OPTIONS=detect_leaks=0

model="bench = step
peak = 1e11
layers = 2
hidden = 32
heads = 4
sequence = 16
vocab = 64
batch = 8
lr-warmup = 2
deterministic = yes
min-iters = 6
max-iters = 6
warmup = 0
max-time = 60s"
# section NAME OPTION...
section() {
    echo "[$1]"
    echo "$model"
    shift
    printf '%s\n' "$@" ""
}
buckets="bucket = 16K" # of strategies that have some
experts=("experts = 8" "top-k = 2" "balance = 0")
averages=("optimizer = sgd" "momentum = 0" "lr = 0.1")
{
    section dense "ranks = 1,4" "$buckets" "strategy = ddp" "lr = 0.003"
    section "dense, divided" "ranks = 4" "$buckets" "strategy = zero1,zero2,fsdp,hsdp,tp,tp+sp,cp" "lr = 0.003"
    section "averages, alone" "ranks = 1" "$buckets" "strategy = ddp" "${averages[@]}"
    section averages "ranks = 4" "$buckets" "strategy = local-sgd" "local-steps = 1" "${averages[@]}"
    section "mixture, alone" "ranks = 1" "$buckets" "strategy = ddp" "lr = 0.003" "${experts[@]}"
    section mixture "ranks = 4" "$buckets" "strategy = ep,fsdp" "lr = 0.003" "${experts[@]}"
    section triple "ranks = 8" "strategy = fsdp" "mesh = tp=2,cp=2" "lr = 0.003"
} >all.ini
try 0 "$PTBENCH" run all.ini --np 8 --db all.db --json all.json
has err "15 cases measured (0 wrong), 0 skipped, 0 failed"
{
    section divided "ranks = 4" "$buckets" "strategy = ddp,fsdp" "lr = 0.003"
    section pair "ranks = 4" "$buckets" "strategy = tp" "mesh = cp=2" "lr = 0.003"
} >twice.ini
try 0 "$PTBENCH" run twice.ini --np 4 --repeat 2 --db twice.db --json twice.json

python3 - <<'PYTHON' || fail "what was stored is not what it must be"
import json, sys
bad = 0
def check(what, fine):
    global bad
    if not fine:
        print("FAIL:", what)
        bad += 1
def near(a, b, limit):
    return abs(a / b - 1) < limit if b else a == 0
def cases(file, repetition=0):
    return json.load(open(file))["runs"][0]["repetitions"][repetition]["cases"]
def series(case, name):
    return next(s["values"] for s in case["series"] if s["name"] == name)
def metrics(case):
    return {m["name"]: m["value"] for m in case["metrics"]}
def name(case):
    p = case["params"]
    return f'{p["strategy"]} {p.get("mesh", "")} {p.get("experts", "dense")} on {p["ranks"]}'

everything = cases("all.json")
alone = {(c["params"]["optimizer"], c["facts"]["experts"]): series(c, "loss") for c in everything if c["ranks"] == 1}
check("three models on one rank", len(alone) == 3)
for losses in alone.values():
    check(f"one rank's losses {losses}", len(losses) == 6 and all(4 < x < 4.4 for x in losses) and len(set(losses)) == 6)
for c in everything:
    wanted, got = alone[c["params"]["optimizer"], c["facts"]["experts"]], series(c, "loss")
    check(f"{name(c)}: losses {got}, of one rank {wanted}",
          len(got) == len(wanted) and all(near(a, b, 1e-5) for a, b in zip(got, wanted)))

# Letters as in `ptbench list strategies`: bytes that a rank sends in a step, by axis, and keeps a parameter (AdamW, f32).
# In this model nothing is padded. fsdp gathers at most twice what it cuts, and blocks that stay once.
N, d, b, s, h, L, w = 28032, 4, 8, 16, 32, 2, 4
share = (d - 1) / d
reduced = 2 * share * 4 * N                   # ddp: an all-reduce of the gradients
summed = 4 * share * (2 * L + 1) * b * s * h * w  # tp: of the activations
statistics = share * d * 3 * b * s * 4        # and three numbers a row for the loss
rows = b * s / d
passed = L * (2 * (d - 1) * w + 4 * d) * rows * 2 * h # cp: keys and values around the ring, and their gradients
volumes = {"ddp": {"dp": reduced}, "zero1": {"dp": reduced}, "zero2": {"dp": reduced}, "local-sgd": {"dp": reduced},
           "tp": {"tp": summed + statistics}, "cp": {"dp": reduced, "cp": passed}}
kept = {"ddp": 16, "zero1": 8 + 8 / d, "zero2": 4 + 12 / d, "fsdp": 16 / d, "hsdp": 16 / (d / 2), "local-sgd": 8, "cp": 16}
meshes = {"hsdp": "dp=4 replicate=2", "tp": "tp=4", "tp+sp": "tp=4", "cp": "cp=4", "ep": "ep=4"}
seen = set()
for c in everything:
    strategy, m, f = c["params"]["strategy"], metrics(c), c["facts"]
    sent = {axis: m["comm_volume_" + axis] for axis in ("dp", "tp", "cp", "ep") if m.get("comm_volume_" + axis)}
    check(f"{name(c)}: memory of {m['memory_ratio']} of the prediction", m["memory_ratio"] == 1)
    by_rank = series(c, "peak_memory_by_rank")
    check(f"{name(c)}: memory by rank {by_rank}", len(by_rank) == c["ranks"] and max(by_rank) == m["peak_memory"])
    check(f"{name(c)}: the parts {sent} of {m['comm_volume']} bytes", near(sum(sent.values()), m["comm_volume"], 1e-9))
    if c["ranks"] != 4:
        continue
    check(f"{name(c)}: mesh {f['mesh']}", f["mesh"] == meshes.get(strategy, "dp=4"))
    if f["experts"] != "0":
        check(f"{name(c)}: sent {sent}", set(sent) == ({"dp", "ep"} if strategy == "ep" else {"dp"}))
        check(f"{name(c)}: tokens of experts", sum(series(c, "expert_tokens")) == L * 2 * b * s)
        continue
    seen.add(strategy)
    if strategy in volumes:
        wanted = volumes[strategy]
        check(f"{name(c)}: sent {sent}, wanted {wanted}",
              set(sent) == set(wanted) and all(near(sent[a], wanted[a], 1e-9) for a in wanted))
    if strategy in kept:
        check(f"{name(c)}: {m['state_per_parameter']} bytes a parameter, wanted {kept[strategy]}",
              kept[strategy] <= m["state_per_parameter"] < 1.05 * kept[strategy])
    if strategy == "fsdp":
        check(f"fsdp sent {sent}", reduced <= sent["dp"] <= 1.5 * reduced)
check(f"strategies {seen}", len(seen) == 9)
triple = next(c for c in everything if c["ranks"] == 8)
check(f"mesh {triple['facts']['mesh']}", triple["facts"]["mesh"] == "tp=2 cp=2 dp=2")
for c in everything:
    bound, is_ep = metrics(c).get("ideal_step"), c["params"]["strategy"] == "ep"
    check(f"{name(c)}: bound {bound}", (bound is not None) == (c["ranks"] > 1 and not is_ep))
check("a triple sends on each of its axes", all(metrics(triple)["comm_volume_" + a] > 0 for a in ("tp", "cp", "dp")))

first, again = cases("twice.json"), cases("twice.json", 1)
check("three strategies twice", [name(c) for c in first] == [name(c) for c in again] and len(first) == 3)
for a, c in zip(first, again):
    check(f"{name(a)}: losses differ", series(a, "loss") == series(c, "loss"))
    check(f"{name(a)}: parameters differ", a["facts"]["parameters_hash"] == c["facts"]["parameters_hash"])
    same = [c for c in everything if name(c) == name(a)]
    check(f"{name(a)}: the other run's losses differ", all(series(c, "loss") == series(a, "loss") for c in same))
sys.exit(bad > 0)
PYTHON

try 0 "$PTBENCH" show --db all.db --width 200
grep -A99 "^Strategies side by side" out >beside
for row in ddp zero1 zero2 fsdp hsdp tp tp+sp "cp ring"; do # of one table
    awk '/^# step/ { tables++ } tables == 2' beside | grep -qE "^${row/+/[+]} .* [0-9.]+ +[0-9.]+\$" ||
        { fail "no row of $row beside the others"; cat beside; }
done
grep -q "^ep all_to_all " beside && grep -q "^run 1 *local-sgd local steps 1 " out || fail "no row of ep or of local-sgd"

refused() { # TEXT OPTION...
    local text=$1
    shift
    try 2 "$PTBENCH" run step --layers 1 --db refused.db "$@"
    has err "$text"
}
refused "a mesh of tp=3 x cp=1 x ep=1 x pp=1 = 3 ranks does not divide the 4 that were started" --np 4 --mesh tp=3
refused "has 8 ranks, and 4 were started" --np 4 --mesh tp=2,dp=4
refused "--mesh 'xp=2': expected AXIS=RANKS" --np 2 --mesh xp=2
refused "--mesh tp=4 does not divide --heads 2: 2 = 4 x 0 + 2" --np 4 --strategy tp --mesh tp=4 --heads 2
refused "--mesh ep=2 cuts experts, and the model has none" --np 2 --mesh ep=2
refused "--mesh cp=3 does not divide --sequence 16: 16 = 3 x 5 + 1" --np 3 --mesh cp=3 --sequence 16
refused "--mesh tp=3 cannot cut --feed-forward 2" --np 3 --mesh tp=3 --heads 3 --hidden 24 --feed-forward 2
refused "has more than the 1048576 ranks that there can be" --np 2 --mesh tp=1048576,cp=1048576,ep=1048576,pp=16
refused "a mesh of dp=2 leaves --strategy tp 1 rank of the 2 that were started" --np 2 --strategy tp --mesh dp=2
refused "'fsdp'" --np 2 --strategy fdsp
refused "--bucket changes nothing here: it needs a --strategy that reduces buckets" --np 2 --strategy fsdp,zero2 --bucket 1M
refused "--reduce-type changes nothing here: it needs a --strategy that reduces gradients" --np 2 --strategy local-sgd --reduce-type bf16
refused "--tensor-chunks changes nothing here: it needs layers that are cut" --np 2 --strategy ddp,fsdp --tensor-chunks 4
# Rows that cannot be cut, and in a sweep of numbers of ranks a mesh or a batch that does not fit one, are skipped by name.
small=(--layers 1 --hidden 32 --heads 4 --vocab 67 --peak 1e11 -n 2 -w 0)
try 3 "$PTBENCH" run step --np 2 --strategy tp+sp --sequence 15 --batch 1 "${small[@]}" --db swept.db
has err "skipped: sequence parallelism cuts the 15 rows (tokens) of a microbatch into tp 2 x chunks 1 equal parts: 15 = 2 x 7 + 1"
try 0 "$PTBENCH" run step --np 3 --ranks 1,2,3 --mesh tp=2 --sequence 16 --batch 4 "${small[@]}" --db swept.db
has err "1 case measured (0 wrong), 2 skipped, 0 failed"
try 0 "$PTBENCH" run step --np 3 --ranks 2,3 --sequence 16 --batch 4 "${small[@]}" --db swept.db
has err "skipped: --batch 4 does not divide over 3 data-parallel ranks: 4 = 3 x 1 + 1; use 3 or 6"
finish
