// Attention and its gradient in plain f32 arithmetic: for f32, which tensor cores would round to tf32, and
// for heads wider than the tensor-core kernels take. The algorithm is theirs; a block of 256 threads has 64
// rows and goes over 64 columns of scores at a time, a thread has 4 x 4 of them. Probabilities pass through
// shared memory. A block sums at most COLUMNS columns of a head's results; wider heads take several blocks,
// each of which computes the scores.
#include "strategies/transformer/kernels_cuda_attention.cuh"

enum { TILE = 64, DEPTH = 16, PLAIN_THREADS = 256, ROOM = TILE + 4 /* a row of shared memory */ };

template <int COLUMNS> struct alignas(16) plain_shared {
    float a[DEPTH][ROOM];        // left operand of scores, transposed
    float b[DEPTH][COLUMNS + 4]; // right operand of scores (transposed) or of sums
    float p[TILE][ROOM];         // left operand of sums, transposed
};

// Rows of a head in memory.
template <typename T> struct plain_rows {
    const T *values;
    int64_t stride;
    int rows; // those from here on count as 0, as do columns from the width on
};

template <typename T>
static __device__ __forceinline__ void plain_read(const attention_call &c, const plain_rows<T> &from, int row,
                                                  int column, float (&x)[4])
{
    const T *p = from.values + row * from.stride + column;
    if (c.aligned && row < from.rows && column < c.width) {
        ptb_load<4>(x, p);
        return;
    }
#pragma unroll
    for (int i = 0; i < 4; i++)
        x[i] = row < from.rows && column + i < c.width ? ptb_to_f32(p[i]) : 0;
}

// This thread's 4 x 4 of a b^T: rows threadIdx.x / 16 * 4 of a, threadIdx.x % 16 * 4 of b.
template <int COLUMNS, typename T>
static __device__ void plain_scores(const attention_call &c, plain_shared<COLUMNS> &shared,
                                    const plain_rows<T> &a, const plain_rows<T> &b, float (&s)[4][4])
{
    int ty = (int)threadIdx.x / 16 * 4, tx = (int)threadIdx.x % 16 * 4;
    int row = (int)threadIdx.x / 4, part = (int)threadIdx.x % 4 * 4;
    memset(s, 0, sizeof s);
    for (int column = 0; column < c.width; column += DEPTH) {
        float x[4], y[4];
        plain_read(c, a, row, column + part, x);
        plain_read(c, b, row, column + part, y);
        __syncthreads(); // nobody reads what was there
#pragma unroll
        for (int i = 0; i < 4; i++) {
            shared.a[part + i][row] = x[i];
            shared.b[part + i][row] = y[i];
        }
        __syncthreads();
#pragma unroll
        for (int k = 0; k < DEPTH; k++) {
            const ptb_pack<float, 4> left = ptb_load_pack<4>(&shared.a[k][ty]);
            const ptb_pack<float, 4> right = ptb_load_pack<4>(&shared.b[k][tx]);
#pragma unroll
            for (int i = 0; i < 4; i++)
#pragma unroll
                for (int j = 0; j < 4; j++)
                    s[i][j] += left.at[i] * right.at[j];
        }
    }
}

// Left operand of plain_sums.
template <int COLUMNS> static __device__ void plain_put(plain_shared<COLUMNS> &shared, const float (&p)[4][4])
{
    int ty = (int)threadIdx.x / 16 * 4, tx = (int)threadIdx.x % 16 * 4;
    __syncthreads();
#pragma unroll
    for (int i = 0; i < 4; i++)
#pragma unroll
        for (int j = 0; j < 4; j++)
            shared.p[tx + j][ty + i] = p[i][j];
}

