# The mpi communicator with really started processes: results, chosen algorithms, transports, facts.
# ctest: waits 20
# ctest: unsanitized
set -u
helper=$PTB_TESTBIN/mpi_helper_comm_mpi
export ASAN_OPTIONS=detect_leaks=0
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
# says OUTPUT TEXT...: every text stands in the output.
says() {
    output=$1
    shift
    for text in "$@"; do
        case $output in *"$text"*) ;; *) fail "'$text' is missing in: $output" ;; esac
    done
}

for n in 1 2 3 4 5 8; do
    out=$(run $n "$helper" check) || fail "$n ranks: $out"
    says "$out" "check on $n ranks:"
    echo "$out"
done
for n in 2 3; do
    out=$(run $n "$helper" forced) || fail "forced, $n ranks: $out"
    says "$out" "forced on $n ranks: good" "no algorithm 'rign'; did you mean 'ring'"
    out=$(run $n "$helper" worker) || fail "worker, $n ranks: $out"
    says "$out" "worker on $n ranks: good"
done

# What really runs is written down.
out=$(run 2 "$helper" facts) || fail "facts: $out"
says "$out" "algorithm=[default] call=[MPI_Allreduce] coll_component=[tuned]" "transport=[shm(vader," \
    "chunks=[2] reduction=[user-defined MPI_Op (MPI has no bf16)] average=[sum" "call=[MPI_Allgatherv]" \
    "blocks=[one element" "call=[MPI_Reduce to each rank]" "buffers=[private]"
out=$(run 2 --mca btl_vader_single_copy_mechanism none "$helper" facts) || fail "facts: $out"
says "$out" "transport=[shm(vader,copy)]"
out=$(run 2 "$helper" facts ring tcp) || fail "tcp: $out"
says "$out" "algorithm=[ring] call=[MPI_Allreduce]" "transport=[tcp] devices=[interfaces"
out=$(run 2 "$helper" facts default shm) || fail "shm: $out"
says "$out" "transport=[shm("
if ompi_info 2>/dev/null | grep -q 'MCA pml: ucx'; then
    out=$(run 2 "$helper" facts default ucx) || fail "ucx: $out"
    says "$out" "transport=[ucx]"
else
    echo "not tested: --transport ucx (this Open MPI has no UCX)"
fi
out=$(run 2 --mca pml ob1 --mca btl tcp,self "$helper" asks default shm)
says "$out" "the transport shm was asked for, but the MPI library uses tcp between these 2 ranks on 1 host"
out=$(run 2 "$helper" facts default pigeon)
says "$out" "no transport 'pigeon'; did you mean 'mpi', 'shm', "
out=$(run 2 --mca coll_tuned_use_dynamic_rules 1 --mca coll_tuned_allreduce_algorithm 4 "$helper" facts)
says "$out" "algorithm=[ring (set in the environment)] call=[MPI_Allreduce]"
out=$(run 2 --mca coll_tuned_use_dynamic_rules 0 "$helper" facts ring)
says "$out" "refused=[ring: OMPI_MCA_coll_tuned_use_dynamic_rules=0"
out=$(run 1 "$helper" facts ring)
says "$out" "coll_component=[self]" "transport=[self]" "refused=[ring: the MPI library's component coll/self"
# Reading the names before the library has started leaves it as it is.
out=$(run 2 "$helper" early ring tcp) || fail "early: $out"
says "$out" "all_reduce: basic_linear ..." "algorithm=[ring]" "transport=[tcp]"
echo "all good"
