# `host` between really started processes: every algorithm over shared memory, MPI and both; a rank that is
# killed; the measured table of `auto` and a broken one.
# ctest: spins
set -u
helper=$PTB_TESTBIN/mpi_helper_host
launch="timeout 240 mpirun --allow-run-as-root --oversubscribe --bind-to none --mca mpi_yield_when_idle 1"
fail() {
    echo "FAILED: $*"
    exit 1
}
export ASAN_OPTIONS=detect_leaks=0

for n in 2 3 4 8; do
    largest=65539
    [ $n = 8 ] && largest=7919
    out=$($launch -np $n "$helper" conform $largest 2>&1) || fail "$n ranks: $out"
    case $out in *"conform, $n ranks: good"*) ;; *) fail "$n ranks said: $out" ;; esac
    echo "$out"
done

# mpirun ends a job that lost a rank; without that the others must notice themselves.
for case in "direct 2" "direct 300000" "ring 300000" "tree 2" "recursive_doubling 2"; do
    out=$(timeout 60 $launch --enable-recovery -np 3 "$helper" lost $case 2>&1)
    for rank in 0 2; do
        case $out in *"rank $rank: call late returned LOST within seconds"*) ;; *) fail "lost $case: $out" ;; esac
    done
    case $out in *"rank 1 (process "*") has ended"*) ;; *) fail "lost $case does not name the rank: $out" ;; esac
done
ls /dev/shm | grep -q '^ptbench-' && fail "left in /dev/shm: $(ls /dev/shm)"

# Ranks in process namespaces of their own: process numbers mean nothing to each other, so memory is shared by
# name, and nothing is left behind. (Open MPI's own shared memory does not work then.)
if unshare --pid --fork true 2>/dev/null; then
    out=$($launch --mca btl tcp,self -np 2 unshare --pid --fork "$helper" conform 7919 2>&1) || fail "namespaces: $out"
    case $out in *"conform, 2 ranks: good"*) ;; *) fail "namespaces: $out" ;; esac
    ls /dev/shm | grep -q '^ptbench-' && fail "left in /dev/shm: $(ls /dev/shm)"
else
    echo "process namespaces cannot be made here: sharing by name is not tested"
fi

cache=$(mktemp -d)
trap 'rm -rf "$cache"' EXIT
run_auto() { XDG_CACHE_HOME=$1 $launch -x XDG_CACHE_HOME -np 2 "$helper" auto 2>&1; }
out=$(run_auto "$cache") || fail "auto: $out"
case $out in *"measuring the algorithms"*"chosen_by=auto, measured table"*) ;; *) fail "auto: $out" ;; esac
set -- "$cache"/ptbench/auto-*-2x1.json
[ $# = 1 ] && [ -s "$1" ] || fail "no table in $cache: $(ls -R "$cache")"
out=$(run_auto "$cache") || fail "auto again: $out"
case $out in *"measuring"*) fail "measured again: $out" ;; esac
case $out in *"chosen_by=auto, measured table"*) ;; *) fail "auto again: $out" ;; esac
printf '{"version": 1,' >"$1"
out=$(run_auto "$cache") || fail "broken table: $out"
case $out in *"cannot be used"*"measuring"*"measured table"*) ;; *) fail "broken table: $out" ;; esac
out=$(run_auto /proc/nowhere) || fail "no cache folder: $out"
case $out in *"cannot make folder"*"measured table"*) ;; *) fail "no cache folder: $out" ;; esac
echo "all good"
