# With --timeout 0 a run waits for ever: for a rank that stands still for minutes, too, and goes on with it.
# ctest: waits 140
# ctest: unsanitized
. "$PTB_SOURCE/tests/mpi/run_common.sh"

# With more samples wanted than there is time for, a case ends after ten times --max-time.
mkdir instead
cat >instead/ptbench <<'END'
#!/bin/sh
[ "$OMPI_COMM_WORLD_RANK" != 1 ] || echo $$ >rank_1
exec "$PTBENCH" "$@"
END
chmod +x instead/ptbench
export PTBENCH
: >err
PTBENCH_PROGRAM=$folder/instead/ptbench "$PTBENCH" run all_reduce --np 2 --comm host --algo direct --place out --bytes 8,64,512 \
    --min-iters 2000000 --max-iters 2000000 --max-time 500ms --mode latency --timeout 0 --db patience.db >out 2>err &
job=$!
for _ in $(seq 1200); do
    grep -q '^\[1/' err && break
    sleep 0.1
done
kill -STOP "$(cat rank_1)"
sleep 130
kill -CONT "$(cat rank_1)"
wait $job || { fail "exit code $? of a run that had to wait"; cat err; }
has err "3 cases measured (0 wrong)"
finish
