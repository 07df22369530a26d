# Where `ptbench run`, export, report and doctor write, and what they say when that does not go.
# ctest: waits 20
# ctest: many starts
. "$PTB_SOURCE/tests/mpi/run_common.sh"
export XDG_CACHE_HOME=$folder/cache

# Output that cannot be written is no success, also when it is mpirun that hands it on.
plan=("$PTBENCH" run barrier --np 2 --comm host --dry-run)
try 0 "${plan[@]}"
has out "1 case, about "
code=0
timeout 300 "${plan[@]}" >/dev/full 2>err || code=$?
[ "$code" = 3 ] || fail "a plan that could not be written: exit code $code"
has err "standard output could not be written"
# Nobody who reads any more is no error.
timeout 300 "${plan[@]}" 2>err | true
[ "${PIPESTATUS[0]}" = 0 ] || fail "a closed pipe: $(cat err)"

# A list of a step that is longer than there is room for is refused, not cut.
try 2 "$PTBENCH" run step --np 1 --model tiny --dry-run --comm "$(printf 'host%.0s,' $(seq 16))host"
has err "--comm: the list has 17 entries; at most 16"

# Files that cannot be written: exit code 6, and --json is tried before anything is measured.
try 0 "${tiny[@]}"
try 6 "${tiny[@]}" --json /nowhere/results.json --db never.db
has err "/nowhere/results.json cannot be written"
[ -e never.db ] && fail "measured although --json could not be written"
try 6 "${tiny[@]}" --json "$folder"
try 0 "${tiny[@]}" --json results.json
has results.json '"state": "ok"'
try 6 "$PTBENCH" export -o /nowhere/results.json
try 6 "$PTBENCH" export -o /dev/full
if command -v gnuplot >/dev/null; then
    touch file
    try 6 "$PTBENCH" report -o file/page
fi

# A program in a folder with a quote in its name starts its own ranks; the advice counts what may be used.
mkdir "it's a folder"
ln "$PTBENCH" "it's a folder/ptbench" 2>/dev/null || cp "$PTBENCH" "it's a folder/ptbench"
"it's a folder/ptbench" doctor >out 2>err
has out "2 ranks start and find each other"
first=$(taskset -pc $$ | sed -E 's/.*: ([0-9]+).*/\1/')
taskset -c "$first" "$PTBENCH" doctor >out 2>err
has out "bound to a core each up to --np 1,"

# The table of algorithms: measured once, and anew when that is asked for. A step that is to repeat to the bit does without.
auto=("$PTBENCH" run all_reduce --np 2 --comm host --place out --bytes 8 -n 3 -w 1)
try 0 "${auto[@]}"
has err "measuring the algorithms of"
table=$(echo cache/ptbench/auto-*-2x1.json)
[ -s "$table" ] || fail "no table"
cp "$table" cache/ptbench/auto-0123456789abcdef-2x1.json
try 0 "${auto[@]}"
has_not err "measuring the algorithms of"
sed -i 's/"algorithm": null/"algorithm": "direct"/' "$table" # a busy machine leaves sizes out
step=("$PTBENCH" run step --np 2 --layers 1 --hidden 32 --heads 2 --sequence 16 --vocab 64 --peak 1e11 -n 1 -w 0)
try 0 "${step[@]}" --json timed.json
has timed.json '"chosen_by": "auto, measured table"'
try 0 "${step[@]}" --deterministic --json untimed.json
has untimed.json '"chosen_by": "auto, fixed rule"'
sed -i 's/"algorithm": "[a-z_]*"/"algorithm": "pairwise"/' "$table" # which does no all_reduce
try 0 "${step[@]}" --json unfit.json
has unfit.json '"chosen_by": "auto, fixed rule"'
try 0 "${auto[@]}" --renew-auto --dry-run
[ -s "$table" ] || fail "a plan forgot the table"
try 0 "${auto[@]}" --renew-auto
has err "measuring the algorithms of"
[ -s "$table" ] || fail "no new table"
[ -s cache/ptbench/auto-0123456789abcdef-2x1.json ] || fail "another machine's table is gone"
finish
