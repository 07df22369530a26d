#!/bin/sh
# Starts a program of a ptbench bundle: with the bundle's own libraries, so that nothing need be installed, and with its
# own loader and C library where the machine's are older. NVIDIA's libraries are the machine's: looked for in LD_LIBRARY_PATH, the
# toolkit's folders and the Python packages that carry them.
self=$(readlink -f "$0")
root=$(dirname "$(dirname "$self")")
name=$(basename "$self")

# Folders where NVIDIA's libraries may be, one a line.
candidates() {
    printf '%s\n' "${LD_LIBRARY_PATH:-}" | tr ':' '\n'
    for home in "${CUDA_HOME:-}" "${CUDA_PATH:-}" /usr/local/cuda /usr/local/cuda-[0-9]* /opt/cuda /opt/nvidia/hpc_sdk/*/*/cuda; do
        [ -n "$home" ] && printf '%s\n' "$home/lib64" "$home/extras/CUPTI/lib64" "$home/lib" "$home/targets/x86_64-linux/lib"
    done
    printf '%s\n' /usr/lib64 /usr/lib/x86_64-linux-gnu /usr/lib/aarch64-linux-gnu /usr/local/lib /usr/local/nvidia/lib64
    for packages in "${VIRTUAL_ENV:-/none}"/lib/python3*/site-packages "${CONDA_PREFIX:-/none}"/lib \
        "${CONDA_PREFIX:-/none}"/lib/python3*/site-packages "${HOME:-/none}"/.local/lib/python3*/site-packages \
        /usr/lib/python3*/site-packages /usr/local/lib/python3*/dist-packages /usr/local/lib/python3*/site-packages; do
        [ -d "$packages" ] && printf '%s\n' "$packages" "$packages"/nvidia/*/lib
    done
}

# The C library: the bundle's own, or the machine's where that is not older. Libraries of the machine may want theirs,
# and a process can have only one.
minor() { case $1 in 2.*) echo "${1#2.}" ;; *) echo 0 ;; esac; }
path=$root/lib/libc:$root/lib
for loader in "$root"/lib/libc/ld-linux-*; do :; done
for theirs in /lib64/ld-linux-x86-64.so.2 /lib/ld-linux-aarch64.so.1; do
    [ -x "$theirs" ] || continue
    version=$("$theirs" --version 2>/dev/null | sed -n '1s/.* version \([0-9]*\.[0-9]*\).*/\1/p')
    if [ "$(minor "$version")" -ge "$(minor "$(cat "$root/lib/libc/version")")" ]; then
        loader=$theirs
        path=$root/lib
    fi
done
missing=
for library in $(cat "$root/lib/nvidia.needed"); do
    found=
    while read -r folder; do
        [ -n "$folder" ] && [ -e "$folder/$library" ] && found=$folder && break
    done <<END
$(candidates)
END
    if [ -z "$found" ]; then
        missing="$missing $library"
        continue
    fi
    case ":$path:" in *":$found:"*) ;; *) path=$path:$found ;; esac
done
if [ -n "$missing" ]; then
    echo "ptbench: error: these libraries of NVIDIA's are not on this machine:$missing" >&2
    echo "ptbench: they belong to the CUDA toolkit (libcudart, libcublasLt, libcupti) and to NCCL (libnccl), of the version" \
        "in their names. Install them, load the cluster's module for them, or name their folders in LD_LIBRARY_PATH" >&2
    exit 3
fi

# Where the MPI library and its process manager find their parts, and how this program starts itself again. One process
# without mpirun needs no daemon.
export OPAL_PREFIX="$root/openmpi" OPAL_LIBDIR="$root/openmpi/lib" OPAL_DATADIR="$root/openmpi/share"
export OPAL_PKGLIBDIR="$root/openmpi/lib/openmpi" OPAL_PKGDATADIR="$root/openmpi/share/openmpi"
export PMIX_INSTALL_PREFIX="$root/pmix" PMIX_LIBDIR="$root/pmix/lib" PMIX_PKGLIBDIR="$root/pmix/lib/pmix"
export PMIX_PKGDATADIR="$root/pmix/share/pmix" OMPI_MCA_ess_singleton_isolated=1
export PTBENCH_PROGRAM="$root/bin/ptbench" PATH="$root/bin:$PATH"
command -v ssh >/dev/null || command -v rsh >/dev/null || export OMPI_MCA_plm=isolated # mpirun on this host alone
exec "$loader" --library-path "$path" --argv0 "$name" "$root/libexec/$name" "$@"
