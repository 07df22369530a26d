# A matrix: one curve a sending rank (its name begins with the rank), x the receiving rank, y GB/s.
set xlabel 'to rank' textcolor rgb '#2b333b'
set ylabel 'from rank' textcolor rgb '#2b333b'
# Colours are of the values alone, not of how far their intervals reach.
stats DATA using 2 name 'CELL' nooutput
row(i) = real(substr(NAMES[i], 1, strstrt(NAMES[i].',', ',') - 1))
LOWROW = row(1)
HIGHROW = row(1)
do for [i = 1:N] {
    LOWROW = row(i) < LOWROW ? row(i) : LOWROW
    HIGHROW = row(i) > HIGHROW ? row(i) : HIGHROW
}
set xrange [(XMIN < LOWROW ? XMIN : LOWROW) - 0.5 : (XMAX > HIGHROW ? XMAX : HIGHROW) + 0.5]
set yrange [(XMAX > HIGHROW ? XMAX : HIGHROW) + 0.5 : (XMIN < LOWROW ? XMIN : LOWROW) - 0.5]
set xtics ceil((XMAX - XMIN + 1) / 16.0)
set ytics ceil((HIGHROW - LOWROW + 1) / 16.0)
unset grid
unset key
set bmargin 3.6
set rmargin 14
set palette defined (0 '#f4f8fb', 0.5 '#6aaed6', 1 '#08306b')
set cbrange [0 : CELL_max]
set cblabel 'GB/s' textcolor rgb '#2b333b'
set style fill solid noborder
# Numbers only where they fit.
LABELS = XMAX - XMIN < 17 && HIGHROW - LOWROW < 17
plot for [i = 1:N] DATA index i - 1 using 1:(row(i)):($1 - 0.48):($1 + 0.48):(row(i) - 0.48):(row(i) + 0.48):2 with boxxyerror linecolor palette notitle, \
    for [i = 1:N] DATA index i - 1 using 1:(row(i)):(LABELS ? sprintf('%.3g', $2) : ''):($2 < 0.6 * CELL_max ? 0x10171d : 0xffffff) with labels font ',9' textcolor rgb variable notitle
