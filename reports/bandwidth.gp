eval SIZE_AXIS
set ylabel 'bus bandwidth (GB/s)' textcolor rgb '#2b333b'
set yrange [0 : YMAX * 1.06]
set format y '%g'
plot for [i = 1:N] DATA index i - 1 using 1:2:3:4 with yerrorbars linestyle i linewidth 1 dashtype solid pointsize 0 notitle, \
    for [i = 1:N] DATA index i - 1 using 1:2 with linespoints linestyle i title NAMES[i]
