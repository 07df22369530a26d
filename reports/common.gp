# Given to every template. Colours: Okabe and Ito's colour-blind safe palette (yellow, too pale on white, left out); with
# more curves than colours, marker and dashes tell them apart.
set encoding utf8
set datafile missing 'NaN'
set border 3 linecolor rgb '#556270' linewidth 1
set tics nomirror out scale 0.6 textcolor rgb '#2b333b'
set grid linetype 1 linecolor rgb '#dde2e7' linewidth 0.8
set errorbars small
set key at screen 0.5, screen 0.015 center bottom horizontal Left reverse maxcols KEYCOLS samplen 3 spacing 1.2 textcolor rgb '#2b333b'
set bmargin 3.6 + 1.2 * KEYROWS
array COLOURS[7] = ['#0072b2', '#d55e00', '#009e73', '#cc79a7', '#e69f00', '#56b4e9', '#4d4d4d']
array MARKERS[12] = [7, 5, 9, 13, 11, 6, 4, 8, 12, 10, 2, 3]
array DASHES[4] = ['solid', '-', '.-', '..']
do for [i = 1:N > 40 ? N : 40] {
    eval sprintf("set style line %d linecolor rgb '%s' linewidth 2 pointtype %d pointsize 0.8 dashtype %s", i, \
        COLOURS[(i - 1) % 7 + 1], MARKERS[(i - 1) % 12 + 1], \
        i <= 7 ? 'solid' : i <= 14 ? '2' : i <= 21 ? '4' : '3')
}
size_label(b) = b < 1 ? sprintf('%g B', b) : b < 1024 ? sprintf('%.0f B', b) : b < 2.0**20 ? sprintf('%.0f KiB', b / 2.0**10) : \
    b < 2.0**30 ? sprintf('%.0f MiB', b / 2.0**20) : b < 2.0**40 ? sprintf('%.0f GiB', b / 2.0**30) : sprintf('%.0f TiB', b / 2.0**40)
log2(v) = log(v) / log(2)
time_label(ns) = ns < 1e3 ? sprintf('%g ns', ns) : ns < 1e6 ? sprintf('%g µs', ns / 1e3) : ns < 1e9 ? sprintf('%g ms', ns / 1e6) : \
    sprintf('%g s', ns / 1e9)
# eval SIZE_AXIS: x is a size in bytes, powers of two, at most 10 labels.
SIZE_AXIS = "set logscale x 2; set xlabel 'size (bytes)' offset 0,0.3 textcolor rgb '#2b333b'; set xtics (); \
    XLOW = floor(log2(XMIN) + 1e-9); XHIGH = ceil(log2(XMAX) - 1e-9); XSTEP = ceil((XHIGH - XLOW + 1) / 10.0); \
    XPAD = XMIN == XMAX ? 1.5 : 0.03 * log2(XMAX / XMIN); \
    set xrange [XMIN / 2.0**XPAD : XMAX * 2.0**XPAD]; \
    do for [k = XLOW : XHIGH : XSTEP] { set xtics add (size_label(2.0**k) 2.0**k) }"
