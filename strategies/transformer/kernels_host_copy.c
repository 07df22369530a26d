// A copy with as many threads as the kernels have: the memory bandwidth that they are held to.
#include "strategies/transformer/kernels_host.h"

#include "collectives/algorithm.h"

#include <omp.h>

typedef struct {
    char *to;
    const char *from;
    size_t bytes;
    bool streaming;
} copy_call;

enum { LINE = 64 };

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
