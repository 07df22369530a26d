# The reports of known runs against golden files with holes for measured numbers: layout, words, order and the width of
# every number must agree. In the page, figures are left out (test_chromium.sh looks at those).
# After a wanted change: UPDATE=1 PTB_TESTBIN=... PTB_SOURCE=... bash tests/golden/test_report.sh, and read the diff.
set -u
shopt -s lastpipe # compare, at the end of a pipe, counts failures in this shell
export LC_ALL=C.UTF-8
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
helper=$PTB_TESTBIN/golden_helper_report
golden=$PTB_SOURCE/tests/golden
failures=0

# Digits of numbers with a decimal point become 9.
holes() {
    awk '{
        rest = $0; line = ""
        while (match(rest, /[0-9]+\.[0-9]+(e[+-][0-9]+)?/)) {
            number = substr(rest, RSTART, RLENGTH)
            gsub(/[0-9]/, "9", number)
            line = line substr(rest, 1, RSTART - 1) number
            rest = substr(rest, RSTART + RLENGTH)
        }
        print line rest
    }'
}
compare() { # GOLDEN-FILE, text on standard input
    holes >"$folder/$1"
    if [ -n "${UPDATE:-}" ]; then
        cp "$folder/$1" "$golden/$1"
    elif ! diff -u "$golden/$1" "$folder/$1"; then
        echo "FAIL: $1 differs"
        failures=$((failures + 1))
    fi
}

"$helper" fill "$folder/reports.db" || exit 1
"$helper" text "$folder/reports.db" 1 100 | compare report_quick_100.golden
"$helper" text "$folder/reports.db" 1 80 | compare report_quick_80.golden
"$helper" text "$folder/reports.db" 5 100 | compare report_step_100.golden
"$helper" text "$folder/reports.db" 9 100 | compare report_hostile_100.golden
"$helper" html "$folder/reports.db" "$folder/page" 5 6 9 >/dev/null || exit 1
sed -e '/<style>/,/<\/style>/d' -e '/<svg /,/<\/svg>/d' "$folder/page/index.html" | compare report_page.golden

# Page faults that were stored are shown.
"$helper" html "$folder/reports.db" "$folder/page1" 1 >/dev/null || exit 1
grep -q '>page faults<' "$folder/page1/index.html" || { echo "FAIL: page faults are not shown"; failures=$((failures + 1)); }

# The locale must not matter: a decimal comma in the environment changes nothing.
"$helper" text "$folder/reports.db" 1 100 >"$folder/point"
LC_ALL=de_DE.UTF-8 LC_NUMERIC=de_DE.UTF-8 "$helper" text "$folder/reports.db" 1 100 >"$folder/comma"
cmp "$folder/point" "$folder/comma" || { echo "FAIL: the locale changes the numbers"; failures=$((failures + 1)); }
exit $((failures > 0))