// o += p b: this thread's rows, columns first + threadIdx.x % 16 * 4 of every 64.
template <int COLUMNS, typename T>
static __device__ void plain_sums(const attention_call &c, plain_shared<COLUMNS> &shared,
                                  const plain_rows<T> &b, int first, float (&o)[COLUMNS / 64][4][4])
{
    int ty = (int)threadIdx.x / 16 * 4, tx = (int)threadIdx.x % 16 * 4, row = (int)threadIdx.x / 16;
    // Rows behind the last add 0; wider parts would pay for leaving them out with registers, and a block less
    // an SM.
    int rows = COLUMNS == 64 ? min(b.rows, TILE) : TILE;
    for (int depth = 0; depth < rows; depth += DEPTH) {
        __syncthreads();
#pragma unroll
        for (int g = 0; g < COLUMNS / 64; g++) {
            float x[4];
            plain_read(c, b, depth + row, first + g * 64 + tx, x);
            ptb_store<4>(&shared.b[row][g * 64 + tx], x);
        }
        __syncthreads();
#pragma unroll 4
        for (int k = 0; k < DEPTH; k++) {
            const ptb_pack<float, 4> left = ptb_load_pack<4>(&shared.p[depth + k][ty]);
#pragma unroll
            for (int g = 0; g < COLUMNS / 64; g++) {
                const ptb_pack<float, 4> right = ptb_load_pack<4>(&shared.b[k][g * 64 + tx]);
#pragma unroll
                for (int i = 0; i < 4; i++)
#pragma unroll
                    for (int j = 0; j < 4; j++)
                        o[g][i][j] += left.at[i] * right.at[j];
            }
        }
    }
}

// Rows [row, row + 4) and this thread's columns = scale * o (+ out).
template <int COLUMNS, typename T>
static __device__ void plain_store(const attention_call &c, const float (&o)[COLUMNS / 64][4][4],
                                   const float (&scale)[4], T *out, int64_t stride, int row, int rows,
                                   int first, bool accumulate)
{
    int tx = (int)threadIdx.x % 16 * 4;
#pragma unroll
    for (int g = 0; g < COLUMNS / 64; g++)
#pragma unroll
        for (int i = 0; i < 4; i++)
#pragma unroll
            for (int j = 0; j < 4; j++) {
                int column = first + g * 64 + tx + j;
                if (row + i >= rows || column >= c.width)
                    continue;
                T *to = out + (row + i) * stride + column;
                *to = ptb_from_f32<T>(o[g][i][j] * scale[i] + (accumulate ? ptb_to_f32(*to) : 0));
            }
}

static __device__ __forceinline__ bool plain_drops(const attention_call &c, int b, int h, int row, int key)
{
    uint64_t draws = ptb_dropout_key(c.seed, c.draw_row + (uint64_t)b * c.draw_rows + (uint64_t)row);
    uint32_t column = (uint32_t)(c.draw_column + (uint64_t)h * c.draw_rows + (uint64_t)key);
    return ptb_dropout_draw(draws, column) < c.threshold;
}

static __device__ __forceinline__ float plain_factor(const attention_call &c)
{
    return c.negative ? -c.factor : c.factor;
}

// A block's place: the first row of its tile and the first column that it sums.
struct plain_place {
    int first, column, row; // row: of this thread
};
template <int COLUMNS> static __device__ __forceinline__ plain_place plain_begin(const attention_call &c)
{
    int parts = (c.width + COLUMNS - 1) / COLUMNS;
    int first = (int)blockIdx.x / parts * TILE;
    return {first, (int)blockIdx.x % parts * COLUMNS, first + (int)threadIdx.x / 16 * 4};
}

