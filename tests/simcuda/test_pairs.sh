# Pairs between simulated GPUs: NCCL's messages, copies by engine and by kernel to another GPU's memory, the rank's own host
# memory; all checked, all labelled simulated.
. "$PTB_SOURCE/tests/mpi/run_common.sh"
export PTB_SIM=devices=8
try 0 "$PTBENCH" run pairs --np 3 --device cuda --bytes 1000,64K --max-time 20ms --db all.db
# 6 ordered pairs by 3 paths, 3 ranks by 3 paths, 2 sizes
has err "54 cases measured (0 wrong), 0 skipped"
try 0 "$PTBENCH" show last --db all.db
has out "[SIMULATED DEVICE]"
has out "peer-kernel"
try 0 "$PTBENCH" report --db all.db --output page
has page/index.html "SIMULATED"
# The conditions of a table name no single GPU; each case names its two.
has_not page/index.html "GPU-73696d75"
"$PTBENCH" export --db all.db last >out
has out '"from_device": "GPU-73696d75-6c61-7465-6400-000000000001"'
has out '"to_device": "GPU-73696d75-6c61-7465-6400-000000000002"'

# A rank that sees one GPU alone has no path to the others.
CUDA_VISIBLE_DEVICES=0 try 0 "$PTBENCH" run pairs --np 2 --device cuda --share-gpu --paths peer,d2d --bytes 64K --max-time 20ms --db one.db
has err "let every rank see all of its host's"
has err "both ranks have the same GPU"
has err "2 cases measured (0 wrong), 2 skipped"

# What cannot be had is said once, and of each case; what fits is measured, and a dry run says which.
try 2 "$PTBENCH" run pairs --np 2 --device cuda --comm host --bytes 4K --db none.db
has err "--comm host with --device cuda: communicator host moves memory of the device host"
PTB_SIM=devices=1 try 3 "$PTBENCH" run pairs --np 2 --device cuda --paths d2d,peer --bytes 4K --db refused.db
[ "$(grep -c 'error: ranks .* have the same device' err)" = 1 ] || fail "a refused device is not told once"
has err "4 skipped"
export PTB_SIM=devices=2,memory=64
try 0 "$PTBENCH" run pairs --np 2 --device cuda --paths d2d --bytes 64K,64M --max-time 20ms --db small.db
has err "bytes=64M ranks=2  skipped: not enough memory: with three buffers on device cuda"
has err "2 cases measured (0 wrong), 2 skipped"
try 0 "$PTBENCH" run pairs --np 2 --device cuda --paths d2d --bytes 64K,64M --dry-run
[ "$(grep -c 'skipped: not enough memory' out)" = 2 ] || fail "a dry run does not foresee what will be skipped"
# Memory that ends while buffers are made, on one rank.
for full in 1 3 5; do
    PTB_SIM=devices=2,rank=1,full=$full try 3 "$PTBENCH" run pairs --np 2 --device cuda --paths send --bytes 64K -n 3 --db full.db
    has err "maller"
    has_not err "no progress"
done
finish
