// Which variables are kept and which values are masked. To keep a further variable, add it to `kept`.
#include "results/redact.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

// A name that ends in '*' is a prefix.
static const char *const kept[] = {
    "OMPI_*",     "PMIX_*",     "PMI_*",          "UCX_*",
    "NCCL_*",     "CUDA_*",     "OMP_*",          "KMP_*",
    "GOMP_*",     "OPENBLAS_*", "MKL_*",          "DNNL_*",
    "ONEDNN_*",   "SLURM_*",    "PTBENCH_*",      "LD_LIBRARY_PATH",
    "LD_PRELOAD", "MALLOC_*",   "GLIBC_TUNABLES", "PATH",
    "LANG",       "LC_*",       "TERM",           "HOSTNAME",
    "NO_COLOR",   "TMPDIR",
};
static const char *const secret[] = {"KEY",  "TOKEN",  "SECRET",  "PASS",   "CREDENTIAL",
                                     "AUTH", "COOKIE", "SESSION", "PRIVATE"};

static bool is_kept(const char *name, size_t length)
{
    for (size_t i = 0; i < sizeof kept / sizeof *kept; i++) {
        size_t wanted = strlen(kept[i]);
        bool is_prefix = kept[i][wanted - 1] == '*';
        if (is_prefix ? length >= wanted - 1 && strncmp(name, kept[i], wanted - 1) == 0
                      : length == wanted && strncmp(name, kept[i], wanted) == 0)
            return true;
    }
    return false;
}

static bool holds_word(const char *name, size_t length, const char *word)
{
    size_t wanted = strlen(word);
    for (size_t i = 0; i + wanted <= length; i++)
        if (strncasecmp(name + i, word, wanted) == 0)
            return true;
    return false;
}

static bool is_secret_name(const char *name, size_t length)
{
    for (size_t i = 0; i < sizeof secret / sizeof *secret; i++)
        if (holds_word(name, length, secret[i]))
            return true;
    return false;
}

// "://user:password@host": the part up to the next slash, blank or end holds a colon before an @.
static bool holds_password(const char *value)
{
    for (const char *at = strstr(value, "://"); at; at = strstr(at, "://")) {
        at += 3;
        size_t authority = strcspn(at, "/?# \t\n,;");
        const char *sign = NULL; // the last @, as a password may hold one
        for (size_t i = 0; i < authority; i++)
            if (at[i] == '@')
                sign = at + i;
        if (sign && memchr(at, ':', (size_t)(sign - at)))
            return true;
    }
    return false;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

void ptb_redact_environment(char **environ, ptb_text *json)
{
    size_t count = 0;
    while (environ && environ[count])
        count++;
    char **sorted = malloc((count + 1) * sizeof *sorted);
    if (!sorted)
        abort(); // as ptb_text does when memory for text runs out
    if (count)
        memcpy(sorted, environ, count * sizeof *sorted);
    qsort(sorted, count, sizeof *sorted, by_name);
    const char *separator = "";
    ptb_text name = PTB_TEXT_INIT, value = PTB_TEXT_INIT;
    ptb_text_append(json, "{");
    for (size_t i = 0; i < count; i++) {
        const char *equals = strchr(sorted[i], '=');
        if (!equals || !is_kept(sorted[i], (size_t)(equals - sorted[i])))
            continue;
        ptb_text_clear(&name);
        ptb_text_append_bytes(&name, sorted[i], (size_t)(equals - sorted[i]));
        bool is_hidden = is_secret_name(name.data, name.length) || holds_password(equals + 1);
        ptb_text_append(json, separator);
        ptb_text_append_json(json, name.data);
        ptb_text_append(json, ": ");
        ptb_text_clear(&value);
        ptb_redact_words(is_hidden ? "***" : equals + 1, &value); // OMPI_ARGV holds a command line
        ptb_text_append_json(json, ptb_text_string(&value));
        separator = ", ";
    }
    ptb_text_append(json, "}");
    ptb_text_release(&name);
    ptb_text_release(&value);
    free(sorted);
}

// Length of the word: to the next blank that is not within quotes.
static size_t word_length(const char *word)
{
    char quote = '\0';
    size_t length = 0;
    for (; word[length] && (quote || !strchr(" \t\n", word[length])); length++) {
        if (quote ? word[length] == quote : strchr("'\"", word[length]) != NULL)
            quote = quote ? '\0' : word[length];
    }
    return length;
}

static void append_word(const char *word, size_t length, ptb_text *out)
{
    char *copy = strndup(word, length);
    if (!copy)
        abort();
    const char *equals = strchr(copy, '=');
    size_t name = equals ? (size_t)(equals - copy) : 0, begin = name;
    while (begin > 0 && (isalnum((unsigned char)copy[begin - 1]) || copy[begin - 1] == '_'))
        begin--;
    bool is_hidden = name > begin && is_secret_name(copy + begin, name - begin);
    if (is_hidden || holds_password(copy)) {
        ptb_text_append_bytes(out, copy, equals ? name + 1 : 0);
        ptb_text_append(out, "***");
    } else {
        ptb_text_append(out, copy);
    }
    free(copy);
}

void ptb_redact_words(const char *words, ptb_text *out)
{
    while (*words) {
        size_t blanks = strspn(words, " \t\n"), length = word_length(words + blanks);
        ptb_text_append_bytes(out, words, blanks);
        append_word(words + blanks, length, out);
        words += blanks + length;
    }
}