// Grid: tiles of query rows x parts of a head's columns, heads, batch.
template <typename T, int COLUMNS>
__global__ void __launch_bounds__(PLAIN_THREADS)
    plain_forward(attention_call c, const T *query, const T *key, const T *value, T *out, float *lse)
{
    __shared__ plain_shared<COLUMNS> shared;
    const plain_place at = plain_begin<COLUMNS>(c);
    int h = (int)blockIdx.y, b = (int)blockIdx.z, tx = (int)threadIdx.x % 16 * 4;
    plain_rows<T> queries = {query + ((int64_t)b * c.query_length + at.first) * c.query_stride + h * c.width,
                             c.query_stride, c.query_length - at.first};
    int64_t keys_at = (int64_t)b * c.key_length * c.key_stride + h / c.group * c.width;
    const attention_view view = attention_look(c, b, at.first, TILE);
    float o[COLUMNS / 64][4][4] = {}, top[4], sum[4] = {}, factor = plain_factor(c), scale[4];
    for (int i = 0; i < 4; i++)
        top[i] = -INFINITY; // in units of log 2
    for (int from = view.any_low / TILE * TILE; from < view.any_high; from += TILE) {
        plain_rows<T> keys = {key + keys_at + from * c.key_stride, c.key_stride, c.key_length - from};
        plain_rows<T> values = {value + keys_at + from * c.key_stride, c.key_stride, c.key_length - from};
        float s[4][4];
        plain_scores(c, shared, queries, keys, s);
        for (int i = 0; i < 4; i++) {
            int row = min(at.row + i, c.query_length - 1);
            int low = attention_low(c, b, row) - from - tx, high = attention_high(c, row) - from - tx;
            float most = top[i];
            for (int j = 0; j < 4; j++)
                most = j >= low && j < high ? fmaxf(most, s[i][j] * factor) : most;
            for (int distance = 1; distance < 16; distance *= 2)
                most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, distance));
            float base = most == -INFINITY ? 0 : most, shrink = exp2f(top[i] - base);
            top[i] = most;
            sum[i] *= shrink;
            for (int j = 0; j < 4; j++) {
                s[i][j] = j >= low && j < high ? exp2f(fmaf(s[i][j], factor, -base)) : 0;
                sum[i] += s[i][j];
                if (c.threshold && plain_drops(c, b, h, at.row + i, from + tx + j))
                    s[i][j] = 0;
            }
            for (int g = 0; g < COLUMNS / 64; g++)
                for (int j = 0; j < 4; j++)
                    o[g][i][j] *= shrink;
        }
        plain_put(shared, s);
        plain_sums(c, shared, values, at.column, o);
    }
    for (int i = 0; i < 4; i++) {
        for (int distance = 1; distance < 16; distance *= 2)
            sum[i] += __shfl_xor_sync(0xffffffffu, sum[i], distance);
        scale[i] = sum[i] > 0 ? c.kept / sum[i] : 0;
        if (at.column == 0 && tx == 0 && at.row + i < c.query_length)
            lse[((int64_t)b * c.heads + h) * c.query_length + at.row + i] =
                sum[i] > 0 ? top[i] * 0.693147181f + logf(sum[i]) : -INFINITY;
    }
    plain_store<COLUMNS>(c, o, scale, out + (int64_t)b * c.query_length * c.out_stride + h * c.width,
                         c.out_stride, at.row, c.query_length, at.column, false);
}

// The gradient of a score, from the score and the gradient of its probability. row: {lse, sum}. kept becomes
// the probability that enters d_value.
static __device__ __forceinline__ float plain_gradient(const attention_call &c, int b, int h, int query,
                                                       int key, float2 row, float score, float dp,
                                                       float *kept)
{
    int at = min(query, c.query_length - 1);
    bool seen = key >= attention_low(c, b, at) && key < attention_high(c, at) && query < c.query_length;
    float p = seen ? exp2f(fmaf(score, plain_factor(c), -row.x)) : 0;
    bool drops = c.threshold && plain_drops(c, b, h, query, key);
    *kept = drops ? 0 : p;
    return p * ((drops ? 0 : dp * c.kept) - row.y);
}

