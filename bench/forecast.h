// What each case of a run was planned to take, by its key. Cases that memory will refuse are planned with no
// time where they are counted, and are not known as such when their turn comes.
#ifndef PTB_BENCH_FORECAST_H
#define PTB_BENCH_FORECAST_H

#include "core/status.h"

#include <stddef.h>

typedef struct {
    char *key;
    double seconds;
} ptb_forecast_case;

typedef struct {
    ptb_forecast_case *cases;
    size_t count, room, next;
} ptb_forecast;

ptb_status ptb_forecast_add(ptb_forecast *forecast, const char *key, double seconds);
// Cases are asked for in the order in which they were added; some may be left out. 0 for one that was not
// planned.
double ptb_forecast_s(ptb_forecast *forecast, const char *key);
// As it was before anything was added.
void ptb_forecast_clear(ptb_forecast *forecast);

#endif
