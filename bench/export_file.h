// Writing an export (results/export.h) into a file.
#ifndef PTB_BENCH_EXPORT_FILE_H
#define PTB_BENCH_EXPORT_FILE_H

#include "results/export.h"

// `format` is an exporter's name; NULL options: defaults; path "-" is standard output. USAGE, SYSTEM with a
// message.
ptb_status ptb_export_file(ptb_store *store, const int64_t *runs, size_t run_count, const char *format,
                           const ptb_export_options *options, const char *path);

#endif
