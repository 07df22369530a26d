// From the command line and suites to parts.
#include "bench/plan.h"

#include "collectives/launcher.h"
#include "core/log.h"
#include "results/redact.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_WORDS = 64, MAX_SETS = 68 };

// What stands on the command line, before it is known which tables apply.
typedef struct {
    const char *words[MAX_WORDS]; // neither options nor their values
    size_t count;
    const char *options[MAX_WORDS]; // those of benchmarks; what finds no place goes unexplained
    size_t option_count;
} found_words;

static ptb_status no_memory(void)
{
    ptb_error("no memory for the plan of the run");
    return PTB_NO_MEMORY;
}

static ptb_opt_set run_set(ptb_run_options *run)
{
    return (ptb_opt_set){ptb_run_opts, PTB_RUN_OPT_COUNT, run, "run"};
}

ptb_opt_set ptb_part_bench_set(const ptb_part *part)
{
    return (ptb_opt_set){part->bench->opts, part->bench->opt_count, part->config, part->bench->plugin.name};
}

// ---- which words are suites and benchmarks

static const ptb_opt *find_in_table(const ptb_opt *opts, size_t count, const char *word)
{
    size_t length = strcspn(word + 2, "=");
    for (size_t i = 0; i < count; i++) {
        bool is_long = word[1] == '-';
        if (is_long ? strlen(opts[i].name) == length && strncmp(opts[i].name, word + 2, length) == 0
                    : opts[i].letter == word[1])
            return &opts[i];
    }
    return NULL;
}

// Any benchmark's option counts: which ones are selected is not known yet.
static const ptb_opt *find_anywhere(const char *word, bool *is_of_bench)
{
    const ptb_opt *opt = find_in_table(ptb_run_opts, PTB_RUN_OPT_COUNT, word);
    if (!opt)
        opt = find_in_table(ptb_measure_opts, ptb_measure_opt_count, word);
    *is_of_bench = !opt;
    for (size_t i = 0; !opt && i < ptb_registry_count(PTB_KIND_BENCH); i++) {
        const ptb_bench *bench = (const ptb_bench *)ptb_registry_at(PTB_KIND_BENCH, i);
        opt = find_in_table(bench->opts, bench->opt_count, word);
    }
    return opt;
}

static size_t add_names(const ptb_opt *opts, size_t opt_count, const char **names, size_t count, size_t max)
{
    for (size_t i = 0; i < opt_count && count < max; i++) {
        bool is_new = true;
        for (size_t k = 0; k < count; k++)
            is_new = is_new && strcmp(names[k], opts[i].name) != 0;
        if (is_new)
            names[count++] = opts[i].name;
    }
    return count;
}

// Letters of nccl-tests that mean nothing here, and what to use instead.
static const char *advice_for_letter(char letter)
{
    switch (letter) {
    case 'g':
    case 't':
        return "a rank is one process with one device here; --np N starts N ranks";
    case 'a':
        return "--time avg takes the average over the ranks, --time max (the default) the slowest";
    default:
        return NULL;
    }
}

static ptb_status refuse_option(const char *word)
{
    const char *advice = word[1] != '-' ? advice_for_letter(word[1]) : NULL;
    if (word[1] != '-') {
        ptb_error("there is no option '-%c'%s%s (`ptbench help run` and `ptbench help BENCH` list them)",
                  word[1], advice ? "; " : "", advice ? advice : "");
        return PTB_USAGE;
    }
    enum { MAX_NAMES = 512 };
    const char *names[MAX_NAMES];
    size_t count = add_names(ptb_run_opts, PTB_RUN_OPT_COUNT, names, 0, MAX_NAMES);
    count = add_names(ptb_measure_opts, ptb_measure_opt_count, names, count, MAX_NAMES);
    for (size_t i = 0; i < ptb_registry_count(PTB_KIND_BENCH); i++) {
        const ptb_bench *bench = (const ptb_bench *)ptb_registry_at(PTB_KIND_BENCH, i);
        count = add_names(bench->opts, bench->opt_count, names, count, MAX_NAMES);
    }
    char near[256], name[64];
    snprintf(name, sizeof name, "%.*s", (int)strcspn(word, "="), word);
    ptb_text_nearest(name + strspn(name, "-"), names, count, near, sizeof near);
    ptb_error(
        "there is no option '%s'; did you mean %s? (`ptbench help run` and `ptbench help BENCH` list them)",
        name, near);
    return PTB_USAGE;
}

