// ptbench's own matrix product: for groups of rows whose sizes only the device knows (experts), and for
// products that cuBLASLt does not have. 16-bit types go through tensor cores (kernels_cuda_mma.cuh), in tiles
// of 128 x 256 or 128 x 128 results, depth 64, two steps of depth on their way from memory while one is
// multiplied, three at first; f32 through fused multiply-adds. Sums of 16-bit types pass through shared
// memory to be stored, in accesses of 16 bytes and whole lines. A block finds its group by looking through
// the offsets.
#include "strategies/transformer/kernels_cuda_mma.cuh"
#include "strategies/transformer/kernels_cuda_product.cuh"

// ---- 16-bit types: tensor cores

enum {
    TILE_M = 128,
    TILE_K = 64,
    STAGES = 3,
    THREADS = 256 // 8 warps, 2 x 4, of 64 x COLUMNS / 4 results each
};

// A block's tile of 128 x COLUMNS results. 256 columns: a warp's 64 x 64 results need fewer bytes of shared
// memory a product than 64 x 32, and the operands come from memory fewer times; 128 columns: two blocks on a
// multiprocessor, for products of few tiles or little depth, where starting and ending one is what takes
// time.
template <int COLUMNS> struct tile {
    static constexpr int a_count = TILE_M * TILE_K, b_count = COLUMNS * TILE_K; // elements of a stage
    static constexpr int stage = a_count + b_count;
    static constexpr int warp_n = COLUMNS / 4;
    static constexpr int sums_stride = COLUMNS + 8; // of sums in shared memory: rows 8 banks apart
    static constexpr int shared_bytes = STAGES * stage * 2;
    static_assert(TILE_M * sums_stride * 4 <= shared_bytes, "sums take the place of the stages");
};

// One thread's share in bringing an operand's tiles, one depth step after the other, into shared memory in
// the order of ptb_tile_at: the piece of 8 elements at its place in every ROWS_A_PASS-th row; what is beyond
// the ends is 0. DEPTH_ROWS: the tile's rows are the depth, its columns the operand's rows or columns that
// results belong to, else the other way round. ALIGNED: pieces are inside or outside as a whole and start at
// multiples of 16 bytes.
template <typename T, int PLACES, bool DEPTH_ROWS, bool ALIGNED> struct tile_loader {
    static constexpr int COLUMNS = DEPTH_ROWS ? PLACES : TILE_K, ROWS = DEPTH_ROWS ? TILE_K : PLACES;
    static constexpr int PIECES = COLUMNS / 8, ROWS_A_PASS = THREADS / PIECES, PASSES = ROWS / ROWS_A_PASS;
    const T *from;   // the thread's first piece of the next step
    size_t pass;     // elements from one pass to the next
    size_t step;     // elements from one step to the next
    int depth_left;  // from the piece's place on
    int places_left; // rows or columns that results belong to, from the piece's place on

    // matrix: from its first row or column in depth; places [place, place_end) are the tile's.
    __device__ __forceinline__ tile_loader(const T *matrix, size_t stride, size_t place, size_t place_end,
                                           size_t depth)
    {
        int row = (int)threadIdx.x / PIECES, column = (int)threadIdx.x % PIECES * 8;
        from = matrix + (DEPTH_ROWS ? row * stride + place + column : (place + row) * stride + column);
        pass = ROWS_A_PASS * stride;
        step = DEPTH_ROWS ? TILE_K * stride : TILE_K;
        depth_left = (int)depth - (DEPTH_ROWS ? row : column);
        places_left =
            (int)(place_end - place < PLACES ? place_end - place : PLACES) - (DEPTH_ROWS ? column : row);
    }

    __device__ __forceinline__ void load(T *tile)
    {
        int row = (int)threadIdx.x / PIECES, piece = (int)threadIdx.x % PIECES;
#pragma unroll
        for (int i = 0; i < PASSES; i++) {
            T *to = tile + ptb_tile_at<COLUMNS>(row + i * ROWS_A_PASS, piece);
            int rows_left = (DEPTH_ROWS ? depth_left : places_left) - i * ROWS_A_PASS;
            int elements = rows_left > 0 ? DEPTH_ROWS ? places_left : depth_left : 0;
            if constexpr (ALIGNED)
                ptb_copy_async(to, from + (elements > 0 ? i * pass : 0), elements > 0);
            else
                copy_elements(to, from + i * pass, elements);
        }
        from += step;
        depth_left -= TILE_K;
    }

    static __device__ __forceinline__ void copy_elements(T *to, const T *source, int elements)
    {
        ptb_pack<T, 8> pack;
#pragma unroll
        for (int j = 0; j < 8; j++)
            pack.at[j] = j < elements ? source[j] : ptb_from_f32<T>(0);
        ptb_store_pack<8>(to, pack);
    }
};

