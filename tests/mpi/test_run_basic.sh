# `ptbench run` with real ranks: what a user types, what comes out, what is stored, which exit code.
# ctest: waits 18
# ctest: many starts
. "$PTB_SOURCE/tests/mpi/run_common.sh"

# A run, and the commands that look at it.
try 0 "${tiny[@]}" --label first
has err "2 cases measured (0 wrong), 0 skipped, 0 failed"
has err "ptbench report"
[ -f ptbench.db ] || fail "no ptbench.db"
try 0 "$PTBENCH" runs
has out "complete"
has out "all_reduce (first)"
for name in last first 1 "$("$PTBENCH" runs | awk 'NR == 2 { print $2 }')"; do
    try 0 "$PTBENCH" show "$name"
    has out "all_reduce"
done
try 0 "$PTBENCH" export
has out '"name": "busbw"'
has out '"launcher": "mpirun (Open MPI'
try 0 "$PTBENCH" export -f csv -o cases.csv
[ "$(wc -l <cases.csv)" = 3 ] || fail "cases.csv does not hold 2 cases"
try 2 "$PTBENCH" show nosuchrun
try 2 "$PTBENCH" export -f cvs
has err "'csv'"
if command -v gnuplot >/dev/null; then
    try 0 "$PTBENCH" report -o page
    has out page/index.html
    [ -s page/index.html ] || fail "no page"
fi

# Several benchmarks, active ranks, modes, JSON; the environment names the database.
PTBENCH_DB=other.db try 0 "$PTBENCH" run barrier all_gather --np 2 --comm host --ranks 1,2 --bytes 8 -n 3 -w 1 \
    --mode latency --time avg -J out.json
[ -f other.db ] || fail "PTBENCH_DB was not used"
has out.json '"ranks": 1'
has out.json '"mode": "latency"'
has out.json '"combine": "avg"'
has_not out.json '"state": "failed"'
try 0 "$PTBENCH" run sendrecv --np 2 --db other.db --pattern ping-pong --bytes 8 -n 3 -w 1 -q
has_not err "[1/"

# More ranks than wanted by --ranks are skipped by name; a benchmark alone that cannot run is exit 3.
try 0 "$PTBENCH" run barrier --np 2 --comm host --ranks 2,3 -n 3 -w 1 --db skip.db
has err "needs 3 ranks; this run has 2"
try 3 "$PTBENCH" run sendrecv --np 1 --comm host --bytes 8 -n 3 --db skip.db
has err "nothing was measured"

# A suite file: parts that this machine cannot run are skipped by name, the rest runs.
cat >mine.ini <<'END'
[suite]
name = mine
summary = for a test

[over gpus]
bench = all_reduce
requires = gpu

[on hosts]
bench = all_reduce
requires = hosts>=2, ranks>=2

[here]
bench = all_reduce
comm = host
bytes = 8
place = out
iters = 3
END
try 0 "$PTBENCH" run mine.ini --np 2 --db suite.db
has err "needs gpu; no GPU can be used here"
has err "needs hosts>=2; this run has 1"
has err "1 case measured (0 wrong), 2 skipped, 0 failed"
"$PTBENCH" export --db suite.db -f csv >cases.csv
[ "$(grep -c ',skipped,' cases.csv)" = 2 ] || fail "the skipped parts are not stored"

# Plans.
try 0 "$PTBENCH" run quick --np 2 --dry-run --db none.db
has out "all_reduce/comm=host/algo=tree"
has out "/ranks=1"
has out " cases, about "
[ -e none.db ] && fail "--dry-run made a database"

# Under a launcher that is there already: joins.
try 0 mpirun --allow-run-as-root --oversubscribe -n 2 "$PTBENCH" run all_reduce --comm host --bytes 8 -n 3 --db joined.db
has err "2 cases measured"
try 2 mpirun --allow-run-as-root --oversubscribe -n 2 "$PTBENCH" run all_reduce --repeat 2 --db joined.db
# A launcher that has started several processes, each of which is alone.
try 3 env OMPI_COMM_WORLD_SIZE=4 OMPI_COMM_WORLD_RANK=0 "$PTBENCH" run all_reduce --db alone.db
has err "alone in a world of 1"

# Repetitions in fresh processes.
try 0 "${tiny[@]}" --repeat 2 --db repeat.db
try 0 "$PTBENCH" runs --db repeat.db
awk 'NR == 2 { exit !($4 == "complete" && $6 == 2 && $7 == 4) }' out || { fail "not 2 repetitions of 2 cases"; cat out; }

# More ranks than cores.
try 0 "$PTBENCH" run all_reduce --np 5 --comm host --bytes 8 -n 3 -w 1 --place out --db many.db
has err "1 case measured"

