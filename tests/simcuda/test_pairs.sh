# Pairs between simulated GPUs: NCCL's messages, copies by engine and by kernel to another GPU's memory, the rank's own host
# memory; all checked, all labelled simulated.
. "$PTB_SOURCE/tests/mpi/run_common.sh"
try 0 "$PTBENCH" run pairs --np 3 --device cuda --bytes 1000,64K --max-time 20ms --db all.db
# 6 ordered pairs by 3 paths, 3 ranks by 3 paths, 2 sizes
has err "54 cases measured (0 wrong), 0 skipped"
try 0 "$PTBENCH" show last --db all.db
has out "[SIMULATED DEVICE]"
has out "peer-kernel"
try 0 "$PTBENCH" report --db all.db --output page
has page/index.html "SIMULATED"

# A rank that sees one GPU alone has no path to the others.
CUDA_VISIBLE_DEVICES=0 try 0 "$PTBENCH" run pairs --np 2 --device cuda --share-gpu --paths peer,d2d --bytes 64K --max-time 20ms --db one.db
has err "let every rank see all of its host's"
has err "both ranks have the same GPU"
has err "2 cases measured (0 wrong), 2 skipped"
finish
