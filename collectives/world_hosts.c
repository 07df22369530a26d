// What all worlds share: numbering hosts.
#include "collectives/world.h"

#include "core/log.h"

#include <stdlib.h>

ptb_status ptb_world_set_hosts(ptb_world *world, const int *key)
{
    int *host_of = malloc((size_t)world->size * sizeof *host_of);
    int *first = malloc((size_t)world->size * sizeof *first); // first rank of each host
    if (!host_of || !first) {
        ptb_error("no memory for the list of hosts of %d ranks", world->size);
        free(host_of);
        free(first);
        return PTB_NO_MEMORY;
    }
    int hosts = 0;
    world->local_rank = world->local_size = 0;
    for (int r = 0; r < world->size; r++) {
        int h = 0;
        while (h < hosts && key[first[h]] != key[r])
            h++;
        if (h == hosts)
            first[hosts++] = r;
        host_of[r] = h;
        if (key[r] == key[world->rank]) {
            world->local_size++;
            world->local_rank += r < world->rank;
        }
    }
    world->host = host_of[world->rank];
    world->hosts = hosts;
    world->host_of = host_of;
    free(first);
    return PTB_OK;
}
