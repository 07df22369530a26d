eval SIZE_AXIS
# Data is in ns; seconds with a prefix read best. At most three decades are labelled at 1, 2, 5.
set logscale y 10
set ylabel 'median time of one operation' textcolor rgb '#2b333b'
YLOW = floor(log10(YMIN) - 0.01)
YHIGH = ceil(log10(YMAX) + 0.01)
set yrange [YHIGH - YLOW > 3 ? 10.0**YLOW : YMIN / 1.3 : YHIGH - YLOW > 3 ? 10.0**YHIGH : YMAX * 1.3]
set ytics ()
do for [k = YLOW : YHIGH] {
    do for [m in YHIGH - YLOW > 3 ? '1' : '1 2 5'] {
        set ytics add (gprintf('%.0s %cs', m * 10.0**k * 1e-9) m * 10.0**k)
    }
}
plot for [i = 1:N] DATA index i - 1 using 1:2:3:4 with yerrorbars linestyle i linewidth 1 dashtype solid pointsize 0 notitle, \
    for [i = 1:N] DATA index i - 1 using 1:2 with linespoints linestyle i title NAMES[i]
