#!/bin/sh
# From a bare machine to results: `sh bootstrap.sh run`. From a bare machine to all tests: `sh bootstrap.sh test`.
# Installs what is missing (Debian and Ubuntu; says what), builds in ./build, and can be repeated. When all packages are
# there, no network is needed.
set -eu

source_dir=$(cd "$(dirname "$0")" && pwd)
build_dir=${PTBENCH_BUILD:-$source_dir/build}

# What the program needs to be built and run, and what its tests need besides.
run_packages="gcc make cmake pkg-config libopenmpi-dev openmpi-bin libhwloc-dev libsqlite3-dev libzstd-dev libjansson-dev
libinih-dev libdnnl-dev gnuplot-nox fonts-dejavu-core"
test_packages="g++ busybox-static libcmocka-dev libgsl-dev iproute2 procps locales clang-format"

# Tests of what threads of one process share, without the MPI library: they also run under the thread sanitizer, for which
# that library is not built.
thread_tests="conformance.local unit.algorithms unit.device unit.prefetch unit.runner unit.trace unit.trainer
unit.world_local"

# Tests that also run on simulated GPUs under the address sanitizer, which then knows the bounds of their memory: of the
# simulated device, and of kernels that take seconds there.
sim_address_tests="simcuda.capture simcuda.cublaslt simcuda.faults simcuda.kernel simcuda.nvlinks simcuda.runtime
unit.device_cuda unit.device_graph unit.device_local unit.kernels_balance.cuda unit.kernels_elementwise.cuda
unit.kernels_embedding.cuda unit.kernels_experts.cuda unit.kernels_loss.cuda unit.kernels_loss_parts.cuda
unit.kernels_moe.cuda unit.kernels_norm.cuda unit.kernels_optimizer.cuda unit.kernels_parts.cuda unit.kernels_rotary.cuda
unit.model.cuda unit.optimizer.cuda unit.prefetch.cuda"
# Tests of kernels in which every access of a thread is also checked: for bounds, and for races on shared memory. Attention
# and products would take hours.
sim_check_tests="unit.kernels_balance.cuda unit.kernels_elementwise.cuda unit.kernels_embedding.cuda unit.kernels_experts.cuda
unit.kernels_loss.cuda unit.kernels_loss_parts.cuda unit.kernels_moe.cuda unit.kernels_norm.cuda unit.kernels_optimizer.cuda
unit.kernels_parts.cuda unit.kernels_rotary.cuda"

usage() {
    cat <<'END'
usage: sh bootstrap.sh COMMAND

  run               install what is missing, build, run the `quick` suite on this machine and write the report
  test              install what is missing, build and run all tests but the slow ones, also under sanitizers and, where
                    the CUDA toolkit is, on simulated GPUs; and build for real ones
  test-slow         the same with the tests that `test` leaves out: those with the label slow (some have it under sanitizers
                    alone), the search for leaks in programs that scripts start, and simulated GPUs under sanitizers and with
                    every access of their kernels checked
  build             install what is missing and build
  install-packages  install what running and testing need, and stop
  help              this text

PTBENCH_BUILD names another build folder than ./build, PTBENCH_DB another database than ./ptbench.db.
END
}

say() { echo "bootstrap: $*" >&2; }
fail() { say "error: $*"; exit 3; }

# The lists for distributions where this script does not install.
other_packages() {
    cat >&2 <<'END'
Install these and run the command again:
  RHEL, Rocky, Alma (with EPEL and CRB), Fedora:
    dnf install gcc make cmake pkgconf openmpi-devel hwloc-devel sqlite-devel libzstd-devel jansson-devel inih-devel \
        onednn-devel gnuplot dejavu-sans-fonts    (then: module load mpi)
    for the tests: libcmocka-devel gsl-devel iproute procps-ng clang-tools-extra chromium
  SUSE:
    zypper install gcc make cmake pkg-config openmpi4-devel hwloc-devel sqlite3-devel libzstd-devel libjansson-devel \
        inih-devel onednn-devel gnuplot dejavu-fonts
    for the tests: libcmocka-devel gsl-devel iproute2 procps clang-tools chromium
  others: a C11 compiler, CMake 3.22, pkg-config, Open MPI 4.1, hwloc 2, SQLite 3.37, zstd, jansson, inih, oneDNN 2.5, gnuplot
END
}

