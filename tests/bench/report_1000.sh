# Times of reading a database of 1,000 runs with 60 cases each: the list of runs, the tables of one, the reports of one
# and of three. Each must take at most 3 s. Prints three times each; run it on a quiet machine.
#   PTBENCH=build/ptbench PTB_TESTBIN=build/tests bash tests/bench/report_1000.sh
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
db=$folder/thousand.db
"$PTB_TESTBIN/golden_helper_report" many "$db" 1000
echo "database: $(du -h "$db" | cut -f1), $("$PTBENCH" runs --db "$db" | grep -c complete || true) runs listed by default"
slow=0
measure() { # NAME COMMAND...
    name=$1; shift
    line=
    for _ in 1 2 3; do
        from=$(date +%s%N)
        "$@" >"$folder/out" 2>"$folder/err" || { echo "FAIL: $name: $(tail -1 "$folder/err")"; exit 1; }
        ms=$((($(date +%s%N) - from) / 1000000))
        line="$line $ms"
        [ $ms -le 3000 ] || slow=1
    done
    echo "$name:$line ms (limit 3000)"
}
measure "runs" "$PTBENCH" runs --db "$db"
measure "show, one run" "$PTBENCH" show 500 --db "$db"
measure "report, one run" "$PTBENCH" report 500 --db "$db" --output "$folder/one"
measure "report, three runs" "$PTBENCH" report 1 500 1000 --db "$db" --output "$folder/three"
[ $slow = 0 ] || { echo "FAIL: more than 3 s"; exit 1; }
