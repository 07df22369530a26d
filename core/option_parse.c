// The command line, GNU style, against several option tables at once.
#include "core/option.h"

#include "core/log.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
    const ptb_opt_set *sets;
    size_t set_count;
} tables;

static const ptb_opt *find_long(const tables *t, const char *name)
{
    for (size_t s = 0; s < t->set_count; s++) {
        const ptb_opt *opt = ptb_opts_find(&t->sets[s], name);
        if (opt)
            return opt;
    }
    return NULL;
}

static const ptb_opt *find_letter(const tables *t, char letter)
{
    for (size_t s = 0; s < t->set_count; s++)
        for (size_t i = 0; i < t->sets[s].count; i++)
            if (t->sets[s].opts[i].letter == letter)
                return &t->sets[s].opts[i];
    return NULL;
}

// Assigns in every table that has the option.
static ptb_status assign_all(const tables *t, const char *name, const char *value, const char *where)
{
    for (size_t s = 0; s < t->set_count; s++)
        if (ptb_opts_find(&t->sets[s], name))
            PTB_TRY(ptb_opts_assign(&t->sets[s], name, value, where));
    return PTB_OK;
}

static ptb_status refuse(const tables *t, const char *word, const char *name)
{
    const char *names[512];
    size_t count = 0;
    for (size_t s = 0; s < t->set_count; s++)
        for (size_t i = 0; i < t->sets[s].count && count < 512; i++) {
            bool is_new = true;
            for (size_t k = 0; k < count; k++)
                is_new &= strcmp(names[k], t->sets[s].opts[i].name) != 0;
            if (is_new)
                names[count++] = t->sets[s].opts[i].name;
        }
    char near[256];
    ptb_text_nearest(name, names, count, near, sizeof near);
    ptb_error("there is no option '%s' here; did you mean %s?", word, near);
    return PTB_USAGE;
}

static ptb_status refuse_missing(const char *word)
{
    ptb_error("option '%s' needs a value", word);
    return PTB_USAGE;
}

// A boolean's value may follow only as its own word when it reads as one: "-c 0" as nccl-tests has it.
static bool is_bool_word(const char *word)
{
    static const char *const words[] = {"yes", "no", "true", "false", "on", "off", "0", "1"};
    for (size_t i = 0; word && i < sizeof words / sizeof *words; i++)
        if (strcmp(word, words[i]) == 0)
            return true;
    return false;
}

// Handles argv[*at] = "--...", moving *at past the value if it takes the next word.
static ptb_status parse_long(const tables *t, int argc, char **argv, int *at)
{
    const char *word = argv[*at], *body = word + 2, *equals = strchr(body, '=');
    char name[64];
    size_t length = equals ? (size_t)(equals - body) : strlen(body);
    if (length >= sizeof name)
        return refuse(t, word, body);
    memcpy(name, body, length);
    name[length] = '\0';
    const ptb_opt *opt = find_long(t, name);
    if (!opt && !equals && strncmp(name, "no-", 3) == 0) {
        opt = find_long(t, name + 3);
        if (opt && opt->type == PTB_OPT_BOOL)
            return assign_all(t, opt->name, "no", word);
        opt = NULL;
    }
    if (!opt)
        return refuse(t, word, name);
    const char *next = *at + 1 < argc ? argv[*at + 1] : NULL;
    if (equals)
        return assign_all(t, name, equals + 1, word);
    if (opt->type == PTB_OPT_BOOL && !is_bool_word(next))
        return assign_all(t, name, "yes", word);
    if (!next)
        return refuse_missing(word);
    ++*at;
    return assign_all(t, name, next, word);
}

static ptb_status parse_short(const tables *t, int argc, char **argv, int *at)
{
    const char *word = argv[*at];
    const ptb_opt *opt = find_letter(t, word[1]);
    const char *next = *at + 1 < argc ? argv[*at + 1] : NULL;
    if (!opt)
        return refuse(t, word, word + 1);
    if (word[2])
        return assign_all(t, opt->name, word + 2 + (word[2] == '='), word);
    if (opt->type == PTB_OPT_BOOL && !is_bool_word(next))
        return assign_all(t, opt->name, "yes", word);
    if (!next)
        return refuse_missing(word);
    ++*at;
    return assign_all(t, opt->name, next, word);
}

ptb_status ptb_opts_parse(const ptb_opt_set *sets, size_t set_count, int argc, char **argv, int first,
                          const char **words, size_t max_words, size_t *word_count)
{
    tables t = {sets, set_count};
    size_t count = 0;
    bool only_words = false;
    for (int at = first; at < argc; at++) {
        const char *word = argv[at];
        if (!only_words && strcmp(word, "--") == 0) {
            only_words = true;
        } else if (!only_words && strncmp(word, "--", 2) == 0) {
            PTB_TRY(parse_long(&t, argc, argv, &at));
        } else if (!only_words && word[0] == '-' && isalpha((unsigned char)word[1])) {
            PTB_TRY(parse_short(&t, argc, argv, &at));
        } else if (count == max_words) {
            ptb_error("'%s' is one word too many; expected at most %zu", word, max_words);
            return PTB_USAGE;
        } else {
            words[count++] = word;
        }
    }
    *word_count = count;
    return PTB_OK;
}
