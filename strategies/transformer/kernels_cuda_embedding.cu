// Token and position embedding of the back-end `cuda`, and its gradient. The gradient is the same, bit by
// bit, from run to run: rows are sorted by their token (or position), then each run of equal ones is summed
// in order. The sort counts rows by class (key modulo CLASSES), places them class by class, and ranks them
// within their class, which is small, by comparing each with all. The sorted list is cut into chunks; a run
// that crosses chunks leaves partial sums, which a last kernel adds in order: one frequent token costs no
// more than many rare ones. Few rows go another way (kernels_cuda_embedding_few.cu).
#include "strategies/transformer/kernels_cuda_each.cuh"
#include "strategies/transformer/kernels_cuda_embedding.cuh"

namespace {

// ---- forward

template <typename T, bool positions> struct embedding {
    ptb_embedding a;
    template <int N> struct packs {
        ptb_pack<T, N> token, position;
    };
    template <int N> __device__ packs<N> load(size_t i) const
    {
        packs<N> p;
        size_t row = i / a.width, column = i - row * a.width;
        unsigned place = (unsigned)a.tokens[row] - (unsigned)a.first_token;
        if (place < a.vocabulary) {
            p.token = ptb_load_pack<N>((const T *)a.table + place * a.width + column);
        } else {
#pragma unroll
            for (int e = 0; e < N; e++)
                p.token.at[e] = ptb_from_f32<T>(0);
        }
        if constexpr (positions) {
            size_t position = a.position_offset + row % a.sequence - (a.start ? a.start[row] : 0);
            p.position = ptb_load_pack<N>((const T *)a.positions + position * a.width + column);
        }
        return p;
    }
    template <int N> __device__ void finish(size_t i, packs<N> p) const
    {
        if constexpr (positions)
#pragma unroll
            for (int e = 0; e < N; e++)
                p.token.at[e] = ptb_from_f32<T>(ptb_to_f32(p.token.at[e]) + ptb_to_f32(p.position.at[e]));
        ptb_store_pack<N>((T *)a.out + i, p.token);
    }
};

// ---- sorting rows by key

constexpr unsigned CLASSES = 2048, SORT_THREADS = 256, SORT_RESIDENT = 4;
constexpr unsigned ALL = 0xffffffffu, WARP = 32;

// An entry of the list: key, then row, so that entries are compared as numbers.
typedef unsigned long long entry;
__device__ __forceinline__ unsigned key_of(entry e)
{
    return (unsigned)(e >> 32);
}

struct sort_memory {
    unsigned *counts;  /* [CLASSES], zero at first */
    unsigned *cursors; /* [CLASSES], zero at first */
    unsigned *offsets; /* [CLASSES + 1] */
    entry *placed;     /* [rows], by class */
    entry *sorted;     /* [rows], by class, then key, then row */
};

// Calls f(row, key, mask, below) for the rows of this thread; mask: lanes of the warp with rows of the same
// class, below: how many of them are before this one. Whole warps call f, rows beyond the last one with an
// empty mask.
template <typename F> __device__ __forceinline__ void each_row(const ptb_row_keys &keys, F f)
{
    unsigned lane = threadIdx.x % WARP;
    size_t first = (blockIdx.x * (size_t)blockDim.x + threadIdx.x) / WARP * WARP;
    for (; first < keys.rows; first += (size_t)gridDim.x * blockDim.x) {
        size_t row = first + lane;
        unsigned key = row < keys.rows ? keys.of(row) : 0;
        unsigned mask = __match_any_sync(ALL, row < keys.rows ? key % CLASSES : CLASSES);
        f(row, key, row < keys.rows ? mask : 0, (unsigned)__popc(mask & ((1u << lane) - 1)));
    }
}

__global__ void __launch_bounds__(SORT_THREADS) count_classes(ptb_row_keys keys, sort_memory m)
{
    each_row(keys, [&](size_t, unsigned key, unsigned mask, unsigned below) {
        if (mask && below == 0)
            atomicAdd(&m.counts[key % CLASSES], (unsigned)__popc(mask));
    });
}

// out[i] = sum of in[0..i), for i up to CLASSES, by all threads of the block.
__device__ void scan_classes(unsigned *out, const unsigned *in,
                             unsigned *warp_sums /* [SORT_THREADS / WARP] */)
{
    constexpr unsigned EACH = CLASSES / SORT_THREADS;
    unsigned sums[EACH], lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, total = 0, before = 0;
    for (unsigned i = 0; i < EACH; i++) {
        sums[i] = total;
        total += in[threadIdx.x * EACH + i];
    }
    unsigned inclusive = total;
    for (unsigned distance = 1; distance < WARP; distance *= 2) {
        unsigned other = __shfl_up_sync(ALL, inclusive, distance);
        inclusive += lane >= distance ? other : 0;
    }
    if (lane == WARP - 1)
        warp_sums[warp] = inclusive;
    __syncthreads();
    for (unsigned w = 0; w < warp; w++)
        before += warp_sums[w];
    before += inclusive - total;
    for (unsigned i = 0; i < EACH; i++)
        out[threadIdx.x * EACH + i] = before + sums[i];
    if (threadIdx.x == SORT_THREADS - 1)
        out[CLASSES] = before + total;
    __syncthreads();
}

__global__ void __launch_bounds__(SORT_THREADS) place_rows(ptb_row_keys keys, sort_memory m)
{
    __shared__ unsigned offsets[CLASSES + 1], warp_sums[SORT_THREADS / WARP];
    scan_classes(offsets, m.counts, warp_sums);
    for (unsigned c = threadIdx.x; blockIdx.x == 0 && c <= CLASSES; c += SORT_THREADS)
        m.offsets[c] = offsets[c];
    each_row(keys, [&](size_t row, unsigned key, unsigned mask, unsigned below) {
        unsigned place = 0, one = key % CLASSES;
        if (mask && below == 0)
            place = atomicAdd(&m.cursors[one], (unsigned)__popc(mask));
        place = __shfl_sync(ALL, place, mask ? __ffs((int)mask) - 1 : 0);
        if (mask)
            m.placed[offsets[one] + place + below] = (entry)key << 32 | row;
    });
}

__global__ void __launch_bounds__(SORT_THREADS) rank_rows(sort_memory m, size_t rows)
{
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < rows;
         i += (size_t)gridDim.x * blockDim.x) {
        entry mine = m.placed[i];
        unsigned first = m.offsets[key_of(mine) % CLASSES], end = m.offsets[key_of(mine) % CLASSES + 1];
        unsigned rank = first;
#pragma unroll 8
        for (unsigned j = first; j < end; j++)
            rank += m.placed[j] < mine;
        m.sorted[rank] = mine;
    }
}

