// Help texts, all made from the tables of options and the registry, so that nothing is said twice.
#ifndef PTB_BENCH_HELP_H
#define PTB_BENCH_HELP_H

#include "bench/command.h"
#include "core/bench.h"

// What `ptbench` alone prints.
void ptb_help_overview(ptb_text *out);
// `ptbench help COMMAND` and `ptbench help BENCH`, wrapped at `width` columns.
void ptb_help_command(const ptb_command *command, int width, ptb_text *out);
void ptb_help_bench(const ptb_bench *bench, int width, ptb_text *out);
// The manual page, in man(7) macros.
void ptb_help_manual(ptb_text *out);

#endif
