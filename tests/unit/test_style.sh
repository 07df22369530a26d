#!/bin/bash
# Layout (clang-format), length of files and functions, and words that mark unfinished work.
# Without clang-format the rest is checked and the test counts as skipped.
set -u
cd "$PTB_SOURCE" || exit 1
FILE_MAX=600 FUNCTION_MAX=80
# Files that may be longer: kernels (direct is the data path through shared memory).
long_files=" collectives/algorithms/direct.c "

folders=$(ls -d core profiler collectives strategies results reports bench tests 2>/dev/null)
mapfile -t files < <(find $folders \( -name '*.[ch]' -o -name '*.cu' -o -name '*.cuh' -o -name '*.[ch]pp' \) | sort)
failed=0
complain() {
    echo "$*"
    failed=1
}

for file in "${files[@]}"; do
    lines=$(wc -l <"$file")
    [ "$lines" -le $FILE_MAX ] || [[ $long_files == *" $file "* ]] ||
        complain "$file has $lines lines: split it (at most $FILE_MAX)"
done

# A function's braces stand alone in the first column, and nothing else's do (.clang-format).
long=$(awk -v max=$FUNCTION_MAX '
    FNR == 1 { open = 0 }
    /^\{$/ { open = FNR }
    /^\}/ { if (open && FNR - open - 1 > max) print FILENAME ":" open ": " FNR - open - 1 " lines"; open = 0 }' \
    "${files[@]}")
[ -z "$long" ] || complain "functions of more than $FUNCTION_MAX lines:"$'\n'"$long"

unfinished=$(grep -nwE 'TO''DO|FIX''ME|X''XX|HA''CK' -r $folders CMakeLists.txt || true)
[ -z "$unfinished" ] || complain "unfinished:"$'\n'"$unfinished"

echo "${#files[@]} files checked"
[ "${#files[@]}" -ge 40 ] || failed=1
if ! command -v clang-format >/dev/null; then
    [ $failed -eq 0 ] || exit 1
    echo "skipped: clang-format is not installed"
    exit 77
fi
clang-format --dry-run -Werror "${files[@]}" || failed=1
exit $failed
