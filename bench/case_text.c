// How a case and what came of it are put into words on the progress line.
#include "bench/case_text.h"

#include "bench/record.h"
#include "core/stats.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

// The option that a parameter is named after; words are joined by '_' there and by '-' here.
static const ptb_opt *find_option(const ptb_opt_set *set, const char *parameter)
{
    char name[sizeof((ptb_param *)0)->name];
    snprintf(name, sizeof name, "%s", parameter);
    for (char *c = name; *c; c++)
        *c = *c == '_' ? '-' : *c;
    return ptb_opts_find(set, name);
}

// Whether a parameter tells the case apart on the progress line: what a benchmark sets besides its options
// does not (the store has the whole key).
static bool is_telling(const ptb_opt_set *set, const ptb_case *c, const ptb_param *p)
{
    static const char *const always[] = {"path", "from", "to", "bytes", "ranks", "mode", "time"};
    for (size_t i = 0; i < sizeof always / sizeof *always; i++)
        if (strcmp(p->name, always[i]) == 0)
            return true;
    if (strcmp(p->name, "count") == 0)
        return !ptb_params_get(&c->params, "bytes");
    const ptb_opt *opt = find_option(set, p->name);
    if (!opt)
        return false;
    if (opt->type != PTB_OPT_LIST) // all cases have the same
        return !ptb_opts_is_default(set, opt);
    return !opt->def || strcmp(opt->def, p->value) != 0;
}

void ptb_case_label(const ptb_part *part, const ptb_case *c, ptb_text *out)
{
    ptb_opt_set set = ptb_part_bench_set(part);
    ptb_text_append(out, part->bench->plugin.name);
    for (size_t i = 0; i < c->params.count; i++) {
        const ptb_param *p = &c->params.items[i];
        char size[32];
        if (!is_telling(&set, c, p))
            continue;
        bool is_size = strcmp(p->name, "bytes") == 0;
        if (is_size)
            ptb_text_format_size(c->bytes, size, sizeof size);
        ptb_text_printf(out, " %s=%s", p->name, is_size ? size : p->value);
    }
}

// "busbw 8.21 GB/s", "589 tokens/s": three significant digits, and the name where the unit does not say it.
static void describe_metric(const ptb_metric *m, char *out, size_t size)
{
    ptb_text text = PTB_TEXT_INIT;
    if (strncmp(m->name, m->unit, strcspn(m->unit, "/")) != 0)
        ptb_text_printf(&text, "%s ", m->name);
    int decimals = m->value > 0 ? 2 - (int)floor(log10(m->value * 1.0005)) : 0;
    ptb_text_append_number(&text, m->value, decimals < 0 ? 0 : decimals);
    snprintf(out, size, ", %s %s", ptb_text_string(&text), m->unit);
    ptb_text_release(&text);
}

void ptb_case_outcome(const ptb_case_result *result, char *out, size_t size)
{
    static const char *const words[] = {"", "WRONG", "skipped", "FAILED"};
    if (result->state != PTB_CASE_OK) {
        snprintf(out, size, "%s: %s", words[result->state], result->reason);
        return;
    }
    char time[32], better[64] = "";
    ptb_text_format_ns(result->time_ns.median, time, sizeof time);
    for (size_t i = 0; i < result->metrics.count; i++) {
        const ptb_metric *m = &result->metrics.items[i];
        bool is_bus = strcmp(m->name, "busbw") == 0;
        if (m->better == PTB_HIGHER_IS_BETTER && isfinite(m->value) && (is_bus || !*better))
            describe_metric(m, better, sizeof better);
    }
    double ci = ptb_stats_relative_ci(&result->time_ns);
    const char *simulated = ptb_record_is_simulated(&result->facts) ? " [SIMULATED DEVICE]" : "";
    if (isfinite(ci))
        snprintf(out, size, "%s +-%.*f%%%s%s", time, ci < 0.0995 ? 1 : 0, 100 * ci, better, simulated);
    else
        snprintf(out, size, "%s (%zu sample%s)%s%s", time, result->count, result->count == 1 ? "" : "s",
                 better, simulated);
}

void ptb_case_print_planned(const ptb_case *c, const char *key, double estimate_s)
{
    const char *how = *c->skip ? "  skipped: " : *c->guess ? "  guessed from " : "";
    printf("%8.2f s  %s%s%s\n", estimate_s, key, how, *c->skip ? c->skip : c->guess);
}
