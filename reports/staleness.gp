set xlabel 'updates lacked' offset 0,0.3 textcolor rgb '#2b333b'
set ylabel 'gradients' textcolor rgb '#2b333b'
set xrange [-0.5 : XMAX + 0.5]
set xtics int((XMAX + 1) / 20) + 1
set yrange [0 : YMAX * 1.06]
# Impulses side by side: a histogram of few values.
WIDTH = 0.6 / N
plot for [i = 1:N] DATA index i - 1 using ($1 + (i - 0.5 * (N + 1)) * WIDTH):2 with impulses linestyle i linewidth 6 notitle, \
    for [i = 1:N] DATA index i - 1 using ($1 + (i - 0.5 * (N + 1)) * WIDTH):2 with points linestyle i notitle, \
    for [i = 1:N] NaN with linespoints linestyle i title NAMES[i]
