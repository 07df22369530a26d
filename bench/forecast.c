// The planned seconds of cases, in the order of the plan.
#include "bench/forecast.h"

#include <stdlib.h>
#include <string.h>

ptb_status ptb_forecast_add(ptb_forecast *forecast, const char *key, double seconds)
{
    if (forecast->count == forecast->room) {
        size_t room = forecast->room ? 2 * forecast->room : 256;
        ptb_forecast_case *larger = realloc(forecast->cases, room * sizeof *larger);
        if (!larger)
            return PTB_NO_MEMORY;
        forecast->cases = larger;
        forecast->room = room;
    }
    char *own = strdup(key);
    if (!own)
        return PTB_NO_MEMORY;
    forecast->cases[forecast->count++] = (ptb_forecast_case){own, seconds};
    return PTB_OK;
}

double ptb_forecast_s(ptb_forecast *forecast, const char *key)
{
    for (size_t i = forecast->next; i < forecast->count; i++) {
        if (strcmp(forecast->cases[i].key, key) == 0) {
            forecast->next = i + 1;
            return forecast->cases[i].seconds;
        }
    }
    return 0;
}

void ptb_forecast_clear(ptb_forecast *forecast)
{
    for (size_t i = 0; i < forecast->count; i++)
        free(forecast->cases[i].key);
    free(forecast->cases);
    *forecast = (ptb_forecast){.cases = NULL};
}