static bool is_bool_word(const char *word)
{
    static const char *const bools[] = {"yes", "no", "true", "false", "on", "off", "0", "1"};
    for (size_t i = 0; i < sizeof bools / sizeof *bools; i++)
        if (strcmp(word, bools[i]) == 0)
            return true;
    return false;
}

// USAGE for an option that no table has.
static ptb_status find_words(int argc, char **argv, int first, found_words *found)
{
    bool only_words = false, is_of_bench;
    found->count = found->option_count = 0;
    for (int at = first; at < argc; at++) {
        const char *word = argv[at];
        bool is_long = strncmp(word, "--", 2) == 0 && word[2];
        bool is_short = word[0] == '-' && isalpha((unsigned char)word[1]);
        if (!only_words && strcmp(word, "--") == 0) {
            only_words = true;
            continue;
        }
        if (only_words || (!is_long && !is_short)) {
            if (found->count < MAX_WORDS)
                found->words[found->count++] = word;
            continue;
        }
        const ptb_opt *opt = find_anywhere(word, &is_of_bench);
        if (!opt && is_long && strncmp(word, "--no-", 5) == 0) {
            char positive[64];
            snprintf(positive, sizeof positive, "--%s", word + 5);
            opt = find_anywhere(positive, &is_of_bench);
            if (opt && opt->type == PTB_OPT_BOOL)
                continue;
        }
        if (!opt)
            return refuse_option(word);
        if (is_of_bench && found->option_count < MAX_WORDS)
            found->options[found->option_count++] = word;
        bool has_value = is_long ? strchr(word, '=') != NULL : word[2] != '\0';
        if (!has_value && at + 1 < argc && (opt->type != PTB_OPT_BOOL || is_bool_word(argv[at + 1])))
            at++;
    }
    return PTB_OK;
}

const char *ptb_plan_resume_word(int argc, char **argv, int first)
{
    static const char name[] = "--resume";
    for (int at = first; at < argc && strcmp(argv[at], "--") != 0; at++) {
        if (strcmp(argv[at], name) == 0)
            return at + 1 < argc ? argv[at + 1] : "";
        if (strncmp(argv[at], "--resume=", sizeof name) == 0)
            return argv[at] + sizeof name;
    }
    return NULL;
}

// ---- parts

static ptb_status refuse_name(const char *word)
{
    const char *names[128];
    size_t count = 0;
    for (size_t i = 0; ptb_suite_name(i) && count < 64; i++)
        names[count++] = ptb_suite_name(i);
    for (size_t i = 0; i < ptb_registry_count(PTB_KIND_BENCH) && count < 128; i++)
        names[count++] = ptb_registry_at(PTB_KIND_BENCH, i)->name;
    char near[256];
    ptb_text_nearest(word, names, count, near, sizeof near);
    ptb_error("there is no suite, suite file or benchmark '%s'; did you mean %s?", word, near);
    return PTB_USAGE;
}

