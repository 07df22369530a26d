// The gradient of attention on tensor cores, d_key and d_value: a block has some rows of keys and values of
// one head and goes over the queries that see them, all heads of the group one after the other. See
// kernels_cuda_attention_gradient.cu.
#include "strategies/transformer/kernels_cuda_attention_wgmma.cuh"

// Warp. Elements (key row, query column) of pairs that are hidden become 0.
template <int TILES, int PAIRS>
static __device__ __forceinline__ void key_hide(const attention_call &c, int b, int key, int query,
                                                float (&p)[TILES][PAIRS * 2][4])
{
    int lane = (int)threadIdx.x % 32;
#pragma unroll
    for (int n = 0; n < PAIRS * 2; n++)
#pragma unroll
        for (int i = 0; i < 2; i++) {
            int at = min(query + n * 8 + lane % 4 * 2 + i, c.query_length - 1);
            int low = attention_low(c, b, at), high = attention_high(c, at);
#pragma unroll
            for (int m = 0; m < TILES; m++)
#pragma unroll
                for (int half = 0; half < 2; half++) {
                    int row = key + m * 16 + half * 8 + lane / 4;
                    if (row < low || row >= high)
                        p[m][n][half * 2 + i] = 0;
                }
        }
}

// The queries that a block goes over: all heads of the group, blocks of rows that may see a key.
struct key_place {
    int head, block;
};

// The place at or after `at` where there is something to see; head `heads` when there is none.
template <int QUERIES>
static __device__ __forceinline__ key_place key_settle(const attention_call &c, int b, int begin, int end,
                                                       int heads, int last_key, key_place at)
{
    for (; at.head < heads && begin < end; at.block++) {
        if (at.block >= end) {
            at.head++;
            at.block = begin - 1;
        } else if (!c.start || attention_look(c, b, at.block * QUERIES, QUERIES).any_low <= last_key) {
            return at;
        }
    }
    return {heads, begin};
}

// A stage of shared memory: rows of query and d_out, and what belongs to them.
template <typename T, int WIDTH, int QUERIES> struct key_stage {
    T queries[QUERIES * WIDTH], d_outs[QUERIES * WIDTH];
    float2 rows[QUERIES];
    uint64_t draws[QUERIES];
};

template <typename T, int WIDTH, int QUERIES, int THREADS, bool DROP>
static __device__ __forceinline__ void key_fetch(const attention_call &c, const T *query, const T *d_out,
                                                 const float2 *rows, int b, const key_place &from,
                                                 key_stage<T, WIDTH, QUERIES> *to)
{
    int first = from.block * QUERIES, left = c.query_length - first, i = (int)threadIdx.x;
    int64_t row = (int64_t)b * c.query_length + first;
    attention_fetch<QUERIES, WIDTH, THREADS>(
        c, to->queries, query + row * c.query_stride + from.head * c.width, c.query_stride, left);
    attention_fetch<QUERIES, WIDTH, THREADS>(c, to->d_outs, d_out + row * c.out_stride + from.head * c.width,
                                             c.out_stride, left);
    rows += ((int64_t)b * c.heads + from.head) * c.query_length + first;
    if (i < QUERIES)
        ptb_copy_async_8(to->rows + i, i < left ? rows + i : rows, i < left);
    ptb_copy_commit();
    if (DROP && i < QUERIES)
        to->draws[i] =
            ptb_dropout_key(c.seed, c.draw_row + (uint64_t)b * c.draw_rows + (uint64_t)(first + i));
}

// Probabilities of (key, query) pairs from scores. Those that dropout drops become negative.
template <int TILES, int STEP, bool DROP>
static __device__ __forceinline__ void key_probabilities(const attention_call &c, const float2 *rows,
                                                         const uint64_t *draws, uint32_t column,
                                                         float (&s)[TILES][STEP / 8][4])
{
    float factor = c.negative ? -c.factor : c.factor;
    int lane = (int)threadIdx.x % 32;
#pragma unroll
    for (int n = 0; n < STEP / 8; n++) {
        float4 pair = *reinterpret_cast<const float4 *>(rows + n * 8 + lane % 4 * 2); // of two queries
#pragma unroll
        for (int m = 0; m < TILES; m++)
#pragma unroll
            for (int i = 0; i < 4; i++) {
                float p = ptb_exp2(s[m][n][i] * factor - (i % 2 ? pair.z : pair.x));
                if (DROP) {
                    uint32_t at = column + (uint32_t)(m * 16 + i / 2 * 8 + lane / 4);
                    if (ptb_dropout_draw(draws[n * 8 + lane % 4 * 2 + i % 2], at) < c.threshold)
                        p = -p;
                }
                s[m][n][i] = p;
            }
    }
}

