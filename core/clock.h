// The one clock that everything is timed with: CLOCK_MONOTONIC in nanoseconds, shared by all processes of a
// host.
#ifndef PTB_CORE_CLOCK_H
#define PTB_CORE_CLOCK_H

#include <stdint.h>
#include <time.h>

// Nanoseconds since an arbitrary point. Inline because it is the one call inside timed loops.
static inline int64_t ptb_clock_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

// Seconds since 1970 (UTC), for time stamps in records, never for durations.
double ptb_clock_utc_s(void);
// "2026-11-29T13:48:15Z"; needs 24 bytes.
void ptb_clock_format_utc(double utc_s, char out[24]);

typedef struct {
    double resolution_ns; // smallest non-zero difference of two reads
    double overhead_ns;   // median cost of one read
} ptb_clock_quality;
// Measures both over about 1 ms.
ptb_clock_quality ptb_clock_measure(void);

#endif
