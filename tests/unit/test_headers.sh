#!/bin/bash
# Every header compiles alone, and twice in one file, without warnings.
set -u
cd "$PTB_SOURCE" || exit 1
compiler=${CC:-cc}
command -v "$compiler" >/dev/null || compiler=gcc
folders=$(ls -d core profiler collectives strategies results reports bench tests 2>/dev/null)
# MPI's headers lie where its compiler wrapper says.
mpi=$(mpicc --showme:compile 2>/dev/null || true)
work=$(mktemp -d) && trap 'rm -rf "$work"' EXIT

check() {
    printf '#include "%s"\n#include "%s"\n' "$1" "$1" >"$work/${1//\//_}.c"
    # An empty translation unit is all right: some headers hold only macros.
    # shellcheck disable=SC2086
    "$compiler" -std=gnu11 -D_GNU_SOURCE -DPTB_VERSION='"0"' -DPTB_SOURCE_DIR='"."' -Wall -Wextra -Werror \
        -Wno-unused-function $mpi -I. -fsyntax-only "$work/${1//\//_}.c" && return 0
    echo "$1 does not compile alone"
    return 1
}

failed=0 checked=0
for header in $(find $folders -name '*.h' | sort); do
    check "$header" || failed=$((failed + 1))
    checked=$((checked + 1))
done
echo "$checked headers checked, $failed failed"
[ "$checked" -ge 20 ] && [ "$failed" -eq 0 ]