// Gradients of the scores, in p's place.
template <int TILES, int STEP, bool DROP>
static __device__ __forceinline__ void key_scores(const attention_call &c, const float2 *rows,
                                                  float (&p)[TILES][STEP / 8][4],
                                                  const float (&dp)[TILES][STEP / 8][4])
{
#pragma unroll
    for (int n = 0; n < STEP / 8; n++) {
        float4 pair = *reinterpret_cast<const float4 *>(rows + n * 8 + threadIdx.x % 4 * 2);
#pragma unroll
        for (int m = 0; m < TILES; m++)
#pragma unroll
            for (int i = 0; i < 4; i++) {
                float d = dp[m][n][i];
                if (DROP)
                    d = p[m][n][i] < 0 ? 0 : d * c.kept;
                p[m][n][i] = fabsf(p[m][n][i]) * (d - (i % 2 ? pair.w : pair.y));
            }
    }
}

// What a warp keeps; one of the two may be left out.
template <int WIDTH, int TILES, bool KEY, bool VALUE> struct key_rows {
    float d_key[KEY ? TILES : 1][KEY ? WIDTH / 8 : 1][4],
        d_value[VALUE ? TILES : 1][VALUE ? WIDTH / 8 : 1][4];
};

// STEP queries from row `query` on (row `at` of the stage), for the rows of a warp from `row` on.
template <typename T, int WIDTH, int TILES, int QUERIES, int STEP, bool KEY, bool VALUE, bool DROP>
static __device__ __forceinline__ void
key_step(const attention_call &c, key_rows<WIDTH, TILES, KEY, VALUE> &r, int b, uint32_t column,
         const T *keys, const T *values, const key_stage<T, WIDTH, QUERIES> *stage, int row, int query,
         int at)
{
    const attention_view view = attention_look(c, b, query, STEP);
    int own = (int)threadIdx.x / 32 * TILES * 16;
    if (view.any_high <= row || view.any_low >= row + TILES * 16)
        return;
    float p[TILES][STEP / 8][4];
    attention_scores<WIDTH, TILES, STEP / 16>(p, keys, own, stage->queries, at);
    key_probabilities<TILES, STEP, DROP>(c, stage->rows + at, stage->draws + at, column + (uint32_t)row, p);
    if (view.all_low > row || view.all_high < min(row + TILES * 16, c.key_length))
        key_hide<TILES, STEP / 16>(c, b, row, query, p);
    if constexpr (VALUE) {
        float kept[TILES][STEP / 8][4];
#pragma unroll
        for (int m = 0; m < TILES; m++)
#pragma unroll
            for (int n = 0; n < STEP / 8; n++)
#pragma unroll
                for (int i = 0; i < 4; i++)
                    kept[m][n][i] = DROP ? fmaxf(p[m][n][i], 0) : p[m][n][i];
        attention_sums<WIDTH, TILES, STEP / 16>(r.d_value, kept, stage->d_outs, at);
    }
    if constexpr (KEY) {
        float dp[TILES][STEP / 8][4];
        attention_scores<WIDTH, TILES, STEP / 16>(dp, values, own, stage->d_outs, at);
        key_scores<TILES, STEP, DROP>(c, stage->rows + at, p, dp);
        attention_sums<WIDTH, TILES, STEP / 16>(r.d_key, p, stage->queries, at);
    }
}

template <typename T, int WIDTH, int TILES>
static __device__ __forceinline__ void key_store(const attention_call &c,
                                                 const float (&sum)[TILES][WIDTH / 8][4], float factor,
                                                 T *out, int b, int head, int row, bool accumulate)
{
    float scale[TILES][2];
#pragma unroll
    for (int m = 0; m < TILES; m++)
        scale[m][0] = scale[m][1] = factor;
    attention_store<WIDTH, TILES>(c, sum, scale,
                                  out + (int64_t)b * c.key_length * c.key_stride + head * c.width,
                                  c.key_stride, row, c.key_length, accumulate);
}

