// Reads tokens out of mapped files: ranges for sequences, and all of them once to check them and to find
// delimiters. See tokens_files.h.
#include "core/log.h"
#include "strategies/tokens_files.h"

#include <inttypes.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

enum { BLOCK = 4096, THREADS_MAX = 64, TOKENS_A_THREAD = 1 << 20 };

const ptb_token_file *ptb_token_files_find(const ptb_token_files *files, uint64_t number)
{
    size_t low = 0, high = files->count - 1;
    while (low < high) {
        size_t middle = low + (high - low + 1) / 2;
        if (files->file[middle].first <= number)
            low = middle;
        else
            high = middle - 1;
    }
    return &files->file[low];
}

// One a width: loops that compilers vectorise. Files are little-endian, as all processors that this runs on.
#define READ(width, type)                                                                                    \
    static uint32_t read_##width(int32_t *restrict out, const uint8_t *restrict from, size_t count)          \
    {                                                                                                        \
        uint32_t largest = 0;                                                                                \
        for (size_t i = 0; i < count; i++) {                                                                 \
            type token;                                                                                      \
            memcpy(&token, from + i * sizeof token, sizeof token);                                           \
            out[i] = (int32_t)token;                                                                         \
            largest = token > largest ? token : largest;                                                     \
        }                                                                                                    \
        return largest;                                                                                      \
    }
READ(1, uint8_t)
READ(2, uint16_t)
READ(4, uint32_t)
#undef READ

uint32_t ptb_token_files_read(const ptb_token_files *files, uint64_t first, size_t count, int32_t *out)
{
    const ptb_token_file *file = ptb_token_files_find(files, first);
    unsigned width = files->format->width;
    uint32_t largest = 0;
    for (uint64_t skip = first - file->first; count; file++, skip = 0) {
        uint64_t left = file->tokens - skip;
        size_t n = count < left ? count : (size_t)left;
        const uint8_t *from = file->data + skip * width;
        uint32_t here = width == 1   ? read_1(out, from, n)
                        : width == 2 ? read_2(out, from, n)
                                     : read_4(out, from, n);
        largest = here > largest ? here : largest;
        out += n;
        count -= n;
    }
    return largest;
}

// ---- one read over all tokens

typedef struct {
    const ptb_token_files *files;
    uint64_t vocabulary, begin, end; // tokens of this thread
    int64_t delimiter;               // -1: none wanted
    ptb_token_places delimiters;
    uint64_t bad; // the first that is not in the vocabulary; UINT64_MAX: none
    bool out_of_memory;
    pthread_t thread;
} scan;

static bool add_place(ptb_token_places *places, uint64_t at)
{
    if (places->count == places->capacity) {
        size_t capacity = places->capacity ? 2 * places->capacity : 256;
        uint64_t *more = realloc(places->at, capacity * sizeof *more);
        if (!more)
            return false;
        places->at = more;
        places->capacity = capacity;
    }
    places->at[places->count++] = at;
    return true;
}

static bool scan_delimiters(scan *s, uint64_t at, const int32_t *block, size_t count)
{
    size_t found = 0;
    for (size_t i = 0; i < count; i++)
        found += block[i] == s->delimiter;
    for (size_t i = 0; found && i < count; i++) {
        if (block[i] != s->delimiter)
            continue;
        found--;
        if (!add_place(&s->delimiters, at + i))
            return false;
    }
    return true;
}

static void *run(void *arg)
{
    scan *s = arg;
    int32_t block[BLOCK];
    for (uint64_t at = s->begin; at < s->end; at += BLOCK) {
        size_t count = s->end - at < BLOCK ? (size_t)(s->end - at) : BLOCK;
        if (ptb_token_files_read(s->files, at, count, block) >= s->vocabulary) {
            size_t i = 0;
            while ((uint32_t)block[i] < s->vocabulary)
                i++;
            s->bad = at + i;
            return NULL;
        }
        if (s->delimiter >= 0 && !scan_delimiters(s, at, block, count)) {
            s->out_of_memory = true;
            return NULL;
        }
    }
    return NULL;
}

// The caller's thread takes the first part, and those for which no thread could be started.
static void run_all(scan *scans, size_t threads)
{
    sigset_t all, before;
    bool started[THREADS_MAX] = {false};
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    for (size_t i = 1; i < threads; i++)
        started[i] = pthread_create(&scans[i].thread, NULL, run, &scans[i]) == 0;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    for (size_t i = 0; i < threads; i++)
        if (!started[i])
            run(&scans[i]);
    for (size_t i = 1; i < threads; i++)
        if (started[i])
            pthread_join(scans[i].thread, NULL);
}

static ptb_status refuse(const ptb_token_files *files, uint64_t number, uint64_t vocabulary)
{
    int32_t token;
    uint32_t value = ptb_token_files_read(files, number, 1, &token);
    const ptb_token_file *file = ptb_token_files_find(files, number);
    ptb_error("--data: token number %" PRIu64 " of '%s' is %" PRIu32 ", and --vocab is %" PRIu64
              ": tokens must be less. Give --vocab %" PRIu32 " or more (%s), or other data",
              number - file->first, file->path, value, vocabulary, value + 1,
              files->format->delimiter == 50256    ? "GPT-2 has 50257"
              : files->format->delimiter == 128000 ? "Llama 3 has 128256"
                                                   : "bytes need at most 256");
    return PTB_USAGE;
}

static ptb_status join(scan *scans, size_t threads, ptb_token_places *places)
{
    size_t count = 0;
    for (size_t i = 0; i < threads; i++)
        count += scans[i].delimiters.count;
    uint64_t *at = malloc((count ? count : 1) * sizeof *at);
    if (!at)
        return PTB_NO_MEMORY;
    *places = (ptb_token_places){.at = at, .capacity = count};
    for (size_t i = 0; i < threads; i++) {
        const ptb_token_places *part = &scans[i].delimiters;
        if (part->count)
            memcpy(at + places->count, part->at, part->count * sizeof *at);
        places->count += part->count;
    }
    return PTB_OK;
}

ptb_status ptb_token_files_scan(const ptb_token_files *files, uint64_t vocabulary, int threads,
                                ptb_token_places *delimiters)
{
    scan scans[THREADS_MAX];
    uint64_t most = files->tokens / TOKENS_A_THREAD + 1;
    size_t n = threads < THREADS_MAX ? (size_t)threads : THREADS_MAX;
    n = n < most ? n : (size_t)most;
    for (size_t i = 0; i < n; i++)
        scans[i] = (scan){.files = files,
                          .vocabulary = vocabulary,
                          .begin = files->tokens / n * i,
                          .end = i + 1 == n ? files->tokens : files->tokens / n * (i + 1),
                          .delimiter = delimiters ? files->format->delimiter : -1,
                          .bad = UINT64_MAX};
    run_all(scans, n);
    ptb_status status = PTB_OK;
    for (size_t i = 0; i < n && status == PTB_OK; i++) {
        if (scans[i].bad != UINT64_MAX)
            status = refuse(files, scans[i].bad, vocabulary);
        else if (scans[i].out_of_memory)
            status = PTB_NO_MEMORY;
    }
    if (status == PTB_OK && delimiters)
        status = join(scans, n, delimiters);
    for (size_t i = 0; i < n; i++)
        free(scans[i].delimiters.at);
    if (status == PTB_NO_MEMORY)
        ptb_error("no memory for the places of the documents in %" PRIu64 " tokens", files->tokens);
    return status;
}
