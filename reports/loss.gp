set xlabel 'step' offset 0,0.3 textcolor rgb '#2b333b'
set ylabel 'loss (nats per token)' textcolor rgb '#2b333b'
set xrange [XMIN == XMAX ? XMIN - 1 : XMIN : XMIN == XMAX ? XMAX + 1 : XMAX]
YPAD = YMAX == YMIN ? (YMAX == 0 ? 1 : abs(YMAX) * 0.1) : (YMAX - YMIN) * 0.06
set yrange [YMIN - YPAD : YMAX + YPAD]
# Curves of equal loss lie on each other: a marker now and then, shifted, keeps each one visible.
EVERY = MOST > 15 ? int(MOST / 12) : 1
plot for [i = 1:N] DATA index i - 1 using 1:2 with lines linestyle i linewidth N > 1 ? 4.0 - 2.5 * (i - 1) / (N - 1) : 2 notitle, \
    for [i = 1:N] DATA index i - 1 using 1:2 every EVERY::(int((i - 1) * EVERY / N)) with points linestyle i notitle, \
    for [i = 1:N] NaN with linespoints linestyle i title NAMES[i]
