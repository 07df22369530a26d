// The table of measurement options.
#include "bench/measure.h"

#include "core/log.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const char *const modes[] = {"auto", "latency", "back-to-back", NULL};
static const char *const times[] = {"max", "avg", NULL};

#define FIELD(member) offsetof(ptb_measure, member)
const ptb_opt ptb_measure_opts[] = {
    {.name = "iters",
     .letter = 'n',
     .type = PTB_OPT_INT,
     .offset = FIELD(iters),
     .def = "0",
     .min = 0,
     .max = 1e8,
     .metavar = "N",
     .help = "Take exactly N samples; 0 samples until --ci is reached"},
    {.name = "warmup",
     .letter = 'w',
     .type = PTB_OPT_INT,
     .offset = FIELD(warmup),
     .def = "-1",
     .min = -1,
     .max = 1e8,
     .metavar = "N",
     .help = "Iterations before the first sample; -1: until times are stable"},
    {.name = "ci",
     .type = PTB_OPT_PERCENT,
     .offset = FIELD(ci),
     .def = "2%",
     .min = 1e-6,
     .max = 1,
     .metavar = "PERCENT",
     .help = "Sample until the 95 % confidence interval of the median is within this of the median"},
    {.name = "min-iters",
     .type = PTB_OPT_INT,
     .offset = FIELD(min_iters),
     .def = "0",
     .min = 0,
     .max = 1e8,
     .metavar = "N",
     .help = "Fewest samples; 0 is the benchmark's own number, else 20"},
    {.name = "max-iters",
     .type = PTB_OPT_INT,
     .offset = FIELD(max_iters),
     .def = "0",
     .min = 0,
     .max = 1e8,
     .metavar = "N",
     .help = "Most samples; 0 is the benchmark's own number, else 10000"},
    {.name = "max-time",
     .type = PTB_OPT_SECONDS,
     .offset = FIELD(max_time_s),
     .def = "2s",
     .min = 0.001,
     .max = 1e6,
     .metavar = "TIME",
     .help = "Longest sampling of one case, once it has --min-iters samples or waited ten times as long"},
    {.name = "mode",
     .type = PTB_OPT_CHOICE,
     .offset = FIELD(mode),
     .def = "auto",
     .choices = modes,
     .metavar = "MODE",
     .help = "latency starts each operation together on all ranks; back-to-back times batches of operations; "
             "auto uses "
             "batches for operations shorter than 10 us, but in place where they overwrite their input, and "
             "elsewhere each alone. What was used is stored; a case that cannot have what is asked for is "
             "skipped"},
    {.name = "time",
     .type = PTB_OPT_CHOICE,
     .offset = FIELD(time),
     .def = "max",
     .choices = times,
     .metavar = "HOW",
     .help = "Time of a sample: the maximum over ranks, or their average as nccl-tests takes it"},
    {.name = "check",
     .letter = 'c',
     .type = PTB_OPT_BOOL,
     .offset = FIELD(check),
     .def = "yes",
     .help = "Check every element of the timed buffers after timing; a wrong one fails the run"},
    {.name = "ranks",
     .type = PTB_OPT_LIST,
     .offset = FIELD(ranks),
     .metavar = "LIST",
     .help = "Numbers of active ranks to sweep, as 1,2,4; the others sleep meanwhile. Empty: all ranks"},
    {.name = "timeout",
     .letter = 'T',
     .type = PTB_OPT_SECONDS,
     .offset = FIELD(timeout_s),
     .def = "60s",
     .min = 0,
     .max = 1e6,
     .metavar = "TIME",
     .help = "A case without progress for so long is a hang and ends the job; starting up and opening have "
             "five times as long, and at least 60s; 0 waits for ever"},
    {.name = "seed",
     .type = PTB_OPT_INT,
     .offset = FIELD(seed),
     .def = "1",
     .min = 0,
     .max = 9007199254740992.0,
     .metavar = "N",
     .help = "Seed of data and parameters"},
    {.name = "trace",
     .type = PTB_OPT_BOOL,
     .offset = FIELD(trace),
     .def = "no",
     .help = "Store the spans of each case: what ran when"},
};
const size_t ptb_measure_opt_count = sizeof ptb_measure_opts / sizeof ptb_measure_opts[0];

ptb_opt_set ptb_measure_set(ptb_measure *measure)
{
    return (ptb_opt_set){ptb_measure_opts, ptb_measure_opt_count, measure, "measurement"};
}

// Calls for each item of the list; false when one is no whole number of at least 1.
static bool read_ranks(const char *list, int64_t *counts, size_t max, size_t *count)
{
    char *storage = NULL;
    const char *items[64];
    size_t n = ptb_text_split(list, ',', &storage, items, sizeof items / sizeof items[0]);
    bool ok = n <= max && ptb_text_pieces(list, ',') == n;
    for (size_t i = 0; ok && i < n; i++)
        ok = ptb_text_parse_int(items[i], &counts[i]) && counts[i] >= 1 && counts[i] <= 1000000;
    free(storage);
    *count = ok ? n : 0;
    return ok;
}

ptb_status ptb_measure_check(const ptb_measure *measure, const char *where)
{
    int64_t counts[64];
    size_t count = 0;
    if (measure->ranks && *measure->ranks && !read_ranks(measure->ranks, counts, 64, &count)) {
        ptb_error("%s: ranks = '%s': expected at most 64 numbers of ranks from 1, as 1,2,4", where,
                  measure->ranks);
        return PTB_USAGE;
    }
    if (measure->min_iters && measure->max_iters && measure->min_iters > measure->max_iters) {
        ptb_error("%s: min-iters %lld is more than max-iters %lld", where, (long long)measure->min_iters,
                  (long long)measure->max_iters);
        return PTB_USAGE;
    }
    return PTB_OK;
}

double ptb_measure_start_limit_s(const ptb_measure *measure)
{
    return measure->timeout_s > 0 ? fmax(60, 5 * measure->timeout_s) : 0;
}

double ptb_measure_peer_limit_s(const ptb_measure *measure)
{
    return measure->timeout_s > 0 ? fmax(60, measure->timeout_s) : 0;
}

size_t ptb_measure_ranks(const ptb_measure *measure, int size, int *counts, size_t max)
{
    int64_t listed[64];
    size_t count = 0;
    if (measure->ranks && *measure->ranks)
        read_ranks(measure->ranks, listed, max < 64 ? max : 64, &count);
    for (size_t i = 0; i < count; i++)
        counts[i] = (int)listed[i];
    if (!count)
        counts[count++] = size;
    return count;
}