is_installed() {
    [ "$(dpkg-query -W -f='${db:Status-Status}' "$1" 2>/dev/null)" = installed ]
}

# Which of the packages are missing. A tool that is there without its package counts as there.
missing_packages() {
    for package in "$@"; do
        case $package in
        gcc) command -v cc >/dev/null && continue ;;
        g++) command -v c++ >/dev/null && continue ;;
        pkg-config | cmake | make | clang-format) command -v "$package" >/dev/null && continue ;;
        gnuplot-nox) command -v gnuplot >/dev/null && continue ;;
        esac
        is_installed "$package" || printf '%s ' "$package"
    done
}

have_packages() { # do the tools answer, where packages cannot be asked for?
    command -v cc >/dev/null && command -v cmake >/dev/null && command -v mpirun >/dev/null &&
        pkg-config --exists hwloc sqlite3 libzstd jansson inih 2>/dev/null
}

as_root() {
    if [ "$(id -u)" = 0 ]; then
        "$@"
    elif command -v sudo >/dev/null; then
        sudo "$@"
    else
        fail "this needs root and there is no sudo; as root: $*"
    fi
}

# A browser for the test that opens the report. On Ubuntu it is a snap, which containers cannot install: that test is
# skipped there unless a browser is present.
browser_package() {
    for name in chromium chromium-browser google-chrome; do
        command -v $name >/dev/null && return
    done
    if grep -q '^ID=ubuntu' /etc/os-release; then
        say "no browser: the test that opens the report will be skipped (on Ubuntu: snap install chromium)"
    else
        echo chromium
    fi
}

install_packages() { # run | test
    if ! command -v apt-get >/dev/null; then
        have_packages && return
        other_packages
        fail "this distribution's packages are not installed by this script"
    fi
    wanted=$run_packages
    [ "$1" = run ] || wanted="$wanted $test_packages $(browser_package)"
    # shellcheck disable=SC2086
    missing=$(missing_packages $wanted)
    if [ -z "$missing" ]; then
        say "all packages are installed"
        return
    fi
    say "installing: $missing"
    as_root apt-get update -q >/dev/null || say "the list of packages could not be renewed; trying with the present one"
    # shellcheck disable=SC2086
    as_root env DEBIAN_FRONTEND=noninteractive apt-get install -qy --no-install-recommends $missing >/dev/null ||
        fail "apt-get could not install them; its messages are above"
}

jobs_here() { nproc 2>/dev/null || echo 2; }
# Half a core each: see tests/CMakeLists.txt.
test_slots() { echo $((2 * $(jobs_here))); }

# build FOLDER CMAKE-OPTION...: all, or the targets that `targets` names, at the priority that `nice` gives.
targets=
nice=
build() {
    folder=$1
    shift
    say "building in $folder"
    mkdir -p "$folder"
    cmake -S "$source_dir" -B "$folder" -DPTB_DEBUG=-g1 "$@" >"$folder/configure.log" 2>&1 || {
        cat "$folder/configure.log" >&2
        fail "cmake could not configure"
    }
    # shellcheck disable=SC2086
    $nice cmake --build "$folder" -j "$(jobs_here)" ${targets:+--target $targets} >"$folder/build.log" 2>&1 || {
        grep -E -A4 'error|undefined reference|No such file' "$folder/build.log" >&2 || tail -30 "$folder/build.log" >&2
        fail "the build failed; all of it is in $folder/build.log"
    }
}

# ahead TREE...: builds these while tests run, which often wait, with the processor time that nobody else wants; built: all are.
ahead() {
    (
        nice="nice -n 19"
        ! chrt --idle 0 true 2>/dev/null || nice="chrt --idle 0"
        for tree in "$@"; do $tree; done
    ) &
    ahead=$!
}
built() { wait "$ahead" || exit 3; }

