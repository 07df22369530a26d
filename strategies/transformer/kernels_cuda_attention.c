// Attention of the back-end `cuda`: what is refused, what is needed and what is computed. The kernels are in
// kernels_cuda_attention*.cu.
#include "core/log.h"
#include "strategies/transformer/kernels_cuda_attention.h"

#include <cuda_runtime_api.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

// Rows are int in the kernels, and a block's last row is computed before it is compared with the length.
enum { LENGTH_MAX = INT_MAX - 1024, GRID_MAX = 65535 };

bool ptb_cuda_attention_wgmma(const ptb_attention_shape *s)
{
#ifdef PTB_CUDA_WGMMA
    const char *asked = getenv("PTBENCH_CUDA_ATTENTION");
    int device = 0, major = 0, minor = 0;
    if (ptb_cuda_attention_plain(s->type, s->head_width) || s->head_width > 128 || s->dropout_rate > 0 ||
        (asked && strcmp(asked, "mma") == 0))
        return false;
    size_t piece = 16 / ptb_dtype_size(s->type);
    return s->head_width % piece == 0 && s->query_stride % piece == 0 && s->key_stride % piece == 0 &&
           cudaGetDevice(&device) == cudaSuccess &&
           cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device) == cudaSuccess &&
           cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device) == cudaSuccess &&
           major == 9 && minor == 0;
#else
    (void)s;
    return false;
#endif
}

static ptb_status check_choice(void)
{
    const char *asked = getenv("PTBENCH_CUDA_ATTENTION");
    if (!asked || !*asked || strcmp(asked, "mma") == 0 || strcmp(asked, "wgmma") == 0)
        return PTB_OK;
    ptb_error("PTBENCH_CUDA_ATTENTION=%s: expected wgmma (warp groups where the GPU has them) or mma (single "
              "warps everywhere)",
              asked);
    return PTB_USAGE;
}

static ptb_status check(const ptb_attention_shape *s)
{
    PTB_TRY(check_choice());
    if (s->query_length > LENGTH_MAX || s->key_length > LENGTH_MAX || s->batch > GRID_MAX ||
        s->heads > GRID_MAX) {
        ptb_error("attention on cuda: batch %zu, %zu heads, %zu queries, %zu keys; at most %d sequences and "
                  "heads and %d rows: use smaller micro-batches or shorter sequences",
                  s->batch, s->heads, s->query_length, s->key_length, GRID_MAX, LENGTH_MAX);
        return PTB_UNSUPPORTED;
    }
    if (ptb_cuda_attention_plain(s->type, s->head_width) || s->head_width <= 128)
        return PTB_OK;
    int device = 0, bytes = 0;
    PTB_CUDA(cudaGetDevice(&device));
    PTB_CUDA(cudaDeviceGetAttribute(&bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, device));
    if (bytes < PTB_CUDA_ATTENTION_SHARED) {
        ptb_error("attention on cuda: heads of %zu in 16-bit types need %d KiB of shared memory in a block, "
                  "and this GPU gives %d: use heads of at most 128, or f32",
                  s->head_width, PTB_CUDA_ATTENTION_SHARED / 1024, bytes / 1024);
        return PTB_UNSUPPORTED;
    }
    return PTB_OK;
}

ptb_status ptb_cuda_attention(ptb_stream *stream, const ptb_attention *args)
{
    PTB_TRY(check(&args->shape));
    if (args->shape.batch && args->shape.query_length)
        PTB_CUDA(ptb_cuda_launch_attention(ptb_cuda_stream(stream), args));
    return PTB_OK;
}

ptb_status ptb_cuda_attention_gradient(ptb_stream *stream, const ptb_attention_gradient *args)
{
    PTB_TRY(check(&args->shape));
    if (args->shape.batch && args->shape.query_length && args->shape.key_length)
        PTB_CUDA(ptb_cuda_launch_attention_gradient(ptb_cuda_stream(stream), args));
    return PTB_OK;
}

// Two numbers a row of queries, for the gradient.
size_t ptb_cuda_attention_workspace(const ptb_attention_shape *shape, int threads)
{
    (void)threads;
    return shape->batch * shape->heads * shape->query_length * 2 * sizeof(float);
}

static int64_t clamp(int64_t key, size_t key_length)
{
    return key < 0 ? 0 : key > (int64_t)key_length ? (int64_t)key_length : key;
}

double ptb_cuda_attention_flops(const ptb_attention_shape *shape)
{
    const ptb_attention_shape *s = shape;
    const ptb_cuda_attention_tile groups = {64, 64};
    const ptb_cuda_attention_tile tile = ptb_cuda_attention_wgmma(s) ? groups : ptb_cuda_attention_tile_of(s);
    int64_t low = clamp(-s->key_offset, s->key_length) / tile.keys;
    double blocks = 0;
    for (size_t row = 0; row < s->query_length; row += (size_t)tile.rows) {
        size_t last = row + (size_t)tile.rows < s->query_length ? row + (size_t)tile.rows : s->query_length;
        int64_t high = s->causal ? clamp(s->query_offset + (int64_t)last - s->key_offset, s->key_length)
                                 : (int64_t)s->key_length;
        high = (high + tile.keys - 1) / tile.keys;
        blocks += high > low ? (double)(high - low) : 0;
    }
    return 4 * blocks * tile.rows * tile.keys * (double)(s->batch * s->heads * s->head_width);
}