# What cannot fit into this machine takes no time, and says so where cases are only listed.
try 0 "$PTBENCH" run step all_reduce --np 2 --dry-run --model llama3-70b --strategy ddp --comm host --bytes 8,64T --place out
has out "0.00 s  step/strategy=ddp/"
has out "skipped: needs "
has out "skipped: not enough memory: 2 ranks on this host need about"
has out "3 cases, about 1 s, on 2 ranks on 1 host"
try 0 "$PTBENCH" run step --np 2 --dry-run --layers 2 --hidden 64 --heads 2 --precision tf32
has out "skipped: the kernels host do not compute in tf32; take another --precision"
try 0 "$PTBENCH" run step --np 2 --dry-run --layers 2 --hidden 64 --heads 2
has out "  guessed from 100 GFLOP/s a rank"

# A mode that a case cannot have is not replaced by another under its name.
try 0 "$PTBENCH" run all_reduce --np 2 --comm host --bytes 8 --mode back-to-back --dry-run
[ "$(grep -c 'skipped: --mode back-to-back: it overwrites its own input' out)" = 1 ] || { fail "not one skipped"; cat out; }

# What is wrong with a request is said once, by exit code 2, and nothing is stored.
refused() { # MESSAGE ARGUMENT...
    local message=$1
    shift
    try 2 "$PTBENCH" run "$@" --db refused.db
    has err "$message"
    [ "$(grep -c 'error:' err)" = 1 ] || { fail "not one message: $*"; cat err; }
}
refused "did you mean 'quick'" quik
refused "did you mean 'all_reduce'" all_reduc
refused "did you mean 'algo'" all_reduce --algoo ring
refused "did you mean 'ring'" all_reduce --np 2 --comm host --algo rign
refused "did you mean 'host'" all_reduce --np 2 --comm hots
refused "'8Q' is not a value" all_reduce -b 8Q
refused "f31" all_reduce --np 2 -d f31
refused "there is no transport 'shn'; did you mean 'shm'" all_reduce --np 2 --transport shn
refused "--channels changes nothing here: it needs --comm nccl" all_reduce --np 2 --channels 4
refused "--segment changes nothing here: it needs --comm host" all_reduce --np 2 --comm mpi --segment 64K
try 0 "$PTBENCH" run all_reduce --np 2 --comm mpi --algo ring --segment 64K --bytes 8 --place out --dry-run
refused "--blocking changes nothing here: it needs a collective" sendrecv --np 2 -z
try 2 "$PTBENCH" run all_reduce -b
has err "needs a value"
# One way to give the sizes; the command line's replaces that of a suite.
refused "--bytes gives exact sizes and --max-bytes belongs to a sweep" all_reduce --np 2 --comm host --bytes 8 -e 64
refused "--count gives exact sizes and --step-factor belongs to a sweep" all_reduce --np 2 --comm host --count 8 -f 4
refused "--bytes and --count both give the sizes" all_reduce --np 2 --comm host --bytes 8 --count 8
printf '[all_reduce]\ncomm = host\nalgo = direct\nplace = out\nmax-bytes = 32\n' >sweep.ini
printf '[all_reduce]\ncomm = host\nalgo = direct\nplace = out\nbytes = 32\n' >exact.ini
sizes() { # suite options...: the sizes that it measures then
    try 0 "$PTBENCH" run "$1" --np 2 --dry-run "${@:2}"
    measured=$(sed -n 's/.*bytes=\([0-9]*\).*/\1/p' out | tr '\n' ' ')
}
expect_sizes() { [ "$measured" = "$1" ] || fail "sizes $measured instead of $1"; }
sizes sweep.ini && expect_sizes "8 16 32 "
sizes sweep.ini --bytes 4,64 && expect_sizes "4 64 "
sizes sweep.ini -b 16 && expect_sizes "16 32 "
sizes exact.ini -b 16 -e 64 && expect_sizes "16 32 64 "
sizes exact.ini --count 3 && expect_sizes "12 "
refused "name a suite or a benchmark"
refused "no suite, suite file or benchmark 'no.ini'" no.ini
[ -e refused.db ] && fail "a refused request made a database"

# No MPI: what to install.
mkdir empty
try 3 env PATH="$folder/empty" "$PTBENCH" run quick
has err "openmpi-bin"
# A label is text, also when it holds commands for a terminal.
try 0 "${tiny[@]}" --db label.db --label "$(printf 'a\033[31mb\nc')"
try 0 "$PTBENCH" runs --db label.db
has out '(a?[31mb c)'
# A case that is not there is no empty export.
try 2 "$PTBENCH" export --db label.db --case 99
has err "--case 99"
try 0 "$PTBENCH" export --db label.db --case 1
# A library that cannot start is this machine's fault, not a rank's death.
OMPI_MCA_btl=nosuch try 3 "${tiny[@]}" --db label.db
# A secret for the ranks is stored nowhere; resuming asks for it again.
try 0 "${tiny[@]}" --db secret.db --mpirun-args "-x MY_TOKEN=hunter2"
grep -q hunter2 secret.db* && fail "a secret is stored"
try 2 "$PTBENCH" run --resume last --db secret.db
has err "was masked"
try 0 "$PTBENCH" run --resume last --db secret.db --mpirun-args "-x MY_TOKEN=hunter2"
finish
