# `cmake --install`: the program and its manual page arrive under DESTDIR, and the installed program runs.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
DESTDIR=$folder cmake --install "$PTB_TESTBIN/.." --prefix /opt/ptbench >"$folder/log" 2>&1 || {
    cat "$folder/log"
    exit 1
}
"$folder/opt/ptbench/bin/ptbench" version | head -1 | grep -qE '^ptbench [0-9]+\.[0-9]+\.[0-9]+$'
page=$(find "$folder/opt/ptbench" -name ptbench.1)
grep -q '^\.TH PTBENCH 1' "$page"
"$folder/opt/ptbench/bin/ptbench" list | grep -q '^  quick '
