# The world over MPI with really started processes: every operation, the start barrier, a peer that dies, a
# launcher whose processes do not find each other.
# ctest: waits 20
set -u
. "$PTB_SOURCE/tests/mpi/shm_names.sh"
helper=$PTB_TESTBIN/mpi_helper_world
run() {
    n=$1
    shift
    timeout 300 mpirun --allow-run-as-root --oversubscribe --bind-to none --mca mpi_yield_when_idle 1 -np "$n" "$@" 2>&1
}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export OMPI_MCA_orte_tmpdir_base=$work # as in run_common.sh
fail() {
    echo "FAILED: $*"
    exit 1
}
export ASAN_OPTIONS=detect_leaks=0

for n in 1 2 3 4 5 8; do
    out=$(run $n "${noting[@]}" "$helper" all) || fail "$n ranks: $out"
    case $out in *"world of $n: good"*) ;; *) fail "$n ranks said: $out" ;; esac
    nothing_left "$out"
    echo "world of $n: good"
done

# Ranks bound to one core of their own are not oversubscribed; all bound to the same core are.
core=$(taskset -pc $$ | sed -E 's/.*: ([0-9]+).*/\1/')
out=$(run 4 taskset -c "$core" "$helper" open) || fail "open: $out"
case $out in *"oversubscribed 0"*) fail "4 ranks on one core: $out" ;; esac
[ "$(echo "$out" | grep -c 'oversubscribed 1')" = 4 ] || fail "4 ranks on one core: $out"
out=$(run 1 "$helper" open)
case $out in *"host 0 of 1, oversubscribed 0"*) ;; *) fail "1 rank: $out" ;; esac

# A launcher that started two processes, each of which is alone: refused, with the number and the way out.
out=$(env OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_RANK=0 "$helper" open 2>&1)
[ $? = 13 ] || fail "two lonely processes were not refused: $out"
case $out in *"started 2 processes"*"world of 1"*"srun --mpi=pmix"*) ;; *) fail "refusal says: $out" ;; esac
out=$(env PMI_SIZE=3 PMI_RANK=1 "$helper" open 2>&1)
[ $? = 13 ] || fail "three lonely processes were not refused: $out"
[ -z "$out" ] || fail "the refusal is said by every rank: $out"
out=$(env SLURM_NTASKS=2 SLURM_PROCID=0 SLURM_JOB_ID=7 "$helper" open 2>&1) || fail "a shell of sbatch was refused: $out"

# srun without PMIx: Open MPI 4 would end the process in MPI_Init, with exit code 1.
slurm="SLURM_JOB_ID=7 SLURM_NODELIST=node7 SLURM_JOBID=7 SLURM_STEP_ID=0 SLURM_STEPID=0 SLURM_STEP_NUM_TASKS=2 SLURM_NTASKS=2"
for interface in "" "PMI_RANK=RANK PMI_SIZE=2 PMI_FD=9"; do
    out=$(env $slurm SLURM_PROCID=0 ${interface/RANK=RANK/RANK=0} "$helper" open 2>&1)
    [ $? = 13 ] || fail "srun without PMIx was not refused: $out"
    case $out in *"srun started 2 processes without PMIx"*"srun --mpi=pmix"*) ;; *) fail "refusal says: $out" ;; esac
    [ "$(echo "$out" | wc -l)" = 1 ] || fail "more than a refusal: $out"
    out=$(env $slurm SLURM_PROCID=1 ${interface/RANK=RANK/RANK=1} "$helper" open 2>&1)
    [ $? = 13 ] && [ -z "$out" ] || fail "rank 1 says: $out"
done

# A peer that is killed while rank 0 waits for it. mpirun ends the job; started without that, rank 0 notices.
out=$(timeout 180 mpirun --allow-run-as-root --oversubscribe --bind-to none --mca mpi_yield_when_idle 1 \
    --enable-recovery -np 2 "${noting[@]}" "$helper" wait 2>&1)
case $out in *"rank 1 (process "*") has ended"*"start returned LOST"*) ;; *) fail "a dead peer: $out" ;; esac
nothing_left "$out"
echo "all good"
