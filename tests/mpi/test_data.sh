#!/bin/bash
# Training on files: 1 and 2 ranks see the same batches of a folder, of llm.c's token files and of packed documents; a
# vocabulary or a file that does not fit is refused before training.
# ctest: waits 22
# ctest: unsanitized
. "$PTB_SOURCE/tests/mpi/run_common.sh"
helper=$PTB_TESTBIN/mpi_helper_step
export ASAN_OPTIONS=detect_leaks=0
small=(--layers 1 --hidden 32 --heads 2 --sequence 16 --batch 4 --peak 1e11)

# run NAME RANKS OPTIONS...
run() {
    local name=$1 ranks=$2
    shift 2
    timeout 300 mpirun --allow-run-as-root --oversubscribe --bind-to none --mca mpi_yield_when_idle 1 -np "$ranks" \
        "$helper" "${small[@]}" "$@" >"$name" 2>&1
}
# Largest relative difference of the losses of two runs; "bad" unless both have 20 finite ones.
difference() {
    awk '$1 == "loss" && FNR == NR { first[$2] = $3; n++ }
         $1 == "loss" && FNR != NR { m++; d = ($3 - first[$2]) / first[$2]; if (d < 0) d = -d; if (d > most) most = d
                                     if (!($3 + 0 > 0)) bad = 1 }
         END { if (n != 20 || m != 20 || bad) print "bad"; else printf "%.3g\n", most }' "$1" "$2"
}
# both NAME OPTIONS...: 1 and 2 ranks, the same losses
both() {
    local name=$1 n d
    shift
    for n in 1 2; do
        run "$name$n" $n "$@" || { fail "$name, $n ranks:"; head -20 "$name$n"; return; }
    done
    d=$(difference "${name}1" "${name}2")
    awk -v d="$d" 'BEGIN { exit !(d != "bad" && d < 1e-5) }' || fail "$name: losses of 1 and 2 ranks differ by $d"
}

mkdir -p text/sub
for i in 1 2 3 4 5; do printf 'Document %d says %d times: the cat sat on the mat.\n' $i $((i * i)) >text/sub/$i; done
seq 1 400 >text/numbers
both folder --vocab 256 --data text
both pattern --vocab 256 --data 'text/sub/[1-4]'
both packed --vocab 256 --data text --pack
cmp -s folder1 packed1 && fail "packing changed nothing"

# Two shards of GPT-2 tokens, little-endian: header of 256 int32, then uint16; documents begin with 50256.
shard() { # FILE COUNT
    local out="" i token
    word() { # VALUE BYTES
        local k byte
        for ((k = 0; k < $2; k++)); do
            printf -v byte '\\x%02x' $(($1 >> 8 * k & 255))
            out+=$byte
        done
    }
    word 20240520 4
    word 1 4
    word $2 4
    for ((i = 0; i < 253; i++)); do out+='\0\0\0\0'; done
    for ((i = 0; i < $2; i++)); do
        token=$((i % 11 == 0 ? 50256 : i * i % 300))
        word $token 2
    done
    printf '%b' "$out" >"$1"
}
mkdir shards
shard shards/a.bin 333
shard shards/b.bin 500
both shards --vocab 50257 --data shards
both packed_shards --vocab 50257 --data shards --pack

refused() { # TEXT OPTIONS...
    local text=$1
    shift
    run refused 2 "$@" && fail "not refused: $*"
    has refused "$text"
}
refused "token number 0 of 'shards/a.bin' is 50256, and --vocab is 50256" --vocab 50256 --data shards
refused "token number 0 of 'text/numbers' is 49, and --vocab is 40" --vocab 40 --data text
head -c 1500 shards/a.bin >cut.bin
refused "says 333 tokens, which would be 1690 bytes" --vocab 50257 --data cut.bin
refused "no file has such a name" --vocab 256 --data 'text/*.txt'
finish
