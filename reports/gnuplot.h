// Draws figures with gnuplot: SVG text for the page, PNG files beside it.
#ifndef PTB_REPORTS_GNUPLOT_H
#define PTB_REPORTS_GNUPLOT_H

#include "reports/figure.h"

typedef struct {
    const ptb_report *report;
    const ptb_figure *figure;
    char name[64]; // "bandwidth-1": the PNG's file name without ending, and the prefix of all SVG ids
    char *svg;     // filled by ptb_gnuplot_draw: an <svg> element for HTML; heap
} ptb_drawing;

// Draws all, in two gnuplot processes at a time; `folder` exists and gets NAME.png. UNSUPPORTED with the
// package to install when there is no gnuplot; SYSTEM with gnuplot's own words when it fails.
ptb_status ptb_gnuplot_draw(ptb_drawing *drawings, size_t count, const char *folder);

#endif
