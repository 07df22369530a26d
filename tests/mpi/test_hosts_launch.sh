# `ptbench run` that starts its ranks on other hosts (network namespaces, tests/mpi/netns.sh), and what happens there when
# a rank or the run is ended: finished cases stay, every rank is gone on every host.
# ctest: waits 85
# ctest: unsanitized
# ctest: many starts
. "$PTB_SOURCE/tests/mpi/run_common.sh"
. "$PTB_SOURCE/tests/mpi/netns.sh"
hosts_up 3
export XDG_CACHE_HOME=$folder/cache
args=(--mpirun-args "${hosts_mca[*]}")
few=("$hosts_on" h0 "$PTBENCH" run all_reduce "${args[@]}" --comm host --algo ring --place out --count 7,7919 -n 3 -w 1)

# Hosts by name and by file, with rank 0 here and on another host.
try 0 "${few[@]}" --hosts h0:1,h1:1 --db by_name.db
has err "2 cases measured (0 wrong), 0 skipped, 0 failed"
"$PTBENCH" export --db by_name.db >export.json
has export.json '"ranks": 2, "hosts": 2, "launcher": "mpirun (Open MPI '
has export.json '"placement": [{"host": "h0", '
printf 'h1 slots=2\nh2 slots=2\n' >hosts.txt
try 0 "${few[@]}" --hostfile hosts.txt --db by_file.db
"$PTBENCH" export --db by_file.db >export.json
has export.json '"ranks": 4, "hosts": 2,'
has export.json '"placement": [{"host": "h1", '
try 0 "${few[@]}" --hostfile hosts.txt --np 3 --repeat 2 --db by_file.db
"$PTBENCH" runs --db by_file.db | awk 'END { exit !($4 == "complete" && $5 == 3 && $6 == 2 && $7 == 4) }' ||
    fail "not 2 repetitions of 2 cases on 3 ranks: $("$PTBENCH" runs --db by_file.db)"

# Exit codes come from rank 0, wherever it is; mpirun's own troubles are no results.
for hosts in h0:1,h1:1 h1:1,h2:1; do
    try 2 "${few[@]}" --hosts $hosts --type f31 --db refused.db
    has err "'f32'"
    try 3 "${few[@]}" --hosts $hosts --algo direct --db refused.db
    has err "needs all ranks on one host"
    try 3 "${few[@]}" --hosts $hosts --np 4 --db refused.db
    has err "not enough slots"
    has err "before the ranks had started"
    try 3 "${few[@]}" --hosts ${hosts%h*}h9:1 --db refused.db
    has err "before the ranks had started"
    try 0 "${few[@]}" --hosts $hosts --dry-run --db refused.db
    has out "2 cases, about "
done

# A suite file that is not the same on another host: that host's rank says what it lacks.
printf '[suite]\nname = here\n[a]\nbench = barrier\ncomm = host\nalgo = recursive_doubling\n' >here.ini
sed "s|exec env -i|exec unshare --mount sh -c 'mount --bind /dev/null $folder/here.ini \&\& exec \"\$@\"' sh env -i|" agent >other_agent
chmod +x other_agent
here=("$hosts_on" h0 "$PTBENCH" run here.ini -n 3 --hosts h0:1,h1:1 --db here_only.db --mpirun-args)
try 0 "${here[@]}" "${hosts_mca[*]}"
try 5 "${here[@]}" "${hosts_mca[*]/%\/agent//other_agent}"
has err "here.ini"
has err "on h1 cannot take up"

# 24 cases. With more samples wanted than there is time for, a case ends after ten times --max-time, whatever the clock
# resolves; all take 6 s, and nothing below is to find a run at its end already.
long=("$PTBENCH" run all_reduce --comm host --algo ring --count "$(seq -s, 24)" --place out --min-iters 2000000
    --max-iters 2000000 --max-time 25ms --mode latency)
resume=("$hosts_on" h0 "$PTBENCH" run --resume last --db)

# Process numbers of the ranks on a host.
ranks_on() {
    local p
    for p in $(processes_on "$1"); do
        grep -qs '^OMPI_COMM_WORLD_RANK=' <(tr '\0' '\n' <"/proc/$p/environ") && echo "$p"
    done
}

