// What the kernels of ptbench's own matrix product (kernels_cuda_product.cu) share: which part of the result
// a block makes, and what happens to results before they are stored.
#ifndef PTB_STRATEGIES_TRANSFORMER_KERNELS_CUDA_PRODUCT_CUH
#define PTB_STRATEGIES_TRANSFORMER_KERNELS_CUDA_PRODUCT_CUH

#include "strategies/transformer/kernels_cuda.cuh"
#include "strategies/transformer/kernels_cuda_product.h"

// ---- which part of the result a block makes

// Rows [first, end) of the operands that groups divide, and the group; rows empty: nothing to do.
struct product_part {
    size_t first, end;
    size_t group;
    bool any;
};

// Offset g, made to rise and to stay within the rows whatever is in memory.
static __device__ __forceinline__ size_t offset_at(const int32_t *offsets, size_t g, size_t rows)
{
    int32_t value = offsets[g];
    return value < 0 ? 0 : (size_t)value < rows ? (size_t)value : rows;
}

// Tile `tile` of the row tiles of all groups, in order. Every warp looks by itself, 32 groups at a time.
static __device__ product_part part_of_rows(const ptb_cuda_product &p, size_t tile, size_t tile_rows)
{
    if (!p.groups) {
        size_t first = tile * tile_rows;
        return {first, first + tile_rows < p.m ? first + tile_rows : p.m, 0, first < p.m};
    }
    unsigned lane = threadIdx.x % 32;
    size_t before = 0; // tiles of the groups before these 32
    for (size_t base = 0; base < p.groups; base += 32) {
        size_t g = base + lane, begin = 0, end = 0;
        if (g < p.groups) {
            begin = offset_at(p.offsets, g, p.m);
            end = offset_at(p.offsets, g + 1, p.m);
        }
        unsigned tiles = end > begin ? (unsigned)((end - begin + tile_rows - 1) / tile_rows) : 0,
                 up_to = tiles;
        for (unsigned distance = 1; distance < 32; distance *= 2) {
            unsigned other = __shfl_up_sync(0xffffffffu, up_to, distance);
            up_to += lane >= distance ? other : 0;
        }
        unsigned found = __ballot_sync(0xffffffffu, tile < before + up_to);
        if (found) {
            int owner = __ffs((int)found) - 1;
            unsigned long long b = __shfl_sync(0xffffffffu, (unsigned long long)begin, owner);
            unsigned long long e = __shfl_sync(0xffffffffu, (unsigned long long)end, owner);
            size_t start = before + __shfl_sync(0xffffffffu, up_to - tiles, owner); // tiles before the group
            size_t first = (size_t)b + (tile - start) * tile_rows;
            return {first, first + tile_rows < (size_t)e ? first + tile_rows : (size_t)e,
                    base + (size_t)owner, true};
        }
        before += __shfl_sync(0xffffffffu, up_to, 31);
    }
    return {0, 0, 0, false};
}

// The depth of a weight gradient: all rows of group blockIdx.z.
static __device__ product_part part_of_depth(const ptb_cuda_product &p)
{
    if (!p.groups)
        return {0, p.k, 0, true};
    size_t begin = offset_at(p.offsets, blockIdx.z, p.k), end = offset_at(p.offsets, blockIdx.z + 1, p.k);
    return {begin, end > begin ? end : begin, blockIdx.z, true};
}

// A block's product: operands from its first row on, and the place of its tile of results.
template <typename T> struct block_product {
    const T *a, *b;
    size_t m0, n0;       // first row and column of the tile
    size_t m_end, n_end; // ends of the rows and columns that exist for it
    size_t k;            // depth
    size_t group;        // for vectors and, WEIGHT, results
    size_t out_first;    // elements before the group's results
};

