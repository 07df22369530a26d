#!/bin/bash
# Where ranks have fewer processors than threads, OpenMP's threads sleep where they wait, whoever has started the ranks, and
# what is stored says so. The library itself tells how it waits (OMP_DISPLAY_ENV), once for each start of the program.
# ctest: waits 15
# ctest: unsanitized
. "$PTB_SOURCE/tests/mpi/run_common.sh"
export ASAN_OPTIONS=detect_leaks=0
# The first processors that this test may use: one, and two where there are as many.
allowed=$(python3 -c 'import os; print(*sorted(os.sched_getaffinity(0))[:2])') || exit 1
core=${allowed% *} two=${allowed/ /,}
joined=(mpirun --allow-run-as-root --oversubscribe --bind-to none)
step=(run step --layers 1 --hidden 32 --heads 2 --sequence 16 --vocab 64 --batch 4)

OMP_DISPLAY_ENV=verbose "$PTBENCH" version >out 2>&1
grep -q GOMP_SPINCOUNT out || { echo "OpenMP's library is not GCC's: how it waits cannot be seen"; exit 77; }

# sleepers COUNT COMMAND...: so many processes of the program say that their threads never spin.
sleepers() {
    local wanted=$1 found
    shift
    try 0 env OMP_DISPLAY_ENV=verbose "$@" --dry-run
    found=$(cat out err | grep -c "GOMP_SPINCOUNT = '0'")
    [ "$found" = "$wanted" ] || fail "$found processes sleep instead of $wanted: $*"
}

# Two ranks with two threads on one core: in a job that was started by hand, through a script or not, and by the program.
sleepers 2 taskset -c "$core" "${joined[@]}" -n 2 "$PTBENCH" "${step[@]}" --threads 2
sleepers 2 taskset -c "$core" "$PTBENCH" "${step[@]}" --threads 2 --np 2
sleepers 2 "${joined[@]}" -n 2 taskset -c "$core" "$PTBENCH" "${step[@]}" --threads 2
sleepers 2 "${joined[@]}" -n 2 taskset -c "$core" "$PTBENCH" run kernels --kernel matmul --threads 2

# Nothing is changed where nobody waits, or everybody has a processor.
sleepers 0 taskset -c "$core" "${joined[@]}" -n 2 "$PTBENCH" "${step[@]}"
if [ "$two" != "$core" ]; then
    sleepers 0 taskset -c "$two" "${joined[@]}" -n 1 "$PTBENCH" "${step[@]}" --threads 2
    sleepers 0 taskset -c "$two" "$PTBENCH" "${step[@]}" --threads 2 --np 1
    # Each of two ranks might have the two processors for itself, but the launcher has no more.
    sleepers 2 taskset -c "$two" "${joined[@]}" -n 2 "$PTBENCH" "${step[@]}" --threads 2
    sleepers 2 taskset -c "$two" "${joined[@]}" -n 2 bash -c '"$@"; exit $?' bash "$PTBENCH" "${step[@]}" --threads 2
    sleepers 2 taskset -c "$two" "$PTBENCH" "${step[@]}" --threads 2 --np 2
fi

# What the user has set stays, with a warning where it spins.
sleepers 0 taskset -c "$core" "${joined[@]}" -n 2 env OMP_WAIT_POLICY=active "$PTBENCH" "${step[@]}" --threads 2
[ "$(grep -c "ranks of 2 threads have fewer processors than threads" err)" = 1 ] || { fail "not warned once"; cat err; }
sleepers 0 taskset -c "$core" env GOMP_SPINCOUNT=7 "$PTBENCH" "${step[@]}" --threads 2 --np 2
[ "$(grep -c "set OMP_WAIT_POLICY=passive" err)" = 1 ] || { fail "not warned once"; cat err; }
sleepers 2 taskset -c "$core" "${joined[@]}" -n 2 env OMP_WAIT_POLICY=passive "$PTBENCH" "${step[@]}" --threads 2
has_not err warning

# What is stored and shown.
# On one processor that others use too, each turn is waited for: a step of milliseconds has taken a minute.
measured() { # COMMAND...: in one.db
    rm -f one.db
    try 0 taskset -c "$core" "$@" -n 1 -w 0 --timeout 250 --db one.db
    try 0 "$PTBENCH" show last --db one.db
}
measured "${joined[@]}" -n 2 "$PTBENCH" "${step[@]}" --threads 2
has out "Open MPI, oversubscribed;"
has out "2 ranks (threads 2) share 1 processor: waiting for a turn counts as communication"
try 0 "$PTBENCH" export last --db one.db -f json
has out '"openmp_wait": "sleep at once"'
has out '"OMP_WAIT_POLICY": "passive"'
measured "$PTBENCH" run kernels --kernel norm --rows 128 --threads 2 --np 2
has out "oversubscribed;"
has out "2 ranks (threads 2) share 1 processor: waiting for a turn counts as work"
measured env GOMP_SPINCOUNT=7 "$PTBENCH" "${step[@]}" --threads 2 --np 2
has out "2 ranks (threads 2) share 1 processor: OpenMP's threads spin; set OMP_WAIT_POLICY=passive"
# A script that binds itself, and so its rank, is not taken for the launcher.
if [ "$two" != "$core" ]; then
    measured=(run all_reduce --comm host --algo direct --place out --bytes 8 -n 3 -w 1 --db bound.db)
    try 0 taskset -c "$two" "${joined[@]}" -n 2 bash -c 'cpus=(${0/,/ })
        taskset -pc "${cpus[$OMPI_COMM_WORLD_LOCAL_RANK]}" $$ >/dev/null
        "$@"; exit $?' "$two" "$PTBENCH" "${measured[@]}"
    try 0 "$PTBENCH" show last --db bound.db
    has out "2 ranks on 1 host; Open MPI;"
fi
finish
