# The benchmark `pairs`: every pair of ranks of one host over every path that a host has, checked, a matrix in the report.
# ctest: waits 14
# ctest: many starts
. "$PTB_SOURCE/tests/mpi/run_common.sh"

try 0 "$PTBENCH" run pairs --np 3 --bytes 1000,64K --max-time 50ms --db all.db
has err "12 cases measured (0 wrong), 0 skipped"
has err "from=2 to=1 bytes=64K"
try 0 "$PTBENCH" show last --db all.db --width 200
has out "send by host"
has out "Expected: a rank moves 1 S over a core's copies of that size, measured here"
has out "of the best"
try 0 "$PTBENCH" report --db all.db --output page
has page/index.html "darker is faster"
[ -s page/pairs-1.png ] && [ -s page/pairs-2.png ] || fail "no matrix: $(ls page)"

try 0 "$PTBENCH" run pairs --np 4 --comm mpi --pairs ring --bytes 8 --max-time 50ms --db ring.db
has err "4 cases measured (0 wrong), 0 skipped"

# A rank's own memory; what the host has not is skipped by name.
try 0 "$PTBENCH" run pairs --np 2 --paths h2d,d2h,d2d,peer,peer-kernel --bytes 64K --max-time 50ms --db own.db
has err "6 cases measured (0 wrong), 4 skipped"
has err "the device 'host' has no memory of other devices"

try 3 "$PTBENCH" run pairs --np 1 --db none.db
has err "there are no pairs: 1 rank on 1 host"
try 3 "$PTBENCH" run pairs --np 2 --pairs across --db none.db
try 2 "$PTBENCH" run pairs --np 2 --paths sideways --db none.db
has err "there is no path 'sideways'"
try 2 "$PTBENCH" run pairs --np 2 --bytes 0 --db none.db
has err "expected a size from 1 to 1T"
try 2 "$PTBENCH" run pairs --np 2 --comm nosuch --db none.db
try 2 "$PTBENCH" run pairs --np 2 --paths d2d --transport shm --db none.db
has err "--transport changes nothing here: it needs send in --paths"
try 2 "$PTBENCH" run pairs --np 2 --paths h2d,d2h --pairs ring --db none.db
has err "--pairs changes nothing here"
finish