// Blocks: WARPS x TILES x 16 key rows of a key head each. QUERIES are copied at a time, STEP computed.
template <typename T, int WIDTH, int WARPS, int TILES, int QUERIES, int STEP, bool KEY, bool VALUE, bool DROP>
__global__ void __launch_bounds__(WARPS * 32, WIDTH <= 128 ? 2 : 1)
    attention_key_gradient(attention_call c, const T *query, const T *key, const T *value, const T *d_out,
                           const float2 *rows, T *d_key, T *d_value, bool accumulate)
{
    constexpr int ROWS = WARPS * TILES * 16, THREADS = WARPS * 32;
    PTB_DYNAMIC_SHARED(T, shared);
    T *keys = shared, *values = keys + ROWS * WIDTH;
    using stage = key_stage<T, WIDTH, QUERIES>;
    stage *stages = reinterpret_cast<stage *>(values + (KEY ? ROWS * WIDTH : 0));
    attention_place of = attention_place_of(c); // the first keys are seen by most: the longest blocks first
    int kv_heads = c.heads / c.group, first = of.tile * ROWS, head = of.line % kv_heads,
        b = of.line / kv_heads;
    int row = first + (int)threadIdx.x / 32 * TILES * 16;
    int64_t at = ((int64_t)b * c.key_length + first) * c.key_stride + head * c.width;
    // Under a causal mask row i sees these keys from i + shift >= first on.
    int begin = c.causal ? attention_clamp(first - c.shift, c.query_length) / QUERIES : 0;
    int end = (c.query_length + QUERIES - 1) / QUERIES, heads = (head + 1) * c.group;
    int last_key = min(first + ROWS, c.key_length) - 1;
    key_place place = key_settle<QUERIES>(c, b, begin, end, heads, last_key, {head * c.group, begin});
    key_rows<WIDTH, TILES, KEY, VALUE> r;
    memset(&r, 0, sizeof r);
    if (place.head < heads) { // else nobody waits for copies
        attention_fetch<ROWS, WIDTH, THREADS>(c, keys, key + at, c.key_stride, c.key_length - first);
        if (KEY)
            attention_fetch<ROWS, WIDTH, THREADS>(c, values, value + at, c.key_stride, c.key_length - first);
        key_fetch<T, WIDTH, QUERIES, THREADS, DROP>(c, query, d_out, rows, b, place, stages);
    }
    for (int turn = 0; place.head < heads; turn ^= 1) {
        key_place next =
            key_settle<QUERIES>(c, b, begin, end, heads, last_key, {place.head, place.block + 1});
        ptb_copy_wait<0>();
        __syncthreads(); // the stage is there, and nobody reads the other one
        if (next.head < heads)
            key_fetch<T, WIDTH, QUERIES, THREADS, DROP>(c, query, d_out, rows, b, next, stages + (turn ^ 1));
        uint32_t column = (uint32_t)(c.draw_column + (uint64_t)place.head * c.draw_rows);
#pragma unroll 1
        for (int i = 0; i < QUERIES; i += STEP)
            key_step<T, WIDTH, TILES, QUERIES, STEP, KEY, VALUE, DROP>(
                c, r, b, column, keys, values, stages + turn, row, place.block * QUERIES + i, i);
        place = next;
    }
    if constexpr (KEY)
        key_store<T, WIDTH, TILES>(c, r.d_key, c.scale, d_key, b, head, row, accumulate);
    if constexpr (VALUE)
        key_store<T, WIDTH, TILES>(c, r.d_value, c.kept, d_value, b, head, row, accumulate);
}

// STEP 64 queries from row `query` on (row `at` of the stage), for the rows of a group from `rows` on and of
// a warp from `row` on. While one product is computed, the group works on the sums of the one before.
template <typename T, int WIDTH, int ROWS, int QUERIES>
static __device__ __forceinline__ void
key_group_step(const attention_call &c, key_rows<WIDTH, 1, true, true> &r, uint32_t (&left)[2][4][4], int b,
               const T *keys, const T *values, const T *queries, const T *d_outs, const float2 *stats,
               int first, int rows, int row, int query, int at)
{
    const attention_view view = attention_look(c, b, query, ATTENTION_GROUP);
    if (view.any_high <= rows || view.any_low >= rows + ATTENTION_GROUP)
        return;
    float p[1][8][4], dp[1][8][4];
    ptb_wgmma_fence();
    group_scores<WIDTH, ROWS, QUERIES>(p, keys, rows - first, queries, at);
    ptb_wgmma_commit();
    group_scores<WIDTH, ROWS, QUERIES>(dp, values, rows - first, d_outs, at);
    ptb_wgmma_commit();
    ptb_wgmma_wait<1>();
    group_hold<64>(p);
    key_probabilities<1, ATTENTION_GROUP, false>(c, stats + at, NULL, 0, p);
    if (view.all_low > rows || view.all_high < min(rows + ATTENTION_GROUP, c.key_length))
        key_hide<1, 4>(c, b, row, query, p);
    group_round(left[0], p, T());
    group_hold<WIDTH>(r.d_value);
    ptb_wgmma_fence();
    group_sums<WIDTH, QUERIES>(r.d_value, left[0], d_outs, at);
    ptb_wgmma_commit();
    ptb_wgmma_wait<1>();
    group_hold<64>(dp);
    key_scores<1, ATTENTION_GROUP, false>(c, stats + at, p, dp);
    group_round(left[1], p, T());
    group_hold<WIDTH>(r.d_key);
    ptb_wgmma_fence();
    group_sums<WIDTH, QUERIES>(r.d_key, left[1], queries, at);
    ptb_wgmma_commit();
}

