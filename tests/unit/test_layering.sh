#!/bin/bash
# Which folder may include which, where third-party headers may stand, and what stands at the top.
set -u
cd "$PTB_SOURCE" || exit 1
failed=0
complain() {
    echo "$*"
    failed=1
}

# The folders a folder may include from, itself included.
allowed_for() {
    case $1 in
    core) echo core ;;
    profiler) echo core profiler ;;
    collectives) echo core profiler collectives ;;
    strategies) echo core profiler collectives strategies ;;
    results) echo core results ;;
    reports) echo core results reports ;;
    bench | tests) echo core profiler collectives strategies results reports bench tests ;;
    esac
}

# Whether a file may include a third-party header.
may_include() { # header file
    case "$1 $2" in
    *" tests/"*) return 0 ;;
    mpi.h\ collectives/*mpi* | mpi-ext.h\ collectives/*mpi*) return 0 ;;
    hwloc.h\ core/topology*.c) return 0 ;;
    sqlite3.h\ results/*) return 0 ;;
    zstd.h\ results/*.c) return 0 ;;
    ini.h\ bench/*.c) return 0 ;;
    jansson.h\ collectives/*.c | jansson.h\ results/*.c | jansson.h\ reports/*.c | jansson.h\ bench/*.c) return 0 ;;
    omp.h\ strategies/transformer/kernels_*.c) return 0 ;;
    cuda_*.h\ *_cuda*.[ch] | cuda_*.h\ *.cu | cuda_*.h\ *.cuh) return 0 ;;
    cublasLt.h\ strategies/transformer/kernels_cuda*.[ch]) return 0 ;;
    cuda_runtime_api.h\ collectives/comm_nccl*.[ch] | nccl.h\ collectives/comm_nccl*.[ch]) return 0 ;;
    cupti*.h\ profiler/cupti*.[ch] | cuda_runtime_api.h\ profiler/cupti*.c | nvtx3/*\ profiler/*) return 0 ;;
    dnnl*\ strategies/transformer/kernels_*.c | oneapi/*\ strategies/transformer/kernels_*.c) return 0 ;;
    esac
    return 1
}

# Headers of the C library, POSIX, Linux and the compiler.
is_system() {
    case $1 in
    sys/*.h | linux/*.h | arpa/*.h | net/*.h | netinet/*.h) return 0 ;;
    assert.h | ctype.h | dirent.h | dlfcn.h | errno.h | execinfo.h | fcntl.h | fenv.h | fnmatch.h | fts.h | ftw.h) return 0 ;;
    getopt.h | glob.h | inttypes.h | libgen.h | limits.h | locale.h | malloc.h | math.h | netdb.h | poll.h) return 0 ;;
    pthread.h | pwd.h | sched.h | semaphore.h | setjmp.h | signal.h | spawn.h | stdalign.h | stdarg.h) return 0 ;;
    stdatomic.h | stdbool.h | stddef.h | stdint.h | stdio.h | stdlib.h | stdnoreturn.h | string.h) return 0 ;;
    strings.h | termios.h | time.h | unistd.h | wchar.h | float.h | immintrin.h | arm_neon.h) return 0 ;;
    cpuid.h | link.h | grp.h | regex.h | iconv.h | ifaddrs.h) return 0 ;;
    esac
    return 1
}

folders=$(ls -d core profiler collectives strategies results reports bench tests 2>/dev/null)
files=0
for folder in $folders; do
    allowed=" $(allowed_for "$folder" | tr '\n' ' ') "
    while IFS=: read -r file _ line; do
        [[ $line =~ include[[:space:]]*[\<\"]([^\>\"]*) ]] || continue
        name=${BASH_REMATCH[1]}
        case $line in
        *\"*)
            case $name in
            *.inc) continue ;; # generated into the build folder
            */*) [[ $allowed == *" ${name%%/*} "* ]] || complain "$file includes $name: $folder may include only$allowed" ;;
            *) # beside the file: only within tests
                [ $folder = tests ] || complain "$file includes \"$name\": name the folder too"
                name=${file%/*}/$name
                ;;
            esac
            [ -f "$name" ] || complain "$file includes $name, which does not exist"
            ;;
        *)
            is_system "$name" || may_include "$name" "$file" ||
                complain "$file includes <$name>: third-party headers stand only in the back-end that needs them"
            ;;
        esac
    done < <(grep -nE '^[[:space:]]*#[[:space:]]*include' -r "$folder" --include='*.c' --include='*.h' --include='*.cu' --include='*.cuh' -H)
    files=$((files + $(find "$folder" -name '*.[ch]' | wc -l)))
done

if git rev-parse --is-inside-work-tree >/dev/null 2>&1; then
    top=$(git ls-files | cut -d/ -f1 | sort -u)
else
    top=$(ls -A | grep -vE '^build|\.db(-wal|-shm)?$|^ptbench-report$')
fi
for name in $top; do
    case $name in
    core | profiler | collectives | strategies | results | reports | bench | tests) ;;
    CMakeLists.txt | README.md | bootstrap.sh | LICENSE | .*) ;;
    *) complain "$name stands at the top: only the folders of the design, CMakeLists.txt, README.md, bootstrap.sh, LICENSE and dot-files do" ;;
    esac
done
echo "$files files checked"
[ "$files" -ge 40 ] && [ "$failed" -eq 0 ]