run_quick() {
    install_packages run
    build "$build_dir" -DCMAKE_BUILD_TYPE=Release -DPTB_TESTS=OFF
    say "running the quick suite"
    status=0
    "$build_dir/ptbench" run quick || status=$?
    # Whatever is stored is worth a report; the exit code stays that of the run.
    report=$("$build_dir/ptbench" report) || fail "the report could not be written"
    database=${PTBENCH_DB:-ptbench.db}
    case $database in /*) ;; *) database=$PWD/$database ;; esac
    case $report in /*) ;; *) report=$PWD/$report ;; esac
    echo "results: $database"
    echo "report:  $report"
    return $status
}

passed=0
failed=0
skipped=0
part=

# run_tests NAME FOLDER CTEST-OPTION...: runs them and adds to the counts.
run_tests() {
    name=$1
    folder=$2
    shift 2
    say "tests: $name"
    log=$folder/tests$part.log
    (cd "$folder" && $wrapper ctest --output-on-failure "$@") >"$log" 2>&1 || true
    grep -E '^ *[0-9]+/[0-9]+ Test' "$log" >&2 || true
    p=$(grep -cE '^ *[0-9]+/[0-9]+ Test .* Passed ' "$log" || true)
    s=$(grep -cE '^ *[0-9]+/[0-9]+ Test .*\*\*\*(Skipped|Not Run)' "$log" || true)
    f=$(grep -cE '^ *[0-9]+/[0-9]+ Test .*(\*\*\*(Failed|Timeout|Exception|Not Run)|Subprocess aborted)' "$log" || true)
    if [ $((p + s + f)) = 0 ]; then
        tail -5 "$log" >&2
        f=1
    fi
    if [ "$f" != 0 ]; then
        say "failed tests of $name; all output is in $log:"
        awk '/Test .*(\*\*\*(Failed|Timeout|Exception)|Subprocess aborted)/ { show = 120 } show > 0 { print; show-- }' "$log" >&2
    fi
    passed=$((passed + p))
    failed=$((failed + f))
    skipped=$((skipped + s))
}

as_pattern() { echo "^($(echo "$1" | tr '\n' ' ' | sed 's/ *$//; s/\./\\./g; s/  */|/g'))\$"; }

# The toolkit's headers are what the simulated GPUs need, nvcc what real ones do.
find_cuda() {
    for cuda in "${CUDA_HOME:-}" /usr/local/cuda /opt/cuda; do
        [ -n "$cuda" ] && [ -e "$cuda/include/cuda_runtime.h" ] && [ -e "$cuda/include/nccl.h" -o -e /usr/include/nccl.h ] && return
    done
    cuda=
    return 1
}

sanitizer_options() { # address | thread
    unset LSAN_OPTIONS UBSAN_OPTIONS TSAN_OPTIONS
    case $1 in
    address)
        LSAN_OPTIONS="suppressions=$source_dir/tests/lsan.supp:print_suppressions=0"
        UBSAN_OPTIONS="halt_on_error=1:print_stacktrace=1"
        export LSAN_OPTIONS UBSAN_OPTIONS
        ;;
    thread)
        TSAN_OPTIONS="halt_on_error=1:second_deadlock_stack=1:suppressions=$source_dir/tests/tsan.supp"
        export TSAN_OPTIONS
        ;;
    esac
}

# The trees of `test`; all but the first are built while the tests of one before run.
release_tree() { build "$build_dir" -DCMAKE_BUILD_TYPE=Release -DPTB_TESTS=ON; }
leaks=OFF
address_tree() {
    build "$source_dir/build-asan" -DCMAKE_BUILD_TYPE=RelWithDebInfo -DPTB_TESTS=ON -DPTB_SANITIZE=address,undefined -DPTB_LEAKS=$leaks
}
thread_tree() {
    targets=$(echo $thread_tests | sed 's/\./_test_/g')
    build "$source_dir/build-tsan" -DCMAKE_BUILD_TYPE=RelWithDebInfo -DPTB_TESTS=ON -DPTB_SANITIZE=thread
}
sim_tree() {
    targets=gpu_tests
    [ -z "$cuda" ] || build "$source_dir/build-sim" -DCMAKE_BUILD_TYPE=Release -DPTB_TESTS=ON -DPTB_GPU=sim
}
sim_address_tree() {
    targets=$(echo $sim_address_tests | sed 's/\.cuda//g; s/\./_test_/g')
    build "$source_dir/build-sim-asan" -DCMAKE_BUILD_TYPE=RelWithDebInfo -DPTB_TESTS=ON -DPTB_GPU=sim \
        -DPTB_SANITIZE=address,undefined
    targets=
}
sim_check_tree() {
    targets=$(echo $sim_check_tests | sed 's/\.cuda//g; s/\./_test_/g')
    build "$source_dir/build-sim-check" -DCMAKE_BUILD_TYPE=Release -DPTB_TESTS=ON -DPTB_GPU=sim -DPTB_SIM_CHECK=ON
    targets=
}
# No GPU runs it: that all of it compiles, assembles and links is shown. tests/unit/test_slow_cuda_build.sh optimises it.
cuda_tree() {
    targets=ptbench
    build "$source_dir/build-cuda" -DCMAKE_BUILD_TYPE=Debug -DPTB_TESTS=ON -DPTB_GPU=cuda -DPTB_CUDA_QUICK=ON
}