// QUERIES rows of query and d_out, and what belongs to them, into a stage, in the background.
template <typename T, int WIDTH, int QUERIES, int THREADS>
static __device__ __forceinline__ void
key_group_fetch(const attention_call &c, const T *query, const T *d_out, const float2 *rows, int b,
                const key_place &from, key_stage<T, WIDTH, QUERIES> *to)
{
    int first = from.block * QUERIES, left = c.query_length - first, i = (int)threadIdx.x;
    int64_t row = (int64_t)b * c.query_length + first;
    group_fetch<QUERIES, WIDTH, THREADS>(c, to->queries, query + row * c.query_stride + from.head * c.width,
                                         c.query_stride, left);
    group_fetch<QUERIES, WIDTH, THREADS>(c, to->d_outs, d_out + row * c.out_stride + from.head * c.width,
                                         c.out_stride, left);
    rows += ((int64_t)b * c.heads + from.head) * c.query_length + first;
    if (i < QUERIES)
        ptb_copy_async_8(to->rows + i, i < left ? rows + i : rows, i < left);
    ptb_copy_commit();
}

// Blocks as above for warp groups: GROUPS x 64 key rows of a key head each.
template <typename T, int WIDTH, int GROUPS, int QUERIES>
__global__ void __launch_bounds__(GROUPS * 128, 1)
    attention_key_gradient_group(attention_call c, const T *query, const T *key, const T *value,
                                 const T *d_out, const float2 *rows, T *d_key, T *d_value, bool accumulate)
{
#if PTB_HAS_WGMMA
    constexpr int ROWS = GROUPS * 64, THREADS = GROUPS * 128;
    using stage = key_stage<T, WIDTH, QUERIES>;
    static_assert(sizeof(stage) % PTB_WGMMA_ALIGNMENT == 0, "tiles of every stage start where they may");
    PTB_DYNAMIC_SHARED(T, shared);
    T *keys = ptb_wgmma_align(shared), *values = keys + ROWS * WIDTH; /* [WIDTH / 64][ROWS, 64] */
    stage *stages = reinterpret_cast<stage *>(values + ROWS * WIDTH);
    attention_place of = attention_place_of(c);
    int kv_heads = c.heads / c.group, first = of.tile * ROWS, head = of.line % kv_heads,
        b = of.line / kv_heads;
    int own = first + group_uniform((int)threadIdx.x / 128) * 64;
    int row = first + group_uniform((int)threadIdx.x / 32) * 16;
    int64_t at = ((int64_t)b * c.key_length + first) * c.key_stride + head * c.width;
    int begin = c.causal ? attention_clamp(first - c.shift, c.query_length) / QUERIES : 0;
    int end = (c.query_length + QUERIES - 1) / QUERIES, heads = (head + 1) * c.group;
    int last_key = min(first + ROWS, c.key_length) - 1;
    key_place place = key_settle<QUERIES>(c, b, begin, end, heads, last_key, {head * c.group, begin});
    key_rows<WIDTH, 1, true, true> r;
    uint32_t left[2][4][4]; // probabilities and gradients of scores as left operands
    memset(&r, 0, sizeof r);
    if (place.head < heads) {
        group_fetch<ROWS, WIDTH, THREADS>(c, keys, key + at, c.key_stride, c.key_length - first);
        group_fetch<ROWS, WIDTH, THREADS>(c, values, value + at, c.key_stride, c.key_length - first);
        key_group_fetch<T, WIDTH, QUERIES, THREADS>(c, query, d_out, rows, b, place, stages);
    }
    for (int turn = 0; place.head < heads; turn ^= 1) {
        key_place next =
            key_settle<QUERIES>(c, b, begin, end, heads, last_key, {place.head, place.block + 1});
        ptb_copy_wait<0>();
        ptb_proxy_fence();
        __syncthreads(); // the stage is there, and nobody reads the other one
        if (next.head < heads)
            key_group_fetch<T, WIDTH, QUERIES, THREADS>(c, query, d_out, rows, b, next, stages + (turn ^ 1));
        const stage *now = stages + turn;
#pragma unroll 1
        for (int i = 0; i < QUERIES; i += ATTENTION_GROUP)
            key_group_step<T, WIDTH, ROWS, QUERIES>(c, r, left, b, keys, values, now->queries, now->d_outs,
                                                    now->rows, first, own, row, place.block * QUERIES + i, i);
        ptb_wgmma_wait<0>();
        group_hold<WIDTH>(r.d_value);
        group_hold<WIDTH>(r.d_key);
        place = next;
    }
    key_store<T, WIDTH, 1>(c, r.d_key, c.scale, d_key, b, head, row, accumulate);
    key_store<T, WIDTH, 1>(c, r.d_value, 1, d_value, b, head, row, accumulate);
#else
    __trap();
#endif
}

