// Training data as tokens, from one of
//   - the built-in generator: symbols whose text has structure to learn;
//   - bytes: any file, a folder (all regular files below it, each folder in order of names, symbolic links
//     followed) or a pattern such as 'text/*.txt'; a token is a byte;
//   - token files as llm.c writes them (github.com/karpathy/llm.c, dev/data/data_common.py): 256 int32 of
//     header (magic, version, tokens), then the tokens: 20240520, 1 and uint16 (GPT-2), or 20240801, 7 and
//     uint32 (Llama 3). A file is one when it is named *.bin or begins with such a magic; one file, a folder
//     or a pattern of shards.
// The tokens of all files stand one after the other, and a sequence is a window of `length` tokens and the
// target after it; windows do not overlap but for that target, and tokens past the last whole window are not
// used. Sequence number i is the same for any number of ranks and any order of asking: pass i / windows
// visits every window once, in an order of its own. A step's global batch is sequences [step * batch, (step +
// 1) * batch), of which each rank takes its part.
//
// Packing says where documents begin, so that attention need not look across: byte files are a document each;
// in token files a document begins with the delimiter, 50256 (GPT-2) or 128000 (Llama 3), whatever shard it
// stands in; the generator draws documents of a quarter of a sequence on average. Windows are the same with
// and without packing.
#ifndef PTB_STRATEGIES_TOKENS_H
#define PTB_STRATEGIES_TOKENS_H

#include "core/status.h"

#include <stddef.h>
#include <stdint.h>

typedef struct ptb_tokens ptb_tokens;

typedef struct {
    const char *path; // file, folder or pattern; NULL: the generator
    uint64_t seed;
    int64_t length; // tokens of a sequence
    int64_t vocabulary;
    bool pack;
    bool unread; // only names, sizes and headers are looked at: no token is read, and sequences may not be
                 // asked for
} ptb_tokens_config;

// Files are mapped into memory (those under 32 KiB are copied) and must not shrink while they are used. Where
// a token could exceed the vocabulary, or packing needs delimiters, every token is read once, on all
// processors that this thread may use: the time it takes to read the files. USAGE, logged, with the file and
// what was wanted: nothing there, not readable, no tokens, a bad header, a count that does not match the
// size, formats that do not mix, fewer tokens than one sequence and its target, a token that is not in the
// vocabulary (with its place). Folders that link back to one they are in, and empty files, are left out with
// a warning.
ptb_status ptb_tokens_open(const ptb_tokens_config *config, ptb_tokens **tokens);
void ptb_tokens_close(ptb_tokens *tokens);

// Sequence `index`. inputs: [length]; targets: [length], the inputs shifted by one, with packing -1 where the
// next token is of another document; start: [length], position in the sequence at which the token's document
// begins, 0 when it began before (ptb_attention_shape.query_start); NULL: not wanted. Thread-safe. SYSTEM,
// logged, when the files have changed since they were checked.
ptb_status ptb_tokens_sequence(const ptb_tokens *tokens, uint64_t index, int32_t *inputs, int32_t *targets,
                               int32_t *start);
// Targets of sequences [first, first + count) that are not -1: over the global batch, what its loss is the
// mean of. No token is read; costs two searches among the documents a sequence.
uint64_t ptb_tokens_counted(const ptb_tokens *tokens, uint64_t first, uint64_t count);
// Sequences of a pass; UINT64_MAX: the generator, which never repeats.
uint64_t ptb_tokens_windows(const ptb_tokens *tokens);
// "generator", "NAME (BYTES bytes)", "NAME (FILES files, BYTES bytes)", "NAME (TOKENS GPT-2 tokens)" or "NAME
// (SHARDS shards, TOKENS GPT-2 tokens)".
void ptb_tokens_describe(const ptb_tokens *tokens, char *out, size_t out_size);

#endif