// ---- sums of runs

constexpr unsigned CHUNKS = 1024, CHUNK_LEAST = 4; // most chunks; least entries of one
constexpr unsigned TILE = 64, TOGETHER = 4;        // entries in shared memory; rows on their way at once
constexpr unsigned SUM_THREADS = 128;              // most of a block
constexpr size_t PARTIAL_BYTES = 16 << 20;

struct run_sums {
    float *out;          /* [keys, width] */
    const entry *sorted; /* [rows] */
    float *partial; /* [chunks, 2, width]: of the run that a chunk continues, and of that which it begins */
    size_t rows, width, chunk; // entries of a chunk
    unsigned limit;            // of keys: larger ones have no row in out
    bool accumulate;           // else rows of out that are written were 0
};

// Entry i of the list has another key than the one before it.
__device__ __forceinline__ bool begins(const run_sums &s, size_t i)
{
    return i == 0 || i >= s.rows || key_of(s.sorted[i]) != key_of(s.sorted[i - 1]);
}

// One block a chunk (x) and some columns (y).
template <typename T, int N>
__global__ void __launch_bounds__(SUM_THREADS) sum_runs(run_sums s, const T *d_out /* [rows, width] */)
{
    __shared__ entry entries[TILE + 1];
    size_t first = blockIdx.x * s.chunk, end = first + s.chunk < s.rows ? first + s.chunk : s.rows;
    size_t column = (blockIdx.y * (size_t)blockDim.x + threadIdx.x) * N;
    bool live = column < s.width, continued = !begins(s, first);
    float *partial = s.partial + 2 * blockIdx.x * s.width + column;
    float sum[N] = {0};
    for (size_t tile = first; tile < end; tile += TILE) {
        unsigned count = end - tile < TILE ? (unsigned)(end - tile) : TILE;
        __syncthreads();
        for (unsigned i = threadIdx.x; i <= count; i += blockDim.x)
            entries[i] = tile + i < s.rows ? s.sorted[tile + i] : ~0ull;
        __syncthreads();
        for (unsigned i = 0; live && i < count; i += TOGETHER) {
            ptb_pack<T, N> values[TOGETHER];
            ptb_pack<float, N> before[TOGETHER];
#pragma unroll
            for (unsigned t = 0; t < TOGETHER; t++) {
                if (i + t >= count)
                    continue;
                entry e = entries[i + t];
                values[t] = ptb_load_pack<N>(d_out + (unsigned)e * s.width + column);
                if (s.accumulate && key_of(entries[i + t + 1]) != key_of(e) && key_of(e) < s.limit)
                    before[t] = ptb_load_pack<N>(s.out + key_of(e) * s.width + column);
            }
#pragma unroll
            for (unsigned t = 0; t < TOGETHER; t++) {
                if (i + t >= count)
                    continue;
                unsigned key = key_of(entries[i + t]);
#pragma unroll
                for (int e = 0; e < N; e++)
                    sum[e] += ptb_to_f32(values[t].at[e]);
                if (key_of(entries[i + t + 1]) == key)
                    continue;
#pragma unroll
                for (int e = 0; e < N; e++)
                    sum[e] += s.accumulate && !continued ? before[t].at[e] : 0;
                if (continued || key < s.limit)
                    ptb_store(continued ? partial : s.out + key * s.width + column, sum);
                continued = false;
#pragma unroll
                for (int e = 0; e < N; e++)
                    sum[e] = 0;
            }
        }
    }
    if (live && !begins(s, end))
        ptb_store(continued ? partial : partial + s.width, sum);
}

