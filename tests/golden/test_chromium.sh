# Opens reports in a real headless Chromium, from the file system as a user does: the title, every figure drawn with a
# size, pictures that load, nothing wider than the window, no error on the console, no request to anywhere.
# A probe page loads the report in a frame and its pictures, measures them when all is loaded and writes what it found
# into its own document, which --dump-dom prints.
set -u
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
chromium=$(command -v chromium || command -v chromium-browser || command -v google-chrome) || {
    grep -q '^ID=ubuntu' /etc/os-release && { echo "skipped: no browser, and containers cannot install Ubuntu's"; exit 77; }
    echo "FAIL: no chromium in PATH; bootstrap.sh test installs it (package chromium)"
    exit 1
}
failures=0
fail() { echo "FAIL: $*"; failures=$((failures + 1)); }

# browse REPORT: the probe page as it is when all is loaded. Begins again where the browser fails, which is not tested here.
browse() {
    for _ in 1 2 3; do
        rm -rf "$folder/profile"
        timeout 150 "$chromium" --headless=new --no-sandbox --disable-gpu --disable-dev-shm-usage --no-first-run \
            --user-data-dir="$folder/profile" --allow-file-access-from-files --enable-logging=stderr --v=0 \
            --window-size=1100,900 --dump-dom "file://$folder/probe.html" \
            >"$folder/dom" 2>"$folder/console" && grep -q '^@rows=' "$folder/dom" && return
        code=$?
    done
    fail "$1: chromium ended with $code: $(tail -3 "$folder/console")"
}

# probe REPORT FOUND: measures FOLDER/REPORT/index.html in a window of 1000 x 800, results as lines name=value in FOUND.
probe() {
    cat >"$folder/probe.html" <<EOF
<!DOCTYPE html><meta charset="utf-8"><title>probe</title><pre id="found">not finished</pre>
<iframe id="frame" src="$1/index.html" style="width: 1000px; height: 800px; border: 0"></iframe>
$(cd "$folder" && for png in "$1"/*.png; do echo "<img src=\"$png\" alt=\"\">"; done)
<script>
const lines = [], frame = document.getElementById('frame');
addEventListener('error', e => lines.push('probe_error=' + e.message));
addEventListener('load', () => {
  const d = frame.contentDocument, w = frame.contentWindow;
  lines.push('title=' + d.title, 'compat=' + d.compatMode, 'scripts=' + d.scripts.length);
  const figures = [...d.querySelectorAll('figure')];
  lines.push('figures=' + figures.length);
  for (const f of figures) {
    const s = f.querySelector('svg'), box = s ? s.getBoundingClientRect() : {width: 0, height: 0};
    const marks = s ? [...s.querySelectorAll('path, use, polygon, polyline')].filter(p => {
      const b = p.getBoundingClientRect(); return b.width > 0 || b.height > 0; }).length : 0;
    const style = s ? w.getComputedStyle(s) : {};
    const seen = style.visibility === 'visible' && style.display !== 'none' && style.opacity === '1';
    lines.push('figure=' + f.id + ' ' + Math.round(box.width) + ' ' + Math.round(box.height) + ' ' + marks + ' ' + seen);
    const link = f.querySelector('figcaption a');
    const picture = [...document.images].find(i => link && i.src === link.href);
    lines.push('picture=' + (picture && picture.complete ? picture.naturalWidth : 0));
  }
  const ids = [...d.querySelectorAll('[id]')].map(e => e.id);
  lines.push('duplicate_ids=' + (ids.length - new Set(ids).size));
  const dangling = [...d.querySelectorAll('nav a')].filter(a => !d.getElementById(a.hash.slice(1))).length;
  lines.push('dangling=' + dangling);
  lines.push('overflow=' + (d.documentElement.scrollWidth - d.documentElement.clientWidth));
  lines.push('outside=' + w.performance.getEntriesByType('resource').length);
  lines.push('rows=' + d.querySelectorAll('tbody tr').length);
  document.getElementById('found').textContent = '\n' + lines.map(l => '@' + l).join('\n') + '\n';
});
</script>
EOF
    browse "$1"
    sed -n 's/^@//p' "$folder/dom" >"$2"
}

# value FOUND NAME
value() { sed -n "s/^$2=//p" "$1" | head -1; }
expect() { # FOUND NAME WANTED
    got=$(value "$1" "$2")
    [ "$got" = "$3" ] || fail "$(basename "$1"): $2 is '$got', not '$3'"
}

check() { # REPORT FIGURES TITLE
    found=$folder/$1.found
    probe "$1" "$found"
    expect "$found" title "$3"
    expect "$found" compat CSS1Compat
    expect "$found" scripts 0
    expect "$found" figures "$2"
    expect "$found" duplicate_ids 0
    expect "$found" dangling 0
    expect "$found" overflow 0
    expect "$found" outside 0
    expect "$found" probe_error ""
    [ "$(grep -c '^figure=' "$found")" = "$2" ] || fail "$1: not every figure was measured"
    while read -r name width height marks seen; do
        [ "$width" -ge 500 ] && [ "$height" -ge 150 ] || fail "$1: figure $name is only $width x $height"
        [ "$marks" -ge 5 ] || fail "$1: figure $name shows $marks marks"
        [ "$seen" = true ] || fail "$1: figure $name is hidden"
    done < <(sed -n 's/^figure=//p' "$found")
    [ "$(grep -c '^picture=[1-9]' "$found")" = "$2" ] || fail "$1: a PNG does not load"
    if grep -E 'CONSOLE|Uncaught|Refused to' "$folder/console"; then
        fail "$1: messages on the console"
    fi
}

helper=$PTB_TESTBIN/golden_helper_report
"$helper" fill "$folder/reports.db" || exit 1
render() { # REPORT RUN...
    name=$1; shift
    "$helper" html "$folder/reports.db" "$folder/$name" "$@" >/dev/null || { fail "cannot render $name"; exit 1; }
}
render quick 1
render steps 4 5 6 7
render hostile 9 10 11
check quick 10 'ptbench report: before (run 1)'
check steps 4 'ptbench report: run 4, run 5, run 6, run 7'
check hostile 4 "ptbench report: &lt;script&gt;alert('x')&lt;/script&gt; &amp; \`date\` \"quoted\" Ω @name {a_b}^2 (run 9), run 10, three repetitions (run 11)"

# The checks themselves: a page with a hidden figure, a console message and a stray id must not pass.
if [ $failures = 0 ]; then
    mkdir "$folder/broken"
    cp "$folder"/steps/*.png "$folder/broken"
    sed -e '0,/<svg /s//<svg style="display: none" /' -e 's#</body>#<p id="loss">x</p><script>console.error("planted")</script></body>#' \
        "$folder/steps/index.html" >"$folder/broken/index.html"
    planted=$( (check broken 4 'ptbench report: run 4, run 5, run 6, run 7'; echo "failures=$failures") )
    for what in 'is only 0 x 0' 'messages on the console' "duplicate_ids is '1'" "scripts is '1'"; do
        case $planted in *"$what"*) ;; *) fail "a planted fault was not noticed: $what" ;; esac
    done
fi
[ $failures = 0 ] && echo "4 pages in $("$chromium" --version 2>/dev/null): every figure visible, console clean"
exit $((failures > 0))
