# Where output goes: closed pipes, full devices, terminals and their like, decimal commas, help everywhere.
# ctest: waits 10
# ctest: many starts
. "$PTB_SOURCE/tests/mpi/run_common.sh"

# Help and usage.
try 2 "$PTBENCH"
has out "usage: ptbench COMMAND"
try 2 "$PTBENCH" verson
has err "did you mean 'version'"
try 0 "$PTBENCH" --version
try 0 "$PTBENCH" --help
for name in $("$PTBENCH" list benchmarks | awk 'NR > 1 { print $1 }'); do
    try 0 "$PTBENCH" help "$name"
    has out "usage: ptbench run $name"
    try 0 "$PTBENCH" run "$name" --help
    has out "usage: ptbench run $name"
done
for name in $("$PTBENCH" --help | awk '/^commands:/ { on = 1; next } /^$/ { on = 0 } on { print $1 }'); do
    try 0 "$PTBENCH" help "$name"
    has out "usage: ptbench $name"
    try 0 "$PTBENCH" "$name" --help
    try 2 "$PTBENCH" "$name" --no-such-option
done
try 2 "$PTBENCH" help al_reduce
try 2 "$PTBENCH" list bench
has err "'benchmarks'"
try 0 "$PTBENCH" list
has out "quick"
try 0 "$PTBENCH" help --man
has out ".TH PTBENCH 1"
has out '\-\-max\-time'
if command -v man >/dev/null; then
    cp out ptbench.1
    MANWIDTH=100 man --warnings -l ptbench.1 >page 2>warnings || fail "man cannot read the page"
    [ -s warnings ] && { fail "the manual page has warnings"; head -5 warnings; }
    has page "--max-time"
fi

# A reader that leaves early is no error; a full device is one.
for command in list "help run" "help --man" runs export; do
    "${tiny[@]}" --db pipe.db -q 2>/dev/null
    # shellcheck disable=SC2086
    PTBENCH_DB=pipe.db "$PTBENCH" $command 2>err | head -c 1 >out
    code=${PIPESTATUS[0]}
    [ "$code" = 0 ] || fail "exit code $code of '$command' into a closed pipe"
    [ -s err ] && { fail "'$command' complains about a closed pipe"; cat err; }
    code=0
    # shellcheck disable=SC2086
    PTBENCH_DB=pipe.db "$PTBENCH" $command >/dev/full 2>err || code=$?
    [ "$code" != 0 ] || fail "'$command' into a full device is no error"
    has err "error:"
done

# Numbers have a point in every locale.
if command -v localedef >/dev/null && localedef -i de_DE -f UTF-8 "$folder/de_DE.UTF-8" 2>/dev/null; then
    try 0 env LOCPATH="$folder" LC_ALL=de_DE.UTF-8 "${tiny[@]}" --ci 2.5% --max-time 0.5s --db locale.db
    grep -qE '[0-9]\.[0-9]' err || fail "no decimal point in a German locale"
    grep -qE ' [0-9]+,[0-9]+ (us|ns|ms|s|GB)' err && fail "a decimal comma"
    try 0 env LOCPATH="$folder" LC_ALL=de_DE.UTF-8 "$PTBENCH" show --db locale.db
    try 0 env LOCPATH="$folder" LC_ALL=de_DE.UTF-8 "$PTBENCH" export --db locale.db -f csv
    [ "$(head -1 out | tr -cd , | wc -c)" = "$(sed -n 2p out | sed 's/"[^"]*"//g' | tr -cd , | wc -c)" ] ||
        fail "commas in the numbers of a CSV line"
else
    echo "no locale with a decimal comma could be made; that part was not run"
fi

# Plain lines without a terminal; on one, a line that is rewritten, unless TERM=dumb; no colour with NO_COLOR.
try 0 "${tiny[@]}" --db term.db
has err "[1/2] all_reduce"
has err " left)"
has_not err "$(printf '\033')"
if command -v script >/dev/null; then
    on_terminal() { # ENVIRONMENT...
        timeout 300 script -qec "env $* $PTBENCH run all_reduce --np 2 --comm host --bytes 8,64 -n 5 -w 2 --db term.db" /dev/null \
            >typescript </dev/null || fail "exit code $? on a terminal"
    }
    on_terminal TERM=xterm
    grep -q "$(printf '\033\\[K')" typescript || { fail "no live line on a terminal"; head -5 typescript; }
    on_terminal TERM=dumb
    has_not typescript "$(printf '\033')"
    on_terminal TERM=xterm NO_COLOR=1
    grep -q "$(printf '\033\\[3')" typescript && fail "colour in spite of NO_COLOR"
else
    echo "there is no 'script' to make a terminal; that part was not run"
fi

# doctor: a line a check; without MPI it says so and exits with 3.
try 0 "$PTBENCH" doctor
has out "ok       launch"
try 3 env PATH=/nonexistent "$PTBENCH" doctor
has out "openmpi-bin"
finish
