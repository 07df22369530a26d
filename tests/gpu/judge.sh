# What tests/gpu/run.sh judges: its functions, which read the rows of each part ($logs/PART.csv) and call `say` and `problem`.
# What is not there is a failure by name: no number is taken for a pass because it is missing.

# rows PART COLUMN...: these columns of its measured cases, separated by \037, of which several in a row are several.
rows() {
    [ -s "$logs/$1.csv" ] || return 0
    awk -v wanted="$(printf '%s\t' "${@:2}")" '
        function fields(line,    n, c, i, quoted, text) {
            n = 1; text = ""; quoted = 0
            for (i = 1; i <= length(line); i++) {
                c = substr(line, i, 1)
                if (c == "\"") quoted = !quoted
                else if (c == "," && !quoted) { field[n++] = text; text = "" }
                else text = text c
            }
            field[n] = text
            return n
        }
        { sub(/\r$/, "") }
        NR == 1 { n = fields($0); for (i = 1; i <= n; i++) place[field[i]] = i; w = split(wanted, want, "\t") - 1; next }
        { fields($0)
          if (field[place["state"]] != "ok") next
          line = ""
          for (i = 1; i <= w; i++) line = line (i > 1 ? "\037" : "") (want[i] in place ? field[place[want[i]]] : "")
          print line }' "$logs/$1.csv"
}

# need PART COLUMN,COLUMN... VALUE,VALUE...: rows of it with these values, a failure each that is missing; a space within values
# stands for a list of them. A part that was not run has failed already.
need() {
    local columns found line
    wanted "$1" && [ -e "$logs/$1.csv" ] || return 0
    IFS=, read -ra columns <<<"$2"
    found=$(rows "$1" "${columns[@]}" | tr '\037' ,)
    for line in "${@:3}"; do
        grep -qxF -- "$line" <<<"$found" || problem failed "$1 has no row of $line ($2)"
    done
}

# figures PART COLUMN...: a part that ran has numbers in all of these columns, in all of its rows.
figures() {
    local column value
    wanted "$1" && [ -e "$logs/$1.csv" ] || return 0
    for column in "${@:2}"; do
        value=$(rows "$1" "$column" | grep -cvE '^-?[0-9]') || true
        [ "$value" = 0 ] && [ -n "$(rows "$1" "$column")" ] || problem failed "$1: ${value/#0/all} rows lack '$column'"
    done
}

# each KERNELS TYPES: "kernel,type" for every pair.
each() { local k t; for k in $1; do for t in $2; do echo "$k,$t"; done; done; }

# ---- floors

# Whether floors are judged follows from the GPU, which the first part tells.
know_gpu() {
    [ "$floors" = yes ] || return 0
    case $device in
    "") ;;
    *MIG*) floors="no: an instance of MIG ($device)" ;;
    *H100* | *H200*) ;;
    *) floors="no: they are for H100 and H200, this is $device" ;;
    esac
}

# floor WHAT VALUE LEAST: in per cent. A value that is not there is a failure whatever is judged.
floor() {
    if ! [[ $2 =~ ^[0-9] ]]; then
        problem failed "$1 is missing (floor $3 %)"
    elif [ "$floors" = yes ] && ! awk -v v="$2" -v l="$3" 'BEGIN { exit !(v + 0 >= l) }'; then
        problem floor "$(printf '%s %.1f %% (floor %s %%)' "$1" "$2" "$3")"
    fi
}

