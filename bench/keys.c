// A growing list of keys, in order of addition.
#include "bench/keys.h"

#include <stdlib.h>
#include <string.h>

bool ptb_keys_have(const ptb_keys *keys, const char *key)
{
    for (size_t i = 0; i < keys->count; i++)
        if (strcmp(keys->items[i], key) == 0)
            return true;
    return false;
}

ptb_status ptb_keys_add(ptb_keys *keys, const char *key)
{
    if (keys->count == keys->room) {
        size_t room = keys->room ? 2 * keys->room : 256;
        char **larger = realloc(keys->items, room * sizeof *larger);
        if (!larger)
            return PTB_NO_MEMORY;
        keys->items = larger;
        keys->room = room;
    }
    keys->items[keys->count] = strdup(key);
    return keys->items[keys->count++] ? PTB_OK : PTB_NO_MEMORY;
}

void ptb_keys_cut(ptb_keys *keys, size_t count)
{
    while (keys->count > count)
        free(keys->items[--keys->count]);
}

void ptb_keys_release(ptb_keys *keys)
{
    ptb_keys_cut(keys, 0);
    free(keys->items);
    *keys = (ptb_keys){.items = NULL};
}
