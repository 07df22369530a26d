// How a case and what came of it are put into words on the progress line.
#ifndef PTB_BENCH_CASE_TEXT_H
#define PTB_BENCH_CASE_TEXT_H

#include "bench/plan.h"
#include "bench/runner.h"

// Appends "all_reduce comm=host bytes=64K ranks=2": the benchmark and what is not its default. The store has
// the whole key.
void ptb_case_label(const ptb_part *part, const ptb_case *c, ptb_text *out);
// "12.3 us +-1.2%, busbw 8.21 GB/s": the time and the first value of which more is better; or the state and
// its reason.
void ptb_case_outcome(const ptb_case_result *result, char *out, size_t size);
// A line of --dry-run on standard output.
void ptb_case_print_planned(const ptb_case *c, const char *key, double estimate_s);

#endif
