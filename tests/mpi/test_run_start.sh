# What `ptbench run` does when a rank stands still or dies before the ranks know each other: it ends, and speaks of no results
# that there are not.
# ctest: waits 75
# ctest: unsanitized
. "$PTB_SOURCE/tests/mpi/run_common.sh"

# Instead of the program each rank runs this; what rank 1 does first is in $BEFORE.
mkdir instead
cat >instead/ptbench <<'END'
#!/bin/sh
[ "$OMPI_COMM_WORLD_RANK" != 1 ] || kill -"$BEFORE" $$
exec "$PTBENCH" "$@"
END
chmod +x instead/ptbench
export PTBENCH PTBENCH_PROGRAM=$folder/instead/ptbench

# An mpirun that never starts a rank, while the others are tried.
mkdir idle
cat >idle/mpirun <<'END'
#!/bin/sh
[ "$1" != --version ] || { echo "mpirun (Open MPI) 4.1.4"; exit; }
exec sleep 1000
END
chmod +x idle/mpirun
PATH=$folder/idle:$PATH "${tiny[@]}" --timeout 1s --db idle.db >out.idle 2>err.idle &
idle=$!

# Rank 1 dies. A database that is still empty is none of the user's mistakes.
: >empty.db
BEFORE=KILL try 5 "${tiny[@]}" --db empty.db
has err "signal 9"
has err "nothing of this run is in empty.db on this host"
has_not err "finished cases"
has_not err "cannot open the database"

# Rank 1 is stopped, and rank 0 waits for it within MPI_Init. --timeout counts there, too.
BEFORE=STOP try 5 "${tiny[@]}" --timeout 1s --db stopped.db
has err "no progress for 60 s in start-up (MPI_Init)"
has err "nothing of this run is in stopped.db on this host"
has_not err "before the ranks had started"
for p in $(pgrep -f -- "ptbench run .*--db stopped.db"); do
    [ "$(readlink "/proc/$p/cwd")" != "$folder" ] || fail "process $p stays behind"
done
wait $idle
code=$?
[ "$code" = 5 ] || fail "exit code $code of a run that mpirun did not start"
has err.idle "mpirun has not brought the ranks up within 75 s and is ended"
has err.idle "ulimit -n"
has err.idle "nothing of this run is in idle.db on this host"
finish
