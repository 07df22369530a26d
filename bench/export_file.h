// Writing an export (results/export.h) into a file.
#ifndef PTB_BENCH_EXPORT_FILE_H
#define PTB_BENCH_EXPORT_FILE_H

#include "results/export.h"

// `format` is an exporter's name; NULL options: defaults; path "-" is standard output. USAGE; STORE, with a
// message, when the file cannot be written.
ptb_status ptb_export_file(ptb_store *store, const int64_t *runs, size_t run_count, const char *format,
                           const ptb_export_options *options, const char *path);
// Whether the file could be written, for asking before hours of measuring: STORE, with a message, when not.
ptb_status ptb_export_check(const char *path);

#endif
