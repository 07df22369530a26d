// Batches filled ahead by a thread; see prefetch.h. filled, taken and released only grow; batch number n lies
// in slot n % depth of the ring, and the thread fills while filled - released < depth.
#include "strategies/prefetch.h"

#include "core/clock.h"
#include "core/log.h"

#include <inttypes.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

struct ptb_prefetch {
    ptb_prefetch_config config;
    pthread_t thread;
    pthread_mutex_t mutex;
    pthread_cond_t is_filled, is_released;
    // Under the mutex.
    uint64_t filled, taken, released;
    ptb_status status; // of the fill that ended the thread
    bool stop;
    // Each written by the thread before it counts in `filled`.
    ptb_prefetch_batch slot[PTB_PREFETCH_MAX];
    int32_t *memory;   /* [depth, 2 or 3, mine * length] */
    int32_t *sequence; /* [3, length of a whole one]: a sequence before it is cut; NULL: they are not */
};

static size_t tokens_of(const ptb_prefetch_config *c)
{
    return c->mine * (c->slices.pieces ? c->slices.pieces * c->slices.length : c->length);
}

size_t ptb_prefetch_bytes(const ptb_prefetch_config *c)
{
    return c->depth * (c->pack ? 3 : 2) * tokens_of(c) * sizeof(int32_t);
}

// Sequence `index` is number i of this rank's.
static ptb_status fill_sequence(ptb_prefetch *p, uint64_t index, uint64_t i, const ptb_prefetch_batch *batch)
{
    const ptb_prefetch_config *c = &p->config;
    int32_t *to[3] = {(int32_t *)(uintptr_t)batch->inputs, (int32_t *)(uintptr_t)batch->targets,
                      (int32_t *)(uintptr_t)batch->start};
    size_t whole = c->length, length = c->slices.length, pieces = c->slices.pieces;
    if (!pieces)
        return ptb_tokens_sequence(c->tokens, index, to[0] + i * whole, to[1] + i * whole,
                                   to[2] ? to[2] + i * whole : NULL);
    int32_t *from = p->sequence;
    PTB_TRY(ptb_tokens_sequence(c->tokens, index, from, from + whole, to[2] ? from + 2 * whole : NULL));
    for (size_t piece = 0; piece < pieces; piece++) {
        size_t row = (i / c->group * pieces + piece) * c->group + i % c->group;
        for (size_t k = 0; k < 3 && to[k]; k++)
            memcpy(to[k] + row * length, from + k * whole + c->slices.offset[piece], length * sizeof *from);
    }
    return PTB_OK;
}

static ptb_status fill(ptb_prefetch *p, uint64_t number)
{
    const ptb_prefetch_config *c = &p->config;
    size_t slot = number % c->depth, count = tokens_of(c);
    int32_t *inputs = p->memory + slot * (c->pack ? 3 : 2) * count;
    int32_t *targets = inputs + count, *start = c->pack ? targets + count : NULL;
    ptb_prefetch_batch batch = {.inputs = inputs,
                                .targets = targets,
                                .start = start,
                                .step = c->first_step + number,
                                .fill_begin_ns = ptb_clock_ns()};
    uint64_t first = batch.step * c->batch;
    for (uint64_t i = 0; i < c->mine; i++)
        PTB_TRY(fill_sequence(p, first + c->first + i, i, &batch));
    batch.counted = ptb_tokens_counted(c->tokens, first, c->batch);
    if (!batch.counted) {
        ptb_error("the batch of step %" PRIu64 " has nothing to learn: each of its tokens is the last of its "
                  "document. Give longer documents, a larger --batch or no --pack",
                  batch.step);
        return PTB_USAGE;
    }
    batch.fill_end_ns = ptb_clock_ns();
    p->slot[slot] = batch;
    return PTB_OK;
}

