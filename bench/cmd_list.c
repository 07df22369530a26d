// `ptbench list`: everything that can be named on the command line.
#include "bench/command.h"
#include "bench/suite.h"
#include "core/log.h"
#include "strategies/context/context.h"
#include "strategies/expert/dispatch.h"
#include "strategies/strategy.h"
#include "strategies/transformer/presets.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

// kind, heading; suites, models and strategies are no plug-ins, and ways of context and expert parallelism
// say more: they stand apart
static const struct {
    ptb_kind kind;
    const char *heading;
} sections[] = {
    {PTB_KIND_BENCH, "benchmarks"},   {PTB_KIND_COLLECTIVE, "collectives"},
    {PTB_KIND_COMM, "communicators"}, {PTB_KIND_ALGORITHM, "algorithms"},
    {PTB_KIND_DEVICE, "devices"},     {PTB_KIND_KERNELS, "kernels"},
    {PTB_KIND_REPORT, "reports"},     {PTB_KIND_EXPORTER, "exporters"},
    {PTB_KIND_IMPORTER, "importers"},
};
enum {
    SECTION_COUNT = sizeof sections / sizeof sections[0],
    SUITES = SECTION_COUNT,
    MODELS,
    STRATEGIES,
    CONTEXT,
    EXPERTS,
    LIST_COUNT,
    FIRST = LIST_COUNT - SECTION_COUNT // that are no plug-ins; they stand first
};

static ptb_status list_suites(void)
{
    puts("suites:");
    for (size_t i = 0; ptb_suite_name(i); i++) {
        ptb_suite *suite;
        PTB_TRY(ptb_suite_load(ptb_suite_name(i), &suite));
        printf("  %-20s %s\n", suite->name, suite->summary);
        ptb_suite_free(suite);
    }
    return PTB_OK;
}

// "124M", "46.7B": three digits or more
static void format_count(size_t count, char *out, size_t out_size)
{
    bool billions = count >= 999500000;
    double value = (double)count * (billions ? 1e-9 : 1e-6);
    snprintf(out, out_size, "%.*f%c", value < 9.995 ? 2 : value < 99.95 ? 1 : 0, value, billions ? 'B' : 'M');
}

static ptb_status list_models(void)
{
    puts("models:\n  name                 parameters  per token  layers  hidden  heads/kv  feed-forward  "
         "vocabulary  "
         "sequence  source");
    for (size_t i = 0; ptb_preset_at(i); i++) {
        const ptb_preset *preset = ptb_preset_at(i);
        ptb_layout layout;
        PTB_TRY(ptb_layout_init(&layout, &preset->shape, NULL));
        const ptb_model_shape *s = &layout.shape;
        char all[16], active[16], heads[48], width[72];
        format_count(layout.parameters, all, sizeof all);
        format_count(layout.active_parameters, active, sizeof active);
        snprintf(heads, sizeof heads, "%" PRId64 "/%" PRId64, s->heads, s->kv_heads);
        if (s->shared_experts)
            snprintf(width, sizeof width, "%" PRId64 "+%" PRId64 "x%" PRId64, s->shared_experts, s->experts,
                     s->expert_hidden);
        else if (s->experts)
            snprintf(width, sizeof width, "%" PRId64 "x%" PRId64, s->experts, s->expert_hidden);
        else
            snprintf(width, sizeof width, "%" PRId64, s->feed_forward);
        printf("  %-20s %10s  %9s  %6" PRId64 "  %6" PRId64 "  %8s  %12s  %10" PRId64 "  %8" PRId64 "  %s\n",
               preset->name, all, active, s->layers, s->hidden, heads, width, s->vocabulary, s->sequence,
               preset->source);
        ptb_layout_release(&layout);
    }
    return PTB_OK;
}

static void list_strategies(void)
{
    puts("strategies:");
    for (size_t i = 0; ptb_strategy_at(i); i++) {
        const ptb_strategy *s = ptb_strategy_at(i);
        printf("  %-20s %s\n", s->name, s->summary);
        printf("  %-20s cut over ranks  %s\n", "", s->shards);
        printf("  %-20s memory          %s\n", "", s->memory);
        printf("  %-20s sends a step    %s\n", "", s->volume);
    }
}

