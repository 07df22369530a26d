// The gradient of attention on tensor cores, d_query: a block has some rows of queries of one head and goes
// over the keys that they see. See kernels_cuda_attention_gradient.cu.
#include "strategies/transformer/kernels_cuda_attention_wgmma.cuh"

// The left operands of a warp's rows, all columns.
template <int WIDTH, int TILES, typename T>
static __device__ __forceinline__ void load_left(uint32_t (&left)[TILES][WIDTH / 16][4], const T *tile,
                                                 int row)
{
#pragma unroll
    for (int m = 0; m < TILES; m++)
#pragma unroll
        for (int k = 0; k < WIDTH; k += 16)
            ptb_tile_a<WIDTH>(left[m][k / 16], tile, row + m * 16, k);
}

// What a warp of the kernel for d_query keeps of its rows.
template <int WIDTH, int TILES> struct query_rows {
    float d_query[TILES][WIDTH / 8][4];
    float2 row[TILES][2]; // lse and sum
    uint64_t draws[TILES][2];
};

template <int WIDTH, int TILES>
static __device__ __forceinline__ void query_begin(const attention_call &c, const float2 *rows, int b, int h,
                                                   int row, bool drop, query_rows<WIDTH, TILES> &r)
{
    memset(r.d_query, 0, sizeof r.d_query);
    rows += ((int64_t)b * c.heads + h) * c.query_length;
#pragma unroll
    for (int m = 0; m < TILES; m++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            int at = row + m * 16 + half * 8 + (int)threadIdx.x % 32 / 4;
            r.row[m][half] = at < c.query_length ? rows[at] : float2{0, 0};
            if (drop)
                r.draws[m][half] =
                    ptb_dropout_key(c.seed, c.draw_row + (uint64_t)b * c.draw_rows + (uint64_t)at);
        }
}

// s: scores, becomes the gradients of the scores, from the gradients `dp` of the probabilities.
template <int WIDTH, int TILES, int STEP, bool DROP>
static __device__ __forceinline__ void
query_scores(const attention_call &c, const query_rows<WIDTH, TILES> &r, uint32_t column,
             float (&p)[TILES][STEP / 8][4], const float (&dp)[TILES][STEP / 8][4])
{
#pragma unroll
    for (int m = 0; m < TILES; m++)
#pragma unroll
        for (int n = 0; n < STEP / 8; n++)
#pragma unroll
            for (int i = 0; i < 4; i++) {
                float d = dp[m][n][i];
                if (DROP) {
                    uint32_t at = column + n * 8 + threadIdx.x % 4 * 2 + i % 2;
                    d = ptb_dropout_draw(r.draws[m][i / 2], at) < c.threshold ? 0 : d * c.kept;
                }
                p[m][n][i] *= d - r.row[m][i / 2].y;
            }
}

