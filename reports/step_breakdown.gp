set xlabel 'time of one step (ms)' offset 0,0.3 textcolor rgb '#2b333b'
set grid noytics
set yrange [N + 0.6 : 0.4]
set ytics ()
do for [i = 1:N] { set ytics add (NAMES[i] i) }
SUMS = PARTS + 2
XMOST = YMAX > SUMMAX ? YMAX : SUMMAX
set xrange [0 : XMOST > 0 ? XMOST * 1.05 : 1]
set style fill solid 0.9 border rgb '#ffffff'
# As many colours as parts; those of curves and three more.
array BARS[10] = [COLOURS[1], COLOURS[2], COLOURS[3], COLOURS[4], COLOURS[5], COLOURS[6], COLOURS[7], '#882255', '#999933', '#a9b3bc']
plot for [p = 1:PARTS] DATA using (0):1:(column(p + 1)):(column(p + 2)):($1 - 0.33):($1 + 0.33) \
        with boxxyerror linecolor rgb BARS[p] title PART[p], \
    DATA using (column(SUMS + 1)):1:(column(SUMS + 2)):(column(SUMS + 3)) with xerrorbars linecolor rgb '#101418' \
        linewidth 1.5 pointtype 2 pointsize 0.9 title PART[PARTS + 1]