// Row and column of tiles that a block makes. Blocks that run at the same time shall read the same operands,
// so they are counted through stripes of STRIPE_TILES rows of tiles, down before across: without it, every
// row of tiles would read all of b from memory again.
enum { STRIPE_TILES = 8 };
static __device__ __forceinline__ void place_of_tile(size_t rows, size_t columns, size_t &row, size_t &column)
{
    size_t stripe = blockIdx.x / (STRIPE_TILES * columns), within = blockIdx.x % (STRIPE_TILES * columns);
    size_t first = stripe * STRIPE_TILES, height = rows - first < STRIPE_TILES ? rows - first : STRIPE_TILES;
    row = first + within % height;
    column = within / height;
}

// Rows of tiles at most: how many rows groups have is not known to the host, and each may end in a part of
// one.
static __host__ __device__ __forceinline__ size_t tile_rows_of(ptb_product_form form,
                                                               const ptb_cuda_product &p, int tile_m)
{
    return (p.m + tile_m - 1) / tile_m + (form == PTB_PRODUCT_WEIGHT ? 0 : p.groups);
}

static __host__ __device__ __forceinline__ size_t tile_columns_of(const ptb_cuda_product &p, int tile_n)
{
    return (p.n + tile_n - 1) / tile_n;
}

template <typename T, ptb_product_form FORM>
static __device__ bool block_of(const ptb_cuda_product &p, int tile_m, int tile_n, block_product<T> &x)
{
    size_t row, column;
    place_of_tile(tile_rows_of(FORM, p, tile_m), tile_columns_of(p, tile_n), row, column);
    product_part part = FORM == PTB_PRODUCT_WEIGHT ? part_of_depth(p) : part_of_rows(p, row, tile_m);
    if (!part.any)
        return false;
    x.a = (const T *)p.a;
    x.b = (const T *)p.b;
    x.n0 = column * tile_n;
    x.n_end = p.n;
    x.group = part.group;
    x.out_first = 0;
    if (FORM == PTB_PRODUCT_WEIGHT) {
        x.a += part.first * p.a_stride;
        x.b += part.first * p.b_stride;
        x.m0 = row * tile_m;
        x.m_end = p.m;
        x.k = part.end - part.first;
        x.out_first = part.group * p.m * p.out_stride;
    } else {
        x.b += part.group * (FORM == PTB_PRODUCT_FORWARD ? p.n : p.k) * p.b_stride;
        x.m0 = part.first;
        x.m_end = part.end;
        x.k = p.k;
    }
    return true;
}

// ---- the end of a result

// (1 + tanh(u)) / 2 = 1 / (1 + exp(-2 u)), u = sqrt(2 / pi) (x + 0.044715 x^3): GELU is x times this.
static __device__ __forceinline__ float gelu_gate(float x)
{
    return 1 / (1 + expf(-1.59576912f * (x + 0.044715f * x * x * x)));
}

static __device__ __forceinline__ float gelu_slope(float x)
{
    float gate = gelu_gate(x), slope = 1.59576912f * (1 + 3 * 0.044715f * x * x); // of 2 u
    return gate + x * slope * gate * (1 - gate);
}

// Elements [at, at + COUNT) of a matrix beside the result; whole: all at once, else the first `count`.
template <typename O, int COUNT>
static __device__ __forceinline__ void load_beside(float (&out)[COUNT], const void *base, size_t at,
                                                   bool whole, int count)
{
    const O *from = (const O *)base + at;
    if (whole)
        return ptb_load<COUNT>(out, from);
#pragma unroll
    for (int j = 0; j < COUNT; j++)
        out[j] = j < count ? ptb_to_f32(from[j]) : 0;
}

template <typename O, int COUNT>
static __device__ __forceinline__ void store_beside(void *base, size_t at, const float (&in)[COUNT],
                                                    bool whole, int count)
{
    O *to = (O *)base + at;
    if (whole)
        return ptb_store<COUNT>(to, in);
#pragma unroll
    for (int j = 0; j < COUNT; j++)
        if (j < count)
            to[j] = ptb_from_f32<O>(in[j]);
}

