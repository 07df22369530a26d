// Tokens from files or from the generator, as sequences; see tokens.h.
#include "strategies/tokens.h"

#include "core/log.h"
#include "core/random.h"
#include "core/topology.h"
#include "strategies/tokens_files.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct ptb_tokens {
    ptb_tokens_config config;
    uint32_t symbols;           // generator: size of its alphabet
    char name[64];              // files
    ptb_token_files files;      // count 0: generator
    ptb_token_places documents; // packing: the tokens with which documents begin
};

enum { ALPHABET = 64 };
// Streams of the counter-based generator.
enum { STREAM_TABLE = 1000, STREAM_TEXT = 1001, STREAM_ORDER = 1002, STREAM_DOCUMENT = 1003 };

// ---- opening

static void take_name(ptb_tokens *t)
{
    const char *path = t->config.path;
    size_t end = strlen(path);
    while (end > 1 && path[end - 1] == '/')
        end--;
    size_t begin = end;
    while (begin > 0 && path[begin - 1] != '/')
        begin--;
    snprintf(t->name, sizeof t->name, "%.*s", (int)(end - begin), path + begin);
}

static ptb_status check_length(const ptb_tokens *t)
{
    uint64_t length = (uint64_t)t->config.length;
    if (t->files.tokens > length)
        return PTB_OK;
    ptb_error("--data '%s' has %" PRIu64 " tokens; one sequence of %" PRIu64
              " and its last target need %" PRIu64 ". Give more data or a smaller --sequence",
              t->config.path, t->files.tokens, length, length + 1);
    return PTB_USAGE;
}

static ptb_status list_file_documents(ptb_tokens *t)
{
    size_t count = t->files.count;
    t->documents.at = malloc(count * sizeof *t->documents.at);
    if (!t->documents.at) {
        ptb_error("no memory for the places of %zu documents", count);
        return PTB_NO_MEMORY;
    }
    for (size_t i = 0; i < count; i++)
        t->documents.at[i] = t->files.file[i].first;
    t->documents.count = count;
    return PTB_OK;
}

// What has to be known of every token before one is used.
static ptb_status look_at_tokens(ptb_tokens *t)
{
    const ptb_token_format *format = t->files.format;
    uint64_t vocabulary = (uint64_t)t->config.vocabulary;
    bool needs_delimiters = t->config.pack && format->delimiter >= 0;
    if (t->config.pack && format->delimiter < 0)
        PTB_TRY(list_file_documents(t));
    if (!needs_delimiters && vocabulary >> (8 * format->width))
        return PTB_OK; // no token can be larger
    if (t->files.bytes > (uint64_t)4 << 30)
        ptb_info("reading %.3g GB of '%s' to see that every token is in the vocabulary",
                 (double)t->files.bytes * 1e-9, t->config.path);
    int threads = ptb_topology_allowed_cpus();
    return ptb_token_files_scan(&t->files, vocabulary, threads, needs_delimiters ? &t->documents : NULL);
}

static ptb_status open_files(ptb_tokens *t)
{
    PTB_TRY(ptb_token_files_open(t->config.path, t->config.unread, &t->files));
    PTB_TRY(check_length(t));
    take_name(t);
    return t->config.unread ? PTB_OK : look_at_tokens(t);
}

ptb_status ptb_tokens_open(const ptb_tokens_config *config, ptb_tokens **tokens)
{
    ptb_tokens *t = calloc(1, sizeof *t);
    if (!t) {
        ptb_error("no memory for the state of the input");
        return PTB_NO_MEMORY;
    }
    t->config = *config;
    t->symbols = config->vocabulary < ALPHABET ? (uint32_t)config->vocabulary : ALPHABET;
    ptb_status status = config->path ? open_files(t) : PTB_OK;
    t->config.path = NULL; // the caller's
    if (status != PTB_OK) {
        ptb_tokens_close(t);
        return status;
    }
    *tokens = t;
    return PTB_OK;
}

void ptb_tokens_close(ptb_tokens *t)
{
    if (!t)
        return;
    ptb_token_files_release(&t->files);
    free(t->documents.at);
    free(t);
}

void ptb_tokens_describe(const ptb_tokens *t, char *out, size_t out_size)
{
    const ptb_token_files *f = &t->files;
    if (!f->count)
        snprintf(out, out_size, "generator");
    else if (f->format->name && f->count == 1)
        snprintf(out, out_size, "%s (%" PRIu64 " %s tokens)", t->name, f->tokens, f->format->name);
    else if (f->format->name)
        snprintf(out, out_size, "%s (%zu shards, %" PRIu64 " %s tokens)", t->name, f->count, f->tokens,
                 f->format->name);
    else if (f->count == 1)
        snprintf(out, out_size, "%s (%" PRIu64 " bytes)", t->name, f->bytes);
    else
        snprintf(out, out_size, "%s (%zu files, %" PRIu64 " bytes)", t->name, f->count, f->bytes);
}

// ---- sequences of files

uint64_t ptb_tokens_windows(const ptb_tokens *t)
{
    return t->files.count ? (t->files.tokens - 1) / (uint64_t)t->config.length : UINT64_MAX;
}

static uint64_t common_divisor(uint64_t a, uint64_t b)
{
    while (b) {
        uint64_t rest = a % b;
        a = b;
        b = rest;
    }
    return a;
}

