// Parameters, canonical keys and metrics of cases.
#include "core/bench.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static ptb_param *find(const ptb_params *params, const char *name)
{
    for (size_t i = 0; i < params->count; i++)
        if (strcmp(params->items[i].name, name) == 0)
            return (ptb_param *)&params->items[i];
    return NULL;
}

void ptb_params_set(ptb_params *params, const char *name, const char *format, ...)
{
    ptb_param *item = find(params, name);
    if (!item) {
        bool is_long = strlen(name) >= sizeof item->name;
        if (params->count == PTB_PARAMS_MAX || is_long) {
            fprintf(stderr, "ptbench: no room for parameter '%s': %s\n", name,
                    is_long ? "names have at most 23 characters" : "there are as many as can be");
            abort();
        }
        item = &params->items[params->count++];
        strcpy(item->name, name);
    }
    va_list args;
    va_start(args, format);
    vsnprintf(item->value, sizeof item->value, format, args);
    va_end(args);
}

const char *ptb_params_get(const ptb_params *params, const char *name)
{
    const ptb_param *item = find(params, name);
    return item ? item->value : NULL;
}

void ptb_case_key(const char *bench, const ptb_case *c, char key[PTB_KEY_BYTES])
{
    ptb_text text = PTB_TEXT_INIT;
    ptb_text_append(&text, bench);
    for (size_t i = 0; i < c->params.count; i++)
        ptb_text_printf(&text, "/%s=%s", c->params.items[i].name, c->params.items[i].value);
    snprintf(key, PTB_KEY_BYTES, "%s", ptb_text_string(&text));
    ptb_text_release(&text);
}

void ptb_metrics_add(ptb_metrics *metrics, const char *name, double value, const char *unit,
                     ptb_better better, const char *convention)
{
    if (metrics->count == PTB_METRICS_MAX) {
        fprintf(stderr, "ptbench: no room for metric '%s'\n", name);
        abort();
    }
    ptb_metric *m = &metrics->items[metrics->count++];
    snprintf(m->name, sizeof m->name, "%s", name);
    snprintf(m->unit, sizeof m->unit, "%s", unit);
    snprintf(m->convention, sizeof m->convention, "%s", convention);
    m->value = value;
    m->better = better;
}