// Operand a where the tile holds it the other way round: tile rows [row, row + 16) are the depth, tile
// columns [column, column + 16) the rows.
template <int COLUMNS, typename T>
static __device__ __forceinline__ void tile_a_trans(uint32_t (&a)[4], const T *tile, int row, int column)
{
    int lane = (int)threadIdx.x % 32;
    ptb_ldmatrix_x4_trans(
        a, tile + ptb_tile_at<COLUMNS>(row + lane / 16 * 8 + lane % 8, column / 8 + lane / 8 % 2));
}

// sums += a * b over one stage, for a warp's 64 x COLUMNS / 4 results: [4][COLUMNS / 32] tiles of 16 x 8.
template <ptb_product_form FORM, int COLUMNS, typename T>
static __device__ __forceinline__ void multiply_stage(float (&sums)[4][COLUMNS / 32][4], const T *stage,
                                                      int warp_m, int warp_n)
{
    constexpr int N = COLUMNS / 32;
#pragma unroll
    for (int k = 0; k < TILE_K; k += 16) {
        uint32_t a[4][4], b[N / 2][4];
#pragma unroll
        for (int i = 0; i < 4; i++)
            if constexpr (FORM == PTB_PRODUCT_WEIGHT)
                tile_a_trans<TILE_M>(a[i], stage, k, warp_m + i * 16);
            else
                ptb_tile_a<TILE_K>(a[i], stage, warp_m + i * 16, k);
#pragma unroll
        for (int j = 0; j < N / 2; j++)
            if constexpr (FORM == PTB_PRODUCT_FORWARD)
                ptb_tile_b<TILE_K>(b[j], stage + TILE_M * TILE_K, warp_n + j * 16, k);
            else
                ptb_tile_b_trans<COLUMNS>(b[j], stage + TILE_M * TILE_K, k, warp_n + j * 16);
#pragma unroll
        for (int i = 0; i < 4; i++)
#pragma unroll
            for (int j = 0; j < N; j++)
                ptb_mma(sums[i][j], a[i], b[j / 2][j % 2 * 2], b[j / 2][j % 2 * 2 + 1], T());
    }
}

// Column `threadIdx.x` of a tile [TILE_K, TILE_M] of a.
template <typename T> static __device__ __forceinline__ float column_sum(const T *stage)
{
    float sum = 0;
    int column = (int)threadIdx.x;
    for (int r = 0; r < TILE_K; r++)
        sum += ptb_to_f32(stage[ptb_tile_at<TILE_M>(r, column / 8) + column % 8]);
    return sum;
}

// A warp's sums to the block's, [TILE_M][sums_stride] in shared memory.
template <int COLUMNS>
static __device__ __forceinline__ void share_sums(float *shared, const float (&sums)[4][COLUMNS / 32][4],
                                                  int warp_m, int warp_n)
{
    float *to =
        shared + (warp_m + threadIdx.x % 32 / 4) * tile<COLUMNS>::sums_stride + warp_n + threadIdx.x % 4 * 2;
#pragma unroll
    for (int i = 0; i < 4; i++)
#pragma unroll
        for (int j = 0; j < COLUMNS / 32; j++) {
            float *low = to + i * 16 * tile<COLUMNS>::sums_stride + j * 8;
            *(float2 *)low = make_float2(sums[i][j][0], sums[i][j][1]);
            *(float2 *)(low + 8 * tile<COLUMNS>::sums_stride) = make_float2(sums[i][j][2], sums[i][j][3]);
        }
}

