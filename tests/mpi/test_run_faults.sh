# What `ptbench run` does when it is interrupted, when a rank dies, hangs or cannot store: finished cases stay, nothing is
# left behind, and a resumed run measures only what is missing.
# ctest: waits 50
# ctest: unsanitized
# ctest: many starts
. "$PTB_SOURCE/tests/mpi/run_common.sh"

# Processes of a run of this test, which are its ranks, mpirun and the one that started it: they carry the name of its
# database and work in this folder. Another test that runs at the same time may use the same name.
processes_of() { # DATABASE
    local found=1 p
    for p in $(pgrep -f -- "ptbench run .*--db $1( |\$)"); do
        [ "$(readlink "/proc/$p/cwd")" = "$folder" ] && echo "$p" && found=0
    done
    return $found
}

# Its rank 1.
rank_1_of() { # DATABASE
    local p
    for p in $(processes_of "$1"); do
        grep -qsz '^OMPI_COMM_WORLD_RANK=1$' "/proc/$p/environ" && echo "$p"
    done
}

# Starts a run of 36 cases in the background (its process id in $job). A shell starts those with SIGINT ignored. With more
# samples wanted than there is time for, a case ends after ten times --max-time, whatever the clock resolves; all take 10 s,
# or as long as a --max-time behind it says.
begin_long() { # DATABASE [OPTION...]
    : >err # nothing of the command before is taken for this one's
    env --default-signal=INT "$PTBENCH" run all_reduce --np 2 --comm host --algo direct -b 8 -e 1M --min-iters 2000000 \
        --max-iters 2000000 --max-time 25ms --mode latency --db "$@" >out 2>err &
    job=$!
}

# Until the shell that $job begins as, which ignores SIGINT, has become the program.
wait_for_program() {
    for _ in $(seq 6000); do
        [[ $(tr '\0' ' ' <"/proc/$job/cmdline") == "$PTBENCH run "* ]] && return
        sleep 0.01
    done
    fail "the program does not start"
}

# And waits until some cases are stored.
start_long() { # DATABASE [OPTION...]
    begin_long "$@"
    for _ in $(seq 1200); do
        grep -q '^\[2/' err && return
        sleep 0.1
    done
    fail "the run did not get going"
    cat err
}

# Waits for $job at most so many seconds; its exit code in $code.
wait_for_job() { # SECONDS
    code=
    for _ in $(seq $(($1 * 10))); do
        kill -0 $job 2>/dev/null || { wait $job; code=$?; return; }
        sleep 0.1
    done
    fail "still running after $1 s"
    kill -9 $job
}

# All of them end, and not because all is measured.
no_orphans() { # DATABASE
    for _ in $(seq 600); do
        processes_of "$1" >/dev/null && sleep 0.1 && continue
        [ ! -e "$1" ] || [ "$(cases "$1")" -lt 36 ] || fail "the ranks have gone on to the end"
        return
    done
    fail "orphans: $(processes_of "$1" | tr '\n' ' ')"
    processes_of "$1" | xargs -r kill -9
}

cases() { "$PTBENCH" runs --db "$1" | awk 'END { print $7 + 0 }'; }
state() { "$PTBENCH" runs --db "$1" | awk 'END { print $4 }'; }

# What is wrong with a request is found by all ranks at once; whichever ends first, the code is that of the request.
for _ in 1 2 3; do
    try 2 "$PTBENCH" run step --np 6 --hidden 65 --heads 2 --batch 6
done

# Ctrl-C: the first one stops by agreement and says how to go on.
start_long stop.db --max-time 15ms
kill -INT $job
wait_for_job 60
[ "$code" = 5 ] || { fail "exit code $code after an interrupt"; cat err; }
has err "ptbench run --resume"
[ "$(state stop.db)" = interrupted ] || fail "state $(state stop.db)"
before=$(cases stop.db)
[ "$before" -ge 1 ] && [ "$before" -lt 36 ] || fail "$before cases are stored"
no_orphans stop.db
# A resumed run takes selection and options from the stored one and measures the rest; so does its plan.
try 0 "$PTBENCH" run --resume last --db stop.db --dry-run
has out "$((36 - before)) cases, about"
has out "missing of run"
[ "$(grep -c ' s  all_reduce/' out)" = "$((36 - before))" ] || { fail "other cases are planned"; cat out; }
[ "$(state stop.db)" = interrupted ] || fail "state $(state stop.db) after --dry-run"
try 0 "$PTBENCH" run --resume last --db stop.db
[ "$(state stop.db)" = complete ] || fail "state $(state stop.db) after --resume"
[ "$(cases stop.db)" = 36 ] || fail "$(cases stop.db) cases after --resume"
has err "$((36 - before)) cases measured"
try 0 "$PTBENCH" run --resume last --db stop.db
has err "0 cases measured"
try 2 "$PTBENCH" run --resume nosuchrun --db stop.db
try 2 "$PTBENCH" run all_reduce --resume last --db stop.db
has err "--resume takes what is measured, and how, from the stored run"

