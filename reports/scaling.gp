set logscale x 2
set xlabel 'ranks' offset 0,0.3 textcolor rgb '#2b333b'
set ylabel 'efficiency (%)' textcolor rgb '#2b333b'
set xtics ()
do for [k = floor(log2(XMIN)) : ceil(log2(XMAX))] { set xtics add (sprintf('%.0f', 2.0**k) 2.0**k) }
set xrange [XMIN / 1.15 : XMAX * 1.15]
set yrange [0 : YMAX * 100 * 1.08 < 108 ? 108 : YMAX * 100 * 1.08]
set label 'ideal' at graph 0.998, first 100 right offset 0,0.6 textcolor rgb '#5b6670'
plot 100 with lines linecolor rgb '#5b6670' dashtype 2 linewidth 1 notitle, \
    for [i = 1:N] DATA index i - 1 using 1:($2 * 100):($3 * 100):($4 * 100) with yerrorbars linestyle i linewidth 1 dashtype solid pointsize 0 notitle, \
    for [i = 1:N] DATA index i - 1 using 1:($2 * 100) with linespoints linestyle i title NAMES[i]
