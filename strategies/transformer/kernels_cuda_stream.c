// What the kernels of the back-end `cuda` keep with a stream: scratch memory that all of them share, and the
// state of linear layers.
#include "strategies/transformer/kernels_cuda_internal.h"

#include "core/log.h"

#include <stdlib.h>

static void free_kept(ptb_stream *stream)
{
    ptb_cuda_kept *kept = stream->attached;
    if (kept->linear)
        kept->linear_free(stream, kept->linear);
    for (size_t i = 0; i < kept->outgrown_count; i++)
        ptb_device_free(stream->device, kept->outgrown[i]);
    ptb_device_free(stream->device, kept->scratch);
    free(kept);
}

ptb_status ptb_cuda_keep(ptb_stream *stream, ptb_cuda_kept **kept)
{
    if (!stream->attached) {
        ptb_cuda_kept *fresh = calloc(1, sizeof *fresh);
        if (!fresh) {
            ptb_error("no memory for %zu bytes that kernels keep with a stream", sizeof *fresh);
            return PTB_NO_MEMORY;
        }
        stream->attached = fresh;
        stream->attached_free = free_kept;
    }
    *kept = stream->attached;
    return PTB_OK;
}

// Each piece is at least twice the last one, so that the pieces outgrown are together smaller than it and
// fewer than there is room for.
static const size_t counter_bytes = PTB_CUDA_COUNTERS * sizeof(unsigned);
ptb_status ptb_cuda_scratch(ptb_stream *stream, size_t bytes, void **memory)
{
    ptb_cuda_kept *kept;
    PTB_TRY(ptb_cuda_keep(stream, &kept));
    bytes += counter_bytes;
    if (bytes > kept->scratch_bytes || !kept->scratch) {
        size_t least = kept->scratch ? 2 * kept->scratch_bytes : PTB_CUDA_SCRATCH_BYTES;
        size_t wanted = bytes > least ? bytes : least;
        void *fresh;
        PTB_TRY(ptb_device_alloc(stream->device, PTB_MEMORY_WORKSPACE, wanted, &fresh));
        ptb_status status = ptb_stream_set(stream, fresh, 0, counter_bytes);
        if (status != PTB_OK) {
            ptb_device_free(stream->device, fresh);
            return status;
        }
        if (kept->scratch)
            kept->outgrown[kept->outgrown_count++] = kept->scratch;
        kept->scratch = fresh;
        kept->scratch_bytes = wanted;
    }
    *memory = (char *)kept->scratch + counter_bytes;
    return PTB_OK;
}