template <int WIDTH, int TILES, int STEP>
static __device__ __forceinline__ void query_probabilities(const attention_call &c,
                                                           const query_rows<WIDTH, TILES> &r,
                                                           float (&s)[TILES][STEP / 8][4])
{
    float factor = c.negative ? -c.factor : c.factor;
#pragma unroll
    for (int m = 0; m < TILES; m++)
#pragma unroll
        for (int n = 0; n < STEP / 8; n++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                s[m][n][i] = ptb_exp2(s[m][n][i] * factor - r.row[m][i / 2].x);
}

// Some keys from `key` on (row `at` of the tiles). left: operands of query and d_out when HELD.
template <typename T, int WIDTH, int TILES, int STEP, bool HELD, bool DROP>
static __device__ __forceinline__ void
query_step(const attention_call &c, query_rows<WIDTH, TILES> &r,
           const uint32_t (&left)[2][TILES][WIDTH / 16][4], int b, uint32_t column, const T *queries,
           const T *d_outs, const T *keys, const T *values, int row, int key, int at, bool masked)
{
    float p[TILES][STEP / 8][4], dp[TILES][STEP / 8][4];
    int own = (int)threadIdx.x / 32 * TILES * 16;
    if (HELD)
        attention_scores<WIDTH, TILES, STEP / 16>(p, left[0], keys, at);
    else
        attention_scores<WIDTH, TILES, STEP / 16>(p, queries, own, keys, at);
    query_probabilities<WIDTH, TILES, STEP>(c, r, p);
    if (masked)
        attention_hide<TILES, STEP / 16>(c, b, row, key, 0, p);
    if (HELD)
        attention_scores<WIDTH, TILES, STEP / 16>(dp, left[1], values, at);
    else
        attention_scores<WIDTH, TILES, STEP / 16>(dp, d_outs, own, values, at);
    query_scores<WIDTH, TILES, STEP, DROP>(c, r, column + (uint32_t)key, p, dp);
    attention_sums<WIDTH, TILES, STEP / 16>(r.d_query, p, keys, at);
}

// The block's keys and values of a step into shared memory, in the background.
template <typename T, int WIDTH, int KEYS, int THREADS>
static __device__ __forceinline__ void query_fetch(const attention_call &c, const T *key, const T *value,
                                                   int step, T *stages)
{
    T *to = stages + step % 2 * 2 * KEYS * WIDTH;
    int64_t at = (int64_t)step * KEYS * c.key_stride;
    int left = c.key_length - step * KEYS;
    attention_fetch<KEYS, WIDTH, THREADS>(c, to, key + at, c.key_stride, left);
    attention_fetch<KEYS, WIDTH, THREADS>(c, to + KEYS * WIDTH, value + at, c.key_stride, left);
    ptb_copy_commit();
}

// Blocks: WARPS x TILES x 16 query rows of a head each. KEYS are copied at a time, STEP computed. HELD: the
// rows of query and d_out stay in registers.
template <typename T, int WIDTH, int WARPS, int TILES, int KEYS, int STEP, bool HELD, bool DROP>
__global__ void __launch_bounds__(WARPS * 32, WIDTH <= 128 ? 2 : 1)
    attention_query_gradient(attention_call c, const T *query, const T *key, const T *value, const T *d_out,
                             const float2 *rows, T *d_query, bool accumulate)
{
    constexpr int ROWS = WARPS * TILES * 16, THREADS = WARPS * 32;
    PTB_DYNAMIC_SHARED(T, shared);
    T *queries = shared, *d_outs = queries + ROWS * WIDTH;
    T *stages = d_outs + ROWS * WIDTH; /* [2][keys, values][KEYS, WIDTH] */
    attention_place of = attention_place_of(c);
    int first = ((int)c.tiles - 1 - of.tile) * ROWS, h = of.line % c.heads, b = of.line / c.heads;
    int own = (int)threadIdx.x / 32 * TILES * 16, row = first + own; // of this warp
    query += ((int64_t)b * c.query_length + first) * c.query_stride + h * c.width;
    d_out += ((int64_t)b * c.query_length + first) * c.out_stride + h * c.width;
    key += (int64_t)b * c.key_length * c.key_stride + h / c.group * c.width;
    value += (int64_t)b * c.key_length * c.key_stride + h / c.group * c.width;
    uint32_t column = (uint32_t)(c.draw_column + (uint64_t)h * c.draw_rows);
    const attention_view all = attention_look(c, b, first, ROWS);
    const attention_view view = attention_look(c, b, row, TILES * 16); // of this warp
    int step = all.any_low / KEYS, end = (all.any_high + KEYS - 1) / KEYS;
    if (step < end) { // else nobody waits for copies
        attention_fetch<ROWS, WIDTH, THREADS>(c, queries, query, c.query_stride, c.query_length - first);
        attention_fetch<ROWS, WIDTH, THREADS>(c, d_outs, d_out, c.out_stride, c.query_length - first);
        query_fetch<T, WIDTH, KEYS, THREADS>(c, key, value, step, stages);
    }
    query_rows<WIDTH, TILES> r;
    query_begin<WIDTH, TILES>(c, rows, b, h, row, DROP, r);
    uint32_t left[2][TILES][WIDTH / 16][4]; // of query and d_out
    if (HELD && step < end) {
        ptb_copy_wait<0>();
        __syncthreads();
        load_left<WIDTH, TILES>(left[0], queries, own);
        load_left<WIDTH, TILES>(left[1], d_outs, own);
    }
    for (; step < end; step++) {
        ptb_copy_wait<0>();
        __syncthreads(); // the step's tiles are there, and nobody reads those of the step before
        if (step + 1 < end)
            query_fetch<T, WIDTH, KEYS, THREADS>(c, key, value, step + 1, stages);
        const T *keys = stages + step % 2 * 2 * KEYS * WIDTH;
#pragma unroll 1
        for (int at = 0; at < KEYS; at += STEP) {
            int from = step * KEYS + at;
            if (from < view.any_high && from + STEP > view.any_low)
                query_step<T, WIDTH, TILES, STEP, HELD, DROP>(
                    c, r, left, b, column, queries, d_outs, keys, keys + KEYS * WIDTH, row, from, at,
                    from < view.all_low || from + STEP > view.all_high);
        }
    }
    float scale[TILES][2];
    for (int m = 0; m < TILES; m++)
        scale[m][0] = scale[m][1] = c.scale;
    d_query += (int64_t)b * c.query_length * c.query_stride + h * c.width;
    attention_store<WIDTH, TILES>(c, r.d_query, scale, d_query, c.query_stride, row, c.query_length,
                                  accumulate);
}

// Blocks as above for warp groups: GROUPS x 64 query rows of a head each.
template <typename T, int WIDTH, int GROUPS, int KEYS>
__global__ void __launch_bounds__(GROUPS * 128, 1)
    attention_query_gradient_group(attention_call c, const T *query, const T *key, const T *value,
                                   const T *d_out, const float2 *rows, T *d_query, bool accumulate)
{
#if PTB_HAS_WGMMA
    constexpr int ROWS = GROUPS * 64, THREADS = GROUPS * 128;
    PTB_DYNAMIC_SHARED(T, shared);
    T *queries = ptb_wgmma_align(shared), *d_outs = queries + ROWS * WIDTH; /* [WIDTH / 64][ROWS, 64] */
    T *stages = d_outs + ROWS * WIDTH; /* [2][keys, values][WIDTH / 64][KEYS, 64] */
    attention_place of = attention_place_of(c);
    int first = ((int)c.tiles - 1 - of.tile) * ROWS, h = of.line % c.heads, b = of.line / c.heads;
    int own = group_uniform((int)threadIdx.x / 128) * 64;
    int row = first + group_uniform((int)threadIdx.x / 32) * 16;
    query += ((int64_t)b * c.query_length + first) * c.query_stride + h * c.width;
    d_out += ((int64_t)b * c.query_length + first) * c.out_stride + h * c.width;
    key += (int64_t)b * c.key_length * c.key_stride + h / c.group * c.width;
    value += (int64_t)b * c.key_length * c.key_stride + h / c.group * c.width;
    auto fetch = [&](int step) {
        T *to = stages + step % 2 * 2 * KEYS * WIDTH;
        int64_t at = (int64_t)step * KEYS * c.key_stride;
        int left = c.key_length - step * KEYS;
        group_fetch<KEYS, WIDTH, THREADS>(c, to, key + at, c.key_stride, left);
        group_fetch<KEYS, WIDTH, THREADS>(c, to + KEYS * WIDTH, value + at, c.key_stride, left);
        ptb_copy_commit();
    };
    const attention_view all = attention_look(c, b, first, ROWS);
    const attention_view view = attention_look(c, b, first + own, ATTENTION_GROUP);
    int step = group_uniform(all.any_low / KEYS);
    const int end = group_uniform((all.any_high + KEYS - 1) / KEYS);
    query_rows<WIDTH, 1> r;
    uint32_t left[4][4]; // gradients of scores as a left operand
    query_begin<WIDTH, 1>(c, rows, b, h, row, false, r);
    if (step < end) {
        group_fetch<ROWS, WIDTH, THREADS>(c, queries, query, c.query_stride, c.query_length - first);
        group_fetch<ROWS, WIDTH, THREADS>(c, d_outs, d_out, c.out_stride, c.query_length - first);
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
            float p[1][8][4], dp[1][8][4];
            ptb_wgmma_fence();
            group_scores<WIDTH, ROWS, KEYS>(p, queries, own, keys, at);
            ptb_wgmma_commit();
            group_scores<WIDTH, ROWS, KEYS>(dp, d_outs, own, values, at);
            ptb_wgmma_commit();
            ptb_wgmma_wait<1>();
            group_hold<64>(p);
            query_probabilities<WIDTH, 1, ATTENTION_GROUP>(c, r, p); // while the other product is computed
            if (from < view.all_low || from + ATTENTION_GROUP > view.all_high)
                attention_hide<1, 4>(c, b, row, from, 0, p);
            ptb_wgmma_wait<0>();
            group_hold<64>(dp);
            query_scores<WIDTH, 1, ATTENTION_GROUP, false>(c, r, 0, p, dp);
            group_round(left, p, T());
            group_hold<WIDTH>(r.d_query);
            ptb_wgmma_fence();
            group_sums<WIDTH, KEYS>(r.d_query, left, keys, at);
            ptb_wgmma_commit();
        }
        ptb_wgmma_wait<0>();
        group_hold<WIDTH>(r.d_query);
    }
    const float scale[1][2] = {{c.scale, c.scale}};
    d_query += (int64_t)b * c.query_length * c.query_stride + h * c.width;
    attention_store<WIDTH, 1>(c, r.d_query, scale, d_query, c.query_stride, row, c.query_length, accumulate);
#else
    __trap();
#endif
}

