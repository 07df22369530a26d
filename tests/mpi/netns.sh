# Hosts for tests on one machine: each is a network namespace on a common bridge with a name of its own, and mpirun reaches
# them through a launch agent that behaves as ssh does (an empty environment, the home folder, a shell). Sourced after
# run_common.sh; names carry that of the test's folder, so that tests may run at the same time. Nothing is made outside the
# namespaces, so deleting them deletes everything.
#
#   hosts_up N              makes h0 .. h(N-1), or ends the test with 77 and the reason; with IPv6 alone after hosts_family=6
#   on_host h0 COMMAND...   runs a command there; its environment and folder are kept ("$hosts_on" h0 COMMAND... & makes $! the command)
#   "${hosts_mca[@]}"       what mpirun, started on a host, needs to reach the others
#   processes_on h1         process numbers in that namespace
#   hosts_down              also done by the trap
hosts_subnet=10.77.0.0/24
hosts_family=4
hosts_count=0
hosts_prefix=ptb-${folder##*-}

hosts_skip() {
    echo "skipped: several hosts cannot be made here: $*"
    exit 77
}

processes_on() { ip netns pids "$hosts_prefix-$1" 2>/dev/null; }

hosts_down() {
    local name
    for name in $(ip netns list 2>/dev/null | awk -v p="$hosts_prefix-" 'index($1, p) == 1 { print $1 }'); do
        ip netns pids "$name" 2>/dev/null | xargs -r kill -9 2>/dev/null
        ip netns del "$name"
    done
    hosts_count=0
}

hosts_make_one() { # NUMBER
    local name=$hosts_prefix-h$1
    ip netns add "$name" &&
        ip -n "$name" link set lo up &&
        ip -n "$name" link add eth0 type veth peer name "port$1" netns "$hosts_prefix-switch" &&
        if [ "$hosts_family" = 6 ]; then
            ip -n "$name" addr add "fd77::$(($1 + 1))/64" dev eth0 nodad
        else
            ip -n "$name" addr add "10.77.0.$(($1 + 1))/24" dev eth0
        fi &&
        ip -n "$name" link set eth0 up &&
        ip -n "$hosts_prefix-switch" link set "port$1" master br0 up
}

hosts_write_scripts() {
    hosts_on=$folder/on
    cat >"$hosts_on" <<END
#!/bin/sh
# HOST COMMAND...
name=$hosts_prefix-\$1
exec ip netns exec "\$name" unshare --uts sh -c 'hostname "\$0" && exec "\$@"' "\$@"
END
    cat >"$folder/agent" <<END
#!/bin/sh
# HOST COMMAND...: as ssh does, a shell reads the words, put together again, in the home folder and a new environment
# (but for what sanitizers are told).
host=\$1
shift
cd "\${HOME:-/}" || exit 1
exec env -i PATH="\$PATH" HOME="\${HOME:-/}" ASAN_OPTIONS="\${ASAN_OPTIONS:-}" LSAN_OPTIONS="\${LSAN_OPTIONS:-}" \\
    UBSAN_OPTIONS="\${UBSAN_OPTIONS:-}" "$hosts_on" "\$host" sh -c "\$*"
END
    chmod +x "$hosts_on" "$folder/agent"
    hosts_mca=(--mca plm_rsh_agent "$folder/agent" --mca btl_tcp_if_include "$hosts_subnet"
        --mca oob_tcp_if_include "$hosts_subnet" --mca mpi_yield_when_idle 1)
    if [ "$hosts_family" = 6 ]; then
        hosts_mca=(--mca plm_rsh_agent "$folder/agent" --mca btl_tcp_if_include eth0 --mca btl_tcp_disable_family 4
            --mca oob_tcp_if_include eth0 --mca oob_tcp_disable_ipv4_family 1 --mca mpi_yield_when_idle 1)
    fi
}

hosts_up() { # N
    local i
    command -v ip >/dev/null || hosts_skip "no ip (package iproute2)"
    command -v unshare >/dev/null || hosts_skip "no unshare (package util-linux)"
    trap 'hosts_down; rm -rf "$folder"' EXIT
    trap 'exit 1' HUP INT TERM
    # The first of a machine mounts a folder for all; two at once would do it upon each other.
    flock /run ip netns add "$hosts_prefix-switch" 2>"$folder/reason" || hosts_skip "$(cat "$folder/reason")"
    ip -n "$hosts_prefix-switch" link add br0 type bridge 2>"$folder/reason" &&
        ip -n "$hosts_prefix-switch" link set br0 up || hosts_skip "no bridge: $(cat "$folder/reason")"
    for ((i = 0; i < $1; i++)); do
        hosts_make_one "$i" 2>"$folder/reason" || hosts_skip "$(cat "$folder/reason")"
    done
    hosts_write_scripts
    on_host h0 true 2>"$folder/reason" || hosts_skip "$(cat "$folder/reason")"
    hosts_count=$1
}

on_host() { "$hosts_on" "$@"; }
