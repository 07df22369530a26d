// A copy and a read with as many threads as the kernels have: the memory bandwidth that they are held to.
#include "strategies/transformer/kernels_host.h"
#include "strategies/transformer/kernels_host_vector.h"

#include "collectives/algorithm.h"

#include <omp.h>

typedef struct {
    char *to;
    const char *from;
    size_t bytes;
    bool streaming;
} copy_call;

enum { LINE = 64, LINES = 4, VECTORS = LINE / sizeof(ptb_vec) };

static ptb_status run_copy(void *arg)
{
    const copy_call *c = arg;
#pragma omp parallel
    {
        size_t threads = (size_t)omp_get_num_threads(), thread = (size_t)omp_get_thread_num();
        size_t lines = c->bytes / LINE, first = lines * thread / threads * LINE;
        size_t end = thread + 1 == threads ? c->bytes : lines * (thread + 1) / threads * LINE;
        if (c->streaming)
            ptb_copy_streaming(c->to + first, c->from + first, end - first);
        else
            memcpy(c->to + first, c->from + first, end - first);
    }
    return PTB_OK;
}

ptb_status ptb_host_copy(ptb_stream *stream, void *to, const void *from, size_t bytes, bool streaming)
{
    copy_call call = {to, from, bytes, streaming};
    return ptb_stream_call(stream, run_copy, &call, sizeof call);
}

// Every vector of `lines` cache lines; the result is used by nobody, which the compiler is not told.
static void read_lines(const char *from, size_t lines)
{
    ptb_vec_bits all[LINES] = {{0}};
    for (size_t line = 0; line + LINES <= lines; line += LINES)
        for (size_t i = 0; i < LINES; i++)
            for (size_t v = 0; v < VECTORS; v++) {
                ptb_vec_bits bits;
                memcpy(&bits, from + (line + i) * LINE + v * sizeof bits, sizeof bits);
                all[i] ^= bits;
            }
    ptb_vec_bits any = (all[0] ^ all[1]) ^ (all[2] ^ all[3]);
    __asm__ volatile("" ::"r"(&any) : "memory");
}

static ptb_status run_read(void *arg)
{
    const copy_call *c = arg;
#pragma omp parallel
    {
        size_t threads = (size_t)omp_get_num_threads(), thread = (size_t)omp_get_thread_num();
        size_t lines = c->bytes / LINE, first = lines * thread / threads;
        read_lines(c->from + first * LINE, lines * (thread + 1) / threads - first);
    }
    return PTB_OK;
}

ptb_status ptb_host_read(ptb_stream *stream, const void *from, size_t bytes)
{
    copy_call call = {.from = from, .bytes = bytes};
    return ptb_stream_call(stream, run_read, &call, sizeof call);
}