// Grid: tiles of query rows x parts of a head's columns, heads, batch.
template <typename T, int COLUMNS>
__global__ void __launch_bounds__(PLAIN_THREADS)
    plain_query_gradient(attention_call c, const T *query, const T *key, const T *value, const T *d_out,
                         const float2 *rows, T *d_query, bool accumulate)
{
    __shared__ plain_shared<COLUMNS> shared;
    const plain_place at = plain_begin<COLUMNS>(c);
    int h = (int)blockIdx.y, b = (int)blockIdx.z, tx = (int)threadIdx.x % 16 * 4;
    int64_t row = (int64_t)b * c.query_length + at.first;
    int left = c.query_length - at.first;
    plain_rows<T> queries = {query + row * c.query_stride + h * c.width, c.query_stride, left};
    plain_rows<T> d_outs = {d_out + row * c.out_stride + h * c.width, c.out_stride, left};
    int64_t keys_at = (int64_t)b * c.key_length * c.key_stride + h / c.group * c.width;
    const attention_view view = attention_look(c, b, at.first, TILE);
    float o[COLUMNS / 64][4][4] = {}, scale[4] = {c.scale, c.scale, c.scale, c.scale};
    float2 own[4];
    for (int i = 0; i < 4; i++)
        own[i] = at.row + i < c.query_length ? rows[((int64_t)b * c.heads + h) * c.query_length + at.row + i]
                                             : float2{0, 0};
    for (int from = view.any_low / TILE * TILE; from < view.any_high; from += TILE) {
        plain_rows<T> keys = {key + keys_at + from * c.key_stride, c.key_stride, c.key_length - from};
        plain_rows<T> values = {value + keys_at + from * c.key_stride, c.key_stride, c.key_length - from};
        float s[4][4], dp[4][4], kept;
        plain_scores(c, shared, queries, keys, s);
        plain_scores(c, shared, d_outs, values, dp);
        for (int i = 0; i < 4; i++)
            for (int j = 0; j < 4; j++)
                s[i][j] =
                    plain_gradient(c, b, h, at.row + i, from + tx + j, own[i], s[i][j], dp[i][j], &kept);
        plain_put(shared, s);
        plain_sums(c, shared, keys, at.column, o);
    }
    plain_store<COLUMNS>(c, o, scale, d_query + (int64_t)b * c.query_length * c.query_stride + h * c.width,
                         c.query_stride, at.row, c.query_length, at.column, accumulate);
}

// Queries [from, from + TILE) of a head, for a block's keys: adds to the sums.
template <typename T, int COLUMNS>
static __device__ void
plain_key_step(const attention_call &c, plain_shared<COLUMNS> &shared, const plain_rows<T> &keys,
               const plain_rows<T> &values, const plain_rows<T> &queries, const plain_rows<T> &d_outs,
               const float2 *rows, int b, int h, int from, const plain_place &at,
               float (&d_key)[COLUMNS / 64][4][4], float (&d_value)[COLUMNS / 64][4][4])
{
    float s[4][4], dp[4][4], kept[4][4];
    int tx = (int)threadIdx.x % 16 * 4;
    plain_scores(c, shared, keys, queries, s);
    plain_scores(c, shared, values, d_outs, dp);
    for (int j = 0; j < 4; j++) {
        float2 row = tx + j < queries.rows ? rows[tx + j] : float2{0, 0};
        for (int i = 0; i < 4; i++)
            s[i][j] = plain_gradient(c, b, h, from + tx + j, at.row + i, row, s[i][j], dp[i][j], &kept[i][j]);
    }
    plain_put(shared, kept);
    plain_sums(c, shared, d_outs, at.column, d_value);
    plain_put(shared, s);
    plain_sums(c, shared, queries, at.column, d_key);
}

// Grid: tiles of key rows x parts of a head's columns, key heads, batch.
template <typename T, int COLUMNS>
__global__ void __launch_bounds__(PLAIN_THREADS)
    plain_key_gradient(attention_call c, const T *query, const T *key, const T *value, const T *d_out,
                       const float2 *rows, T *d_key, T *d_value, bool accumulate)
{
    __shared__ plain_shared<COLUMNS> shared;
    const plain_place at = plain_begin<COLUMNS>(c);
    int head = (int)blockIdx.y, b = (int)blockIdx.z;
    int64_t keys_at = ((int64_t)b * c.key_length + at.first) * c.key_stride + head * c.width;
    plain_rows<T> keys = {key + keys_at, c.key_stride, c.key_length - at.first};
    plain_rows<T> values = {value + keys_at, c.key_stride, c.key_length - at.first};
    int last = min(at.first + TILE, c.key_length) - 1;
    int begin = c.causal ? attention_clamp(at.first - c.shift, c.query_length) / TILE * TILE : 0;
    float sums[2][COLUMNS / 64][4][4] = {};
    for (int h = head * c.group; h < (head + 1) * c.group; h++)
        for (int from = begin; from < c.query_length; from += TILE) {
            const attention_view view = attention_look(c, b, from, TILE);
            if (view.any_low > last || view.any_high <= at.first)
                continue;
            int64_t row = (int64_t)b * c.query_length + from;
            int left = c.query_length - from;
            plain_rows<T> queries = {query + row * c.query_stride + h * c.width, c.query_stride, left};
            plain_rows<T> d_outs = {d_out + row * c.out_stride + h * c.width, c.out_stride, left};
            plain_key_step(c, shared, keys, values, queries, d_outs,
                           rows + ((int64_t)b * c.heads + h) * c.query_length + from, b, h, from, at, sums[0],
                           sums[1]);
        }
    int64_t to = (int64_t)b * c.key_length * c.key_stride + head * c.width;
    float scale[4] = {c.scale, c.scale, c.scale, c.scale}, one[4] = {c.kept, c.kept, c.kept, c.kept};
    plain_store<COLUMNS>(c, sums[0], scale, d_key + to, c.key_stride, at.row, c.key_length, at.column,
                         accumulate);
    plain_store<COLUMNS>(c, sums[1], one, d_value + to, c.key_stride, at.row, c.key_length, at.column,
                         accumulate);
}