static ptb_status add_part(ptb_plan *plan, const char *name, const ptb_bench *bench, const char *requires,
                           ptb_part **added)
{
    ptb_part *larger = realloc(plan->parts, (plan->count + 1) * sizeof *larger);
    if (!larger)
        return no_memory();
    plan->parts = larger;
    ptb_part *part = &plan->parts[plan->count];
    *part = (ptb_part){.name = strdup(name), .bench = bench, .requires = strdup(requires)};
    part->config = calloc(1, bench->config_size ? bench->config_size : 1);
    if (!part->name || !part->requires || !part->config) {
        free(part->name);
        free(part->requires);
        free(part->config);
        return no_memory();
    }
    plan->count++;
    ptb_opt_set measure = ptb_measure_set(&part->measure), own = ptb_part_bench_set(part);
    ptb_opts_defaults(&measure);
    ptb_opts_defaults(&own);
    *added = part;
    return PTB_OK;
}

static ptb_status refuse_key(const ptb_part *part, const char *key, const char *where)
{
    const char *names[256];
    size_t count = 0;
    names[count++] = "bench";
    names[count++] = "requires";
    for (size_t i = 0; i < part->bench->opt_count && count < 200; i++)
        names[count++] = part->bench->opts[i].name;
    for (size_t i = 0; i < ptb_measure_opt_count && count < 256; i++)
        names[count++] = ptb_measure_opts[i].name;
    char near[256];
    ptb_text_nearest(key, names, count, near, sizeof near);
    ptb_error("%s: '%s' has no option '%s'; did you mean %s?", where, part->bench->plugin.name, key, near);
    return PTB_USAGE;
}

static ptb_status apply_pair(ptb_part *part, const ptb_suite_pair *pair, const char *where)
{
    ptb_opt_set sets[] = {ptb_part_bench_set(part), ptb_measure_set(&part->measure)};
    bool found = false;
    for (int s = 0; s < 2; s++) {
        if (!ptb_opts_find(&sets[s], pair->key))
            continue;
        found = true;
        PTB_TRY(ptb_opts_assign(&sets[s], pair->key, pair->value, where));
    }
    return found ? PTB_OK : refuse_key(part, pair->key, where);
}

static ptb_status add_suite_part(ptb_plan *plan, const ptb_suite *suite, const ptb_suite_part *from)
{
    char where[256];
    const ptb_bench *bench = (const ptb_bench *)ptb_registry_find(PTB_KIND_BENCH, from->bench);
    if (!bench) {
        const char *names[64];
        size_t count = 0;
        for (; count < ptb_registry_count(PTB_KIND_BENCH) && count < 64; count++)
            names[count] = ptb_registry_at(PTB_KIND_BENCH, count)->name;
        char near[256];
        ptb_text_nearest(from->bench, names, count, near, sizeof near);
        ptb_error("suite %s, line %d: [%s]: bench = '%s': there is no such benchmark; did you mean %s?",
                  suite->file, from->bench_line, from->name, from->bench, near);
        return PTB_USAGE;
    }
    ptb_part *part;
    PTB_TRY(add_part(plan, from->name, bench, from->requires, &part));
    for (size_t i = 0; i < from->pair_count; i++) {
        snprintf(where, sizeof where, "suite %s, line %d: [%s]: %s", suite->file, from->pairs[i].line,
                 from->name, from->pairs[i].key);
        PTB_TRY(apply_pair(part, &from->pairs[i], where));
    }
    snprintf(where, sizeof where, "suite %s: [%s]", suite->file, from->name);
    return ptb_measure_check(&part->measure, where);
}

static ptb_status add_word(ptb_plan *plan, const char *word)
{
    const ptb_bench *bench = (const ptb_bench *)ptb_registry_find(PTB_KIND_BENCH, word);
    ptb_part *part;
    if (bench)
        return add_part(plan, word, bench, "", &part);
    if (!ptb_suite_exists(word))
        return refuse_name(word);
    ptb_suite *suite;
    PTB_TRY(ptb_suite_load(word, &suite));
    ptb_status status = PTB_OK;
    for (size_t i = 0; i < suite->part_count && status == PTB_OK; i++)
        status = add_suite_part(plan, suite, &suite->parts[i]);
    ptb_suite_free(suite);
    return status;
}