// The block's sums, from shared memory, become results: neighbouring threads take neighbouring packs.
template <typename T, typename O, int COLUMNS>
static __device__ __forceinline__ void store_tile(const ptb_cuda_product &p, const block_product<T> &x,
                                                  const float *shared)
{
    constexpr int N = ptb_width<O>, PACKS = COLUMNS / N, ROWS = THREADS / PACKS, TOGETHER = 4;
    static_assert(TILE_M % (ROWS * TOGETHER) == 0, "every pass has all of its rows");
    int row = (int)threadIdx.x / PACKS, column = (int)threadIdx.x % PACKS * N;
    bool whole = is_whole(p, N);
#pragma unroll 1
    for (; row < TILE_M && x.m0 + row < x.m_end; row += ROWS * TOGETHER) {
        result_place<N> place[TOGETHER];
        float added[TOGETHER][N];
#pragma unroll
        for (int t = 0; t < TOGETHER; t++) {
            place[t] = place_of<N>(p, x, x.m0 + row + t * ROWS, x.n0 + column);
            load_added<T, O>(added[t], p, place[t], whole);
        }
#pragma unroll
        for (int t = 0; t < TOGETHER; t++) {
            float sum[N];
            ptb_load(sum, shared + (row + t * ROWS) * tile<COLUMNS>::sums_stride + column);
            store_results<T, O>(p, place[t], sum, added[t], whole);
        }
    }
}

template <typename T, typename O, ptb_product_form FORM, int COLUMNS, bool ALIGNED>
static __global__ void __launch_bounds__(THREADS, ALIGNED &&COLUMNS == 128 ? 2 : 1)
    product_mma(const ptb_cuda_product p)
{
    using tile = tile<COLUMNS>;
    PTB_DYNAMIC_SHARED(T, shared); // [STAGES][tile::stage]
    block_product<T> x;
    if (!block_of<T, FORM>(p, TILE_M, COLUMNS, x))
        return;
    int warp = (int)threadIdx.x / 32, warp_m = warp / 4 * 64, warp_n = warp % 4 * tile::warp_n;
    bool with_sums = FORM == PTB_PRODUCT_WEIGHT && p.sums && x.n0 == 0 && threadIdx.x < TILE_M;
    bool busy = x.m0 + warp_m < x.m_end && x.n0 + warp_n < x.n_end; // this warp has results
    float sums[4][COLUMNS / 32][4] = {}, a_sum = 0;
    tile_loader<T, TILE_M, FORM == PTB_PRODUCT_WEIGHT, ALIGNED> a(x.a, p.a_stride, x.m0, x.m_end, x.k);
    tile_loader<T, COLUMNS, FORM != PTB_PRODUCT_FORWARD, ALIGNED> b(x.b, p.b_stride, x.n0, x.n_end, x.k);
    int steps = ((int)x.k + TILE_K - 1) / TILE_K, slot = 0;
    for (int s = 0; s < STAGES; s++) {
        if (s < steps) {
            a.load(shared + s * tile::stage);
            b.load(shared + s * tile::stage + tile::a_count);
        }
        ptb_copy_commit(); // empty groups too: so as many copies are under way at each step
    }
    for (int step = 0; step < steps; step++) {
        if (step == 0)
            ptb_copy_wait<STAGES - 1>();
        else
            ptb_copy_wait<STAGES - 2>();
        __syncthreads(); // the stage is there, and everybody is done with the one before it
        T *stage = shared + slot * tile::stage, *free = shared + (slot ? slot - 1 : STAGES - 1) * tile::stage;
        if (step > 0) {
            if (step + STAGES - 1 < steps) {
                a.load(free);
                b.load(free + tile::a_count);
            }
            ptb_copy_commit();
        }
        if (busy)
            multiply_stage<FORM, COLUMNS>(sums, stage, warp_m, warp_n);
        if (with_sums)
            a_sum += column_sum(stage);
        slot = slot + 1 < STAGES ? slot + 1 : 0;
    }
    ptb_copy_wait<0>();
    __syncthreads(); // everybody is done with the stages
    share_sums<COLUMNS>((float *)shared, sums, warp_m, warp_n);
    __syncthreads();
    store_tile<T, O, COLUMNS>(p, x, (const float *)shared);
    if (with_sums)
        store_sum(p, x, x.m0 + threadIdx.x, a_sum);
}

