// Checks of every operation of a world, for any implementation: run by unit/test_world_local.c on threads and
// by mpi/helper_world.c on processes. Each returns OK, or WRONG after naming the line.
#ifndef PTB_TESTS_WORLD_CHECKS_H
#define PTB_TESTS_WORLD_CHECKS_H

#include "core/log.h"
#include "core/world.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define WORLD_CHECK(condition)                                                                               \
    do {                                                                                                     \
        if (!(condition)) {                                                                                  \
            ptb_error("rank %d of %d: line %d: %s", w->rank, w->size, __LINE__, #condition);                 \
            return PTB_WRONG;                                                                                \
        }                                                                                                    \
    } while (0)

static inline ptb_status world_check_data(ptb_world *w)
{
    int n = w->size, root = n - 1;
    int *all = malloc((size_t)n * 3 * sizeof *all);
    for (size_t bytes = 0; bytes <= 12; bytes += 4) {
        int mine[3] = {100 * w->rank, 100 * w->rank + 1, 100 * w->rank + 2};
        memset(all, 0xff, (size_t)n * 12);
        PTB_TRY(ptb_world_all_gather(w, mine, bytes, all));
        for (int r = 0; r < n; r++)
            for (int i = 0; i < (int)bytes / 4; i++)
                WORLD_CHECK(all[r * (int)bytes / 4 + i] == 100 * r + i);
        memset(all, 0xff, (size_t)n * 12);
        PTB_TRY(ptb_world_gather(w, root, mine, bytes, w->rank == root ? all : NULL));
        for (int r = 0; r < n && w->rank == root; r++)
            for (int i = 0; i < (int)bytes / 4; i++)
                WORLD_CHECK(all[r * (int)bytes / 4 + i] == 100 * r + i);
        PTB_TRY(ptb_world_broadcast(w, root, mine, bytes));
        for (int i = 0; i < 3; i++)
            WORLD_CHECK(mine[i] == 100 * (i < (int)bytes / 4 ? root : w->rank) + i);
    }
    double values[3] = {w->rank, -w->rank, 7};
    PTB_TRY(ptb_world_reduce_max(w, values, 3));
    WORLD_CHECK(values[0] == n - 1 && values[1] == 0 && values[2] == 7);
    PTB_TRY(ptb_world_reduce_max(w, values, 0));
    free(all);
    return PTB_OK;
}

static inline ptb_status world_check_hosts(ptb_world *w)
{
    int local = 0, local_rank = 0, hosts = 0;
    for (int r = 0; r < w->size; r++) {
        WORLD_CHECK(w->host_of[r] <= hosts); // numbered in order of first rank
        hosts += w->host_of[r] == hosts;
        local += w->host_of[r] == w->host;
        local_rank += w->host_of[r] == w->host && r < w->rank;
    }
    WORLD_CHECK(w->host_of[w->rank] == w->host);
    WORLD_CHECK(hosts == w->hosts && local == w->local_size && local_rank == w->local_rank);
    return PTB_OK;
}

static inline ptb_status world_check_agree(ptb_world *w)
{
    for (int r = 0; r < w->size; r++) {
        ptb_status status = PTB_INTERNAL;
        status = ptb_world_agree(w, w->rank == r ? PTB_SKIPPED : PTB_OK);
        WORLD_CHECK(status == PTB_SKIPPED);
    }
    WORLD_CHECK(ptb_world_agree(w, PTB_OK) == PTB_OK);
    char mine[64];
    char **strings = NULL;
    snprintf(mine, sizeof mine, "%.*s", w->rank, "a string for each rank");
    PTB_TRY(ptb_world_gather_strings(w, 0, mine, &strings));
    WORLD_CHECK((strings != NULL) == (w->rank == 0));
    for (int r = 0; strings && r < w->size; r++)
        WORLD_CHECK((int)strlen(strings[r]) == r);
    ptb_world_free_strings(strings, w->size);
    return PTB_OK;
}

// No rank may leave before the last has entered.
static inline ptb_status world_check_barriers(ptb_world *w, int rounds)
{
    for (int i = 0; i < rounds; i++) {
        PTB_TRY(ptb_world_start(w));
        if (i % 16 == 0)
            PTB_TRY(ptb_world_barrier(w));
        if (i % 64 == 0)
            PTB_TRY(ptb_world_sleep(w));
    }
    return PTB_OK;
}

static inline ptb_status world_check_all(ptb_world *w, int rounds, int depth)
{
    PTB_TRY(world_check_hosts(w));
    PTB_TRY(world_check_data(w));
    PTB_TRY(world_check_agree(w));
    PTB_TRY(world_check_barriers(w, rounds));
    if (depth == 0)
        return PTB_OK;
    // Reversed order, odd and even ranks apart; then all but rank 0, in rank order.
    ptb_world *part = NULL;
    PTB_TRY(ptb_world_split(w, w->rank % 2, -w->rank, &part));
    WORLD_CHECK(part && part->size == (w->size + 1 - w->rank % 2) / 2);
    WORLD_CHECK(part->rank == part->size - 1 - w->rank / 2);
    PTB_TRY(world_check_all(part, rounds, depth - 1));
    ptb_world_close(part);
    PTB_TRY(ptb_world_split(w, w->rank == 0 ? -1 : 5, 0, &part));
    WORLD_CHECK((part == NULL) == (w->rank == 0));
    if (part) {
        WORLD_CHECK(part->size == w->size - 1 && part->rank == w->rank - 1);
        PTB_TRY(world_check_all(part, rounds, depth - 1));
    }
    ptb_world_close(part);
    return world_check_data(w);
}

#endif