static void list_way(const ptb_plugin *plugin, const char *memory_form, const char *volume_form)
{
    printf("  %-20s %s\n", plugin->name, plugin->summary);
    printf("  %-20s memory          %s\n", "", memory_form);
    printf("  %-20s sends a block   %s\n", "", volume_form);
}

static void list_context(void)
{
    puts("context:");
    for (size_t i = 0; i < ptb_registry_count(PTB_KIND_CONTEXT); i++) {
        const ptb_context *c = (const ptb_context *)ptb_registry_at(PTB_KIND_CONTEXT, i);
        list_way(&c->plugin, c->memory_form, c->volume_form);
    }
}

static void list_experts(void)
{
    puts("experts:");
    for (size_t i = 0; i < ptb_registry_count(PTB_KIND_EXPERT_DISPATCH); i++) {
        const ptb_expert_dispatch *d =
            (const ptb_expert_dispatch *)ptb_registry_at(PTB_KIND_EXPERT_DISPATCH, i);
        list_way(&d->plugin, d->memory_form, d->volume_form);
    }
}

static void list_section(int at)
{
    if (!ptb_registry_count(sections[at].kind))
        return;
    printf("%s:\n", sections[at].heading);
    for (size_t i = 0; i < ptb_registry_count(sections[at].kind); i++) {
        const ptb_plugin *plugin = ptb_registry_at(sections[at].kind, i);
        printf("  %-20s %s\n", plugin->name, plugin->summary);
    }
}

static const char *heading(int i)
{
    static const char *const first[] = {"suites", "models", "strategies", "context", "experts"};
    return i < SECTION_COUNT ? sections[i].heading : first[i - SECTION_COUNT];
}

static ptb_status list(int i)
{
    if (i == SUITES)
        return list_suites();
    if (i == MODELS)
        return list_models();
    if (i == STRATEGIES)
        list_strategies();
    else if (i == CONTEXT)
        list_context();
    else if (i == EXPERTS)
        list_experts();
    else
        list_section(i);
    return PTB_OK;
}

static ptb_status run(const ptb_command_env *env, const void *config, const char *const *words, size_t count)
{
    (void)env, (void)config;
    static const int order[FIRST] = {SUITES, MODELS, STRATEGIES, CONTEXT, EXPERTS};
    const char *wanted = count ? words[0] : NULL;
    const char *names[LIST_COUNT];
    bool found = false;
    for (int i = 0; i < LIST_COUNT; i++) {
        int which = i < FIRST ? order[i] : i - FIRST;
        names[i] = heading(which);
        if (wanted && strcmp(wanted, names[i]) != 0)
            continue;
        found = true;
        PTB_TRY(list(which));
    }
    if (found)
        return PTB_OK;
    char near[256];
    ptb_text_nearest(wanted, names, LIST_COUNT, near, sizeof near);
    ptb_error("nothing is listed under '%s'; did you mean %s?", wanted, near);
    return PTB_USAGE;
}

static const ptb_command list_command = {
    .plugin = {"list", "list suites, models, benchmarks, communicators, algorithms and the rest"},
    .usage = "[KIND]",
    .about =
        "KIND is suites, models, benchmarks, collectives, communicators, algorithms, strategies, "
        "context (ways of --context), devices, kernels, "
        "reports, exporters or importers; without it, all of them. models are the presets of --model: "
        "all parameters, those that one token goes "
        "through (of experts the top_k), and the shape; 8x14336: 8 experts of that width, 2+64x1408: "
        "and 2 that all tokens share. Of strategies: N parameters, d data-parallel ranks, t, c, e ranks of "
        "tp, cp and ep, L layers, s sequence, b sequences of a rank, h hidden, w bytes of the compute "
        "type, K experts of a token, m microbatches. Of context: bytes of one block, forward and "
        "backward; n ranks of cp, N tokens of a rank, A and W columns of query and of key and value, "
        "K heads of those, e bytes of the compute type, u ranks that exchange heads.",
    .max_words = 1,
    .run = run,
};
PTB_REGISTER(PTB_KIND_COMMAND, list_command);
