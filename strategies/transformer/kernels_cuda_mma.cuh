// What kernels that multiply tiles on tensor cores share: products of a warp (mma.sync), loads of their
// operands from shared memory (ldmatrix), copies into shared memory that pass no registers (cp.async), and
// the order of a tile in shared memory that keeps all of these free of bank conflicts. Instructions and
// register layouts are those of the PTX ISA (sections "Warp-level matrix instructions" and "Data movement
// and conversion instructions: asynchronous copy"), for sm_80 and later; the simulated device gets the same
// functions in terms of its own warp operations. Every lane of a warp calls each function marked "warp".
#ifndef PTB_STRATEGIES_TRANSFORMER_KERNELS_CUDA_MMA_CUH
#define PTB_STRATEGIES_TRANSFORMER_KERNELS_CUDA_MMA_CUH

#include "core/cuda_kernel.cuh"

#include <string.h>

// ---- two 16-bit numbers in a register: the lower place in memory in the lower half

static __device__ __forceinline__ uint32_t ptb_pair(float low, float high, __nv_bfloat16)
{
    __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
    uint32_t word;
    memcpy(&word, &pair, sizeof word);
    return word;
}

static __device__ __forceinline__ uint32_t ptb_pair(float low, float high, __half)
{
    __half2 pair = __floats2half2_rn(low, high);
    uint32_t word;
    memcpy(&word, &pair, sizeof word);
    return word;
}

static __device__ __forceinline__ float2 ptb_unpair(uint32_t word, __nv_bfloat16)
{
    __nv_bfloat162 pair;
    memcpy(&pair, &word, sizeof word);
    return __bfloat1622float2(pair);
}

static __device__ __forceinline__ float2 ptb_unpair(uint32_t word, __half)
{
    __half2 pair;
    memcpy(&pair, &word, sizeof word);
    return __half22float2(pair);
}

// ---- products of a warp
//
// d [16, 8] += a [16, 16] * b [16, 8], sums in f32. With g = lane / 4 and t = lane % 4:
//   a[0] (g, 2t..2t+1)      a[1] (g + 8, 2t..2t+1)   a[2] (g, 2t+8..2t+9)   a[3] (g + 8, 2t+8..2t+9)
//   b[0] (2t..2t+1, g)      b[1] (2t+8..2t+9, g)
//   d[0], d[1] (g, 2t..2t+1)                         d[2], d[3] (g + 8, 2t..2t+1)
// So the sums of two neighbouring products, as pairs, are an operand `a` of the next: columns 0..7 in a[0],
// a[1] and 8..15 in a[2], a[3].

#ifndef PTB_SIM

static __device__ __forceinline__ void ptb_mma(float (&d)[4], const uint32_t (&a)[4], uint32_t b0,
                                               uint32_t b1, __nv_bfloat16)
{
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
                 "{%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

static __device__ __forceinline__ void ptb_mma(float (&d)[4], const uint32_t (&a)[4], uint32_t b0,
                                               uint32_t b1, __half)
{
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
                 "{%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// Four 8 x 8 matrices of 16-bit numbers: lane l gives the address (shared memory, 16-byte aligned) of row
// l % 8 of matrix l / 8; r[i] is the pair (g, 2t..2t+1) of matrix i. trans: (2t..2t+1, g).
static __device__ __forceinline__ void ptb_ldmatrix_x4(uint32_t (&r)[4], const void *row)
{
    uint32_t address = (uint32_t)__cvta_generic_to_shared(row);
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(address)
                 : "memory");
}

static __device__ __forceinline__ void ptb_ldmatrix_x4_trans(uint32_t (&r)[4], const void *row)
{
    uint32_t address = (uint32_t)__cvta_generic_to_shared(row);
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(address)
                 : "memory");
}

// 16 bytes from global to shared memory, both 16-byte aligned, in the background; valid false: zeros, and
// nothing is read. Complete after the copy's group was committed and waited for (and a barrier, for other
// threads).
static __device__ __forceinline__ void ptb_copy_async(void *shared, const void *global, bool valid)
{
    uint32_t address = (uint32_t)__cvta_generic_to_shared(shared);
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;"
                 :
                 : "r"(address), "l"(global), "r"(valid ? 16 : 0)
                 : "memory");
}

// The same of what is not used again: the second-level cache gives it up first.
static __device__ __forceinline__ void ptb_copy_async_once(void *shared, const void *global)
{
    uint32_t address = (uint32_t)__cvta_generic_to_shared(shared);
    asm volatile("{\n"
                 ".reg .b64 first;\n"
                 "createpolicy.fractional.L2::evict_first.b64 first, 1.0;\n"
                 "cp.async.cg.shared.global.L2::cache_hint [%0], [%1], 16, first;\n"
                 "}"
                 :
                 : "r"(address), "l"(global)
                 : "memory");
}