// ---- launchers

static dim3 plain_grid(const ptb_attention_shape *s, size_t rows, size_t heads, int columns)
{
    size_t parts = ptb_blocks(s->head_width, (size_t)columns);
    return dim3((unsigned)(ptb_blocks(rows, TILE) * parts), (unsigned)heads, (unsigned)s->batch);
}

template <typename T, int COLUMNS> static int launch_forward(cudaStream_t stream, const ptb_attention *a)
{
    const ptb_attention_shape *s = &a->shape;
    attention_call c = attention_call_of(s, ptb_aligned(16, a->query, a->key, a->value, a->out));
    return PTB_LAUNCH((plain_forward<T, COLUMNS>), plain_grid(s, s->query_length, s->heads, COLUMNS),
                      dim3(PLAIN_THREADS), 0, stream, c, (const T *)a->query, (const T *)a->key,
                      (const T *)a->value, (T *)a->out, a->lse);
}

template <typename T, int COLUMNS>
static int launch_gradient(cudaStream_t stream, const ptb_attention_gradient *a)
{
    const ptb_attention_shape *s = &a->shape;
    attention_call c = attention_call_of(s, ptb_aligned(16, a->query, a->key, a->value, a->d_out));
    int error = PTB_LAUNCH(
        (plain_key_gradient<T, COLUMNS>), plain_grid(s, s->key_length, s->kv_heads, COLUMNS),
        dim3(PLAIN_THREADS), 0, stream, c, (const T *)a->query, (const T *)a->key, (const T *)a->value,
        (const T *)a->d_out, (const float2 *)s->workspace, (T *)a->d_key, (T *)a->d_value, a->accumulate);
    if (error)
        return error;
    return PTB_LAUNCH((plain_query_gradient<T, COLUMNS>), plain_grid(s, s->query_length, s->heads, COLUMNS),
                      dim3(PLAIN_THREADS), 0, stream, c, (const T *)a->query, (const T *)a->key,
                      (const T *)a->value, (const T *)a->d_out, (const float2 *)s->workspace, (T *)a->d_query,
                      a->accumulate);
}

extern "C" int ptb_cuda_launch_attention_plain(cudaStream_t stream, const ptb_attention *args)
{
    if (args->shape.type == PTB_BF16)
        return launch_forward<__nv_bfloat16, 256>(stream, args);
    if (args->shape.type == PTB_F16)
        return launch_forward<__half, 256>(stream, args);
    if (args->shape.head_width <= 64)
        return launch_forward<float, 64>(stream, args);
    return args->shape.head_width <= 128 ? launch_forward<float, 128>(stream, args)
                                         : launch_forward<float, 256>(stream, args);
}

extern "C" int ptb_cuda_launch_attention_gradient_plain(cudaStream_t stream,
                                                        const ptb_attention_gradient *args)
{
    if (args->shape.type == PTB_BF16)
        return launch_gradient<__nv_bfloat16, 256>(stream, args);
    if (args->shape.type == PTB_F16)
        return launch_gradient<__half, 256>(stream, args);
    if (args->shape.head_width <= 64)
        return launch_gradient<float, 64>(stream, args);
    return args->shape.head_width <= 128 ? launch_gradient<float, 128>(stream, args)
                                         : launch_gradient<float, 256>(stream, args);
}
