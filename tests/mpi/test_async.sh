#!/bin/bash
# The asynchronous strategy over real processes, as a user runs it: without staleness the losses are ddp's; with the oldest
# parameters allowed two runs give the same bits; histogram, volume and memory are stored and are the closed forms; ranks that
# compute together take the same parameters, so that theirs stay equal; what cannot be is skipped with the reason.
# ctest: waits 15
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
bucket = 16K
lr = 0.001
lr-warmup = 4
min-iters = 4
max-iters = 4
warmup = 12
max-time = 60s"
# section NAME OPTION...
section() {
    echo "[$1]"
    echo "$model"
    shift
    printf '%s\n' "$@" ""
}
{
    section synchronous "strategy = ddp,async" "deterministic = yes" "staleness = 0"
    section oldest "strategy = async" "deterministic = yes" "staleness = 2"
    section newest "strategy = async" "staleness = 3"
    section tensor "strategy = async" "mesh = tp=2" "staleness = 2"
    section experts "strategy = async" "mesh = ep=2" "experts = 4" "top-k = 2" "staleness = 1"
} >all.ini
try 0 "$PTBENCH" run all.ini --np 4 --db all.db --json all.json
has err "6 cases measured (0 wrong), 0 skipped, 0 failed"
section oldest "strategy = async" "deterministic = yes" "staleness = 2" >again.ini
try 0 "$PTBENCH" run again.ini --np 4 --db again.db --json again.json

python3 - <<'PYTHON' || fail "what was stored is not what it must be"
import json, sys
bad = 0
def check(what, fine):
    global bad
    if not fine:
        print("FAIL:", what)
        bad += 1
def cases(file):
    return json.load(open(file))["runs"][0]["repetitions"][0]["cases"]
def series(case, name):
    return next(s["values"] for s in case["series"] if s["name"] == name)
def metrics(case):
    return {m["name"]: m["value"] for m in case["metrics"]}

ddp, equal, oldest, newest, tensor, experts = cases("all.json")
again = cases("again.json")[0]
steps = {"async": 12 + 8 + 4 * 8, "ddp": 12 + 4} # warm-up, one sample more of it, samples of 8
for c in (ddp, equal, oldest, newest, tensor, experts):
    check(f"{c['key']}: {c['facts']['steps']} steps", int(c["facts"]["steps"]) == steps[c["params"]["strategy"]])
    check(f"{c['key']}: memory is not as predicted", metrics(c)["memory_ratio"] == 1)
check("ddp has a staleness", "staleness_mean" not in metrics(ddp) and not any(s["name"] == "staleness" for s in ddp["series"]))
near = lambda a, b: abs(a / b - 1) < 1e-5
check("without staleness, losses are not ddp's", all(near(a, b) for a, b in zip(series(equal, "loss"), series(ddp, "loss"))))
check("old parameters change nothing", series(oldest, "loss") != series(equal, "loss"))
check("it does not repeat", series(again, "loss") == series(oldest, "loss")
      and again["facts"]["parameters_hash"] == oldest["facts"]["parameters_hash"])

# Workers x steps; the oldest version that step t may take is t - s.
check(f"histogram {series(equal, 'staleness')}", series(equal, "staleness") == [4 * 52])
check(f"histogram {series(oldest, 'staleness')}", series(oldest, "staleness") == [4, 4, 4 * 50])
check("mean", near(metrics(oldest)["staleness_mean"], (1 + 2 * 50) / 52) and near(metrics(oldest)["stale_gradients"], 100 * 51 / 52))
for c, workers, bound in ((newest, 4, 3), (tensor, 2, 2), (experts, 2, 1)):
    h, m = series(c, "staleness"), metrics(c)
    check(f"{c['key']}: histogram {h}", len(h) == bound + 1 and sum(h) == workers * 52 and all(x == int(x) for x in h))
    check(f"{c['key']}: mean {m['staleness_mean']}", near(m["staleness_mean"] + 1, 1 + sum(k * x for k, x in enumerate(h)) / sum(h)))
    check(f"{c['key']}: at most {m['staleness_max']}", m["staleness_max"] == max(k for k, x in enumerate(h) if x))

# `ptbench list strategies`: bytes that a rank sends in a step and keeps a parameter (AdamW, f32).
N, d = 28032, 4
for c, s in ((equal, 0), (oldest, 2), (newest, 3)):
    check(f"{c['key']}: sends {metrics(c)['comm_volume']}", near(metrics(c)["comm_volume"], (d - 1) / d * (4 + 4) * N))
    kept, wanted = metrics(c)["state_per_parameter"], 8 * (s + 1) + 12 / d
    check(f"{c['key']}: keeps {kept} bytes a parameter, wanted {wanted}", wanted <= kept < 1.05 * wanted)
parts = [metrics(oldest)[k] for k in ("forward", "backward", "optimizer", "exposed_comm", "input", "other", "imbalance")]
check(f"parts {parts} of {metrics(oldest)['step']}", abs(sum(parts) - metrics(oldest)["step"]) < 0.02 * metrics(oldest)["step"])
sys.exit(bad > 0)
PYTHON

try 0 "$PTBENCH" show --db all.db --width 200
has out "Stale parameters"
has out "what staleness costs"
grep -qE "^async staleness 2 +4 +8 +1.942 +2.000 +98.1 " out || { fail "no row of the oldest"; cat out; }

skipped() { # TEXT OPTION...
    local text=$1
    shift
    try 3 "$PTBENCH" run step --strategy async --layers 1 --np 2 --db skipped.db "$@"
    cat out err >both
    has both "$text"
}
skipped "f16 takes a step's loss scale from the update before it" --precision f16
skipped "no step of async lacks an update" --overlap no
try 2 "$PTBENCH" run step --strategy async --staleness 65 --db skipped.db
finish
