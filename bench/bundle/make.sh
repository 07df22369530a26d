#!/bin/sh
# Makes the bundle: make.sh PROGRAM SOURCE_FOLDER OUTPUT.tar.gz. What is in it: the program, the loader, the C library and
# all other libraries but NVIDIA's, Open MPI's mpirun and the modules that one host needs, the manual page, and the script
# that checks GPUs. A module that needs a network's own libraries (UCX, libfabric) stays out: on several hosts use a build
# made there, with the cluster's MPI.
set -eu
program=$1
source=$2
output=$3
name=$(basename "$output" .tar.gz)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
root=$work/$name
mkdir -p "$root/bin" "$root/lib" "$root/libexec" "$root/share/man/man1" "$root/openmpi/lib" "$root/pmix/lib"

fail() {
    echo "bundle: error: $*" >&2
    exit 1
}

is_nvidia() {
    case $1 in
    libcuda.so* | libcudart.so* | libcublas*.so* | libnccl.so* | libcupti.so* | libnvidia-ml.so* | libnvJitLink.so* | libnvrtc*) return 0 ;;
    esac
    return 1
}

# The libraries that a file needs, all the way down: "soname path" a line.
needs() {
    ldd "$1" | awk '$2 == "=>" && $3 ~ /^\// { print $1, $3 } $1 ~ /^\/.*ld-linux/ { n = split($1, part, "/"); print part[n], $1 }'
}

carry() { # FILE: its libraries into lib
    needs "$1" | while read -r soname file; do
        folder=$root/lib
        if is_libc "$soname"; then folder=$root/lib/libc; fi
        is_nvidia "$soname" || [ -e "$folder/$soname" ] || cp -L "$file" "$folder/$soname"
    done
}

# Whether all of a module's libraries but its own MPI's are carried already.
is_at_home() {
    [ -z "$(needs "$1" | while read -r soname _; do [ -e "$root/lib/$soname" ] || [ -e "$root/lib/libc/$soname" ] || echo "$soname"; done)" ]
}

# The loader and what belongs to it go into a folder of their own: the launcher leaves it out where the machine's is newer.
is_libc() {
    case $1 in
    ld-linux* | libc.so* | libm.so* | libmvec.so* | libpthread.so* | libdl.so* | librt.so* | libresolv.so* | libutil.so* | libanl.so* | libnss_*) return 0 ;;
    esac
    return 1
}

mkdir -p "$root/lib/libc"
cp "$program" "$root/libexec/ptbench"
strip --strip-debug "$root/libexec/ptbench"
carry "$program"
for soname in $(ldd "$program" | awk '{ print $1 }'); do
    if is_nvidia "$soname"; then fail "$program does not start without $soname, which a bundle must not carry"; fi
done
"$root"/lib/libc/ld-linux-* --version | sed -n '1s/.* version \([0-9]*\.[0-9]*\).*/\1/p' >"$root/lib/libc/version"
mpirun=$(command -v mpirun) || fail "there is no mpirun on PATH to put into the bundle; install openmpi-bin"
ompi_info=$(command -v ompi_info) || fail "there is no ompi_info on PATH; install openmpi-bin"
cp -L "$(readlink -f "$mpirun")" "$root/libexec/mpirun"
carry "$root/libexec/mpirun"
modules=$($ompi_info --parsable --path pkglibdir | awk -F: '$2 == "pkglibdir" { print $3; exit }')
data=$($ompi_info --parsable --path pkgdatadir | awk -F: '$2 == "pkgdatadir" { print $3; exit }')
[ -d "$modules" ] || fail "Open MPI's modules are not in '$modules'"
# The process manager's client library comes in by its module.
carry "$(ls "$modules"/mca_pmix_ext*.so 2>/dev/null | head -1)"
mkdir -p "$root/openmpi/lib/openmpi" "$root/openmpi/share/openmpi"
for module in "$modules"/mca_*.so; do
    if is_at_home "$module"; then cp -L "$module" "$root/openmpi/lib/openmpi/"; fi
done
cp -L "$data"/*.txt "$root/openmpi/share/openmpi/" 2>/dev/null || true
pmix=$(ldd "$modules"/mca_pmix_ext*.so | awk '$1 ~ /^libpmix/ { print $3; exit }')
if [ -n "$pmix" ]; then
    plugins=$(dirname "$(readlink -f "$pmix")")/pmix
    if [ -d "$plugins" ]; then
        mkdir -p "$root/pmix/lib/pmix"
        for module in "$plugins"/*.so; do
            if is_at_home "$module"; then cp -L "$module" "$root/pmix/lib/pmix/"; fi
        done
        mkdir -p "$root/pmix/share/pmix"
        cp -L "$(dirname "$plugins")"/../share/pmix/*.txt "$root/pmix/share/pmix/" 2>/dev/null || true
    fi
fi

for command in ptbench mpirun; do
    install -m 755 "$source/bench/bundle/launcher.sh" "$root/bin/$command"
done
"$program" help --man >"$root/share/man/man1/ptbench.1"
install -m 755 "$source/tests/gpu/run.sh" "$root/run-gpu-tests.sh"
install -m 644 "$source/tests/gpu/judge.sh" "$root/libexec/gpu-judge.sh"
cp "$source/LICENSE" "$root/"
"$program" version >"$root/VERSION"
tar -C "$work" -czf "$output" "$name"
echo "bundle: $output, $(wc -c <"$output" | awk '{ printf "%.0f", $1 / 1e6 }') MB"
