// Keys of cases that need not be measured any more.
#ifndef PTB_BENCH_KEYS_H
#define PTB_BENCH_KEYS_H

#include "core/status.h"

#include <stdbool.h>
#include <stddef.h>

typedef struct {
    char **items;
    size_t count, room;
} ptb_keys;

bool ptb_keys_have(const ptb_keys *keys, const char *key);
ptb_status ptb_keys_add(ptb_keys *keys, const char *key);
// Forgets all but the first `count`.
void ptb_keys_cut(ptb_keys *keys, size_t count);
void ptb_keys_release(ptb_keys *keys);

#endif