// COUNT neighbours of a row can be accessed at once wherever they begin at a multiple of COUNT.
static __host__ __device__ __forceinline__ bool is_whole(const ptb_cuda_product &p, int count)
{
    size_t small = p.type == PTB_F32 ? 4 : 2, large = p.out_type == PTB_F32 ? 4 : 2;
    uintptr_t typed = (uintptr_t)p.bias | (uintptr_t)p.activated | (uintptr_t)p.gelu_in;
    uintptr_t out = (uintptr_t)p.out | (uintptr_t)p.addend, wide = (uintptr_t)p.partial;
    return p.n % count == 0 && p.out_stride % count == 0 && typed % (small * count) == 0 &&
           out % (large * count) == 0 && wide % (4 * count) == 0;
}

// Results (row, column) to (row, column + COUNT - 1), as many of them as exist: count; 0: none.
template <int COUNT> struct result_place {
    size_t at, bias; // element of out; of bias
    int count;
};
template <int COUNT, typename T>
static __device__ __forceinline__ result_place<COUNT>
place_of(const ptb_cuda_product &p, const block_product<T> &x, size_t row, size_t column)
{
    if (row >= x.m_end || column >= x.n_end)
        return {0, 0, 0};
    return {x.out_first + row * p.out_stride + column, x.group * p.n + column,
            x.n_end - column < COUNT ? (int)(x.n_end - column) : COUNT};
}

// Adds what load_beside reads, where there is such a matrix or vector.
template <typename O, int COUNT>
static __device__ __forceinline__ void add_beside(float (&added)[COUNT], const void *base, size_t at,
                                                  bool whole, int count)
{
    if (!base || !count)
        return;
    float beside[COUNT];
    load_beside<O>(beside, base, at, whole, count);
#pragma unroll
    for (int j = 0; j < COUNT; j++)
        added[j] += beside[j];
}

// What is added to results. Loaded for several places before the first of them is stored: it may be out, so
// the compiler could not do so by itself.
template <typename T, typename O, int COUNT>
static __device__ __forceinline__ void load_added(float (&added)[COUNT], const ptb_cuda_product &p,
                                                  const result_place<COUNT> &place, bool whole)
{
#pragma unroll
    for (int j = 0; j < COUNT; j++)
        added[j] = 0;
    add_beside<O>(added, p.addend, place.at, whole, place.count);
    add_beside<float>(added, p.partial, place.at, whole, place.count);
    add_beside<T>(added, p.bias, place.bias, whole, place.count);
}

template <typename T, typename O, int COUNT>
static __device__ __forceinline__ void
store_results(const ptb_cuda_product &p, const result_place<COUNT> &place, const float (&sum)[COUNT],
              const float (&added)[COUNT], bool whole)
{
    if (!place.count)
        return;
    size_t at = place.at;
    int count = place.count;
    float value[COUNT], beside[COUNT];
#pragma unroll
    for (int j = 0; j < COUNT; j++)
        value[j] = sum[j] + added[j];
    if (p.gelu_in) {
        load_beside<T>(beside, p.gelu_in, at, whole, count);
#pragma unroll
        for (int j = 0; j < COUNT; j++)
            value[j] *= gelu_slope(beside[j]);
    }
    store_beside<O>(p.out, at, value, whole, count);
    if (p.activated) {
#pragma unroll
        for (int j = 0; j < COUNT; j++)
            value[j] *= gelu_gate(value[j]);
        store_beside<T>(p.activated, at, value, whole, count);
    }
}

template <typename T>
static __device__ __forceinline__ void store_sum(const ptb_cuda_product &p, const block_product<T> &x,
                                                 size_t row, float sum)
{
    if (row >= x.m_end)
        return;
    float *to = p.sums + x.group * p.m + row;
    *to = p.sums_accumulate ? *to + sum : sum;
}

#endif
