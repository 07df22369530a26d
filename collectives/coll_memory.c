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
#include <sys/resource.h>

enum {
    ROUNDS = 8,
    KERNELS = 3,            // memcpy, lines, and lines past the caches
    LARGE_BYTES = 64 << 20, // of which fewer rounds are enough
    LARGE_ROUNDS = 4,
    ROUND_BYTES = 8 << 20, // copied in a round at least, so that starting together does not count
    LEAST_BYTES = 64 << 10,
};

typedef unsigned char line __attribute__((vector_size(64), aligned(1), may_alias));

// As sums are written: by stores of whole vectors, where memcpy may take an instruction of its own.
static void copy_lines(char *to, const char *from, size_t bytes)
{
    size_t at = 0;
    for (; at + sizeof(line) <= bytes; at += sizeof(line)) {
        *(line *)(void *)(to + at) = *(const line *)(const void *)(from + at);
        __asm__ volatile("" ::: "memory"); // the compiler would make memcpy of the loop
    }
    memcpy(to + at, from + at, bytes - at);
}

static void copy(char *to, const char *from, size_t bytes, int kernel)
{
    if (kernel == 0)
        memcpy(to, from, bytes);
    else if (kernel == 1)
        copy_lines(to, from, bytes);
    else
        ptb_copy_streaming(to, from, bytes);
    __asm__ volatile("" ::"r"(to) : "memory"); // each copy is made, though the next one makes it again
}

// How often something else has taken the core from this thread.
static long preemptions(void)
{
    struct rusage usage;
    return getrusage(RUSAGE_THREAD, &usage) == 0 ? usage.ru_nivcsw : 0;
}

// Of each round how long the slowest rank copied; INFINITY where one lost its core meanwhile, which would
// make the bound too low. That all begin within a few microseconds is left out: it makes it too high, by
// little.
static ptb_status copy_rounds(ptb_bench_run *run, size_t bytes, size_t copies, int rounds,
                              double took_ns[ROUNDS * KERNELS])
{
    ptb_world *world = run->env->world;
    for (int r = 0; r < rounds * KERNELS; r++) {
        if (copies > 1) // into the caches, where the round before may have written past them
            copy(run->recv, run->send, bytes, r % KERNELS);
        long before = preemptions();
        PTB_TRY(ptb_world_start(world));
        int64_t begin_ns = ptb_clock_ns();
        for (size_t i = 0; i < copies; i++)
            copy(run->recv, run->send, bytes, r % KERNELS);
        took_ns[r] = (double)(ptb_clock_ns() - begin_ns);
        if (preemptions() != before)
            took_ns[r] = INFINITY;
    }
    return ptb_world_reduce_max(world, took_ns, (size_t)(rounds * KERNELS));
}

ptb_status ptb_coll_copy_rate(ptb_bench_run *run, size_t bytes, double *gb_s)
{
    double took_ns[ROUNDS * KERNELS], best_ns = INFINITY;
    size_t copies = bytes < ROUND_BYTES ? ROUND_BYTES / bytes : 1;
    int rounds = bytes < LARGE_BYTES ? ROUNDS : LARGE_ROUNDS;
    PTB_TRY(copy_rounds(run, bytes, copies, rounds, took_ns));
    for (int r = 0; r < rounds * KERNELS; r++)
        best_ns = fmin(best_ns, took_ns[r]);
    *gb_s = (double)bytes * (double)copies / best_ns; // 0 where no round was undisturbed
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
