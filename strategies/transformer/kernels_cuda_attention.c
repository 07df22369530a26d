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

static const char choice[] = "PTBENCH_CUDA_ATTENTION";

// Whether the current GPU, this program and the environment have warp groups, and whether the environment
// takes no others.
static ptb_status find_groups(bool *has_groups, bool *is_demanded)
{
    const char *asked = getenv(choice);
    bool is_refused = asked && strcmp(asked, "mma") == 0;
    *is_demanded = asked && strcmp(asked, "wgmma") == 0;
    if (asked && *asked && !is_refused && !*is_demanded) {
        ptb_error(
            "%s=%s: expected wgmma (warp groups or nothing), mma (single warps everywhere), or nothing: "
            "warp groups where they can be had",
            choice, asked);
        return PTB_USAGE;
    }
    *has_groups = false;
#ifdef PTB_CUDA_WGMMA
    int device = 0, major = 0, minor = 0;
    PTB_CUDA(cudaGetDevice(&device));
    PTB_CUDA(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device));
    PTB_CUDA(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device));
    *has_groups = !is_refused && major == 9 && minor == 0;
#endif
    return PTB_OK;
}

static ptb_status attention_state(ptb_stream *stream, ptb_cuda_attention_state **state)
{
    ptb_cuda_kept *kept;
    PTB_TRY(ptb_cuda_keep(stream, &kept));
    ptb_cuda_attention_state *s = &kept->attention;
    if (!s->is_chosen) {
        int device = 0;
        PTB_TRY(find_groups(&s->has_groups, &s->is_demanded));
        PTB_CUDA(cudaGetDevice(&device));
        PTB_CUDA(cudaDeviceGetAttribute(&s->shared_bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, device));
        s->is_chosen = true;
    }
    *state = s;
    return PTB_OK;
}

// The kernels for this shape, its tensors aligned to 16 bytes.
static ptb_cuda_attention_kind kind_of(const ptb_attention_shape *s, bool has_groups)
{
    if (ptb_cuda_attention_plain(s->type, s->head_width))
        return PTB_CUDA_ATTENTION_PLAIN;
    size_t piece = 16 / ptb_dtype_size(s->type);
    bool fits = s->head_width <= 128 && !(s->dropout_rate > 0) && s->head_width % piece == 0 &&
                s->query_stride % piece == 0 && s->key_stride % piece == 0;
    return has_groups && fits ? PTB_CUDA_ATTENTION_WGMMA : PTB_CUDA_ATTENTION_MMA;
}

static ptb_status check(const ptb_attention_shape *s, const ptb_cuda_attention_state *state)
{
    if (s->query_length > LENGTH_MAX || s->key_length > LENGTH_MAX || s->batch > GRID_MAX ||
        s->heads > GRID_MAX) {
        ptb_error("attention on cuda: batch %zu, %zu heads, %zu queries, %zu keys; at most %d sequences and "
                  "heads and %d rows: use smaller micro-batches or shorter sequences",
                  s->batch, s->heads, s->query_length, s->key_length, GRID_MAX, LENGTH_MAX);
        return PTB_UNSUPPORTED;
    }
    // Blocks of the kernels for attention are of 64 rows or more, those of attention_rows of 32.
    size_t rows = s->query_length > s->key_length ? s->query_length : s->key_length;
    if (s->batch * s->heads > (size_t)INT_MAX * 32 / (rows + 32)) {
        ptb_error(
            "attention on cuda: batch %zu x %zu heads x %zu rows are more than a grid has blocks for (at "
            "most %zu): use smaller micro-batches",
            s->batch, s->heads, rows, (size_t)INT_MAX * 32);
        return PTB_UNSUPPORTED;
    }
    if (ptb_cuda_attention_plain(s->type, s->head_width) || s->head_width <= 128)
        return PTB_OK;
    if (state->shared_bytes < PTB_CUDA_ATTENTION_SHARED) {
        ptb_error("attention on cuda: heads of %zu in 16-bit types need %d KiB of shared memory in a block, "
                  "and this GPU gives %d: use heads of at most 128, or f32",
                  s->head_width, PTB_CUDA_ATTENTION_SHARED / 1024, state->shared_bytes / 1024);
        return PTB_UNSUPPORTED;
    }
    return PTB_OK;
}

static bool are_aligned(size_t count, const void *const *pointers)
{
    for (size_t i = 0; i < count; i++)
        if ((uintptr_t)pointers[i] % 16)
            return false;
    return true;
}

