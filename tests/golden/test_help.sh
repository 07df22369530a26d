# Help, lists and messages against golden files. Only what this version's commands say themselves is compared; lists of
# plug-ins are checked for their form. After a wanted change: UPDATE=1 PTBENCH=... PTB_SOURCE=... bash
# tests/golden/test_help.sh, and read the diff.
set -u
shopt -s lastpipe # compare, at the end of a pipe, counts failures in this shell
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
golden=$PTB_SOURCE/tests/golden
failures=0
cd "$folder" || exit 1

compare() { # GOLDEN-FILE, text on standard input; numbers become #
    sed -E 's/[0-9]+(\.[0-9]+)*/#/g' >"$folder/$1"
    if [ -n "${UPDATE:-}" ]; then
        cp "$folder/$1" "$golden/$1"
    elif ! diff -u "$golden/$1" "$folder/$1"; then
        echo "FAIL: $1 differs"
        failures=$((failures + 1))
    fi
}

"$PTBENCH" help | compare help_overview.golden
for command in help list runs show report export import doctor version; do
    "$PTBENCH" help $command
    echo ----
done | compare help_commands.golden
"$PTBENCH" help run | sed '/^Each benchmark has/q' | compare help_run.golden
"$PTBENCH" version | head -1 | compare help_version.golden
{
    "$PTBENCH" rnu
    "$PTBENCH" run quik
    "$PTBENCH" run
    "$PTBENCH" show --no-such
    "$PTBENCH" show a b
    "$PTBENCH" import
    "$PTBENCH" list nothing
} 2>&1 | compare help_messages.golden

# What is said about a command stands in the manual page under its name, options or not.
"$PTBENCH" help --man >"$folder/man"
grep -A2 '^\.SS list$' "$folder/man" | grep -q '^KIND is' || { echo "FAIL: list has no heading"; failures=$((failures + 1)); }

# A heading, or a name and a summary.
"$PTBENCH" list >"$folder/list"
if grep -vE '^[a-z]+:$|^  [a-z0-9_.+-]+ +[^ ].*$|^ {23}(cut over ranks|memory|sends a (step|block)) +[^ ].*$' "$folder/list"; then
    echo "FAIL: the lines above are no headings and no entries"
    failures=$((failures + 1))
fi
for name in quick standard ci cluster gpt2-124m all_reduce step ddp host; do
    grep -qE "^  $name " "$folder/list" || { echo "FAIL: $name is not listed"; failures=$((failures + 1)); }
done
[ $failures = 0 ]