// A launch of `kernel` with THREADS threads and ROWS rows of keys a block.
template <int ROWS, int THREADS, typename T, typename K>
static int launch_blocks(cudaStream_t stream, const ptb_attention_gradient *a, K kernel, size_t bytes)
{
    const ptb_attention_shape *s = &a->shape;
    attention_call c =
        attention_call_of(s, ptb_aligned(16, a->query, a->key, a->value, a->d_out, a->d_key, a->d_value));
    size_t line = 2 * s->query_length * s->head_width * (s->heads / s->kv_heads) * sizeof(T);
    unsigned blocks = attention_order(&c, ptb_blocks(s->key_length, ROWS), s->batch * s->kv_heads, line, 1);
    cudaError_t error = PTB_ALLOW_SHARED(kernel, bytes);
    if (error != cudaSuccess)
        return error;
    return PTB_LAUNCH(kernel, dim3(blocks), dim3(THREADS), bytes, stream, c, (const T *)a->query,
                      (const T *)a->key, (const T *)a->value, (const T *)a->d_out,
                      (const float2 *)s->workspace, (T *)a->d_key, (T *)a->d_value, a->accumulate);
}

template <typename T, int WIDTH, int WARPS, int TILES, int QUERIES, int STEP, bool KEY, bool VALUE, bool DROP>
static int launch_key(cudaStream_t stream, const ptb_attention_gradient *a)
{
    constexpr size_t tile = WARPS * TILES * 16;
    constexpr size_t bytes =
        (KEY ? 2 : 1) * tile * WIDTH * sizeof(T) + 2 * sizeof(key_stage<T, WIDTH, QUERIES>);
    static_assert(bytes <= PTB_CUDA_ATTENTION_SHARED, "what is checked before");
    return launch_blocks<tile, WARPS * 32, T>(
        stream, a, attention_key_gradient<T, WIDTH, WARPS, TILES, QUERIES, STEP, KEY, VALUE, DROP>, bytes);
}

template <typename T, int WIDTH, int GROUPS, int QUERIES>
static int launch_group(cudaStream_t stream, const ptb_attention_gradient *a)
{
    constexpr size_t tile = GROUPS * ATTENTION_GROUP;
    return launch_blocks<tile, GROUPS * 128, T>(
        stream, a, attention_key_gradient_group<T, WIDTH, GROUPS, QUERIES>,
        2 * tile * WIDTH * sizeof(T) + 2 * sizeof(key_stage<T, WIDTH, QUERIES>) + PTB_WGMMA_ALIGNMENT);
}

template <typename T, bool DROP> static int launch_width(cudaStream_t stream, const ptb_attention_gradient *a)
{
    if (a->shape.head_width <= 64)
        return launch_key<T, 64, 4, 2, 64, 32, true, true, DROP>(stream, a);
    if (a->shape.head_width <= 128)
        return launch_key<T, 128, 4, 1, 64, 32, true, true, DROP>(stream, a);
    // Both sums of such wide heads do not fit into the registers of a warp.
    int error = launch_key<T, 256, 4, 1, 32, 32, false, true, DROP>(stream, a);
    return error ? error : launch_key<T, 256, 4, 1, 32, 32, true, false, DROP>(stream, a);
}

template <typename T>
static int launch_type(cudaStream_t stream, const ptb_attention_gradient *a, bool groups)
{
    if (groups)
        return a->shape.head_width <= 64 ? launch_group<T, 64, 2, 128>(stream, a)
                                         : launch_group<T, 128, 2, 64>(stream, a);
    return a->shape.dropout_rate > 0 ? launch_width<T, true>(stream, a) : launch_width<T, false>(stream, a);
}

extern "C" int ptb_cuda_enqueue_attention_key_gradient(cudaStream_t stream,
                                                       const ptb_attention_gradient *args, bool groups)
{
    return args->shape.type == PTB_BF16 ? launch_type<__nv_bfloat16>(stream, args, groups)
                                        : launch_type<__half>(stream, args, groups);
}
