eval SIZE_AXIS
# Data is in ns. At least one decade is shown; up to three are labelled at 1, 2 and 5.
set logscale y 10
set ylabel 'median time of one operation' textcolor rgb '#2b333b'
YPAD = YMAX / YMIN < 10 ? sqrt(10.0 / (YMAX / YMIN)) : 1.4
YMARKS = YMAX / YMIN > 1e3 ? '1' : '1 2 5'
set yrange [YMIN / YPAD : YMAX * YPAD]
set ytics ()
do for [k = floor(log10(YMIN / YPAD)) : ceil(log10(YMAX * YPAD))] {
    do for [m in YMARKS] { set ytics add (time_label(m * 10.0**k) m * 10.0**k) }
}
plot for [i = 1:N] DATA index i - 1 using 1:2:3:4 with yerrorbars linestyle i linewidth 1 dashtype solid pointsize 0 notitle, \
    for [i = 1:N] DATA index i - 1 using 1:2 with linespoints linestyle i title NAMES[i]