// The same for 8 bytes.
static __device__ __forceinline__ void ptb_copy_async_8(void *shared, const void *global, bool valid)
{
    uint32_t address = (uint32_t)__cvta_generic_to_shared(shared);
    asm volatile("cp.async.ca.shared.global [%0], [%1], 8, %2;"
                 :
                 : "r"(address), "l"(global), "r"(valid ? 8 : 0)
                 : "memory");
}

static __device__ __forceinline__ void ptb_copy_commit()
{
    asm volatile("cp.async.commit_group;" ::: "memory");
}

// All but the latest N groups of this thread are complete.
template <int N> __device__ __forceinline__ void ptb_copy_wait()
{
    asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
}

// 2^x, error 2 units in the last place; results below the normal numbers are 0.
static __device__ __forceinline__ float ptb_exp2(float x)
{
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

#else // the same on the simulated device: the last lane to come does the work of all

typedef uint16_t ptb_sim_words __attribute__((vector_size(16)));
typedef uint32_t ptb_sim_bits __attribute__((vector_size(32)));
typedef float ptb_sim_eight __attribute__((vector_size(32)));
typedef float ptb_sim_sixteen __attribute__((vector_size(64)));

// Eight 16-bit numbers as f32.
static inline ptb_sim_eight ptb_sim_widen(const void *from, __nv_bfloat16)
{
    ptb_sim_words words;
    memcpy(&words, from, sizeof words);
    return (ptb_sim_eight)(__builtin_convertvector(words, ptb_sim_bits) << 16);
}

static inline ptb_sim_eight ptb_sim_widen(const void *from, __half)
{
    ptb_sim_words words;
    memcpy(&words, from, sizeof words);
    const ptb_sim_bits all = __builtin_convertvector(words, ptb_sim_bits), bits = all & 0x7fff;
    // The product moves the exponent, and makes normal numbers of those that were not.
    const ptb_sim_eight moved = (ptb_sim_eight)(bits << 13) * 0x1p112f;
    const ptb_sim_bits not_finite = (ptb_sim_bits)(bits >= 0x7c00) & 0x7f800000;
    return (ptb_sim_eight)((ptb_sim_bits)moved | not_finite | (all & 0x8000) << 16);
}

template <typename T> struct ptb_sim_mma {
    float *d;
    uint32_t a[4], b[2];
    static void run(void *const lanes[])
    {
        uint16_t a[16][16], b[8][16];
        for (unsigned lane = 0; lane < 32; lane++) {
            const ptb_sim_mma *from = (const ptb_sim_mma *)lanes[lane];
            unsigned g = lane / 4, t = lane % 4;
            for (unsigned i = 0; i < 4; i++)
                memcpy(&a[g + i % 2 * 8][2 * t + i / 2 * 8], &from->a[i], 4);
            for (unsigned i = 0; i < 2; i++)
                memcpy(&b[g][2 * t + i * 8], &from->b[i], 4);
        }
        ptb_sim_eight depth[16]; // b's rows
        for (unsigned column = 0; column < 8; column++)
            for (unsigned k = 0; k < 16; k += 8) {
                const ptb_sim_eight x = ptb_sim_widen(&b[column][k], T());
                for (unsigned i = 0; i < 8; i++)
                    depth[k + i][column] = x[i];
            }
        for (unsigned row = 0; row < 16; row++) {
            const ptb_sim_eight left[2] = {ptb_sim_widen(&a[row][0], T()), ptb_sim_widen(&a[row][8], T())};
            ptb_sim_eight sum = {};
            for (unsigned k = 0; k < 16; k++)
                sum += left[k / 8][k % 8] * depth[k];
            for (unsigned i = 0; i < 8; i++)
                ((ptb_sim_mma *)lanes[row % 8 * 4 + i / 2])->d[row / 8 * 2 + i % 2] += sum[i];
        }
    }
};

template <typename T>
static inline void ptb_mma(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1, T)
{
    ptb_sim_mma<T> mine = {d, {a[0], a[1], a[2], a[3]}, {b0, b1}};
    sim_warp_run(0xffffffffu, ptb_sim_mma<T>::run, &mine);
}

template <bool trans> struct ptb_sim_ldmatrix {
    uint32_t *r;
    const char *row;
    static void run(void *const lanes[])
    {
        for (unsigned lane = 0; lane < 32; lane++)
            for (unsigned i = 0; i < 4; i++) {
                uint16_t pair[2];
                for (unsigned half = 0; half < 2; half++) {
                    unsigned row = trans ? lane % 4 * 2 + half : lane / 4;
                    unsigned column = trans ? lane / 4 : lane % 4 * 2 + half;
                    const ptb_sim_ldmatrix *of = (const ptb_sim_ldmatrix *)lanes[i * 8 + row];
                    memcpy(&pair[half], of->row + column * 2, 2);
                }
                memcpy(((ptb_sim_ldmatrix *)lanes[lane])->r + i, pair, 4);
            }
    }
};

static inline void ptb_ldmatrix_x4(uint32_t (&r)[4], const void *row)
{
    ptb_sim_ldmatrix<false> mine = {r, (const char *)row};
    sim_warp_run(0xffffffffu, ptb_sim_ldmatrix<false>::run, &mine);
}

static inline void ptb_ldmatrix_x4_trans(uint32_t (&r)[4], const void *row)
{
    ptb_sim_ldmatrix<true> mine = {r, (const char *)row};
    sim_warp_run(0xffffffffu, ptb_sim_ldmatrix<true>::run, &mine);
}

static inline void ptb_copy_async(void *shared, const void *global, bool valid)
{
    sim_async_copy(shared, global, 16, valid ? 16 : 0);
}

static inline void ptb_copy_async_once(void *shared, const void *global)
{
    sim_async_copy(shared, global, 16, 16);
}

static inline void ptb_copy_async_8(void *shared, const void *global, bool valid)
{
    sim_async_copy(shared, global, 8, valid ? 8 : 0);
}

static inline void ptb_copy_commit()
{
    sim_async_commit();
}

template <int N> void ptb_copy_wait()
{
    sim_async_wait(N);
}

static inline float ptb_exp2(float x)
{
    return exp2f(x);
}

#endif

// ---- tiles in shared memory
//
// A tile has rows of COLUMNS 16-bit numbers (a multiple of 64), in pieces of 8 (16 bytes). Piece p of row r
// is at place p xor r mod 8 of its row: eight rows' pieces of one column are in different banks, which is
// what ldmatrix reads, and so are the pieces of one row, which is what copies write.

// Offset in elements of piece `piece` of row `row`.
template <int COLUMNS> __device__ __forceinline__ int ptb_tile_at(int row, int piece)
{
    static_assert(COLUMNS % 64 == 0, "the pieces of a row must fill all banks");
    return row * COLUMNS + ((piece ^ (row & 7)) << 3);
}

// The same for row `row` + lane_row and piece column / 8 + lane_piece (0 or 1), row and column multiples of
// 16: what depends on the lane comes first, so that loads at many rows and columns share it.
template <int COLUMNS>
__device__ __forceinline__ int ptb_tile_lane_at(int lane_row, int lane_piece, int row, int column)
{
    int at = ptb_tile_at<COLUMNS>(lane_row, lane_piece);
    return (at ^ (column & 63)) + (column & ~63) + row * COLUMNS;
}

// Warp. Operand a of the rows [row, row + 16) and the columns [column, column + 16) of a tile; row and column
// are multiples of 16, here and below.
template <int COLUMNS, typename T>
__device__ __forceinline__ void ptb_tile_a(uint32_t (&a)[4], const T *tile, int row, int column)
{
    int lane = (int)threadIdx.x % 32;
    ptb_ldmatrix_x4(a, tile + ptb_tile_lane_at<COLUMNS>(lane % 16, lane / 16, row, column));
}

// Warp. Operands b (b[0], b[1] of the first) of two neighbouring products, where the tile holds b's columns
// as rows: tile rows [row, row + 16) are columns 0..7 of the first and of the second product, tile columns
// [column, column + 16) their depth.
template <int COLUMNS, typename T>
__device__ __forceinline__ void ptb_tile_b(uint32_t (&b)[4], const T *tile, int row, int column)
{
    int lane = (int)threadIdx.x % 32;
    ptb_ldmatrix_x4(b, tile + ptb_tile_lane_at<COLUMNS>(lane / 16 * 8 + lane % 8, lane / 8 % 2, row, column));
}

// Warp. The same where the tile holds b as it is: tile rows [row, row + 16) are the depth, tile columns
// [column, column + 16) the columns of the two products.
template <int COLUMNS, typename T>
__device__ __forceinline__ void ptb_tile_b_trans(uint32_t (&b)[4], const T *tile, int row, int column)
{
    int lane = (int)threadIdx.x % 32;
    ptb_ldmatrix_x4_trans(b, tile + ptb_tile_lane_at<COLUMNS>(lane % 16, lane / 16, row, column));
}

#endif
