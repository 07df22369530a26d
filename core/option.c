// Options: values. The command line is in option_parse.c, help in option_help.c.
#include "core/option.h"

#include "core/log.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void *field_of(const ptb_opt_set *set, const ptb_opt *opt)
{
    return (char *)set->config + opt->offset;
}

static bool is_text(ptb_opt_type type)
{
    return type == PTB_OPT_STRING || type == PTB_OPT_CHOICE || type == PTB_OPT_LIST;
}

static bool parse_bool(const char *text, bool *value)
{
    static const char *const yes[] = {"yes", "true", "on", "1"}, *const no[] = {"no", "false", "off", "0"};
    for (size_t i = 0; i < sizeof yes / sizeof *yes; i++) {
        if (strcmp(text, yes[i]) == 0 || strcmp(text, no[i]) == 0) {
            *value = strcmp(text, yes[i]) == 0;
            return true;
        }
    }
    return false;
}

static bool parse_percent(const char *text, double *value)
{
    char number[64];
    size_t length = strlen(text);
    bool has_sign = length && text[length - 1] == '%';
    if (length >= sizeof number)
        return false;
    memcpy(number, text, length + 1);
    if (has_sign)
        number[length - 1] = '\0';
    if (!ptb_text_parse_double(number, value))
        return false;
    if (has_sign)
        *value /= 100;
    return true;
}

static bool parse_seconds(const char *text, double *value)
{
    static const struct {
        const char *unit;
        double scale;
    } units[] = {{"us", 1e-6}, {"ms", 1e-3}, {"s", 1}, {"min", 60}, {"m", 60}, {"h", 3600}, {"", 1}};
    char number[64];
    size_t digits = strspn(text, "+-0123456789.");
    if (digits >= sizeof number)
        return false;
    memcpy(number, text, digits);
    number[digits] = '\0';
    for (size_t i = 0; i < sizeof units / sizeof *units; i++)
        if (strcmp(text + digits, units[i].unit) == 0 && ptb_text_parse_double(number, value)) {
            *value *= units[i].scale;
            return true;
        }
    return false;
}

// A parsed value before it is stored; the number is what ranges are checked against.
typedef union {
    bool flag;
    int64_t integer;
    uint64_t size;
    double real;
} parsed_value;

static bool parse_value(ptb_opt_type type, const char *text, parsed_value *value, double *number)
{
    bool ok = false;
    *number = 0;
    switch (type) {
    case PTB_OPT_BOOL:
        return parse_bool(text, &value->flag);
    case PTB_OPT_INT:
        ok = ptb_text_parse_int(text, &value->integer);
        *number = ok ? (double)value->integer : 0;
        return ok;
    case PTB_OPT_SIZE:
        ok = ptb_text_parse_size(text, &value->size);
        *number = ok ? (double)value->size : 0;
        return ok;
    case PTB_OPT_DOUBLE:
        ok = ptb_text_parse_double(text, &value->real);
        break;
    case PTB_OPT_PERCENT:
        ok = parse_percent(text, &value->real);
        break;
    case PTB_OPT_SECONDS:
        ok = parse_seconds(text, &value->real);
        break;
    default:
        return true;
    }
    *number = ok ? value->real : 0;
    return ok;
}

static const char *expectation(ptb_opt_type type)
{
    switch (type) {
    case PTB_OPT_BOOL:
        return "yes or no";
    case PTB_OPT_INT:
        return "a whole number";
    case PTB_OPT_SIZE:
        return "a size such as 8, 64K, 1M or 2G (powers of 1024)";
    case PTB_OPT_DOUBLE:
        return "a number such as 0.5";
    case PTB_OPT_PERCENT:
        return "a share such as 2% or 0.02";
    case PTB_OPT_SECONDS:
        return "a time such as 500ms, 10s or 2m";
    default:
        return "text";
    }
}

static bool is_choice(const ptb_opt *opt, const char *word)
{
    for (size_t i = 0; opt->choices[i]; i++)
        if (strcmp(opt->choices[i], word) == 0)
            return true;
    return false;
}

static ptb_status refuse_choice(const ptb_opt *opt, const char *word, const char *where)
{
    size_t count = 0;
    while (opt->choices[count])
        count++;
    char near[256];
    ptb_text_nearest(word, opt->choices, count, near, sizeof near);
    ptb_error("%s: '%s' is not a value of %s; did you mean %s?", where, word, opt->name, near);
    return PTB_USAGE;
}

