// What all worlds share: numbering hosts, and how many processors there are to run on.
#include "collectives/world.h"

#include "core/log.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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

// One line of a file; false when it cannot be read.
static bool read_line(const char *path, char *line, size_t size)
{
    FILE *file = fopen(path, "re");
    if (!file)
        return false;
    bool got = fgets(line, (int)size, file) != NULL;
    fclose(file);
    return got;
}

int ptb_world_cgroup_cpus(void)
{
    char line[128];
    long long quota = -1, period = 0;
    // Version 2: "max 100000" or "150000 100000". Inside a container the own group is the root.
    if (read_line("/sys/fs/cgroup/cpu.max", line, sizeof line)) {
        if (sscanf(line, "%lld %lld", &quota, &period) != 2)
            return 0;
    } else if (!read_line("/sys/fs/cgroup/cpu/cpu.cfs_quota_us", line, sizeof line) ||
               sscanf(line, "%lld", &quota) != 1 ||
               !read_line("/sys/fs/cgroup/cpu/cpu.cfs_period_us", line, sizeof line) ||
               sscanf(line, "%lld", &period) != 1) {
        return 0;
    }
    return quota > 0 && period > 0 ? (int)((quota + period - 1) / period) : 0;
}
