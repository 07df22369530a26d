# Shared by the tests of `ptbench run`: a folder of their own, and checks that say what they saw.
set -u
unset PTBENCH_DB NO_COLOR
export TERM=dumb
export OMPI_MCA_btl_vader_single_copy_mechanism=${OMPI_MCA_btl_vader_single_copy_mechanism:-none}
folder=$(mktemp -d "${TMPDIR:-/tmp}/ptbench-test-XXXXXX")
trap 'rm -rf "$folder"' EXIT
cd "$folder" || exit 1
# Jobs of other tests that end would remove the folder for all of the user's in /tmp, and this one's may be about to use it.
export OMPI_MCA_orte_tmpdir_base=$folder
failures=0

fail() {
    echo "FAIL: $*"
    failures=$((failures + 1))
}

# try CODE COMMAND...: runs it, output in out and err, and checks the exit code.
try() {
    local wanted=$1 code=0
    shift
    timeout $([ -n "${PTB_SANITIZE:-}" ] && echo 600 || echo 300) "$@" >out 2>err || code=$?
    if [ "$code" != "$wanted" ]; then
        fail "exit code $code instead of $wanted: $*"
        sed 's/^/    out: /' out | head -20
        sed 's/^/    err: /' err | head -20
    fi
}

# has FILE TEXT: a line of the file holds the text.
has() {
    grep -qF -- "$2" "$1" || { fail "no '$2' in $1:"; sed 's/^/    /' "$1" | head -20; }
}
has_not() {
    if grep -qF -- "$2" "$1"; then fail "'$2' in $1:"; grep -F -- "$2" "$1" | sed 's/^/    /' | head -5; fi
}

# Fast: two ranks, own algorithms, few samples. `try` wants a program, so the words stand in an array.
tiny=("$PTBENCH" run all_reduce --np 2 --comm host --algo direct --place out --bytes "8,64" -n 5 -w 2)

finish() {
    [ "$failures" = 0 ] || { echo "$failures checks failed"; exit 1; }
}