# run_beside NAME FOLDER TREES CTEST-OPTION...: first the tests that spin, with no other test beside them or in pairs, then the
# others; TREES are built beside all of them.
run_beside() {
    suite=$1
    tree=$2
    next=$3
    shift 3
    # shellcheck disable=SC2086
    ahead $next
    part=-spins
    run_tests "$suite, those that spin" "$tree" -L spins -LE slow -j "$(test_slots)" "$@"
    part=
    run_tests "$suite" "$tree" -LE 'slow|spins' -j "$(test_slots)" "$@"
    built
}

run_gpu_tests() {
    if [ -z "$cuda" ]; then
        say "skipped: the CUDA toolkit and NCCL (their headers) are not on this machine, so nothing of the GPU's was built or tested"
        skipped=$((skipped + 1))
        return
    fi
    if [ ! -x "$cuda/bin/nvcc" ]; then
        run_tests "simulated GPUs" "$source_dir/build-sim" -L gpu -LE slow -j "$(test_slots)"
        say "skipped: $cuda has no nvcc, so nothing was built for real GPUs"
        skipped=$((skipped + 1))
        return
    fi
    run_beside "simulated GPUs" "$source_dir/build-sim" cuda_tree -L gpu
    run_tests "real GPUs, built and without one" "$source_dir/build-cuda" -R '^mpi\.(no_gpu|bundle)$' -j "$(test_slots)"
}

run_all_tests() {
    install_packages test
    find_cuda || true
    wrapper=
    release_tree
    run_beside release "$build_dir" address_tree

    sanitizer_options address
    # Without what looks at sources alone, or at files that the same code wrote in another test; and the bundle has a loader
    # of its own, which a sanitizer's library does not bear.
    run_beside "address and undefined-behaviour sanitizers" "$source_dir/build-asan" "thread_tree sim_tree" \
        -E '^(mpi\.bundle|golden\.chromium|unit\.(headers|install|layering|nccl_profiler_abi|style))$'

    sanitizer_options thread
    # The thread sanitizer wants the classic layout of memory.
    setarch -R true 2>/dev/null && wrapper="setarch -R"
    run_tests "thread sanitizer" "$source_dir/build-tsan" -R "$(as_pattern "$thread_tests")" -j "$(test_slots)"

    wrapper=
    sanitizer_options none
    run_gpu_tests
    count_tests
}

run_slow_tests() {
    install_packages test
    wrapper=
    leaks=ON
    release_tree
    address_tree
    run_tests "release, slow" "$build_dir" -L slow
    sanitizer_options address
    run_tests "address and undefined-behaviour sanitizers, slow" "$source_dir/build-asan" -L '^(leaks|slow)$' \
        -E '\.slow_' -j "$(test_slots)"
    if find_cuda; then
        sim_address_tree
        run_tests "simulated GPUs, address and undefined-behaviour sanitizers" "$source_dir/build-sim-asan" \
            -R "$(as_pattern "$sim_address_tests")" -j "$(test_slots)"
        sim_check_tree
        run_tests "simulated GPUs, every access checked" "$source_dir/build-sim-check" \
            -R "$(as_pattern "$sim_check_tests")" -j "$(test_slots)"
    else
        say "skipped: the CUDA toolkit and NCCL (their headers) are not on this machine, so simulated GPUs were not built"
        skipped=$((skipped + 1))
    fi
    count_tests
}

count_tests() {
    echo "$passed passed, $failed failed, $skipped skipped"
    [ "$failed" = 0 ]
}

case ${1:-help} in
run) run_quick ;;
test) run_all_tests ;;
test-slow) run_slow_tests ;;
build)
    install_packages run
    build "$build_dir" -DCMAKE_BUILD_TYPE=Release -DPTB_TESTS=OFF
    echo "program: $build_dir/ptbench"
    ;;
install-packages) install_packages test ;;
help | --help | -h) usage ;;
*)
    say "error: there is no command '$1'"
    usage >&2
    exit 2
    ;;
esac
