// The files behind a token source: found, checked, mapped; and one read over all tokens. Internal to
// strategies/tokens*.c.
#ifndef PTB_STRATEGIES_TOKENS_FILES_H
#define PTB_STRATEGIES_TOKENS_FILES_H

#include "core/status.h"

#include <stddef.h>
#include <stdint.h>

typedef struct {
    char *path;
    uint64_t bytes;      // of the file
    uint64_t first;      // number of its first token among all
    uint64_t tokens;     // at least 1
    const uint8_t *data; // its first token; NULL: not read (unread)
    void *map;           // of the whole file; NULL: copied into the arena
} ptb_token_file;

// A kind of file.
typedef struct {
    const char *name;       // "GPT-2"; NULL: bytes
    int32_t magic, version; // of its header
    unsigned width;         // bytes of a token
    int64_t delimiter;      // first token of a document; -1: a file is a document
} ptb_token_format;

typedef struct {
    const ptb_token_format *format; // of all files
    ptb_token_file *file;           /* [count], in order of the tokens */
    size_t count, capacity;
    uint64_t tokens, bytes; // of all files
    uint8_t *arena;         // small files
    size_t arena_bytes;
} ptb_token_files;

// See ptb_tokens_open. files is all zero before, and to be released also after an error.
ptb_status ptb_token_files_open(const char *path, bool unread, ptb_token_files *files);
void ptb_token_files_release(ptb_token_files *files);
// Tokens [first, first + count) as out[count]; the largest is returned.
uint32_t ptb_token_files_read(const ptb_token_files *files, uint64_t first, size_t count, int32_t *out);
// The file that token `number` is in.
const ptb_token_file *ptb_token_files_find(const ptb_token_files *files, uint64_t number);

// Sorted numbers of tokens.
typedef struct {
    uint64_t *at;
    size_t count, capacity;
} ptb_token_places;
// Reads every token once, on `threads` threads. USAGE, logged, at the first that is `vocabulary` or more.
// delimiters, unless NULL: where the format's delimiter stands, to be freed.
ptb_status ptb_token_files_scan(const ptb_token_files *files, uint64_t vocabulary, int threads,
                                ptb_token_places *delimiters);

#endif