// The runs that end in another chunk than they begin in: one block for the chunk of the beginning (x) and
// some columns (y).
__global__ void __launch_bounds__(SUM_THREADS) merge_runs(run_sums s)
{
    size_t column = blockIdx.y * (size_t)blockDim.x + threadIdx.x, end = (blockIdx.x + 1) * s.chunk;
    if (column >= s.width || end >= s.rows || begins(s, end))
        return;
    unsigned key = key_of(s.sorted[end]);
    size_t first = end - s.chunk;
    if (key >= s.limit)
        return;
    if (key_of(s.sorted[first]) == key && !begins(s, first))
        return; // begins further ahead
    float sum = s.partial[(2 * blockIdx.x + 1) * s.width + column];
    for (size_t chunk = blockIdx.x + 1;
         chunk * s.chunk < s.rows && key_of(s.sorted[chunk * s.chunk]) == key && !begins(s, chunk * s.chunk);
         chunk++)
        sum += s.partial[2 * chunk * s.width + column];
    float *out = s.out + key * s.width + column;
    *out = sum + (s.accumulate ? *out : 0);
}

// ---- the host's side

size_t chunks_of(size_t rows, size_t width)
{
    size_t chunks = PARTIAL_BYTES / (2 * width * sizeof(float)), wanted = ptb_blocks(rows, CHUNK_LEAST);
    chunks = chunks < CHUNKS ? chunks : CHUNKS;
    chunks = chunks < wanted ? chunks : wanted;
    return chunks ? chunks : 1;
}

unsigned whole_warps(size_t threads)
{
    return threads < SUM_THREADS ? (unsigned)ptb_blocks(threads, WARP) * WARP : SUM_THREADS;
}

template <typename T, int N>
int launch_sums(cudaStream_t stream, const run_sums &s, const T *d_out, unsigned chunks)
{
    unsigned threads = whole_warps(s.width / N), merging = whole_warps(s.width);
    dim3 grid(chunks, (unsigned)ptb_blocks(s.width, threads * N));
    int error = PTB_LAUNCH((sum_runs<T, N>), grid, threads, 0, stream, s, d_out);
    if (error != cudaSuccess || chunks == 1)
        return error;
    return PTB_LAUNCH(merge_runs, dim3(chunks, (unsigned)ptb_blocks(s.width, merging)), merging, 0, stream,
                      s);
}