static ptb_status check_words(const ptb_opt *opt, const char *value, const char *where)
{
    enum { WORDS_MAX = 256 };
    if (opt->type == PTB_OPT_STRING)
        return PTB_OK;
    if (opt->type == PTB_OPT_CHOICE)
        return is_choice(opt, value) ? PTB_OK : refuse_choice(opt, value, where);
    const char *words[WORDS_MAX];
    char *storage;
    ptb_status status = PTB_OK;
    size_t count = ptb_text_split(value, ',', &storage, words, WORDS_MAX);
    if (ptb_text_pieces(value, ',') > WORDS_MAX) {
        ptb_error("%s: the list has %zu entries; at most %d are taken", where, ptb_text_pieces(value, ','),
                  WORDS_MAX);
        status = PTB_USAGE;
    }
    for (size_t i = 0; i < count && status == PTB_OK; i++) {
        if (!*words[i]) {
            ptb_error("%s: '%s' has an empty item; expected a list such as a,b", where, value);
            status = PTB_USAGE;
        } else if (opt->choices && !is_choice(opt, words[i])) {
            status = refuse_choice(opt, words[i], where);
        }
    }
    free(storage);
    return status;
}

static ptb_status assign(const ptb_opt_set *set, const ptb_opt *opt, const char *value, const char *where)
{
    void *field = field_of(set, opt);
    if (is_text(opt->type)) {
        PTB_TRY(check_words(opt, value, where));
        char *copy = strdup(value);
        if (!copy)
            return PTB_NO_MEMORY;
        free(*(char **)field);
        *(char **)field = copy;
        return PTB_OK;
    }
    parsed_value parsed;
    double number;
    if (!parse_value(opt->type, value, &parsed, &number)) {
        ptb_error("%s: '%s' is not a value of %s; expected %s", where, value, opt->name,
                  expectation(opt->type));
        return PTB_USAGE;
    }
    size_t begin;
    const char *minus_one = ptb_opt_minus_one(opt, &begin);
    double least = minus_one ? 0 : opt->min;
    bool is_word = minus_one && number == -1;
    if ((opt->min != 0 || opt->max != 0) && !is_word && !(number >= least && number <= opt->max)) {
        ptb_text range = PTB_TEXT_INIT;
        ptb_text_append_number(&range, least, -1);
        ptb_text_append(&range, " to ");
        ptb_text_append_number(&range, opt->max, -1);
        if (minus_one)
            ptb_text_printf(&range, ", or -1 for %s", minus_one);
        ptb_error("%s: %s must be from %s; got '%s'", where, opt->name, ptb_text_string(&range), value);
        ptb_text_release(&range);
        return PTB_USAGE;
    }
    if (opt->type == PTB_OPT_BOOL)
        *(bool *)field = parsed.flag;
    else if (opt->type == PTB_OPT_INT)
        *(int64_t *)field = parsed.integer;
    else if (opt->type == PTB_OPT_SIZE)
        *(uint64_t *)field = parsed.size;
    else
        *(double *)field = parsed.real;
    return PTB_OK;
}

static void set_default(const ptb_opt_set *set, const ptb_opt *opt)
{
    if (!is_text(opt->type) && !opt->def) {
        bool ok = assign(set, opt, "0", opt->name) == PTB_OK;
        if (!ok)
            abort();
    }
    if (opt->def && assign(set, opt, opt->def, "default") != PTB_OK) {
        fprintf(stderr, "ptbench: the default '%s' of option %s is not valid\n", opt->def, opt->name);
        abort();
    }
}

void ptb_opts_defaults(const ptb_opt_set *set)
{
    for (size_t i = 0; i < set->count; i++) {
        const ptb_opt *opt = &set->opts[i];
        if (is_text(opt->type))
            *(char **)field_of(set, opt) = NULL;
        set_default(set, opt);
    }
}

void ptb_opts_reset(const ptb_opt_set *set, const ptb_opt *opt)
{
    if (is_text(opt->type)) {
        free(*(char **)field_of(set, opt));
        *(char **)field_of(set, opt) = NULL;
    }
    set_default(set, opt);
}

