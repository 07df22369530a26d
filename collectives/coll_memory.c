// The bound on collectives through the memory of one host that no algorithm passes: each rank's input is read
// once and each rank's output written once. Where both are of the same size on all ranks, that is what all
// ranks do that copy their input to their output at once, each by its own core; how fast that goes is
// measured in the buffers of the case itself, so with the pages and caches that the collective has.
//
// Not counted: what cores read that other cores have written (intermediate results, flags), further passes,
// and that lines come from the caches of others; so a collective may be slower by any factor.
#include "collectives/algorithm.h"
#include "collectives/coll_run.h"
#include "core/clock.h"

#include <math.h>
#include <string.h>

enum {
    ROUNDS = 5,
    KERNELS = 2,            // memcpy, and stores past the caches
    LARGE_BYTES = 16 << 20, // of which fewer rounds are enough
    LARGE_ROUNDS = 3,
    ROUND_BYTES = 4 << 20, // copied in a round at least, so that starting together does not count
    LEAST_BYTES = 64 << 10,
};

static void copy(char *to, const char *from, size_t bytes, int kernel)
{
    if (kernel == 0)
        memcpy(to, from, bytes);
    else
        ptb_copy_streaming(to, from, bytes);
    __asm__ volatile("" ::"r"(to) : "memory"); // each copy is made, though the next one makes it again
}

// When this rank began and ended a round; of all ranks the first beginning and the last end are wanted, and a
// maximum is what ranks agree on, so that the beginning is negative. One host has one clock.
typedef struct {
    double end_ns, minus_begin_ns;
} round_times;

static ptb_status copy_rounds(ptb_bench_run *run, size_t bytes, size_t copies, int rounds,
                              round_times times[ROUNDS * KERNELS])
{
    ptb_world *world = run->env->world;
    for (int r = 0; r < rounds * KERNELS; r++) {
        PTB_TRY(ptb_world_start(world));
        int64_t begin_ns = ptb_clock_ns();
        for (size_t i = 0; i < copies; i++)
            copy(run->recv, run->send, bytes, r % KERNELS);
        times[r].end_ns = (double)ptb_clock_ns();
        times[r].minus_begin_ns = -(double)begin_ns;
    }
    return ptb_world_reduce_max(world, &times[0].end_ns, (size_t)(2 * rounds * KERNELS));
}

ptb_status ptb_coll_copy_rate(ptb_bench_run *run, size_t bytes, double *gb_s)
{
    round_times times[ROUNDS * KERNELS];
    size_t copies = bytes < ROUND_BYTES ? ROUND_BYTES / bytes : 1;
    int rounds = bytes < LARGE_BYTES ? ROUNDS : LARGE_ROUNDS;
    double best_ns = INFINITY;
    PTB_TRY(copy_rounds(run, bytes, copies, rounds, times));
    for (int r = 0; r < rounds * KERNELS; r++)
        best_ns = fmin(best_ns, times[r].end_ns + times[r].minus_begin_ns);
    *gb_s = (double)bytes * (double)copies / best_ns;
    return PTB_OK;
}

const char *ptb_coll_why_no_copy_rate(const ptb_bench_run *run, size_t bytes)
{
    ptb_coll_kind kind = run->call.kind;
    const ptb_world *world = run->env->world;
    if (ptb_coll_is_p2p(run->subject) || (kind != PTB_ALL_REDUCE && kind != PTB_ALL_TO_ALL))
        return "not all ranks read and write as much, and only copies are measured";
    if (run->point->in_place)
        return "in place it is read and written in the same lines, and only copies are measured";
    if (bytes < LEAST_BYTES)
        return "below 64 KiB starting takes longer than moving";
    if (world->hosts > 1)
        return "copies on several hosts are not measured";
    if (world->oversubscribed)
        return "copies by more ranks than cores are not measured";
    for (int r = 0; r < world->size; r++)
        if (run->plan.group_size[r] != run->group->size)
            return "copies by groups of different sizes are not measured";
    return NULL;
}
