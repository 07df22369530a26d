// Attention on tensor cores, forward (Dao 2023, "FlashAttention-2", algorithm 1): a block has some rows of
// queries of one head and goes over the keys that they see; keys and values of the next step are copied into
// shared memory while this one is computed.
#include "strategies/transformer/kernels_cuda_attention_wgmma.cuh"

// What a warp keeps of its rows; [TILES][2]: rows lane / 4 and lane / 4 + 8 of a tile.
template <int WIDTH, int TILES> struct forward_rows {
    float out[TILES][WIDTH / 8][4];
    float top[TILES][2]; // largest score so far, times the sign of the scale
    float sum[TILES][2]; // this lane's share of the sum of 2^(score - top), in units of log 2
    uint64_t draws[TILES][2];
};

// Scores times the sign of the scale.
template <int TILES, int COLUMNS>
static __device__ __forceinline__ void forward_negate(const attention_call &c, float (&s)[TILES][COLUMNS][4])
{
    if (c.negative)
#pragma unroll
        for (int m = 0; m < TILES; m++)
#pragma unroll
            for (int n = 0; n < COLUMNS; n++)
#pragma unroll
                for (int i = 0; i < 4; i++)
                    s[m][n][i] = -s[m][n][i];
}

// Scores become probabilities, not yet divided by the sum; out and sum are brought to the new maximum.
template <int WIDTH, int TILES, int PAIRS>
static __device__ __forceinline__ void forward_softmax(const attention_call &c, forward_rows<WIDTH, TILES> &r,
                                                       float (&s)[TILES][PAIRS * 2][4])
{
    float shrink[TILES][2];
    bool shrinks = false;
#pragma unroll
    for (int m = 0; m < TILES; m++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            float top = r.top[m][half];
#pragma unroll
            for (int n = 0; n < PAIRS * 2; n++)
                top = fmaxf(top, fmaxf(s[m][n][half * 2], s[m][n][half * 2 + 1]));
            top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 1));
            top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 2));
            float base = top == -INFINITY ? 0 : top * c.factor, sum = 0;
            shrink[m][half] = ptb_exp2(r.top[m][half] * c.factor - base);
            shrinks = shrinks || shrink[m][half] != 1;
            r.top[m][half] = top;
#pragma unroll
            for (int n = 0; n < PAIRS * 2; n++)
#pragma unroll
                for (int i = half * 2; i < half * 2 + 2; i++) {
                    s[m][n][i] = ptb_exp2(s[m][n][i] * c.factor - base);
                    sum += s[m][n][i];
                }
            r.sum[m][half] = r.sum[m][half] * shrink[m][half] + sum;
        }
    if (!__any_sync(0xffffffffu, shrinks)) // as a rule after the first few steps
        return;
#pragma unroll
    for (int m = 0; m < TILES; m++)
#pragma unroll
        for (int n = 0; n < WIDTH / 8; n++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                r.out[m][n][i] *= shrink[m][i / 2];
}

// Probabilities that dropout drops become 0.
template <int WIDTH, int TILES, int PAIRS>
static __device__ __forceinline__ void forward_drop(const attention_call &c,
                                                    const forward_rows<WIDTH, TILES> &r, uint32_t column,
                                                    float (&p)[TILES][PAIRS * 2][4])
{
#pragma unroll
    for (int m = 0; m < TILES; m++)
#pragma unroll
        for (int n = 0; n < PAIRS * 2; n++)
#pragma unroll
            for (int i = 0; i < 4; i++) {
                uint32_t at = column + n * 8 + threadIdx.x % 4 * 2 + i % 2;
                if (ptb_dropout_draw(r.draws[m][i / 2], at) < c.threshold)
                    p[m][n][i] = 0;
            }
}

template <int WIDTH, int TILES> struct forward_begin {
    static __device__ __forceinline__ void run(const attention_call &c, int b, int row, bool drop,
                                               forward_rows<WIDTH, TILES> &r)
    {
        memset(r.out, 0, sizeof r.out);
#pragma unroll
        for (int m = 0; m < TILES; m++)
#pragma unroll
            for (int half = 0; half < 2; half++) {
                uint64_t at = (uint64_t)(row + m * 16 + half * 8 + (int)threadIdx.x % 32 / 4);
                r.top[m][half] = -INFINITY;
                r.sum[m][half] = 0;
                if (drop)
                    r.draws[m][half] = ptb_dropout_key(c.seed, c.draw_row + (uint64_t)b * c.draw_rows + at);
            }
    }
};

