// Exporters write stored runs as a file of another kind. Each is a plug-in in results/exporter_NAME.c.
#ifndef PTB_RESULTS_EXPORT_H
#define PTB_RESULTS_EXPORT_H

#include "core/registry.h"
#include "core/text.h"
#include "results/store.h"

#include <stdio.h>

typedef struct {
    bool samples;    // every sample too, where the format has room for them
    int64_t case_id; // only this case; 0: all
} ptb_export_options;

typedef struct {
    ptb_plugin plugin;
    const char *extension; // "csv"
    bool needs_spans;      // only runs measured with spans have anything to export
    // Writes the runs with these ids, in this order. NULL options: the defaults (all zero). STORE, logged,
    // when the file cannot be written; USAGE when there is nothing to export.
    ptb_status (*write)(ptb_store *store, const int64_t *runs, size_t run_count,
                        const ptb_export_options *options, FILE *out);
} ptb_exporter;

// For exporters (results/export.c).

// A number that reads back as the same double, with a decimal point whatever the locale; `otherwise` when it
// is not finite.
void ptb_export_number(ptb_text *text, double value, const char *otherwise);
// Whether a column of the schema holds numbers. Text that happens to read as one (a label "1.10") is not to
// be rewritten.
bool ptb_export_is_number(const char *column);
// Runs a query whose ?1 is the id.
ptb_status ptb_export_query(ptb_store *store, const char *sql, int64_t id, ptb_table **table);
// Writes the text out and clears it. STORE, logged, when that fails.
ptb_status ptb_export_flush(ptb_text *text, FILE *out);

#endif
