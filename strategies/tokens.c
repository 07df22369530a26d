// Tokens from a mapped file or from the generator; see tokens.h.
#include "strategies/tokens.h"

#include "core/log.h"
#include "core/random.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

struct ptb_tokens {
    uint64_t seed;
    size_t length;
    uint32_t symbols; // generator: size of its alphabet
    char name[64];    // file
    const uint8_t *data;
    size_t bytes; // file; 0: generator
};

enum { ALPHABET = 64 };
// Streams of the counter-based generator.
enum { STREAM_TABLE = 1000, STREAM_TEXT = 1001, STREAM_ORDER = 1002 };

static ptb_status map_file(ptb_tokens *t, const char *path)
{
    int file = open(path, O_RDONLY | O_CLOEXEC);
    struct stat info;
    if (file < 0 || fstat(file, &info) != 0) {
        ptb_error("--data '%s' cannot be read: %s", path, strerror(errno));
        if (file >= 0)
            close(file);
        return PTB_USAGE;
    }
    if (!S_ISREG(info.st_mode) || (size_t)info.st_size < t->length + 1) {
        if (!S_ISREG(info.st_mode))
            ptb_error("--data '%s' is not a regular file", path);
        else
            ptb_error("--data '%s' has %" PRIdMAX
                      " bytes; one sequence of %zu tokens and its last target need %zu. "
                      "Give a longer file or a smaller --sequence",
                      path, (intmax_t)info.st_size, t->length, t->length + 1);
        close(file);
        return PTB_USAGE;
    }
    void *data = mmap(NULL, (size_t)info.st_size, PROT_READ, MAP_SHARED, file, 0);
    int error = errno;
    close(file);
    if (data == MAP_FAILED) {
        ptb_error("--data '%s' cannot be mapped: %s", path, strerror(error));
        return PTB_SYSTEM;
    }
    const char *slash = strrchr(path, '/');
    snprintf(t->name, sizeof t->name, "%s", slash ? slash + 1 : path);
    t->data = data;
    t->bytes = (size_t)info.st_size;
    return PTB_OK;
}

ptb_status ptb_tokens_open(const char *path, uint64_t seed, int64_t length, int64_t vocabulary,
                           ptb_tokens **tokens)
{
    if (path && vocabulary < 256) {
        ptb_error("--data gives bytes, which need --vocab 256 or more; it is %" PRId64, vocabulary);
        return PTB_USAGE;
    }
    ptb_tokens *t = calloc(1, sizeof *t);
    if (!t) {
        ptb_error("no memory for the state of the input");
        return PTB_NO_MEMORY;
    }
    t->seed = seed;
    t->length = (size_t)length;
    t->symbols = vocabulary < ALPHABET ? (uint32_t)vocabulary : ALPHABET;
    ptb_status status = path ? map_file(t, path) : PTB_OK;
    if (status != PTB_OK) {
        free(t);
        return status;
    }
    *tokens = t;
    return PTB_OK;
}

void ptb_tokens_close(ptb_tokens *t)
{
    if (!t)
        return;
    if (t->bytes)
        munmap((void *)t->data, t->bytes);
    free(t);
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
    uint64_t windows = (t->bytes - 1) / t->length;
    uint64_t pass = index / windows;
    uint64_t a = ptb_random_u64(t->seed, STREAM_ORDER, 2 * pass) % windows;
    while (common_divisor(a, windows) != 1)
        a++;
    uint64_t b = ptb_random_u64(t->seed, STREAM_ORDER, 2 * pass + 1) % windows;
    return (uint64_t)(((__uint128_t)a * (index % windows) + b) % windows);
}

// The next symbol after (before, last). Half of the time one of two successors of `last`, a quarter one
// successor of the pair, else a symbol of falling frequency: a unigram model, a bigram model and a model of
// order 2 each find less loss than the one before.
static int32_t next_symbol(const ptb_tokens *t, int32_t before, int32_t last, uint64_t bits)
{
    uint32_t choice = (uint32_t)bits & 7, n = t->symbols;
    uint64_t draw = bits >> 8;
    if (choice < 4)
        return (int32_t)(ptb_random_u64(t->seed, STREAM_TABLE, (uint64_t)last * 2 + (choice == 0)) % n);
    if (choice < 6)
        return (int32_t)(ptb_random_u64(t->seed, STREAM_TABLE, 1000 + (uint64_t)before * n + (uint64_t)last) %
                         n);
    uint64_t u = draw % n, w = (draw >> 24) % n;
    return (int32_t)(u * w / n); // small symbols are frequent
}

static void generate(const ptb_tokens *t, uint64_t index, int32_t *inputs, int32_t *targets)
{
    uint64_t first = index * (t->length + 2);
    int32_t before = (int32_t)(ptb_random_u64(t->seed, STREAM_TEXT, first) % t->symbols), last = 0;
    for (size_t i = 0; i <= t->length; i++) {
        int32_t symbol = next_symbol(t, before, last, ptb_random_u64(t->seed, STREAM_TEXT, first + 1 + i));
        before = last;
        last = symbol;
        if (i < t->length)
            inputs[i] = symbol;
        if (i > 0)
            targets[i - 1] = symbol;
    }
}

void ptb_tokens_sequence(const ptb_tokens *t, uint64_t index, int32_t *inputs, int32_t *targets)
{
    if (!t->bytes) {
        generate(t, index, inputs, targets);
        return;
    }
    const uint8_t *bytes = t->data + window(t, index) * t->length;
    for (size_t i = 0; i < t->length; i++) {
        inputs[i] = bytes[i];
        targets[i] = bytes[i + 1];
    }
}

void ptb_tokens_describe(const ptb_tokens *t, char *out, size_t out_size)
{
    if (t->bytes)
        snprintf(out, out_size, "%s (%zu bytes)", t->name, t->bytes);
    else
        snprintf(out, out_size, "generator");
}