// A launch of `kernel` with THREADS threads and ROWS rows of queries a block.
template <int ROWS, int THREADS, typename T, typename K>
static int launch_blocks(cudaStream_t stream, const ptb_attention_gradient *a, K kernel, size_t bytes)
{
    const ptb_attention_shape *s = &a->shape;
    attention_call c =
        attention_call_of(s, ptb_aligned(16, a->query, a->key, a->value, a->d_out, a->d_query));
    size_t line = 2 * s->key_length * s->head_width * sizeof(T);
    unsigned blocks = attention_order(&c, ptb_blocks(s->query_length, ROWS), s->batch * s->heads, line,
                                      s->heads / s->kv_heads);
    cudaError_t error = PTB_ALLOW_SHARED(kernel, bytes);
    if (error != cudaSuccess)
        return error;
    return PTB_LAUNCH(kernel, dim3(blocks), dim3(THREADS), bytes, stream, c, (const T *)a->query,
                      (const T *)a->key, (const T *)a->value, (const T *)a->d_out,
                      (const float2 *)s->workspace, (T *)a->d_query, a->accumulate);
}

template <typename T, int WIDTH, int WARPS, int TILES, int KEYS, int STEP, bool DROP>
static int launch_query(cudaStream_t stream, const ptb_attention_gradient *a)
{
    constexpr size_t tile = WARPS * TILES * 16, bytes = (2 * tile + 4 * KEYS) * WIDTH * sizeof(T);
    static_assert(bytes <= PTB_CUDA_ATTENTION_SHARED, "what is checked before");
    return launch_blocks<tile, WARPS * 32, T>(
        stream, a, attention_query_gradient<T, WIDTH, WARPS, TILES, KEYS, STEP, WIDTH <= 64, DROP>, bytes);
}