// ---- the command line over the parts

// The three ways to give the sizes of a collective.
static const char *const sizes[][5] = {
    {"bytes"}, {"count"}, {"min-bytes", "max-bytes", "step-factor", "step-bytes"}};
enum { SIZE_WAYS = sizeof sizes / sizeof *sizes };

static bool has_given(const ptb_opt_set *given, const char *const *names)
{
    for (; *names; names++) {
        const ptb_opt *opt = ptb_opts_find(given, *names);
        if (opt && !ptb_opts_is_default(given, opt))
            return true;
    }
    return false;
}

static void take_back(const ptb_opt_set *set, const char *const *names)
{
    for (; *names; names++) {
        const ptb_opt *opt = ptb_opts_find(set, *names);
        if (opt)
            ptb_opts_reset(set, opt);
    }
}

// The sizes of the command line win over those of a suite, in whichever way either gives them.
static void replace_sizes(const ptb_opt_set *given, const ptb_opt_set *part)
{
    int ways = 0;
    for (int w = 0; w < SIZE_WAYS; w++)
        ways += has_given(given, sizes[w]);
    for (int w = 0; w < SIZE_WAYS && ways; w++)
        if (!has_given(given, sizes[w]))
            take_back(part, sizes[w]);
}

// Parses the command line into one part. The other benchmarks of the plan take part with configurations that
// are thrown away, so that their options are known too; so does its own, to tell what the command line gives.
static ptb_status parse_into(ptb_plan *plan, size_t at, int argc, char **argv, int first)
{
    ptb_part *part = &plan->parts[at];
    ptb_opt_set sets[MAX_SETS] = {run_set(&plan->run), ptb_measure_set(&part->measure),
                                  ptb_part_bench_set(part)};
    size_t count = 3;
    for (size_t i = 0; i <= plan->count && count < MAX_SETS; i++) {
        const ptb_part *other = i ? &plan->parts[i - 1] : part;
        bool is_new = true;
        for (size_t s = 3; s < count; s++)
            is_new = is_new && sets[s].opts != other->bench->opts;
        if (!is_new)
            continue;
        ptb_opt_set scratch = ptb_part_bench_set(other);
        scratch.config = calloc(1, other->bench->config_size + 1);
        if (!scratch.config)
            return no_memory();
        ptb_opts_defaults(&scratch);
        sets[count++] = scratch;
    }
    const char *words[MAX_WORDS];
    size_t word_count;
    ptb_status status = ptb_opts_parse(sets, count, argc, argv, first, words, MAX_WORDS, &word_count);
    if (status == PTB_OK)
        replace_sizes(&sets[3], &sets[2]);
    for (size_t s = 3; s < count; s++) {
        ptb_opts_release(&sets[s]);
        free(sets[s].config);
    }
    return status == PTB_OK ? ptb_measure_check(&part->measure, part->name) : status;
}

static bool is_of_part(const ptb_plan *plan, const char *option)
{
    for (size_t i = 0; i < plan->count; i++)
        if (find_in_table(plan->parts[i].bench->opts, plan->parts[i].bench->opt_count, option))
            return true;
    return false;
}

// An option of benchmarks, none of which is selected.
static ptb_status refuse_foreign(const ptb_plan *plan, const char *option)
{
    ptb_text owners = PTB_TEXT_INIT, selected = PTB_TEXT_INIT;
    for (size_t i = 0; i < ptb_registry_count(PTB_KIND_BENCH); i++) {
        const ptb_bench *bench = (const ptb_bench *)ptb_registry_at(PTB_KIND_BENCH, i);
        if (find_in_table(bench->opts, bench->opt_count, option))
            ptb_text_printf(&owners, "%s%s", owners.length ? ", " : "", bench->plugin.name);
    }
    for (size_t i = 0; i < plan->count; i++)
        if (!strstr(ptb_text_string(&selected), plan->parts[i].bench->plugin.name))
            ptb_text_printf(&selected, "%s%s", i ? " or " : "", plan->parts[i].bench->plugin.name);
    ptb_error("'%.*s' is an option of %s, not of %s; leave it out (`ptbench help %s` lists what there is)",
              option[1] == '-' ? (int)strcspn(option, "=") : 2, option, ptb_text_string(&owners),
              ptb_text_string(&selected), plan->parts[0].bench->plugin.name);
    ptb_text_release(&owners);
    ptb_text_release(&selected);
    return PTB_USAGE;
}

