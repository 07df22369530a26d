# The bundle in a root folder that holds nothing but it and a static shell: it runs there, alone and with two ranks, from
# its own loader and libraries, and says what it lacks.
# ctest: waits 10
[ "$(id -u)" = 0 ] || { echo "skipped: a root folder of its own needs root"; exit 77; }
command -v busybox >/dev/null && ! ldd "$(command -v busybox)" >/dev/null 2>&1 || {
    echo "skipped: there is no static busybox (package busybox-static)"
    exit 77
}
unshare -m true 2>/dev/null || { echo "skipped: no mount namespaces here"; exit 77; }
. "$PTB_SOURCE/tests/mpi/run_common.sh"
trap 'rm -rf "$folder"' EXIT
root=$folder/root
mkdir -p "$root"/bin "$root"/tmp "$root"/proc "$root"/dev "$root"/sys
cp "$(command -v busybox)" "$root/bin/busybox"
for command in sh readlink dirname basename cat tr printf; do ln -s busybox "$root/bin/$command"; done
sh "$PTB_SOURCE/bench/bundle/make.sh" "$PTBENCH" "$PTB_SOURCE" "$folder/ptb.tar.gz" >made 2>&1 || { fail "no bundle:"; cat made; finish; }
tar -C "$root" -xzf ptb.tar.gz

# inside COMMAND...: in that root.
cat >inside <<'END'
#!/bin/bash
root=$1
shift
mount -t proc proc "$root/proc" && mount --rbind /dev "$root/dev" && mount --rbind /sys "$root/sys" || exit 99
cd "$root/tmp" && exec chroot "$root" /bin/busybox env -i PATH=/bin HOME=/ TERM=dumb sh -c 'cd /tmp && exec "$@"' sh "$@"
END
chmod +x inside
inside=(unshare -m --propagation private "$folder/inside" "$root")

# What the machine's own C library would give away: there is none.
[ ! -e "$root/lib64" ] && [ ! -e "$root/usr" ] || fail "the root is not empty"
try 0 "${inside[@]}" /ptb/bin/ptbench version
has out "ptbench 0."
try 0 "${inside[@]}" /ptb/bin/ptbench list
has out "quick"
try 0 "${inside[@]}" /ptb/bin/ptbench run kernels --kernel norm --np 1 --max-time 50ms --db one.db
has err "1 case measured (0 wrong)"
has_not err "couldn't open"
try 0 "${inside[@]}" /ptb/bin/ptbench run all_reduce --np 2 --comm mpi,host --algo default --bytes 64 --place out --max-time 50ms \
    --db two.db
has err "(0 wrong)"
has_not err "couldn't open"
try 0 "${inside[@]}" /ptb/bin/ptbench runs --db two.db
has out "complete"

# Where the machine's C library is not older, as here, it is used: libraries of the machine may need it.
try 0 "$root/ptb/bin/ptbench" list
echo 2.99 >"$root/ptb/lib/libc/version"
try 0 "$root/ptb/bin/ptbench" run kernels --kernel norm --np 1 --max-time 50ms --db own.db
has err "1 case measured (0 wrong)"

# The script that checks GPUs lies in it, finds this program and the script's other half, and says why it can check none.
[ -x "$root/ptb/run-gpu-tests.sh" ] || fail "there is no run-gpu-tests.sh"
built=$("$PTBENCH" version | awk '$1 == "gpu" { print $2 }')
case $built in
sim) ;; # has GPUs: simcuda.gpu_script
off)
    try 3 env -u PTBENCH "$root/ptb/run-gpu-tests.sh" -o checked
    has err "built without GPU back-ends"
    ;;
*)
    if [ ! -e /dev/nvidia0 ]; then
        try 3 env -u PTBENCH "$root/ptb/run-gpu-tests.sh" -o checked
        has err "no GPU can be used: "
        has checked/summary.txt "driver"
    fi
    ;;
esac
[ "$built" = sim ] || grep -q "^ptbench 0" checked/parts/version.log || fail "the bundle's program did not run"

# None of NVIDIA's libraries is in that root: the program has started all the same, and says what is missing.
if "$PTBENCH" version | grep -q '^gpu *cuda'; then
    "${inside[@]}" /ptb/bin/ptbench doctor >out 2>err
    for library in "NCCL (libnccl.so.2)" "cuBLASLt (libcublasLt.so" "CUPTI (libcupti.so"; do has out "$library"; done
    has out "is not on this machine"
    has out "LD_LIBRARY_PATH (not set)"
fi
finish
