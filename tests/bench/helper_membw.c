// What two cores can move at most: each of two pinned threads copies S bytes, 4 S in all (read + written),
// with the libc's memcpy and with non-temporal stores; the faster counts. Prints one line "S GB/s" for each
// size given.
#include "collectives/algorithm.h"
#include "core/clock.h"
#include "core/device.h"
#include "core/stats.h"
#include "core/text.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { THREADS = 2, ROUNDS = 15 };

typedef struct {
    int core;
    size_t bytes, repeats;
    void *from, *to;
    atomic_int *arrived;
    double seconds[2][ROUNDS]; // [kernel][round]
} worker;

// All threads leave together; `turn` counts the meetings.
static void meet(atomic_int *arrived, int turn)
{
    atomic_fetch_add(arrived, 1);
    while (atomic_load(arrived) < turn * THREADS)
        ;
}

static void *work(void *arg)
{
    worker *w = arg;
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(w->core, &set);
    sched_setaffinity(0, sizeof set, &set);
    int turn = 0;
    for (int round = 0; round < ROUNDS; round++)
        for (int kernel = 0; kernel < 2; kernel++) {
            meet(w->arrived, ++turn);
            int64_t begin = ptb_clock_ns();
            for (size_t i = 0; i < w->repeats; i++) {
                if (kernel == 0)
                    memcpy(w->to, w->from, w->bytes);
                else
                    ptb_copy_streaming(w->to, w->from, w->bytes);
                __asm__ volatile("" ::"r"(w->to) : "memory");
            }
            w->seconds[kernel][round] = (double)(ptb_clock_ns() - begin) * 1e-9 / (double)w->repeats;
        }
    return NULL;
}

static double best_rate(size_t bytes)
{
    static worker workers[THREADS];
    pthread_t threads[THREADS];
    atomic_int arrived = 0;
    for (int t = 0; t < THREADS; t++) {
        worker *w = &workers[t];
        *w = (worker){
            .core = t, .bytes = bytes, .repeats = 1 + ((size_t)32 << 20) / bytes, .arrived = &arrived};
        if (ptb_memory_map(bytes, &w->from) != PTB_OK || ptb_memory_map(bytes, &w->to) != PTB_OK)
            exit(3);
        if (pthread_create(&threads[t], NULL, work, w))
            exit(3);
    }
    double best = 0;
    for (int t = 0; t < THREADS; t++)
        pthread_join(threads[t], NULL);
    for (int kernel = 0; kernel < 2; kernel++) {
        double slower[ROUNDS];
        for (int round = 0; round < ROUNDS; round++) {
            double a = workers[0].seconds[kernel][round], b = workers[1].seconds[kernel][round];
            slower[round] = a > b ? a : b;
        }
        double rate = 4 * (double)bytes / ptb_stats_summarise(slower, ROUNDS).median * 1e-9;
        best = rate > best ? rate : best;
    }
    for (int t = 0; t < THREADS; t++) {
        ptb_memory_unmap(workers[t].from, bytes);
        ptb_memory_unmap(workers[t].to, bytes);
    }
    return best;
}

int main(int argc, char **argv)
{
    for (int i = 1; i < argc; i++) {
        uint64_t bytes;
        if (!ptb_text_parse_size(argv[i], &bytes) || bytes == 0) {
            fprintf(stderr, "'%s' is not a size such as 64K\n", argv[i]);
            return 2;
        }
        printf("%llu %.2f\n", (unsigned long long)bytes, best_rate(bytes));
    }
    return 0;
}