# kernel_floors PART: small kernels are over before the memory is busy, so what takes less than 10 us is said and not judged;
# nor are products, attention in f32 (plain arithmetic) and what sorts rather than moves.
kernel_floors() {
    local what percent least short
    wanted "$1" && [ -s "$logs/$1.csv" ] || return 0
    rows "$1" param.kernel param.layer param.precision median_ns 'best_of_limit [%]' | awk -F'\037' '
        $1 ~ /^matmul/ || $1 ~ /^(route|route_gradient|expert_order|balance_loss|update_begin)$/ { next }
        $1 ~ /^attention/ { if ($3 != "f32") print $1 " " $2 " " $3 "\037" $5 "\037" ($1 == "attention" ? 35 : 30); next }
        $4 + 0 >= 10000 { print $1 " " $2 " " $3 "\037" $5 "\037" 75; next }
        { print $1 " " $2 " " $3 > "/dev/stderr" }' >"$logs/$1.floors" 2>"$logs/$1.short"
    while IFS=$'\037' read -r what percent least; do floor "$1 $what" "$percent" "$least"; done <"$logs/$1.floors"
    short=$(tr '\n' ',' <"$logs/$1.short" | sed 's/,$//; s/,/, /g')
    say figures "$1: $(wc -l <"$logs/$1.floors") floors; lowest of its floor: $(awk -F'\037' '
        { r = $2 / $3; if (NR == 1 || r < least) { least = r; text = sprintf("%s, %.1f %% of %s", $1, $2, $3) } }
        END { print NR ? text : "none" }' "$logs/$1.floors")"
    [ -z "$short" ] || say tables "$1, shorter than 10 us, not judged: $short"
}

# kernel_table PART: all that it measured.
kernel_table() {
    wanted "$1" && [ -s "$logs/$1.csv" ] || return 0
    {
        echo
        echo "$1: kernel, layer, type, sizes, median us, per cent of its limit (fastest sample), kernels of attention"
        rows "$1" param.kernel param.layer param.precision fact.sizes median_ns 'best_of_limit [%]' fact.attention_kernels |
            awk -F'\037' '{ printf "    %-24s %-12s %-5s %-24s %10.1f  %6.1f  %s\n", $1, $2, $3, $4, $5 / 1e3, $6, $7 }'
    } | say tables
}

