#!/bin/sh
# Times the store: tests/bench/store.sh [BUILD_FOLDER]. Prints figures, asserts nothing.
set -eu
build=$(cd "${1:-build}" && pwd)
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
"$build/tests/bench_helper_store"
