// Blocks of numbers moved from one arrangement of rows to another, on the host.
#include "strategies/transformer/kernels_host_tasks.h"

// Where block number `at` begins.
PTB_INLINE int64_t place_of(const ptb_permute *a, const int64_t stride[3], size_t at)
{
    size_t k = at % a->count[2], j = at / a->count[2] % a->count[1], i = at / a->count[2] / a->count[1];
    return (int64_t)i * stride[0] + (int64_t)j * stride[1] + (int64_t)k * stride[2];
}

PTB_INLINE void change_typed(ptb_dtype out_type, ptb_dtype in_type, bool add, void *out, const void *in,
                             size_t width)
{
    size_t c = 0;
    for (; c + PTB_LANES <= width; c += PTB_LANES) {
        ptb_vec x = ptb_vec_load(in_type, in, c);
        ptb_vec_store(out_type, out, c, add ? x + ptb_vec_load(out_type, out, c) : x);
    }
    if (c < width) {
        ptb_vec x = ptb_vec_load_some(in_type, in, c, width - c);
        x = add ? x + ptb_vec_load_some(out_type, out, c, width - c) : x;
        ptb_vec_store_some(out_type, out, c, width - c, x);
    }
}

PTB_HOST_BODY change(ptb_dtype out_type, ptb_dtype in_type, bool add, void *out, const void *in, size_t width)
{
    if (in_type == PTB_F32)
        change_typed(out_type, PTB_F32, add, out, in, width);
    else if (in_type == PTB_BF16)
        change_typed(out_type, PTB_BF16, add, out, in, width);
    else
        change_typed(out_type, PTB_F16, add, out, in, width);
}

// Elements [first, first + width) of a block.
static void move(const ptb_permute *a, size_t block, size_t first, size_t width)
{
    size_t out_bytes = ptb_dtype_size(a->out_type), in_bytes = ptb_dtype_size(a->in_type);
    char *out = (char *)a->out + (place_of(a, a->out_stride, block) + (int64_t)first) * (int64_t)out_bytes;
    const char *in =
        (const char *)a->in + (place_of(a, a->in_stride, block) + (int64_t)first) * (int64_t)in_bytes;
    if (a->out_type == a->in_type && !a->accumulate)
        memcpy(out, in, width * out_bytes);
    else
        PTB_HOST_TYPED(change, a->out_type, a->in_type, a->accumulate, out, in, width);
}

ptb_status ptb_host_run_permute(void *arg)
{
    const ptb_permute *a = arg;
    size_t blocks = a->count[0] * a->count[1] * a->count[2];
#pragma omp parallel for collapse(2) schedule(static) if (blocks * a->width > PTB_HOST_SERIAL)
    for (size_t block = 0; block < blocks; block++)
        for (size_t first = 0; first < a->width; first += PTB_HOST_CHUNK)
            move(a, block, first, ptb_host_least(a->width - first, PTB_HOST_CHUNK));
    return PTB_OK;
}