// Divides by the sums and stores out and lse. lse: of the head's row 0.
template <int WIDTH, int TILES, typename T>
static __device__ __forceinline__ void forward_end(const attention_call &c, forward_rows<WIDTH, TILES> &r,
                                                   T *out, float *lse, int row)
{
    float scale[TILES][2];
#pragma unroll
    for (int m = 0; m < TILES; m++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            float sum = r.sum[m][half];
            sum += __shfl_xor_sync(0xffffffffu, sum, 1);
            sum += __shfl_xor_sync(0xffffffffu, sum, 2);
            int lane = (int)threadIdx.x % 32, at = row + m * 16 + half * 8 + lane / 4;
            scale[m][half] = sum > 0 ? c.kept / sum : 0;
            if (lane % 4 == 0 && at < c.query_length)
                lse[at] = sum > 0 ? r.top[m][half] * c.factor * 0.693147181f + logf(sum) : -INFINITY;
        }
    attention_store<WIDTH, TILES>(c, r.out, scale, out, c.out_stride, row, c.query_length, false);
}

// Some keys from `key` on (row `at` of the tiles), for the rows of a warp from `row` on.
template <int WIDTH, int TILES, int STEP, bool DROP, typename T>
static __device__ __forceinline__ void
forward_step(const attention_call &c, forward_rows<WIDTH, TILES> &r, const attention_view &view, int b,
             uint32_t column, const T *query, const T *keys, const T *values, int row, int key, int at)
{
    float s[TILES][STEP / 8][4]; // scores, then probabilities
    attention_scores<WIDTH, TILES, STEP / 16>(s, query, (int)threadIdx.x / 32 * TILES * 16, keys, at);
    forward_negate(c, s);
    if (key < view.all_low || key + STEP > view.all_high)
        attention_hide<TILES, STEP / 16>(c, b, row, key, -INFINITY, s);
    forward_softmax<WIDTH, TILES, STEP / 16>(c, r, s);
    if (DROP)
        forward_drop<WIDTH, TILES, STEP / 16>(c, r, column + (uint32_t)key, s);
    attention_sums<WIDTH, TILES, STEP / 16>(r.out, s, values, at);
}

// The rows of a block, and the pointers to its head.
template <typename T> struct forward_block {
    const T *query, *key, *value;
    T *out;     // of row 0 of the sequence
    float *lse; // likewise
    int first, h, b;
};

template <typename T>
static __device__ __forceinline__ forward_block<T> forward_begin_block(const attention_call &c, int rows,
                                                                       const T *query, const T *key,
                                                                       const T *value, T *out, float *lse)
{
    attention_place place = attention_place_of(c);
    // Later rows see more under a causal mask: the longest blocks first.
    int first = ((int)c.tiles - 1 - place.tile) * rows, h = place.line % c.heads, b = place.line / c.heads;
    int64_t keys = (int64_t)b * c.key_length * c.key_stride + h / c.group * c.width;
    return {query + ((int64_t)b * c.query_length + first) * c.query_stride + h * c.width,
            key + keys,
            value + keys,
            out + (int64_t)b * c.query_length * c.out_stride + h * c.width,
            lse + (int64_t)place.line * c.query_length,
            first,
            h,
            b};
}