# begin COMMAND...: in the background as $job, until two cases are stored.
begin() {
    : >err
    "$hosts_on" h0 "$@" >out 2>err &
    job=$!
    for _ in $(seq 1200); do
        grep -q '^\[2/' err && return
        sleep 0.1
    done
    fail "the run did not get going"
    cat err
}

# ends CODE: $job does so within a minute, and leaves no process on any host.
ends() {
    local code= left
    for _ in $(seq 600); do
        kill -0 $job 2>/dev/null || { wait $job; code=$?; break; }
        sleep 0.1
    done
    [ "$code" = "$1" ] || { fail "exit code '$code' instead of $1"; sed 's/^/    /' err; }
    for _ in $(seq 300); do
        left=$(for h in h0 h1 h2; do processes_on $h; done)
        [ -z "$left" ] && return
        sleep 0.1
    done
    fail "left behind: $(ps -o pid=,args= $left | cut -c1-120)"
    kill -9 $left
}

cases() { "$PTBENCH" runs --db "$1" | awk 'END { print $7 }'; }
state() { "$PTBENCH" runs --db "$1" | awk 'END { print $4 }'; }

# A rank on another host is killed: under a given mpirun; under our own with rank 0 here, and elsewhere.
begin mpirun --allow-run-as-root "${hosts_mca[@]}" --bind-to none -H h0:1,h1:1 "${long[@]}" --db joined.db
kill -KILL $(ranks_on h1)
ends 137
[ "$(cases joined.db)" -ge 1 ] || fail "no case is kept"
begin "${long[@]}" "${args[@]}" --hosts h0:1,h1:1 --db here.db
kill -KILL $(ranks_on h1)
ends 5
has err "rank 1 on h1 was ended by signal 9"
has err "ptbench run --resume"
[ "$(state here.db)" = failed ] || fail "state $(state here.db)"
[ "$(cases here.db)" -ge 1 ] || fail "no case is kept"
begin "${long[@]}" "${args[@]}" --hosts h1:1,h2:1 --db there.db
kill -KILL $(ranks_on h1)
ends 5
has err "rank 0 on h1 was ended by signal 9"
[ "$(state there.db)" = failed ] || fail "state $(state there.db)"

# A rank on another host is stopped: the others name it.
begin "${long[@]}" "${args[@]}" --hosts h0:1,h1:2 --timeout 5s --db stopped.db
stopped=$(ranks_on h1 | tail -1)
kill -STOP "$stopped"
ends 5
# Of the two that are left, one may still be in the call before that the other has left.
has err "of 3 ranks did not come to call "
has err "(host h1, process $stopped) does not answer"

# Ctrl-C reaches ranks that are all elsewhere; the rest is measured later, there too.
begin "${long[@]}" "${args[@]}" --hosts h1:1,h2:1 --db stop.db
kill -INT $job
ends 5
[ "$(state stop.db)" = interrupted ] || fail "state $(state stop.db) after an interrupt"
before=$(cases stop.db)
try 0 "${resume[@]}" stop.db
has err "$((24 - before)) cases measured"
[ "$(state stop.db)" = complete ] || fail "state $(state stop.db) after --resume"
[ "$(cases stop.db)" = 24 ] || fail "$(cases stop.db) cases after --resume"

# What is missing of a run on two hosts is not measured on one.
try 3 "${resume[@]}" joined.db
has err "was measured with 2 ranks on h0, h1"
has err "this is 2 ranks on 1 host "
try 0 "${resume[@]}" joined.db --hosts h0:1,h1:1 "${args[@]}"
[ "$(state joined.db)" = complete ] || fail "state $(state joined.db) after --resume"

# The process that looks after mpirun is killed: the ranks on other hosts go too.
begin "${long[@]}" "${args[@]}" --hosts h0:1,h1:1 --db parent.db
kill -KILL $job
ends 137
[ "$(cases parent.db)" -lt 24 ] || fail "they have gone on to the end"
finish