# Ctrl-C while mpirun starts, when the ranks are not there yet, is not forgotten.
for delay in 0.05 0.1 0.2; do
    begin_long early.db
    wait_for_program
    sleep $delay
    kill -INT $job
    wait_for_job 60
    # 130: before anything was started
    [ "$code" = 5 ] || [ "$code" = 130 ] || { fail "exit code $code after an interrupt at $delay s"; cat err; }
    no_orphans early.db
done

# A rank that is killed: the others stop, exit code 5, what is finished stays.
start_long killed.db
victim=$(rank_1_of killed.db)
kill -KILL "$victim"
wait_for_job 60
[ "$code" = 5 ] || { fail "exit code $code after SIGKILL of a rank"; cat err; }
has err "signal 9"
has err "ptbench run --resume"
[ "$(state killed.db)" = failed ] || fail "state $(state killed.db)"
[ "$(cases killed.db)" -ge 1 ] || fail "no case is kept"
no_orphans killed.db

# A rank that is stopped makes no progress: the watch ends the job.
start_long hang.db --timeout 5s
stopped=$(rank_1_of hang.db)
kill -STOP "$stopped"
wait_for_job 90
[ "$code" = 5 ] || { fail "exit code $code after SIGSTOP of a rank"; cat err; }
has err "no progress for"
has err "1 of 2 ranks did not come to call "
has err "process $stopped) does not answer: it has ended or is stopped"
no_orphans hang.db

# The process that looks after mpirun is killed: mpirun and the ranks go too.
mkdir temporary
TMPDIR=$folder/temporary start_long parent.db
kill -KILL $job
wait $job 2>/dev/null
no_orphans parent.db
[ "$(state parent.db)" != running ] || fail "state $(state parent.db) with nobody left"
ls temporary | grep ptbench && fail "a file stays behind"

# Everything is killed at once, as with a lost node, in a job that another started: nobody is left to store that. While it
# lived it ran; then it has died, and can be resumed.
mpirun --allow-run-as-root --oversubscribe -n 2 "$PTBENCH" run all_reduce --comm host --algo direct -b 8 -e 1M --min-iters 2000000 \
    --max-iters 2000000 --max-time 15ms --mode latency --db outside.db >out.outside 2>err.outside &
job=$!
for _ in $(seq 1200); do
    grep -q '^\[2/' err.outside && break
    sleep 0.1
done
"$PTBENCH" runs --db outside.db >runs
awk 'NR == 2 && $4 == "running" { found = 1 } END { exit !found }' runs || { fail "a run that lives does not run"; cat runs err.outside; }
try 2 "$PTBENCH" run --resume last --db outside.db
has err "run last still runs on this host"
everybody=$(processes_of outside.db)
kill -STOP $everybody # so that none can notice that another is gone
kill -KILL $everybody
wait $job 2>/dev/null
no_orphans outside.db
[ "$(state outside.db)" = died ] || { fail "state $(state outside.db) with nobody left"; processes_of outside.db; }
before=$(cases outside.db)
try 0 "$PTBENCH" show --db outside.db
has out "is not complete: state died"
try 0 "$PTBENCH" report --db outside.db --output page
has page/index.html "is not complete: state died"
"$PTBENCH" export --db outside.db | grep -q '"state": *"died"' || fail "the export does not say that it died"
try 0 "$PTBENCH" run --resume last --db outside.db
[ "$(state outside.db)" = complete ] || fail "state $(state outside.db) after --resume"
[ "$(cases outside.db)" = 36 ] || fail "$(cases outside.db) cases after --resume"
has err "$((36 - before)) cases measured"

# A database that is deleted during the run: everything is saved, also what was stored before.
start_long gone.db --max-time 15ms
rm -f gone.db gone.db-wal gone.db-shm
wait_for_job 120
[ "$code" = 6 ] || { fail "exit code $code after the database was deleted"; cat err; }
has err "deleted or replaced"
try 0 "$PTBENCH" import --db found.db gone-spill-*.db
[ "$(cases found.db)" = 36 ] || fail "$(cases found.db) cases of a deleted database"

# A database that cannot be written: results go to a file that `import` takes, exit code 6.
try 0 "${tiny[@]}" --db full.db
mkdir elsewhere
if [ "$(id -u)" = 0 ]; then
    # Root may write read-only files; a database from a newer version cannot be written by anyone.
    printf 'not a database, but long enough to be looked at as one' >bad.db
else
    cp full.db bad.db
    chmod a-w bad.db
fi
TMPDIR=$folder/elsewhere try 6 "${tiny[@]}" --db bad.db
has err "what could not be stored in bad.db is in "
has err "ptbench import"
spill=$(grep -oE 'ptbench import --db [^ ]+ [^ ]+' err | awk '{ print $NF }')
[ -s "$spill" ] || fail "no spill file '$spill'"
try 0 "$PTBENCH" import --db good.db "$spill"
has out "2 cases of 1 runs"
try 0 "$PTBENCH" import --db good.db "$spill"
has out "0 cases of 0 runs"
[ "$(cases good.db)" = 2 ] || fail "$(cases good.db) cases after import"
try 2 "$PTBENCH" import --db good.db
try 2 "$PTBENCH" show --db missing.db
finish