const ptb_opt *ptb_opts_find(const ptb_opt_set *set, const char *name)
{
    for (size_t i = 0; i < set->count; i++)
        if (strcmp(set->opts[i].name, name) == 0)
            return &set->opts[i];
    return NULL;
}

ptb_status ptb_opts_assign(const ptb_opt_set *set, const char *name, const char *value, const char *where)
{
    const ptb_opt *opt = ptb_opts_find(set, name);
    if (opt)
        return assign(set, opt, value, where);
    const char *names[256];
    size_t count = 0;
    for (size_t i = 0; i < set->count && count < 256; i++)
        names[count++] = set->opts[i].name;
    char near[256];
    ptb_text_nearest(name, names, count, near, sizeof near);
    ptb_error("%s: there is no option '%s'; did you mean %s?", where, name, near);
    return PTB_USAGE;
}

void ptb_opts_render(const ptb_opt_set *set, size_t i, ptb_text *out)
{
    const ptb_opt *opt = &set->opts[i];
    const void *field = field_of(set, opt);
    char size[32];
    switch (opt->type) {
    case PTB_OPT_BOOL:
        ptb_text_append(out, *(const bool *)field ? "yes" : "no");
        break;
    case PTB_OPT_INT:
        ptb_text_printf(out, "%lld", (long long)*(const int64_t *)field);
        break;
    case PTB_OPT_SIZE:
        ptb_text_format_size(*(const uint64_t *)field, size, sizeof size);
        ptb_text_append(out, size);
        break;
    case PTB_OPT_DOUBLE:
    case PTB_OPT_PERCENT:
    case PTB_OPT_SECONDS:
        ptb_text_append_number(out, *(const double *)field, -1);
        break;
    default:
        ptb_text_append(out, *(char *const *)field ? *(char *const *)field : "");
    }
}

bool ptb_opts_is_default(const ptb_opt_set *set, const ptb_opt *opt)
{
    const void *field = field_of(set, opt);
    parsed_value value = {.size = 0};
    double number;
    if (is_text(opt->type))
        return strcmp(opt->def ? opt->def : "", *(char *const *)field ? *(char *const *)field : "") == 0;
    if (opt->def)
        parse_value(opt->type, opt->def, &value, &number);
    switch (opt->type) {
    case PTB_OPT_BOOL:
        return *(const bool *)field == value.flag;
    case PTB_OPT_INT:
        return *(const int64_t *)field == value.integer;
    case PTB_OPT_SIZE:
        return *(const uint64_t *)field == value.size;
    default:
        return *(const double *)field == value.real;
    }
}

ptb_status ptb_opts_check_used(const ptb_opt_set *set, const ptb_opt_use *uses, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        char name[64];
        snprintf(name, sizeof name, "%.*s", (int)strcspn(uses[i].option, " "), uses[i].option);
        const ptb_opt *opt = ptb_opts_find(set, name);
        if (uses[i].used || !opt || ptb_opts_is_default(set, opt))
            continue;
        ptb_error("--%s changes nothing here: it needs %s; leave it out", uses[i].option, uses[i].needs);
        return PTB_USAGE;
    }
    return PTB_OK;
}

void ptb_opts_copy(const ptb_opt_set *set, void *copy)
{
    // Field by field, so that padding and fields outside the table stay as the caller made them.
    static const size_t sizes[] = {[PTB_OPT_BOOL] = sizeof(bool),      [PTB_OPT_INT] = sizeof(int64_t),
                                   [PTB_OPT_SIZE] = sizeof(uint64_t),  [PTB_OPT_DOUBLE] = sizeof(double),
                                   [PTB_OPT_PERCENT] = sizeof(double), [PTB_OPT_SECONDS] = sizeof(double)};
    for (size_t i = 0; i < set->count; i++) {
        const ptb_opt *opt = &set->opts[i];
        void *from = field_of(set, opt), *to = (char *)copy + opt->offset;
        if (is_text(opt->type)) {
            const char *text = *(char **)from;
            *(char **)to = text ? strdup(text) : NULL;
        } else {
            memcpy(to, from, sizes[opt->type]);
        }
    }
}

void ptb_opts_release(const ptb_opt_set *set)
{
    for (size_t i = 0; i < set->count; i++)
        if (is_text(set->opts[i].type)) {
            char **text = field_of(set, &set->opts[i]);
            free(*text);
            *text = NULL;
        }
}