// ---- f32: fused multiply-adds

enum {
    PLAIN_M = 64,
    PLAIN_N = 64,
    PLAIN_K = 16,
    PLAIN_STRIDE = 64 + 4, // of a tile in shared memory: 16-byte aligned rows
    PLAIN_THREADS = 256    // 16 x 16, of 4 x 4 results each
};

// [PLAIN_K][64] elements of an operand. depth_rows: the matrix has the depth as its rows.
template <bool DEPTH_ROWS>
static __device__ __forceinline__ void load_plain(float *tile, const float *matrix, size_t stride,
                                                  size_t place, size_t end, size_t k, size_t k_end)
{
    for (int i = (int)threadIdx.x; i < PLAIN_K * 64; i += PLAIN_THREADS) {
        int depth = DEPTH_ROWS ? i / 64 : i % PLAIN_K, at = DEPTH_ROWS ? i % 64 : i / PLAIN_K;
        bool inside = k + depth < k_end && place + at < end;
        size_t from = DEPTH_ROWS ? (k + depth) * stride + place + at : (place + at) * stride + k + depth;
        tile[depth * PLAIN_STRIDE + at] = inside ? matrix[from] : 0;
    }
}

template <ptb_product_form FORM>
static __global__ void __launch_bounds__(PLAIN_THREADS, 3) product_f32(const ptb_cuda_product p)
{
    __shared__ __align__(16) float a[PLAIN_K * PLAIN_STRIDE], b[PLAIN_K * PLAIN_STRIDE];
    block_product<float> x;
    if (!block_of<float, FORM>(p, PLAIN_M, PLAIN_N, x))
        return;
    int row = (int)threadIdx.x / 16 * 4, column = (int)threadIdx.x % 16 * 4;
    bool with_sums = FORM == PTB_PRODUCT_WEIGHT && p.sums && x.n0 == 0 && threadIdx.x < PLAIN_M;
    bool whole = is_whole(p, 4);
    float sums[4][4] = {}, a_sum = 0;
    for (size_t k = 0; k < x.k; k += PLAIN_K) {
        load_plain<FORM == PTB_PRODUCT_WEIGHT>(a, x.a, p.a_stride, x.m0, x.m_end, k, x.k);
        load_plain<FORM != PTB_PRODUCT_FORWARD>(b, x.b, p.b_stride, x.n0, x.n_end, k, x.k);
        __syncthreads();
#pragma unroll
        for (int i = 0; i < PLAIN_K; i++) {
            float left[4], right[4];
            ptb_load<4>(left, a + i * PLAIN_STRIDE + row);
            ptb_load<4>(right, b + i * PLAIN_STRIDE + column);
            for (int r = 0; r < 4; r++)
                for (int c = 0; c < 4; c++)
                    sums[r][c] += left[r] * right[c];
            if (with_sums)
                a_sum += a[i * PLAIN_STRIDE + threadIdx.x];
        }
        __syncthreads();
    }
#pragma unroll
    for (int r = 0; r < 4; r++) {
        result_place<4> place = place_of<4>(p, x, x.m0 + row + r, x.n0 + column);
        float added[4];
        load_added<float, float>(added, p, place, whole);
        store_results<float, float>(p, place, sums[r], added, whole);
    }
    if (with_sums)
        store_sum(p, x, x.m0 + threadIdx.x, a_sum);
}

// ---- launches

