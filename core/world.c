// What every world can do on top of its primitives.
#include "core/world.h"

#include "core/log.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

int ptb_world_local_rank(const ptb_world *world, int rank)
{
    int local = 0;
    for (int r = 0; r < rank; r++)
        local += world->host_of[r] == world->host_of[rank];
    return local;
}

ptb_status ptb_world_agree(ptb_world *world, ptb_status mine)
{
    double worst = (double)mine;
    if (mine == PTB_LOST)
        return mine;
    ptb_status status = ptb_world_reduce_max(world, &worst, 1);
    return status != PTB_OK ? status : (ptb_status)worst;
}

ptb_status ptb_world_calloc(ptb_world *world, size_t bytes, const char *what, void **memory)
{
    void *mine = calloc(1, bytes);
    ptb_status status = ptb_world_agree(world, mine ? PTB_OK : PTB_NO_MEMORY);
    if (status == PTB_NO_MEMORY)
        ptb_error("no memory for the state of %s", what);
    if (status != PTB_OK) {
        free(mine);
        return status;
    }
    *memory = mine;
    return PTB_OK;
}

void ptb_world_free_strings(char **strings, int count)
{
    for (int i = 0; strings && i < count; i++)
        free(strings[i]);
    free(strings);
}

// Cuts the gathered blocks of `stride` bytes, each NUL-terminated, into heap strings. NULL when memory runs
// out.
static char **copy_blocks(const char *blocks, size_t stride, int count)
{
    char **strings = calloc((size_t)count, sizeof *strings);
    for (int i = 0; strings && i < count; i++) {
        strings[i] = strdup(blocks + (size_t)i * stride);
        if (!strings[i]) {
            ptb_world_free_strings(strings, count);
            return NULL;
        }
    }
    return strings;
}

ptb_status ptb_world_gather_strings(ptb_world *world, int root, const char *mine, char ***out)
{
    double longest = (double)strlen(mine) + 1;
    PTB_TRY(ptb_world_reduce_max(world, &longest, 1));
    size_t stride = (size_t)longest;
    bool is_root = world->rank == root;
    char *padded = calloc(1, stride);
    char *blocks = is_root ? malloc(stride * (size_t)world->size) : NULL;
    char **strings = NULL;
    ptb_status status = padded && (blocks || !is_root) ? PTB_OK : PTB_NO_MEMORY;
    status = ptb_world_agree(world, status);
    if (status != PTB_OK)
        goto done;
    memcpy(padded, mine, strlen(mine));
    status = ptb_world_gather(world, root, padded, stride, blocks);
    if (status == PTB_OK && is_root && !(strings = copy_blocks(blocks, stride, world->size)))
        status = PTB_NO_MEMORY;
    if (status == PTB_OK)
        *out = strings;
done:
    if (status == PTB_NO_MEMORY)
        ptb_error("no memory to gather %zu bytes from each of %d ranks", stride, world->size);
    free(blocks);
    free(padded);
    return status;
}
