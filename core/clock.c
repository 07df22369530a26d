// Time stamps, and how good the clock is.
#include "core/clock.h"

#include "core/stats.h"

#include <stdio.h>

double ptb_clock_utc_s(void)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

void ptb_clock_format_utc(double utc_s, char out[24])
{
    time_t seconds = (time_t)utc_s;
    struct tm parts;
    gmtime_r(&seconds, &parts);
    strftime(out, 24, "%Y-%m-%dT%H:%M:%SZ", &parts);
}

ptb_clock_quality ptb_clock_measure(void)
{
    enum { ROUNDS = 64, READS = 256 };
    double per_read_ns[ROUNDS];
    int64_t smallest = INT64_MAX, last = ptb_clock_ns();
    for (int round = 0; round < ROUNDS; round++) {
        int64_t begin = ptb_clock_ns();
        for (int i = 0; i < READS; i++) {
            int64_t now = ptb_clock_ns();
            if (now > last && now - last < smallest)
                smallest = now - last;
            last = now;
        }
        per_read_ns[round] = (double)(last - begin) / READS;
    }
    ptb_summary summary = ptb_stats_summarise(per_read_ns, ROUNDS);
    return (ptb_clock_quality){.resolution_ns = (double)smallest, .overhead_ns = summary.median};
}
