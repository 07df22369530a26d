# Several hosts (network namespaces, tests/mpi/netns.sh): own algorithms and the library's, splits, the training step,
# conformance, what is stored about hosts and transports, and the report of it.
# ctest: spins
# ctest: many starts
# ctest: unsanitized
. "$PTB_SOURCE/tests/mpi/run_common.sh"
. "$PTB_SOURCE/tests/mpi/netns.sh"
hosts_up 3
export XDG_CACHE_HOME=$folder/cache

start=("$hosts_on" h0 mpirun --allow-run-as-root "${hosts_mca[@]}" --bind-to none)

# joined HOSTS SUITE [OPTION...]: ptbench as the ranks of a given mpirun; what it stored is in export.json and cases.
joined() {
    local where=$1 suite=$2 db=$folder/joined.db
    shift 2
    rm -f "$db"
    try 0 "${start[@]}" -H "$where" "$PTBENCH" run "$suite" -n 3 -w 1 --mode latency --db "$db" "$@"
    "$PTBENCH" export --db "$db" >export.json
    grep '^{"key": ' export.json >cases
}

# count WANTED TEXT...: so many cases carry all the texts.
count() {
    local wanted=$1 text found
    shift
    cp cases some
    for text in "$@"; do
        grep -F -- "$text" some >fewer
        mv fewer some
    done
    found=$(wc -l <some)
    [ "$found" = "$wanted" ] && return
    fail "$found instead of $wanted of $(wc -l <cases) cases with: $*"
    cut -c1-600 cases | sed 's/^/    /' | tail -1
}

# All cases are there and right on every rank, but for those that `direct` cannot do.
all_good() { # CASES SKIPPED RANKS HOSTS
    local h
    [ "$(wc -l <cases)" = "$1" ] || fail "$(wc -l <cases) instead of $1 cases"
    count "$2" '"state": "skipped"' '"algo": "direct"' 'needs all ranks on one host'
    count $(($1 - $2)) '"state": "ok"' "\"ranks\": $3, \"hosts\": $4"
    [ "$(grep -c '^{"rank": .*"wrong": 0,' export.json)" = $(($1 * $3)) ] || fail "not $3 ranks without wrong elements a case"
    grep -q "\"ranks\": $3, \"hosts\": $4, \"launcher\": \"Open MPI\"" export.json || fail "not $3 ranks on $4 hosts"
    for ((h = 0; h < $4; h++)); do
        [ "$(grep -o "\"hostname\": \"h$h\"" export.json | wc -l)" = 1 ] || fail "h$h is not one of the run's hosts"
    done
    [ "$(grep -o '{"host": "h[0-9]", "cpus": "[0-9,-]*"}' export.json | wc -l)" = "$3" ] || fail "not $3 places of ranks"
}

# 199 cases: 62 by the library, 9 by `direct`.
cat >all.ini <<'END'
[suite]
name = all

[all-reduce]
bench = all_reduce
comm = host
algo = ring,tree,recursive_doubling,halving_doubling,direct
count = 1,7,7919,65539

[all-reduce of the library]
bench = all_reduce
comm = mpi
count = 1,7,7919,65539

[barrier]
bench = barrier
comm = host
algo = recursive_doubling,direct

[barrier of the library]
bench = barrier
comm = mpi

[pairs]
bench = sendrecv
count = 1,7919
END
part() { # BENCH ALGORITHMS [LINE]: three odd counts, by own algorithms and by the library
    printf '\n[%s]\nbench = %s\ncomm = host\nalgo = %s\ncount = 1,7,7919\n%s\n' "$1" "$1" "$2" "${3:-}"
    printf '\n[%s of the library]\nbench = %s\ncomm = mpi\ncount = 1,7,7919\n%s\n' "$1" "$1" "${3:-}"
}
{
    part all_gather ring,recursive_doubling,halving_doubling,pairwise
    part reduce_scatter ring,halving_doubling,pairwise
    part broadcast ring,tree
    part reduce ring,tree
    part all_to_all pairwise 'place = out'
    part all_to_all_v pairwise
    part gather pairwise
    part scatter pairwise
} >>all.ini
tcp='"devices": "interfaces eth0"'

