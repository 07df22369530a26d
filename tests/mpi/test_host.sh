# `host` between really started processes: every algorithm over shared memory, MPI and both; a rank that is
# killed; the measured table of `auto` and a broken one.
# ctest: spins
set -u
. "$PTB_SOURCE/tests/mpi/shm_names.sh"
helper=$PTB_TESTBIN/mpi_helper_host
launch="timeout 240 mpirun --allow-run-as-root --oversubscribe --bind-to none --mca mpi_yield_when_idle 1"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export OMPI_MCA_orte_tmpdir_base=$work # as in run_common.sh
fail() {
    echo "FAILED: $*"
    exit 1
}
export ASAN_OPTIONS=detect_leaks=0

for n in 2 3 4 8; do
    largest=65539
    [ $n = 8 ] && largest=7919
    out=$($launch -np $n "${noting[@]}" "$helper" conform $largest 2>&1) || fail "$n ranks: $out"
    case $out in *"conform, $n ranks: good"*) ;; *) fail "$n ranks said: $out" ;; esac
    nothing_left "$out"
    echo "$n ranks: good"
done

# mpirun ends a job that lost a rank; without that the others must notice themselves.
for case in "direct 2" "direct 300000" "ring 300000" "tree 2" "recursive_doubling 2"; do
    out=$(timeout 180 $launch --enable-recovery -np 3 "${noting[@]}" "$helper" lost $case 2>&1)
    for rank in 0 2; do
        case $out in *"rank $rank: call late returned LOST within seconds"*) ;; *) fail "lost $case: $out" ;; esac
    done
    case $out in *"rank 1 (process "*") has ended"*) ;; *) fail "lost $case does not name the rank: $out" ;; esac
    nothing_left "$out"
done

# Ranks in process namespaces of their own: process numbers mean nothing to each other, so memory is shared by
# name, and nothing is left behind. (Open MPI's own shared memory does not work then.)
if unshare --pid --fork true 2>/dev/null; then
    out=$($launch --mca btl tcp,self -np 2 unshare --pid --fork "${noting[@]}" "$helper" conform 7919 2>&1) ||
        fail "namespaces: $out"
    case $out in *"conform, 2 ranks: good"*) ;; *) fail "namespaces: $out" ;; esac
    nothing_left "$out"
else
    echo "process namespaces cannot be made here: sharing by name is not tested"
fi

cache=$work/cache
# auto FOLDER TEXT...: with the cache there, all is well and every text is said, in whatever order the ranks' lines arrive.
auto() {
    local folder=$1 text
    shift
    out=$(XDG_CACHE_HOME=$folder $launch -x XDG_CACHE_HOME -np 2 "$helper" auto 2>&1) || fail "auto, cache in $folder: $out"
    for text in "chosen_by=auto, measured table" "$@"; do
        case $out in *"$text"*) ;; *) fail "auto, cache in $folder: no '$text' in: $out" ;; esac
    done
}
auto "$cache" "measuring the algorithms"
set -- "$cache"/ptbench/auto-*-2x1.json
[ $# = 1 ] && [ -s "$1" ] || fail "no table in $cache: $(ls -R "$cache")"
auto "$cache"
case $out in *"measuring"*) fail "measured again: $out" ;; esac
printf '{"version": 1,' >"$1"
auto "$cache" "cannot be used" "measuring"
auto /proc/nowhere "cannot make folder"
echo "all good"