static ptb_status agree_on_transport(ptb_plan *plan)
{
    for (size_t i = 0; i < plan->count; i++) {
        ptb_opt_set set = ptb_part_bench_set(&plan->parts[i]);
        ptb_text text = PTB_TEXT_INIT;
        for (size_t o = 0; o < set.count; o++)
            if (strcmp(set.opts[o].name, "transport") == 0)
                ptb_opts_render(&set, o, &text);
        const char *transport = ptb_text_string(&text);
        bool differs = plan->transport && *transport && strcmp(plan->transport, transport) != 0;
        if (differs)
            ptb_error("part '%s' asks for transport %s and an earlier one for %s; the MPI library can use "
                      "one a run, so "
                      "make two runs",
                      plan->parts[i].name, transport, plan->transport);
        if (!plan->transport && *transport)
            plan->transport = strdup(transport);
        ptb_text_release(&text);
        if (differs)
            return PTB_USAGE;
    }
    return PTB_OK;
}

static ptb_status fill(ptb_plan *plan, int argc, char **argv, int first)
{
    found_words found;
    PTB_TRY(find_words(argc, argv, first, &found));
    if (!found.count) {
        ptb_error("name a suite or a benchmark: `ptbench run quick`, `ptbench run all_reduce`; `ptbench "
                  "list` shows all");
        return PTB_USAGE;
    }
    ptb_opt_set set = run_set(&plan->run);
    ptb_opts_defaults(&set);
    ptb_text selection = PTB_TEXT_INIT;
    for (size_t i = 0; i < found.count; i++)
        ptb_text_printf(&selection, "%s%s", i ? " " : "", found.words[i]);
    plan->selection = selection.data;
    for (size_t i = 0; i < found.count; i++)
        PTB_TRY(add_word(plan, found.words[i]));
    for (size_t i = 0; i < found.option_count; i++)
        if (!is_of_part(plan, found.options[i]))
            return refuse_foreign(plan, found.options[i]);
    for (size_t i = 0; i < plan->count; i++)
        PTB_TRY(parse_into(plan, i, argc, argv, first));
    PTB_TRY(agree_on_transport(plan));
    return ptb_transport_check(plan->transport);
}

ptb_status ptb_plan_make(int argc, char **argv, int first, ptb_plan **out)
{
    ptb_plan *plan = calloc(1, sizeof *plan);
    if (!plan)
        return no_memory();
    ptb_status status = fill(plan, argc, argv, first);
    if (status != PTB_OK) {
        ptb_plan_free(plan);
        return status;
    }
    *out = plan;
    return PTB_OK;
}

void ptb_plan_free(ptb_plan *plan)
{
    for (size_t i = 0; plan && i < plan->count; i++) {
        ptb_part *part = &plan->parts[i];
        ptb_opt_set measure = ptb_measure_set(&part->measure), own = ptb_part_bench_set(part);
        ptb_opts_release(&measure);
        ptb_opts_release(&own);
        free(part->config);
        free(part->name);
        free(part->requires);
    }
    if (plan) {
        ptb_run_options_release(&plan->run);
        free(plan->parts);
        free(plan->selection);
        free(plan->transport);
    }
    free(plan);
}