// Blocks: WARPS x TILES x 16 query rows of a head each. KEYS are copied at a time, STEP computed.
template <typename T, int WIDTH, int WARPS, int TILES, int KEYS, int STEP, bool DROP>
__global__ void __launch_bounds__(WARPS * 32, 2)
    attention_forward(attention_call c, const T *query, const T *key, const T *value, T *out, float *lse)
{
    constexpr int ROWS = WARPS * TILES * 16, THREADS = WARPS * 32;
    PTB_DYNAMIC_SHARED(T, shared);
    T *queries = shared, *stages = shared + ROWS * WIDTH; /* [2][keys, values][KEYS, WIDTH] */
    const forward_block<T> of = forward_begin_block(c, ROWS, query, key, value, out, lse);
    const int first = of.first, b = of.b, row = first + (int)threadIdx.x / 32 * TILES * 16;
    uint32_t column = (uint32_t)(c.draw_column + (uint64_t)of.h * c.draw_rows);

    auto fetch = [&](int step) {
        T *to = stages + step % 2 * 2 * KEYS * WIDTH;
        int64_t at = (int64_t)step * KEYS * c.key_stride;
        attention_fetch<KEYS, WIDTH, THREADS>(c, to, of.key + at, c.key_stride, c.key_length - step * KEYS);
        attention_fetch<KEYS, WIDTH, THREADS>(c, to + KEYS * WIDTH, of.value + at, c.key_stride,
                                              c.key_length - step * KEYS);
        ptb_copy_commit();
    };
    const attention_view all = attention_look(c, b, first, ROWS);
    const attention_view view = attention_look(c, b, row, TILES * 16); // of this warp
    int step = all.any_low / KEYS, end = (all.any_high + KEYS - 1) / KEYS;
    forward_rows<WIDTH, TILES> r;
    forward_begin<WIDTH, TILES>::run(c, b, row, DROP, r);
    if (step < end) {
        attention_fetch<ROWS, WIDTH, THREADS>(c, queries, of.query, c.query_stride, c.query_length - first);
        fetch(step);
    }
    for (; step < end; step++) {
        ptb_copy_wait<0>();
        __syncthreads(); // the step's tiles are there, and nobody reads those of the step before
        if (step + 1 < end)
            fetch(step + 1);
        const T *keys = stages + step % 2 * 2 * KEYS * WIDTH;
#pragma unroll 1
        for (int at = 0; at < KEYS; at += STEP)
            if (step * KEYS + at < view.any_high && step * KEYS + at + STEP > view.any_low)
                forward_step<WIDTH, TILES, STEP, DROP>(c, r, view, b, column, queries, keys,
                                                       keys + KEYS * WIDTH, row, step * KEYS + at, at);
    }
    forward_end<WIDTH, TILES>(c, r, of.out, of.lse, row);
}

// Blocks as above for warp groups: GROUPS x 64 query rows of a head each. A group waits for the tensor cores
// and does its exponentials while others multiply: with registers for 16 warps on a multiprocessor there is
// always one that does.
template <typename T, int WIDTH, int GROUPS, int KEYS>
__global__ void __launch_bounds__(GROUPS * 128, WIDTH <= 64 ? 2 : 1)
    attention_forward_group(attention_call c, const T *query, const T *key, const T *value, T *out,
                            float *lse)
{
#if PTB_HAS_WGMMA
    constexpr int ROWS = GROUPS * 64, THREADS = GROUPS * 128;
    PTB_DYNAMIC_SHARED(T, shared);
    T *queries = ptb_wgmma_align(shared);
    T *stages = queries + ROWS * WIDTH; /* [2][keys, values][WIDTH / 64][KEYS, 64] */
    const forward_block<T> of = forward_begin_block(c, ROWS, query, key, value, out, lse);
    const int own = group_uniform((int)threadIdx.x / 128) * 64, rows = of.first + own; // of this group
    const int row = of.first + group_uniform((int)threadIdx.x / 32) * 16;              // of this warp

    auto fetch = [&](int step) {
        T *to = stages + step % 2 * 2 * KEYS * WIDTH;
        int64_t at = (int64_t)step * KEYS * c.key_stride;
        int left = c.key_length - step * KEYS;
        group_fetch<KEYS, WIDTH, THREADS>(c, to, of.key + at, c.key_stride, left);
        group_fetch<KEYS, WIDTH, THREADS>(c, to + KEYS * WIDTH, of.value + at, c.key_stride, left);
        ptb_copy_commit();
    };
    const attention_view all = attention_look(c, of.b, of.first, ROWS);
    const attention_view view = attention_look(c, of.b, rows, ATTENTION_GROUP);
    int step = group_uniform(all.any_low / KEYS);
    const int end = group_uniform((all.any_high + KEYS - 1) / KEYS);
    forward_rows<WIDTH, 1> r;
    uint32_t p[4][4]; // probabilities as a left operand
    forward_begin<WIDTH, 1>::run(c, of.b, row, false, r);
    if (step < end) {
        group_fetch<ROWS, WIDTH, THREADS>(c, queries, of.query, c.query_stride, c.query_length - of.first);
        fetch(step);
    }
    for (; step < end; step++) {
        ptb_copy_wait<0>();
        ptb_proxy_fence();
        __syncthreads(); // the step's tiles are there, and nobody reads those of the step before
        if (step + 1 < end)
            fetch(step + 1);
        const T *keys = stages + step % 2 * 2 * KEYS * WIDTH, *values = keys + KEYS * WIDTH;
#pragma unroll 1
        for (int at = 0; at < KEYS; at += ATTENTION_GROUP) {
            int from = step * KEYS + at;
            if (from >= view.any_high || from + ATTENTION_GROUP <= view.any_low)
                continue;
            float s[1][8][4]; // scores, then probabilities
            ptb_wgmma_fence();
            group_scores<WIDTH, ROWS, KEYS>(s, queries, own, keys, at);
            ptb_wgmma_commit();
            ptb_wgmma_wait<0>(); // the sums of the step before are complete, too
            group_hold<64>(s);
            group_hold<WIDTH>(r.out);
            forward_negate(c, s);
            if (from < view.all_low || from + ATTENTION_GROUP > view.all_high)
                attention_hide<1, 4>(c, of.b, row, from, -INFINITY, s);
            forward_softmax<WIDTH, 1, 4>(c, r, s);
            group_round(p, s, T());
            group_hold<WIDTH>(r.out);
            ptb_wgmma_fence();
            group_sums<WIDTH, KEYS>(r.out, p, values, at);
            ptb_wgmma_commit();
        }
        ptb_wgmma_wait<0>();
        group_hold<WIDTH>(r.out);
    }
    forward_end<WIDTH, 1>(c, r, of.out, of.lse, row);
#else
    __trap();
#endif
}