for where in h0:1,h1:1 h0:1,h1:1,h2:1; do
    n=$(($(tr -cd , <<<"$where" | wc -c) + 1))
    joined $where all.ini
    all_good 199 9 $n $n
    count 62 '"comm": "mpi"' '"transport": "tcp"' "$tcp"
    count 128 '"comm": "host"' '"transport": "mpi"' '"mpi_transport": "tcp"' "$tcp"
done

joined h0:2,h1:2 all.ini
all_good 199 9 4 2
count 62 '"comm": "mpi"' '"transport": "shm(vader,copy)+tcp"' "$tcp"
count 128 '"comm": "host"' '"transport": "shm+mpi"' '"mpi_transport": "tcp"' "$tcp"

# Rank 0 is alone on its host, the others are not: the job's transport is not what rank 0 sees.
joined h0:1,h1:2 all_reduce --comm mpi,host --algo default,ring --count 7919
count 4 '"comm": "host"' '"transport": "shm+mpi"' '"mpi_transport": "tcp"'
count 4 '"comm": "mpi"' '"transport": "shm(vader,copy)+tcp"'

# Groups inside hosts and across them; the choice of own algorithms is measured between these hosts.
cat >split.ini <<'END'
[suite]
name = split

[inside]
bench = all_reduce
split = node
comm = host
algo = ring,direct
count = 7,7919

[inside, the library]
bench = all_reduce
split = node
comm = mpi
count = 7,7919

[between]
bench = all_reduce
split = across
comm = host
algo = ring,direct
count = 7,7919

[between, the library]
bench = all_reduce
split = across
comm = mpi
count = 7,7919
END
joined h0:2,h1:2 split.ini
all_good 24 4 4 2
count 8 '"comm": "host"' '"split": "node"' '"transport": "shm"' '"groups": "2"' '"group_ranks": "2"'
count 4 '"comm": "mpi"' '"split": "node"' '"transport": "shm(vader,copy)"'
count 4 '"comm": "host"' '"split": "across"' '"transport": "mpi"' '"mpi_transport": "tcp"' '"groups": "2"' '"group_ranks": "2"'
count 4 '"comm": "mpi"' '"split": "across"' '"transport": "tcp"'

# The training step: the same losses, to the last bit, as of two ranks on one host; a sum of two has one order.
gpt=(step --layers 2 --hidden 32 --heads 2 --sequence 16 --vocab 64 --comm host,mpi)
joined h0:1,h1:1 "${gpt[@]}"
all_good 2 0 2 2
count 1 '"comm": "host"' '"transport": "mpi"' '"mpi_transport": "tcp"'
count 1 '"comm": "mpi"' '"transport": "tcp"'
grep '"name": "loss"' export.json >apart
[ "$(grep -c '"values": \[4\.1' apart)" = 2 ] || { fail "no losses near ln 64"; cat apart; }

# Who reads the results sees both hosts.
try 0 "$PTBENCH" show --db joined.db
has out "host          h0: "
has out "host          h1: "
has out "2 ranks on 2 hosts; Open MPI; rank 0 on h0 CPUs "
has out ", rank 1 on h1 CPUs "
if command -v gnuplot >/dev/null; then
    try 0 "$PTBENCH" report --db joined.db -o page
    has page/index.html "h0: "
    has page/index.html "h1: "
    has page/index.html "2 ranks on 2 hosts"
fi
joined h0:2 "${gpt[@]}"
all_good 2 0 2 1
grep '"name": "loss"' export.json | diff - apart || fail "losses depend on where the ranks are"

# Every collective of own algorithms in worlds of 1 to 4 ranks, of which the first two share a host.
try 0 "${start[@]}" -H h0:2,h1:2 "$PTB_TESTBIN/conformance_helper_conformance" host
has out "all right"
has out "algorithm direct needs all ranks on one host with shared memory (2 hosts, transport any)"
for n in 1 2 3 4; do
    has out "$n ranks: "
done
finish