// What keeps warp groups from a call that takes no other kernels.
static const char *why_no_groups(const ptb_attention_shape *s, bool has_groups, bool is_aligned)
{
    if (!has_groups)
        return "they need an H100 or H200 (sm_90) and a program that was built for sm_90a";
    if (s->type != PTB_BF16 && s->type != PTB_F16)
        return "they compute in bf16 and f16 alone";
    if (s->head_width > 128 || s->dropout_rate > 0)
        return "they have no dropout and heads of at most 128";
    return is_aligned ? "heads and rows are not whole pieces of 16 bytes"
                      : "a tensor does not begin at a multiple of 16 bytes";
}

// *kind: what a call with these tensors takes.
static ptb_status choose(ptb_stream *stream, const ptb_attention_shape *shape, size_t count,
                         const void *const *tensors, ptb_cuda_attention_state **state,
                         ptb_cuda_attention_kind *kind)
{
    PTB_TRY(attention_state(stream, state));
    PTB_TRY(check(shape, *state));
    bool is_aligned = are_aligned(count, tensors);
    *kind = kind_of(shape, (*state)->has_groups && is_aligned);
    if (!(*state)->is_demanded || *kind == PTB_CUDA_ATTENTION_WGMMA)
        return PTB_OK;
    ptb_error("%s=wgmma, but attention of %s in heads of %zu cannot take warp groups here: %s; unset it",
              choice, ptb_dtype_name(shape->type), shape->head_width,
              why_no_groups(shape, (*state)->has_groups, is_aligned));
    return PTB_UNSUPPORTED;
}

ptb_status ptb_cuda_attention(ptb_stream *stream, const ptb_attention *args)
{
    const void *tensors[] = {args->query, args->key, args->value, args->out};
    ptb_cuda_attention_state *state;
    ptb_cuda_attention_kind kind;
    PTB_TRY(choose(stream, &args->shape, sizeof tensors / sizeof *tensors, tensors, &state, &kind));
    if (!args->shape.batch || !args->shape.query_length)
        return PTB_OK;
    if (kind == PTB_CUDA_ATTENTION_PLAIN)
        PTB_CUDA(ptb_cuda_launch_attention_plain(ptb_cuda_stream(stream), args));
    else
        PTB_CUDA(ptb_cuda_enqueue_attention(ptb_cuda_stream(stream), args, kind == PTB_CUDA_ATTENTION_WGMMA));
    state->last = kind;
    return PTB_OK;
}

ptb_status ptb_cuda_attention_gradient(ptb_stream *stream, const ptb_attention_gradient *args)
{
    const void *tensors[] = {args->query,   args->key,   args->value,  args->d_out,
                             args->d_query, args->d_key, args->d_value};
    struct CUstream_st *to = ptb_cuda_stream(stream);
    ptb_cuda_attention_state *state;
    ptb_cuda_attention_kind kind;
    PTB_TRY(choose(stream, &args->shape, sizeof tensors / sizeof *tensors, tensors, &state, &kind));
    if (!args->shape.batch || !args->shape.query_length || !args->shape.key_length)
        return PTB_OK;
    PTB_CUDA(ptb_cuda_launch_attention_rows(to, args));
    if (kind == PTB_CUDA_ATTENTION_PLAIN) {
        PTB_CUDA(ptb_cuda_launch_attention_gradient_plain(to, args));
    } else {
        PTB_CUDA(ptb_cuda_enqueue_attention_key_gradient(to, args, kind == PTB_CUDA_ATTENTION_WGMMA));
        PTB_CUDA(ptb_cuda_enqueue_attention_query_gradient(to, args, kind == PTB_CUDA_ATTENTION_WGMMA));
    }
    state->last_gradient = kind;
    return PTB_OK;
}

const char *ptb_cuda_attention_kernels(ptb_stream *stream, bool gradient)
{
    static const char *const names[] = {[PTB_CUDA_ATTENTION_NONE] = NULL,
                                        [PTB_CUDA_ATTENTION_PLAIN] = "plain",
                                        [PTB_CUDA_ATTENTION_MMA] = "mma",
                                        [PTB_CUDA_ATTENTION_WGMMA] = "wgmma"};
    const ptb_cuda_kept *kept = stream->attached;
    return kept ? names[gradient ? kept->attention.last_gradient : kept->attention.last] : NULL;
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
    const ptb_cuda_attention_tile groups = {64, 64}; // what they compute or leave out together
    bool has_groups = false, is_demanded;
    ptb_cuda_attention_tile tile = ptb_cuda_attention_tile_of(s);
    if (find_groups(&has_groups, &is_demanded) == PTB_OK &&
        kind_of(s, has_groups) == PTB_CUDA_ATTENTION_WGMMA)
        tile = groups;
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