static void *run(void *arg)
{
    ptb_prefetch *p = arg;
    pthread_mutex_lock(&p->mutex);
    while (p->status == PTB_OK) {
        while (!p->stop && p->filled - p->released == p->config.depth)
            pthread_cond_wait(&p->is_released, &p->mutex);
        if (p->stop)
            break;
        uint64_t number = p->filled;
        pthread_mutex_unlock(&p->mutex);
        ptb_status status = fill(p, number);
        pthread_mutex_lock(&p->mutex);
        if (status == PTB_OK)
            p->filled++;
        else
            p->status = status;
        pthread_cond_signal(&p->is_filled);
    }
    pthread_mutex_unlock(&p->mutex);
    return NULL;
}

// Signals are for the main thread.
static ptb_status start_thread(ptb_prefetch *p)
{
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int failed = pthread_create(&p->thread, NULL, run, p);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (failed) {
        ptb_error(
            "the thread that fills batches cannot be started: %s; raise the limit of threads (ulimit -u)",
            strerror(failed));
        return PTB_SYSTEM;
    }
    pthread_setname_np(p->thread, "ptb-input");
    return PTB_OK;
}

ptb_status ptb_prefetch_start(const ptb_prefetch_config *config, ptb_prefetch **prefetch)
{
    if (config->depth < PTB_PREFETCH_MIN || config->depth > PTB_PREFETCH_MAX) {
        ptb_error("%zu batches held ahead: wanted %d to %d", config->depth, PTB_PREFETCH_MIN,
                  PTB_PREFETCH_MAX);
        return PTB_USAGE;
    }
    size_t bytes = ptb_prefetch_bytes(config);
    void *memory; // zeroed: the pages are there before the first step
    PTB_TRY(ptb_device_alloc_host(config->device, bytes ? bytes : 1, &memory));
    ptb_prefetch *p = calloc(1, sizeof *p);
    int32_t *sequence = config->slices.pieces ? calloc(3 * config->length, sizeof *sequence) : NULL;
    if (!p || (config->slices.pieces && !sequence)) {
        ptb_error("no memory for the state of the input");
        ptb_device_free_host(config->device, memory);
        free(sequence);
        free(p);
        return PTB_NO_MEMORY;
    }
    p->config = *config;
    p->memory = memory;
    p->sequence = sequence;
    pthread_mutex_init(&p->mutex, NULL);
    pthread_cond_init(&p->is_filled, NULL);
    pthread_cond_init(&p->is_released, NULL);
    ptb_status status = start_thread(p);
    if (status != PTB_OK) {
        ptb_device_free_host(config->device, memory);
        free(sequence);
        free(p);
        return status;
    }
    *prefetch = p;
    return PTB_OK;
}

ptb_status ptb_prefetch_take(ptb_prefetch *p, ptb_prefetch_batch *batch)
{
    pthread_mutex_lock(&p->mutex);
    p->released = p->taken;
    pthread_cond_signal(&p->is_released);
    bool starved = p->filled == p->taken;
    int64_t begin_ns = starved ? ptb_clock_ns() : 0;
    while (p->filled == p->taken && p->status == PTB_OK)
        pthread_cond_wait(&p->is_filled, &p->mutex);
    ptb_status status = p->filled == p->taken ? p->status : PTB_OK;
    if (status == PTB_OK) {
        *batch = p->slot[p->taken % p->config.depth];
        batch->starved = starved;
        batch->waited_ns = starved ? ptb_clock_ns() - begin_ns : 0;
        p->taken++;
    }
    pthread_mutex_unlock(&p->mutex);
    return status;
}

void ptb_prefetch_stop(ptb_prefetch *p)
{
    if (!p)
        return;
    pthread_mutex_lock(&p->mutex);
    p->stop = true;
    pthread_cond_signal(&p->is_released);
    pthread_mutex_unlock(&p->mutex);
    pthread_join(p->thread, NULL);
    pthread_cond_destroy(&p->is_released);
    pthread_cond_destroy(&p->is_filled);
    pthread_mutex_destroy(&p->mutex);
    ptb_device_free_host(p->config.device, p->memory);
    free(p->sequence);
    free(p);
}