// Window number `index` of the endless sequence of passes: within a pass the windows are visited by i -> a i
// + b modulo their number, a bijection because a has no common divisor with it.
static uint64_t window(const ptb_tokens *t, uint64_t index)
{
    uint64_t windows = ptb_tokens_windows(t), seed = t->config.seed;
    uint64_t pass = index / windows;
    uint64_t a = ptb_random_u64(seed, STREAM_ORDER, 2 * pass) % windows;
    while (common_divisor(a, windows) != 1)
        a++;
    uint64_t b = ptb_random_u64(seed, STREAM_ORDER, 2 * pass + 1) % windows;
    return (uint64_t)(((__uint128_t)a * (index % windows) + b) % windows);
}

// Number of documents that begin at token `number` or before it.
static size_t documents_until(const ptb_tokens *t, uint64_t number)
{
    size_t low = 0, high = t->documents.count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (t->documents.at[middle] <= number)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static void mark_documents(const ptb_tokens *t, uint64_t first, int32_t *targets, int32_t *start)
{
    size_t length = (size_t)t->config.length, next = documents_until(t, first), begin = 0;
    for (size_t i = 1; i <= length; i++) {
        if (next < t->documents.count && t->documents.at[next] == first + i) {
            targets[i - 1] = -1;
            begin = i;
            next++;
        }
        if (start && i < length)
            start[i] = (int32_t)begin;
    }
}

static ptb_status refuse_changed(const ptb_tokens *t, uint64_t first, uint32_t token)
{
    ptb_error("the data of '%s' changed while it was used: token %" PRIu32 " near token number %" PRIu64
              " is not in the vocabulary of %" PRId64 ", and was when the files were checked",
              t->name, token, first, t->config.vocabulary);
    return PTB_SYSTEM;
}

static ptb_status read_window(const ptb_tokens *t, uint64_t index, int32_t *inputs, int32_t *targets,
                              int32_t *start)
{
    size_t length = (size_t)t->config.length;
    uint64_t first = window(t, index) * length;
    uint32_t largest = ptb_token_files_read(&t->files, first, length, inputs);
    uint32_t last = ptb_token_files_read(&t->files, first + length, 1, targets + length - 1);
    memcpy(targets, inputs + 1, (length - 1) * sizeof *targets);
    largest = last > largest ? last : largest;
    if (largest >= (uint64_t)t->config.vocabulary)
        return refuse_changed(t, first, largest);
    if (t->config.pack)
        mark_documents(t, first, targets, start);
    return PTB_OK;
}

// ---- the generator

// Whether a document begins at position i of a sequence, i > 0, and bits for its beginning.
static bool begins_document(const ptb_tokens *t, uint64_t index, size_t i, uint64_t *bits)
{
    uint64_t length = (uint64_t)t->config.length, mean = length / 4 > 2 ? length / 4 : 2;
    *bits = ptb_random_u64(t->config.seed, STREAM_DOCUMENT, index * (length + 1) + i);
    return t->config.pack && i > 0 && (*bits & 0xffffffff) % mean == 0;
}

// The next symbol after (before, last). Half of the time one of two successors of `last`, a quarter one
// successor of the pair, else a symbol of falling frequency: a unigram model, a bigram model and a model of
// order 2 each find less loss than the one before.
static int32_t next_symbol(const ptb_tokens *t, int32_t before, int32_t last, uint64_t bits)
{
    uint32_t choice = (uint32_t)bits & 7, n = t->symbols;
    uint64_t draw = bits >> 8, seed = t->config.seed;
    if (choice < 4)
        return (int32_t)(ptb_random_u64(seed, STREAM_TABLE, (uint64_t)last * 2 + (choice == 0)) % n);
    if (choice < 6)
        return (int32_t)(ptb_random_u64(seed, STREAM_TABLE, 1000 + (uint64_t)before * n + (uint64_t)last) %
                         n);
    uint64_t u = draw % n, w = (draw >> 24) % n;
    return (int32_t)(u * w / n); // small symbols are frequent
}

static void generate(const ptb_tokens *t, uint64_t index, int32_t *inputs, int32_t *targets, int32_t *start)
{
    size_t length = (size_t)t->config.length, begin = 0;
    uint64_t seed = t->config.seed, first = index * (length + 2), bits;
    int32_t before = (int32_t)(ptb_random_u64(seed, STREAM_TEXT, first) % t->symbols), last = 0;
    for (size_t i = 0; i <= length; i++) {
        bool is_new = begins_document(t, index, i, &bits);
        if (is_new) {
            before = (int32_t)((bits >> 32) % t->symbols);
            last = 0;
            begin = i;
        }
        int32_t symbol = next_symbol(t, before, last, ptb_random_u64(seed, STREAM_TEXT, first + 1 + i));
        before = last;
        last = symbol;
        if (i < length)
            inputs[i] = symbol;
        if (i < length && start)
            start[i] = (int32_t)begin;
        if (i > 0)
            targets[i - 1] = is_new ? -1 : symbol;
    }
}

// ---- either

ptb_status ptb_tokens_sequence(const ptb_tokens *t, uint64_t index, int32_t *inputs, int32_t *targets,
                               int32_t *start)
{
    if (start)
        memset(start, 0, (size_t)t->config.length * sizeof *start);
    if (t->files.count)
        return read_window(t, index, inputs, targets, start);
    generate(t, index, inputs, targets, start);
    return PTB_OK;
}

uint64_t ptb_tokens_counted(const ptb_tokens *t, uint64_t first, uint64_t count)
{
    uint64_t length = (uint64_t)t->config.length, counted = count * length, bits;
    if (!t->config.pack)
        return counted;
    for (uint64_t index = first; index < first + count; index++) {
        if (t->files.count) {
            uint64_t token = window(t, index) * length;
            counted -= documents_until(t, token + length) - documents_until(t, token);
            continue;
        }
        for (size_t i = 1; i <= length; i++)
            counted -= begins_document(t, index, i, &bits);
    }
    return counted;
}
