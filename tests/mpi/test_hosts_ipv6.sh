# Hosts that have IPv6 alone: ranks ask each other over it how far they have come, so that a rank that hangs is named and
# the others of its host are not.
# ctest: waits 15
# ctest: unsanitized
. "$PTB_SOURCE/tests/mpi/run_common.sh"
. "$PTB_SOURCE/tests/mpi/netns.sh"
[ -e /proc/net/if_inet6 ] || hosts_skip "no IPv6 in this kernel"
hosts_family=6
hosts_up 2
export XDG_CACHE_HOME=$folder/cache
[ -z "$(ip -n "$hosts_prefix-h1" -4 addr show dev eth0)" ] || fail "h1 has IPv4"
if ! on_host h0 mpirun --allow-run-as-root "${hosts_mca[@]}" --bind-to none -H h0:1,h1:1 hostname >out 2>err; then
    hosts_skip "this MPI library does not start ranks over IPv6: $(head -3 err)"
fi

# As long as in test_hosts_launch.sh: it is not to be at its end when a rank is stopped.
"$hosts_on" h0 "$PTBENCH" run all_reduce --comm host --algo ring --count "$(seq -s, 24)" --place out --min-iters 2000000 \
    --max-iters 2000000 --max-time 25ms --mode latency --hosts h0:1,h1:2 --mpirun-args "${hosts_mca[*]}" --timeout 5s \
    --db stopped.db >out 2>err &
job=$!
for _ in $(seq 1200); do
    grep -q '^\[2/' err && break
    sleep 0.1
done
ranks=()
for p in $(processes_on h1); do
    grep -qs '^OMPI_COMM_WORLD_RANK=' <(tr '\0' '\n' <"/proc/$p/environ") && ranks+=("$p")
done
[ "${#ranks[@]}" = 2 ] || fail "not two ranks on h1: ${ranks[*]}: $(cat err)"
kill -STOP "${ranks[1]}"
wait $job
code=$?
[ $code = 5 ] || { fail "exit code $code instead of 5"; sed 's/^/    /' err; }
has err "of 3 ranks did not come to call "
has err "(host h1, process ${ranks[1]}) does not answer"
has_not err "(host h1, process ${ranks[0]}) does not answer"
finish
