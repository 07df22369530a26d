# Names that processes of a test have left in /dev/shm. Others make and remove theirs there at the same time, so only those
# count that carry the number of one of the test's own processes: ptbench-NUMBER-... Sourced by scripts that have `fail`.
#
#   "${noting[@]}" COMMAND...   the command, after a line "process NUMBER" with its number
#   nothing_left OUTPUT         fails unless the processes that this output notes have removed all their names
noting=(sh -c 'echo "process $$" && exec "$0" "$@"')
nothing_left() {
    local number numbers left=
    numbers=$(tr -d '\r' <<<"$1" | sed -n 's/^process \([0-9][0-9]*\)$/\1/p')
    [ -n "$numbers" ] || fail "no process is noted in: $1"
    for number in $numbers; do
        left+=$(ls /dev/shm | grep "^ptbench-$number-")
    done
    [ -z "$left" ] || fail "left in /dev/shm: $left"
}