template <typename T, int WIDTH, int GROUPS, int KEYS>
static int launch_group(cudaStream_t stream, const ptb_attention_gradient *a)
{
    constexpr size_t tile = GROUPS * ATTENTION_GROUP;
    return launch_blocks<tile, GROUPS * 128, T>(
        stream, a, attention_query_gradient_group<T, WIDTH, GROUPS, KEYS>,
        (2 * tile + 4 * KEYS) * WIDTH * sizeof(T) + PTB_WGMMA_ALIGNMENT);
}

template <typename T, bool DROP> static int launch_width(cudaStream_t stream, const ptb_attention_gradient *a)
{
    if (a->shape.head_width <= 64)
        return launch_query<T, 64, 4, 2, 64, 32, DROP>(stream, a);
    if (a->shape.head_width <= 128)
        return launch_query<T, 128, 4, 2, 32, 32, DROP>(stream, a);
    return launch_query<T, 256, 4, 1, 32, 32, DROP>(stream, a);
}

template <typename T>
static int launch_type(cudaStream_t stream, const ptb_attention_gradient *a, bool groups)
{
    if (groups)
        return a->shape.head_width <= 64 ? launch_group<T, 64, 2, 128>(stream, a)
                                         : launch_group<T, 128, 2, 64>(stream, a);
    return a->shape.dropout_rate > 0 ? launch_width<T, true>(stream, a) : launch_width<T, false>(stream, a);
}

extern "C" int ptb_cuda_enqueue_attention_query_gradient(cudaStream_t stream,
                                                         const ptb_attention_gradient *args, bool groups)
{
    return args->shape.type == PTB_BF16 ? launch_type<__nv_bfloat16>(stream, args, groups)
                                        : launch_type<__half>(stream, args, groups);
}
