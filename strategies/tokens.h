// Training data as tokens. Byte-level: a token is a byte of a file, or a symbol of a built-in generator whose
// text has structure to learn. Sequence number i is the same tokens for any number of ranks and any order of
// asking; a step's global batch is sequences [step * batch, (step + 1) * batch), of which rank r takes its
// part.
#ifndef PTB_STRATEGIES_TOKENS_H
#define PTB_STRATEGIES_TOKENS_H

#include "core/status.h"

#include <stddef.h>
#include <stdint.h>

typedef struct ptb_tokens ptb_tokens;

// path NULL: the generator. A file is memory-mapped and read in windows of `length` tokens that do not
// overlap but for the last target, in an order that changes every pass. USAGE, logged, when the file cannot
// be read, is shorter than one sequence and its last target (length + 1 bytes), or when the vocabulary is
// smaller than a byte needs (256).
ptb_status ptb_tokens_open(const char *path, uint64_t seed, int64_t length, int64_t vocabulary,
                           ptb_tokens **tokens);
void ptb_tokens_close(ptb_tokens *tokens);
// Sequence `index`: inputs[length], and targets[length] which are the inputs shifted by one.
void ptb_tokens_sequence(const ptb_tokens *tokens, uint64_t index, int32_t *inputs, int32_t *targets);
// "generator", or "NAME (BYTES bytes)" of the file.
void ptb_tokens_describe(const ptb_tokens *tokens, char *out, size_t out_size);

#endif
