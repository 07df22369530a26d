#!/bin/sh
# Starts a program of a ptbench bundle: with the bundle's own libraries, so that nothing need be installed, and with its
# own loader and C library where the machine's are older. NVIDIA's libraries are the machine's: looked for in LD_LIBRARY_PATH, the
# toolkit's folders and the Python packages that carry them.
self=$(readlink -f "$0")
root=$(dirname "$(dirname "$self")")
name=$(basename "$self")

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
# --library-path stands in place of this variable, in which the user may have named folders of NVIDIA's libraries.
path=$path${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}

# Where the MPI library and its process manager find their parts, and how this program starts itself again. One process
# without mpirun needs no daemon.
export OPAL_PREFIX="$root/openmpi" OPAL_LIBDIR="$root/openmpi/lib" OPAL_DATADIR="$root/openmpi/share"
export OPAL_PKGLIBDIR="$root/openmpi/lib/openmpi" OPAL_PKGDATADIR="$root/openmpi/share/openmpi"
export PMIX_INSTALL_PREFIX="$root/pmix" PMIX_LIBDIR="$root/pmix/lib" PMIX_PKGLIBDIR="$root/pmix/lib/pmix"
export PMIX_PKGDATADIR="$root/pmix/share/pmix" OMPI_MCA_ess_singleton_isolated=1
export PTBENCH_PROGRAM="$root/bin/ptbench" PATH="$root/bin:$PATH"
command -v ssh >/dev/null || command -v rsh >/dev/null || export OMPI_MCA_plm=isolated # mpirun on this host alone
exec "$loader" --library-path "$path" --argv0 "$name" "$root/libexec/$name" "$@"
