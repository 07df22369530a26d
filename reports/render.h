// Rendering of stored runs: the HTML report with its plots, and the same tables in a terminal.
#ifndef PTB_REPORTS_RENDER_H
#define PTB_REPORTS_RENDER_H

#include "results/store.h"

#include <stdio.h>

// Writes FOLDER/index.html, self-contained (gnuplot SVGs inline), and one PNG a figure beside it; creates the
// folder. html_path gets the path written. UNSUPPORTED, with the package to install, when gnuplot is missing.
ptb_status ptb_report_html(ptb_store *store, const int64_t *runs, size_t run_count, const char *folder,
                           char *html_path, size_t html_path_size);
// The run's tables as text at most `width` columns wide.
ptb_status ptb_report_terminal(ptb_store *store, int64_t run, int width, FILE *out);

#endif