// A launch of `kernel` with THREADS threads and ROWS rows of queries a block.
template <int ROWS, int THREADS, typename T, typename K>
static int launch_blocks(cudaStream_t stream, const ptb_attention *a, K kernel, size_t bytes)
{
    const ptb_attention_shape *s = &a->shape;
    attention_call c = attention_call_of(s, ptb_aligned(16, a->query, a->key, a->value, a->out));
    size_t line = 2 * s->key_length * s->head_width * sizeof(T);
    unsigned blocks = attention_order(&c, ptb_blocks(s->query_length, ROWS), s->batch * s->heads, line,
                                      s->heads / s->kv_heads);
    cudaError_t error = PTB_ALLOW_SHARED(kernel, bytes);
    if (error != cudaSuccess)
        return error;
    return PTB_LAUNCH(kernel, dim3(blocks), dim3(THREADS), bytes, stream, c, (const T *)a->query,
                      (const T *)a->key, (const T *)a->value, (T *)a->out, a->lse);
}

template <typename T, int WIDTH, int WARPS, int TILES, int KEYS, int STEP, bool DROP>
static int launch_forward(cudaStream_t stream, const ptb_attention *a)
{
    constexpr int rows = WARPS * TILES * 16;
    return launch_blocks<rows, WARPS * 32, T>(stream, a,
                                              attention_forward<T, WIDTH, WARPS, TILES, KEYS, STEP, DROP>,
                                              (rows + 4 * KEYS) * WIDTH * sizeof(T));
}

template <typename T, int WIDTH, int GROUPS, int KEYS>
static int launch_group(cudaStream_t stream, const ptb_attention *a)
{
    constexpr int rows = GROUPS * ATTENTION_GROUP;
    return launch_blocks<rows, GROUPS * 128, T>(stream, a, attention_forward_group<T, WIDTH, GROUPS, KEYS>,
                                                (rows + 4 * KEYS) * WIDTH * sizeof(T) + PTB_WGMMA_ALIGNMENT);
}

template <typename T, bool DROP> static int launch_width(cudaStream_t stream, const ptb_attention *a)
{
    if (a->shape.head_width <= 64)
        return launch_forward < T, 64, 4, 2, 64, DROP ? 32 : 64, DROP > (stream, a);
    if (a->shape.head_width <= 128)
        return launch_forward<T, 128, 4, 2, 64, 32, DROP>(stream, a);
    return launch_forward<T, 256, 4, 1, 32, 32, DROP>(stream, a);
}

template <typename T> static int launch_type(cudaStream_t stream, const ptb_attention *a, bool groups)
{
    if (groups)
        return a->shape.head_width <= 64 ? launch_group<T, 64, 2, 128>(stream, a)
                                         : launch_group<T, 128, 2, 128>(stream, a);
    return a->shape.dropout_rate > 0 ? launch_width<T, true>(stream, a) : launch_width<T, false>(stream, a);
}

extern "C" int ptb_cuda_enqueue_attention(cudaStream_t stream, const ptb_attention *args, bool groups)
{
    return args->shape.type == PTB_BF16 ? launch_type<__nv_bfloat16>(stream, args, groups)
                                        : launch_type<__half>(stream, args, groups);
}