// Blocks beyond the last tile of the last group do nothing.
static dim3 grid_of(ptb_product_form form, const ptb_cuda_product *p, int tile_m, int tile_n)
{
    size_t tiles = tile_rows_of(form, *p, tile_m) * tile_columns_of(*p, tile_n);
    return dim3((unsigned)tiles, 1, form == PTB_PRODUCT_WEIGHT && p->groups ? (unsigned)p->groups : 1);
}

template <typename T, typename O, ptb_product_form FORM, int COLUMNS, bool ALIGNED>
static int launch_mma(struct CUstream_st *stream, const ptb_cuda_product *p)
{
    auto kernel = product_mma<T, O, FORM, COLUMNS, ALIGNED>;
    constexpr int bytes = tile<COLUMNS>::shared_bytes;
    cudaError_t error = PTB_ALLOW_SHARED(kernel, bytes);
    return error != cudaSuccess
               ? error
               : PTB_LAUNCH(kernel, grid_of(FORM, p, TILE_M, COLUMNS), THREADS, bytes, stream, *p);
}

// Whether tiles of 256 columns fit, and are enough for every multiprocessor, and deep enough (a group's depth
// is taken to be the mean) to be worth the time in which a block begins and ends alone.
static bool is_wide(ptb_product_form form, const ptb_cuda_product *p)
{
    const size_t deep = 512;
    int device = 0, bytes = 0;
    if (cudaGetDevice(&device) != cudaSuccess ||
        cudaDeviceGetAttribute(&bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, device) != cudaSuccess ||
        bytes < tile<256>::shared_bytes || p->n <= 128)
        return false;
    dim3 grid = grid_of(form, p, TILE_M, 256);
    size_t depth = form == PTB_PRODUCT_WEIGHT && p->groups ? p->k / p->groups : p->k;
    return depth >= deep && (size_t)grid.x * grid.z >= ptb_multiprocessors();
}

template <typename T, typename O, ptb_product_form FORM>
static int launch_tiles(struct CUstream_st *stream, const ptb_cuda_product *p)
{
    bool aligned = ptb_aligned(16, p->a, p->b) && p->a_stride % 8 == 0 && p->b_stride % 8 == 0 &&
                   (FORM == PTB_PRODUCT_WEIGHT ? p->m % 8 == 0 : p->k % 8 == 0) &&
                   (FORM == PTB_PRODUCT_FORWARD || p->n % 8 == 0);
    if (!aligned)
        return launch_mma<T, O, FORM, 128, false>(stream, p);
    return is_wide(FORM, p) ? launch_mma<T, O, FORM, 256, true>(stream, p)
                            : launch_mma<T, O, FORM, 128, true>(stream, p);
}

template <typename T, ptb_product_form FORM>
static int launch_type(struct CUstream_st *stream, const ptb_cuda_product *p)
{
    if constexpr (FORM != PTB_PRODUCT_WEIGHT)
        if (p->out_type != PTB_F32)
            return launch_tiles<T, T, FORM>(stream, p);
    return launch_tiles<T, float, FORM>(stream, p);
}

template <ptb_product_form FORM> static int launch_form(struct CUstream_st *stream, const ptb_cuda_product *p)
{
    switch (p->type) {
    case PTB_BF16:
        return launch_type<__nv_bfloat16, FORM>(stream, p);
    case PTB_F16:
        return launch_type<__half, FORM>(stream, p);
    case PTB_F32:
        return PTB_LAUNCH(product_f32<FORM>, grid_of(FORM, p, PLAIN_M, PLAIN_N), PLAIN_THREADS, 0, stream,
                          *p);
    default:
        return cudaErrorInvalidValue;
    }
}

extern "C" int ptb_cuda_launch_product(struct CUstream_st *stream, ptb_product_form form,
                                       const ptb_cuda_product *p)
{
    switch (form) {
    case PTB_PRODUCT_FORWARD:
        return launch_form<PTB_PRODUCT_FORWARD>(stream, p);
    case PTB_PRODUCT_INPUT:
        return launch_form<PTB_PRODUCT_INPUT>(stream, p);
    case PTB_PRODUCT_WEIGHT:
        return launch_form<PTB_PRODUCT_WEIGHT>(stream, p);
    }
    return cudaErrorInvalidValue;
}