ptb_status ptb_run_options_parse(int argc, char **argv, int first, ptb_run_options *run)
{
    ptb_run_options parsed;
    memset(&parsed, 0, sizeof parsed);
    ptb_opt_set set = run_set(&parsed);
    ptb_opts_defaults(&set);
    const char *words[1];
    size_t count;
    ptb_status status = ptb_opts_parse(&set, 1, argc, argv, first, words, 0, &count);
    if (status != PTB_OK) {
        ptb_opts_release(&set);
        return status;
    }
    *run = parsed;
    return PTB_OK;
}

void ptb_run_options_release(ptb_run_options *run)
{
    ptb_opt_set set = run_set(run);
    ptb_opts_release(&set);
}

// ---- what is stored

static void append_redacted(const char *value, ptb_text *json)
{
    ptb_text text = PTB_TEXT_INIT;
    ptb_redact_words(value, &text);
    ptb_text_append_json(json, ptb_text_string(&text));
    ptb_text_release(&text);
}

static void append_set(const char *owner, const ptb_opt_set *sets, size_t count, bool *some, ptb_text *out)
{
    ptb_text_append(out, *some ? ", " : "");
    ptb_text_append_json(out, owner);
    ptb_text_append(out, ": {");
    bool first = true;
    for (size_t s = 0; s < count; s++)
        for (size_t i = 0; i < sets[s].count; i++) {
            ptb_text value = PTB_TEXT_INIT;
            ptb_opts_render(&sets[s], i, &value);
            ptb_text_append(out, first ? "" : ", ");
            ptb_text_append_json(out, sets[s].opts[i].name);
            ptb_text_append(out, ": ");
            append_redacted(ptb_text_string(&value), out);
            ptb_text_release(&value);
            first = false;
        }
    ptb_text_append(out, "}");
    *some = true;
}

void ptb_plan_options_json(const ptb_plan *plan, int argc, char **argv, int first, ptb_text *out)
{
    bool some = false;
    ptb_text_append(out, "{");
    ptb_opt_set run = run_set((ptb_run_options *)&plan->run);
    append_set("run", &run, 1, &some, out);
    for (size_t i = 0; i < plan->count; i++) {
        ptb_part *part = &plan->parts[i];
        ptb_opt_set sets[] = {ptb_part_bench_set(part), ptb_measure_set(&part->measure)};
        char owner[256];
        snprintf(owner, sizeof owner, "part %zu: %s", i + 1, part->name);
        append_set(owner, sets, 2, &some, out);
    }
    ptb_text_append(out, ", \"arguments\": {");
    for (int i = first; i < argc; i++) {
        ptb_text_printf(out, "%s\"%d\": ", i > first ? ", " : "", i - first);
        append_redacted(argv[i], out);
    }
    ptb_text_append(out, "}}");
}

bool ptb_plan_needs_threads(const ptb_plan *plan, bool one_host)
{
    bool needed = false;
    for (size_t i = 0; i < plan->count; i++) {
        const ptb_part *part = &plan->parts[i];
        needed |= part->bench->needs_threads && part->bench->needs_threads(part->config, one_host);
    }
    return needed;
}

int ptb_plan_most_threads(const ptb_plan *plan)
{
    int64_t most = 1;
    for (size_t i = 0; i < plan->count; i++) {
        ptb_opt_set set = ptb_part_bench_set(&plan->parts[i]);
        const ptb_opt *opt = ptb_opts_find(&set, "threads");
        if (!opt || opt->type != PTB_OPT_INT)
            continue;
        int64_t threads = *(const int64_t *)((const char *)set.config + opt->offset);
        most = threads > most ? threads : most;
    }
    return (int)most;
}

double ptb_plan_start_limit_s(const ptb_plan *plan)
{
    double most = 0;
    for (size_t i = 0; i < plan->count; i++) {
        double limit_s = ptb_measure_start_limit_s(&plan->parts[i].measure);
        if (limit_s == 0)
            return 0;
        most = limit_s > most ? limit_s : most;
    }
    return most;
}
