# Over the MPI library's own reduce-scatter, whose form in place leaves its result elsewhere for a moment, nothing of it
# gets into the padding between tensors, which the gradient's norm counts: norms of sharded strategies are those of one
# rank in every step, also where widths are no multiples of what tensors are aligned to.
# ctest: waits 10
# ctest: unsanitized
. "$PTB_SOURCE/tests/mpi/run_common.sh"

model="bench = step
peak = 1e11
layers = 2
hidden = 20
heads = 4
sequence = 12
vocab = 37
batch = 12
optimizer = sgd
lr = 0.1
clip = 0.3
deterministic = yes
min-iters = 5
max-iters = 5
warmup = 0"
printf '%s\n' "[alone]" "$model" "bucket = 512" "ranks = 1" "[divided]" "$model" "bucket = 512" "ranks = 3" "comm = mpi" "micro-batches = 2" \
    "strategy = ddp,zero1,zero2,fsdp" "[in 16 bits over 1 rank]" "$model" "ranks = 1" "reduce-type = bf16" "strategy = fsdp" \
    "[asynchronous]" "$model" "bucket = 512" "ranks = 3" "comm = mpi" "strategy = async" "staleness = 0" >all.ini
try 0 "$PTBENCH" run all.ini --np 3 --db all.db --json all.json
has err "7 cases measured (0 wrong), 0 skipped, 0 failed"
python3 - <<'PYTHON' || fail "norms are not those of one rank"
import json, sys
cases = json.load(open("all.json"))["runs"][0]["repetitions"][0]["cases"]
norms = [[s["values"][:5] for s in c["series"] if s["name"] == "grad_norm"][0] for c in cases]
bad = len(norms) != 7
for c, mine in zip(cases, norms):
    if len(mine) != 5 or not all(abs(a / b - 1) < 1e-5 for a, b in zip(mine, norms[0])):
        print(f'FAIL: {c["params"]["strategy"]}: {mine}, of one rank {norms[0]}')
        bad = True
sys.exit(bad)
PYTHON
finish
