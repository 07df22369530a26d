// What the person at the terminal sees while a run works, on standard error of rank 0.
#ifndef PTB_BENCH_PROGRESS_H
#define PTB_BENCH_PROGRESS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef enum { PTB_PROGRESS_NONE, PTB_PROGRESS_LINES, PTB_PROGRESS_LIVE } ptb_progress_style;

typedef struct {
    ptb_progress_style style;
    bool color;
    int width; // of the terminal, for LIVE
    size_t cases, done;
    double planned_s, planned_done_s; // sums of estimates, of all cases and of those done
    double spent_s;                   // really spent in the cases done
    int64_t begin_ns, drawn_ns;
    double current_s; // estimate of the case in flight
    char current[256];
    bool line_is_open;
} ptb_progress;

// LIVE when `terminal` (the launcher's standard error is one) or this process's own standard error is a
// terminal and TERM is not dumb; colour unless NO_COLOR is set. `columns`: width of the launcher's terminal,
// 0: unknown. The caller sets cases and planned_s.
void ptb_progress_init(ptb_progress *progress, bool quiet, bool terminal, int columns);
void ptb_progress_begin(ptb_progress *progress, const char *name, double estimate_s);
// Redraws the live line, at most five times a second. `progress` is a ptb_progress.
void ptb_progress_tick(void *progress);
// `outcome`: "12.3 us", "skipped: ...". `is_bad` colours it. A case that was not measured says nothing about
// the estimates of others: its own leaves the plan.
void ptb_progress_end(ptb_progress *progress, const char *outcome, bool is_bad, bool is_measured,
                      double spent_s);
// Takes the live line away, so that messages stand on lines of their own.
void ptb_progress_clear(ptb_progress *progress);
double ptb_progress_remaining_s(const ptb_progress *progress);
// "42 s", "3 min 20 s", "2 h 5 min".
void ptb_progress_format_s(double seconds, char *out, size_t size);

#endif