# attention_is PART TYPE KERNELS: which kernels of attention its rows of that type took.
attention_is() {
    wanted "$1" && [ -s "$logs/$1.csv" ] || return 0
    local other
    other=$(rows "$1" param.kernel param.precision fact.attention_kernels | awk -F'\037' -v type="$2" -v wanted="$3" '
        $1 ~ /^attention/ && $2 == type && $3 != wanted { print $1 " took " ($3 == "" ? "nobody knows which" : $3) }' | sort -u | head -2 | paste -sd,)
    [ -z "$other" ] || problem failed "$1 in $2: asked for attention by $3, but $other"
}

# ---- the capture

# lengths: of spans on standard input ("rank step class begin end", by rank, step, class and begin) the length of each class's
# union, a line for each rank and step: S frames, K compute, F and B of it forward and backward, C communication, U all of K and C.
lengths() {
    sort -k1,1n -k2,2n -k3,3 -k4,4n | awk '
        function close_class() { length_of[class] += end - begin }
        function close_step() { if (key != "") { close_class(); print key, length_of["S"] + 0, length_of["F"] + 0, length_of["B"] + 0,
                                length_of["K"] + 0, length_of["C"] + 0, length_of["U"] + 0; split("", length_of) } }
        $1 " " $2 != key { close_step(); key = $1 " " $2; class = $3; begin = $4; end = $5; next }
        $3 != class { close_class(); class = $3; begin = $4; end = $5; next }
        $4 > end { close_class(); begin = $4; end = $5; next }
        $5 > end { end = $5 }
        END { close_step() }'
}

# second_look FILE: from a stored trace, what the program has printed: kernels of no phase, then forward, backward, communication,
# exposed communication, overlap in % and step in ms; means over ranks (of their percentages, too) and over the middle half of recorded steps by the
# slowest rank's time, as the program's are.
second_look() {
    awk '
        function value(name,    at, rest) {
            at = index($0, "\"" name "\": ")
            rest = substr($0, at + length(name) + 4)
            sub(/[,}].*/, "", rest)
            gsub(/"/, "", rest)
            return rest
        }
        /"ph": "X"/ {
            kind = value("cat")
            if (kind !~ /^(compute|optimizer|communication|step)$/) next
            phase = value("phase")
            if (kind == "compute" && phase == "none") unknown++
            begin = value("ts"); at = value("pid") " " value("iteration"); ends = sprintf("%.3f %.3f", begin, begin + value("dur"))
            if (kind == "step") print at, "S", ends
            else if (kind == "communication") { print at, "C", ends; print at, "U", ends }
            else {
                print at, "K", ends; print at, "U", ends
                if (phase == "forward") print at, "F", ends
                if (phase == "backward") print at, "B", ends
            }
        }
        END { print unknown + 0 >"/dev/stderr" }' "$1" 2>"$1.unknown" | lengths | awk '
        $6 + $7 == 0 || $3 == 0 { next } # a timed step, of which nothing was recorded
        { steps[$2] = 1; ranks[$1] = 1; if ($3 > slowest[$2]) slowest[$2] = $3; s[$1, $2] = $0 }
        END {
            for (i in steps) order[++n] = i
            for (r in ranks) m++
            for (i = 2; i <= n; i++)
                for (j = i; j > 1 && slowest[order[j]] < slowest[order[j - 1]]; j--) { t = order[j]; order[j] = order[j - 1]; order[j - 1] = t }
            cut = int(n / 4)
            for (i = 1 + cut; i <= n - cut; i++) {
                chosen++
                step += slowest[order[i]]
                for (r in ranks) {
                    split(s[r, order[i]], v, " ")
                    f += v[4]; b += v[5]; k += v[6]; c += v[7]; u += v[8]
                    total[r] += v[7]; hidden[r] += v[7] + v[6] - v[8]
                }
            }
            if (!chosen) exit
            d = chosen * m * 1000
            for (r in ranks) if (total[r]) overlap += 100 * hidden[r] / total[r] / m; else is_silent = 1
            print f / d, b / d, c / d, (u - k) / d, is_silent ? "n/a" : overlap, step / chosen / 1000, n }' OFMT=%.9g CONVFMT=%.9g
}

# capture PART RANKS: of a part of one case with --trace.
capture() {
    local ms parts_ms unattributed dropped nccl_dropped late overhead trace=$logs/$1.trace.json seen line unknown
    wanted "$1" && [ -n "$(rows "$1" median_ns)" ] || return 0
    line=$(rows "$1" fact.capture)
    case $line in none* | "") problem failed "$1: nothing was captured: ${line:-it does not say why}" && return 0 ;; esac
    figures "$1" 'forward [ms]' 'backward [ms]' 'optimizer [ms]' 'exposed_comm [ms]' 'step [ms]' 'capture_overhead [%]' \
        fact.capture_unattributed fact.capture_dropped fact.capture_nccl_dropped fact.capture_nccl_late
    IFS=$'\037' read -r unattributed dropped nccl_dropped late overhead < <(rows "$1" fact.capture_unattributed \
        fact.capture_dropped fact.capture_nccl_dropped fact.capture_nccl_late 'capture_overhead [%]')
    for line in "$dropped:records were dropped" "$nccl_dropped:of NCCL's events did not fit" "$late:of NCCL's events came late"; do
        [ "${line%%:*}" = 0 ] || problem failed "$1: ${line%%:*} ${line#*:}"
    done
    timeout 120 "$program" export "$1" --db "$db" --format perfetto >"$trace" 2>"$trace.error" || {
        problem failed "$1: its trace cannot be exported: $(tail -1 "$trace.error")"
        return 0
    }
    line=$(timeout 60 "$program" export "$1" --db "$db" --format json 2>/dev/null | grep -oE '"spans_dropped": *[1-9][0-9]*' | head -1)
    [ -z "$line" ] || { problem failed "$1: its trace is not whole, $line" && return 0; }
    seen=$(second_look "$trace")
    read -r unknown <"$trace.unknown"
    [ "$unknown" = 0 ] || problem failed "$1: $unknown recorded kernels belong to no unit or phase"
    ms=$(rows "$1" 'forward [ms]' 'backward [ms]' 'comm [ms]' 'exposed_comm [ms]' 'overlap [%]' 'step [ms]' | tr '\037' ' ' | sed 's/  / n\/a /')
    parts_ms=$(rows "$1" 'forward [ms]' 'backward [ms]' 'optimizer [ms]' 'exposed_comm [ms]' 'input [ms]' 'other [ms]' 'imbalance [ms]')
    [ "$2" = 1 ] || figures "$1" 'overlap [%]'
    # Two looks at the same spans agree but for rounding (the trace has whole ns); parts add up to the step.
    line=$(echo "$ms" "$seen" "$(tr '\037' ' ' <<<"$parts_ms")" | awk -v steps=0 '
        function off(a, b, all) { return a - b > 1e-3 * all + 1e-3 || b - a > 1e-3 * all + 1e-3 }
        NF != 20 { print "there is nothing to compare: " $0; next }
        { split("forward backward communication exposed overlap step", name, " ")
          for (i = 1; i <= 6; i++)
              if ($i == "n/a" || $(i + 6) == "n/a" ? $i != $(i + 6) : off($i, $(i + 6), i == 5 ? 100 : $6))
                  text = text sprintf("%s%s %s, but its spans say %s", text ? "; " : "", name[i], $i, $(i + 6))
          for (i = 14; i <= 20; i++) sum += $i
          if (off(sum, $6, 10 * $6)) text = text sprintf("%sparts add up to %.3f of %.3f ms", text ? "; " : "", sum, $6)
          print text }')
    [ -z "$line" ] || problem wrong "$1: $line"
    say figures "$1, recorded (ms): $(awk -F'\037' '{ printf "forward %.3f, backward %.3f, optimizer %.3f, exposed communication %.3f, input %.3f, other %.3f, imbalance %.3f", $1, $2, $3, $4, $5, $6, $7 }' <<<"$parts_ms")"
    say figures "    a second look at the spans: ${line:-the same}; overlap $(short "$(cut -d' ' -f5 <<<"$ms")") %; recording cost $(short "$overhead") %;" \
        "$unknown kernels of no unit or phase ($unattributed of rank 0's records, copies mostly, are outside of all work), $dropped dropped, $late late"
}

# ---- steps

# step_figures PART FLOOR: the step's rate; without a floor where that is empty.
step_figures() {
    local ms mfu sheet tokens attention gradient
    wanted "$1" && [ -e "$logs/$1.csv" ] || return 0
    figures "$1" median_ns 'tokens_per_s [tokens/s]'
    IFS=$'\037' read -r ms mfu sheet tokens attention gradient < <(rows "$1" median_ns 'mfu [%]' 'mfu_datasheet [%]' \
        'tokens_per_s [tokens/s]' fact.attention_kernels fact.attention_grad_kernels)
    say figures "$1: $(awk -v v="$ms" 'BEGIN { printf "%.3f", v / 1e6 }') ms, $(short "$tokens") tokens/s, MFU $(short "$mfu") % of the" \
        "measured product (floor ${2:-none}), $(short "$sheet") % of the data sheet; attention by ${attention:-n/a}, gradient by ${gradient:-n/a}"
    [ "$attention,$gradient" = "${attention_kinds%% *},${attention_kinds%% *}" ] ||
        problem failed "$1: attention by ${attention_kinds%% *} was expected, $attention and $gradient ran"
    [ -z "$2" ] && figures "$1" 'mfu [%]' || floor "$1 MFU" "$mfu" "$2"
}

# graph_figures PART: replayed steps have the losses of enqueued ones, and no number of the breakdown is a 0 that nobody measured.
graph_figures() {
    wanted "$1" && [ -e "$logs/$1.csv" ] || return 0
    need "$1" param.graph "" yes
    figures "$1" 'loss_first [nats]' 'loss_last [nats]' median_ns
    rows "$1" param.graph median_ns 'loss_first [nats]' 'loss_last [nats]' fact.captured_graph_nodes 'forward [ms]' \
        'backward [ms]' fact.capture_unknown_nodes | awk -F'\037' -v part="$1" '
        function off(a, b) { return (a > b ? a - b : b - a) / b > 1e-6 }
        { row[$1 == "yes"] = $0 }
        END {
            split(row[0], e, "\037"); n = split(row[1], g, "\037")
            if (row[0] == "" || !n) exit
            printf "figure %s: enqueued %.3f ms, as a graph %.3f ms; last losses %s and %s; %d nodes recorded, %d of them of no work\n", part, e[2] / 1e6, g[2] / 1e6, e[4], g[4], g[5], g[8]
            if (off(e[3], g[3]) || off(e[4], g[4])) print "wrong " part ": losses of replayed steps are others: " g[3] " " g[4] ", not " e[3] " " e[4]
            if (!(g[5] > 0)) print "failed " part ": no node of a graph was recorded"
            if (g[8] > 0) print "failed " part ": " g[8] " recorded nodes of the graph belong to no work"
            if (g[6] != "" && g[7] != "" && !(g[6] > 0 && g[7] > 0)) print "wrong " part ": forward " g[6] " ms and backward " g[7] " ms of a graph"
        }' >"$logs/$1.verdict"
    while read -r kind line; do
        [ "$kind" = figure ] && say figures "$line" || problem "$kind" "$line"
    done <"$logs/$1.verdict"
}

# ---- strategies, several GPUs

# need_strategies PART RANKS: a row for each of them.
need_strategies() {
    need "$1" param.strategy ddp zero1 zero2 fsdp hsdp async local-sgd
    [ "$2" = 1 ] || [ $(($2 % 2)) = 0 ] || return 0
    need "$1" param.strategy tp tp+sp cp ep
}

# same_losses PART REFERENCE PERCENT: the first and the last loss of every strategy against ddp's of the same model in the
# reference. Those that do not train in step have losses of their own after the first step.
same_losses() {
    wanted "$1" && [ -e "$logs/$1.csv" ] || return 0
    local columns=(param.strategy param.mesh fact.experts 'loss_first [nats]' 'loss_last [nats]') wrong
    { rows "$2" "${columns[@]}" | sed 's/^/reference\x1f/' && rows "$1" "${columns[@]}" | sed 's/^/row\x1f/'; } |
        awk -F'\037' -v limit="$3" '
        function off(a, b) { return 100 * (a > b ? a - b : b - a) / b }
        $1 == "reference" { if ($2 == "ddp") { first[$4] = $5; last[$4] = $6 } next }
        { own = $2 == "async" || $2 == "local-sgd"
          if (!first[$4] || $5 !~ /^[0-9]/ || $6 !~ /^[0-9]/) { printf "    %-10s %-16s there is nothing to compare  MISSING\n", $2, $3; next }
          wrong = !(off($5, first[$4]) <= limit && (own || off($6, last[$4]) <= limit))
          printf "    %-10s %-16s %-8s losses %9.6f and %9.6f, off by %.1e and %s %%  %s\n", $2, $3, $4 + 0 ? "mixture" : "dense",
                 $5, $6, off($5, first[$4]), own ? "n/a" : sprintf("%.1e", off($6, last[$4])), wrong ? "WRONG" : "ok" }' >"$logs/$1.losses"
    { echo && echo "$1, losses against $2 (limit $3 %):" && cat "$logs/$1.losses"; } | say tables
    wrong=$(grep -c WRONG "$logs/$1.losses")
    say figures "$1: $(grep -c ' ok$' "$logs/$1.losses") of $(wc -l <"$logs/$1.losses") losses are those of $2 within $3 %"
    [ "$wrong" = 0 ] || problem wrong "$1: $wrong losses are not those of $2"
    [ -s "$logs/$1.losses" ] && ! grep -q MISSING "$logs/$1.losses" || problem failed "$1: there are losses to compare that are missing"
}

# name_rows PART WORD CONDITION: how many of its rows meet it, and which.
name_rows() {
    rows "$1" fact.algorithm fact.replaced fact.channels_replaced bench param.algo bytes | awk -F'\037' -v word="$2" '
        '"$3"' { n++; name = $4 " " $5; if (!(name in seen)) { seen[name] = 1; names = names (names == "" ? ": " : ", ") name } }
        END { printf "    %d of %d rows %s%s\n", n, NR, word, names }'
}

# extremes PART: of each path between GPUs the slowest and the fastest pair, of the largest messages.
extremes() {
    wanted "$1" && [ -e "$logs/$1.csv" ] || return 0
    need "$1" param.path send h2d d2h
    figures "$1" 'bandwidth [GB/s]'
    {
        echo "$1: path, pairs, slowest and fastest in GB/s"
        rows "$1" param.path param.from param.to 'bandwidth [GB/s]' | awk -F'\037' '
            { n[$1]++; v = $4 + 0; who = sprintf("%.1f (%s to %s)", v, $2, $3) }
            n[$1] == 1 || v < least[$1] { least[$1] = v; slow[$1] = who }
            n[$1] == 1 || v > most[$1] { most[$1] = v; fast[$1] = who }
            END { for (p in n) printf "    %-12s %4d  %-24s %s\n", p, n[p], slow[p], fast[p] }' | sort
    } | say figures
}
