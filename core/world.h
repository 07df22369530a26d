// The world: which ranks take part, and the untimed control traffic between them (agreeing on cases,
// gathering samples). Implementations: collectives/world_mpi.c (processes under a launcher),
// collectives/world_local.c (threads of one process, for tests). All functions are collective over the world
// unless said otherwise and are called from the thread that opened it.
#ifndef PTB_CORE_WORLD_H
#define PTB_CORE_WORLD_H

#include "core/status.h"

#include <stddef.h>

typedef struct ptb_world ptb_world;

typedef struct {
    const char *name;
    // All ranks leave after the last has entered. With sleep, waits without using the processor (for ranks
    // with nothing to do).
    ptb_status (*barrier)(ptb_world *world, bool sleep);
    // A barrier with the smallest possible exit skew, used right before a timed iteration.
    ptb_status (*start)(ptb_world *world);
    ptb_status (*broadcast)(ptb_world *world, int root, void *data, size_t bytes);
    // Every rank sends `bytes`; rank r's block lands at recv + r * bytes on root only (recv may be NULL
    // elsewhere).
    ptb_status (*gather)(ptb_world *world, int root, const void *send, size_t bytes, void *recv);
    ptb_status (*all_gather)(ptb_world *world, const void *send, size_t bytes, void *recv);
    // values[i] = maximum over ranks, on all ranks.
    ptb_status (*reduce_max)(ptb_world *world, double *values, size_t count);
    // Ranks with the same colour >= 0 form a new world, ordered by key, then rank. Colour < 0: *out = NULL.
    ptb_status (*split)(ptb_world *world, int colour, int key, ptb_world **out);
    // Not collective: ends all ranks of the job at once. Does not return.
    void (*abort)(ptb_world *world, int exit_code);
    void (*close)(ptb_world *world);
} ptb_world_ops;

// First member of each implementation's struct.
struct ptb_world {
    const ptb_world_ops *ops;
    int rank, size;
    int host;       // index of this rank's host, 0-based in order of first rank
    int hosts;      // number of hosts
    int local_rank; // rank among the ranks on this host
    int local_size;
    const int *host_of; // [size], host index of each rank
    struct ptb_roll
        *roll;            // of all ranks of the job (core/roll.h); NULL: nothing is known of how far they are
    const int *roll_rank; // [size], number of each rank in the roll; NULL without a roll
    bool oversubscribed;  // more ranks on this host than cores this job may use: waiting must yield
    // Where ranks have the fewest processors, on whichever host: so many of them share so many.
    int sharing_ranks, shared_cpus;
};

static inline ptb_status ptb_world_barrier(ptb_world *w)
{
    return w->ops->barrier(w, false);
}
static inline ptb_status ptb_world_sleep(ptb_world *w)
{
    return w->ops->barrier(w, true);
}
static inline ptb_status ptb_world_start(ptb_world *w)
{
    return w->ops->start(w);
}
static inline ptb_status ptb_world_broadcast(ptb_world *w, int root, void *data, size_t bytes)
{
    return w->ops->broadcast(w, root, data, bytes);
}
static inline ptb_status ptb_world_gather(ptb_world *w, int root, const void *send, size_t bytes, void *recv)
{
    return w->ops->gather(w, root, send, bytes, recv);
}
static inline ptb_status ptb_world_all_gather(ptb_world *w, const void *send, size_t bytes, void *recv)
{
    return w->ops->all_gather(w, send, bytes, recv);
}
static inline ptb_status ptb_world_reduce_max(ptb_world *w, double *values, size_t count)
{
    return w->ops->reduce_max(w, values, count);
}
static inline ptb_status ptb_world_split(ptb_world *w, int colour, int key, ptb_world **out)
{
    return w->ops->split(w, colour, key, out);
}
static inline void ptb_world_abort(ptb_world *w, int exit_code)
{
    w->ops->abort(w, exit_code);
}
static inline void ptb_world_close(ptb_world *w)
{
    if (w)
        w->ops->close(w);
}

// Not collective: a rank's number among the ranks on its host.
int ptb_world_local_rank(const ptb_world *world, int rank);
// Agrees on a status: every rank returns the worst of all ranks' (largest enum value that is not OK), so that
// all leave a case together. LOST is not agreed on and comes back at once: others may wait for this rank in
// work that now never ends, so whoever leads it ends the job (ptb_world_abort). core/world.c.
ptb_status ptb_world_agree(ptb_world *world, ptb_status mine);
// Zeroed memory for the state of `what` on all ranks, or on none: NO_MEMORY, logged. Collective.
ptb_status ptb_world_calloc(ptb_world *world, size_t bytes, const char *what, void **memory);
// Gathers one string of any length from each rank; on root *out is a heap array of `size` heap strings,
// elsewhere NULL.
ptb_status ptb_world_gather_strings(ptb_world *world, int root, const char *mine, char ***out);
void ptb_world_free_strings(char **strings, int count);

#endif