// out[key of row] (+)= d_out[row]. out has `count` rows.
template <typename T>
int add_by_key(cudaStream_t stream, const ptb_embedding_gradient *a, const ptb_row_keys &keys, float *out,
               size_t count, bool accumulate, char *scratch)
{
    cudaError_t error = cudaSuccess;
    if (!accumulate)
        error = cudaMemsetAsync(out, 0, count * a->width * sizeof *out, stream);
    if (error != cudaSuccess || !a->rows)
        return error;
    sort_memory m = {.counts = (unsigned *)scratch};
    m.cursors = m.counts + CLASSES;
    m.placed = (entry *)(m.cursors + CLASSES);
    m.sorted = m.placed + a->rows;
    size_t chunks = chunks_of(a->rows, a->width);
    run_sums s = {.out = out, .sorted = m.sorted, .partial = (float *)(m.sorted + a->rows)};
    s.rows = a->rows, s.width = a->width, s.accumulate = accumulate, s.limit = keys.limit;
    s.chunk = ptb_blocks(a->rows, chunks);
    chunks = ptb_blocks(a->rows, s.chunk);
    m.offsets = (unsigned *)(s.partial + chunks * 2 * a->width);
    error = cudaMemsetAsync(m.counts, 0, 2 * CLASSES * sizeof *m.counts, stream);
    unsigned grid = ptb_grid(a->rows, SORT_THREADS, SORT_RESIDENT);
    if (error == cudaSuccess)
        error = PTB_LAUNCH(count_classes, grid, SORT_THREADS, 0, stream, keys, m);
    if (error == cudaSuccess)
        error = PTB_LAUNCH(place_rows, grid, SORT_THREADS, 0, stream, keys, m);
    if (error == cudaSuccess)
        error = PTB_LAUNCH(rank_rows, grid, SORT_THREADS, 0, stream, m, a->rows);
    if (error != cudaSuccess)
        return error;
    constexpr int N = ptb_width<T>;
    const T *d_out = (const T *)a->d_out;
    if (a->width % N == 0 && ptb_aligned(16, d_out, out))
        return launch_sums<T, N>(stream, s, d_out, (unsigned)chunks);
    return launch_sums<T, 1>(stream, s, d_out, (unsigned)chunks);
}

template <typename T> int launch_gradient(cudaStream_t stream, const ptb_embedding_gradient *a, char *scratch)
{
    bool few_tokens = ptb_cuda_is_few(a, true), few_positions = a->d_positions && ptb_cuda_is_few(a, false);
    int error = ptb_cuda_launch_few(stream, a, few_tokens, few_positions, scratch);
    if (error == cudaSuccess && !few_tokens)
        error = add_by_key<T>(stream, a, ptb_keys_of(a, true), a->d_table, a->vocabulary, a->accumulate_table,
                              scratch);
    if (error == cudaSuccess && a->d_positions && !few_positions)
        error = add_by_key<T>(stream, a, ptb_keys_of(a, false), a->d_positions, a->positions,
                              a->accumulate_positions, scratch);
    return error;
}

} // namespace

extern "C" int ptb_cuda_launch_embedding(cudaStream_t stream, const ptb_embedding *a)
{
    size_t count = a->rows * a->width;
    return ptb_for_type(a->type, [&](auto type) -> int {
        using T = decltype(type);
        constexpr int N = ptb_width<T>;
        bool vector = a->width % N == 0 && ptb_aligned(16, a->out, a->table, a->positions);
        if (a->positions)
            return ptb_each_aligned<N>(stream, embedding<T, true>{*a}, count, vector);
        return ptb_each_aligned<N>(stream, embedding<T, false>{*a}, count, vector);
    });
}

extern "C" size_t ptb_cuda_embedding_gradient_scratch(const ptb_embedding_gradient *a)
{
    size_t width = a->width ? a->width : 1, few = ptb_cuda_few_scratch(a);
    size_t many = (3 * CLASSES + 1) * sizeof(unsigned) + 2 * a->rows * sizeof(entry) +
                  chunks_of(a->rows, width) * 2 * width * sizeof(float);
    return few > many ? few : many;
}

extern "C" int ptb_cuda_enqueue_embedding_gradient(cudaStream_t stream, const ptb_embedding_gradient *a,
                                                   void *scratch)
{
    if (!a->width)
        return cudaSuccess;
    return ptb_for_type(
        a->type, [&](auto type) { return launch_gradient<decltype(type)>(stream, a, (char *)scratch); });
}
