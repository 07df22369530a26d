// What kernels that multiply with all four warps of a warp group share (wgmma, compute capability 9.0 alone):
// products of 64 x 64 x 16 whose right operand, and the left one where it is not in registers, tensor cores
// read from shared memory by themselves. Instructions, register layouts and descriptors are those of the PTX
// ISA (section "Asynchronous warpgroup level matrix instructions"); the simulated device gets the same
// functions in terms of its warp operations and reads operands through the bits of the descriptors. All 128
// threads of a group call each function marked "group"; a group starts at a multiple of 128 threads.
//
// Order of a product: operands stored or copied to shared memory, ptb_proxy_fence in the threads that wrote
// them, a barrier; ptb_wgmma_fence; products; ptb_wgmma_commit; ptb_wgmma_wait; ptb_wgmma_hold of each sum.
// Until the wait neither sums nor left operands in registers may be touched.
#ifndef PTB_STRATEGIES_TRANSFORMER_KERNELS_CUDA_WGMMA_CUH
#define PTB_STRATEGIES_TRANSFORMER_KERNELS_CUDA_WGMMA_CUH

#include "strategies/transformer/kernels_cuda_mma.cuh"

// Whether what is being compiled may contain these instructions. The host's pass of nvcc reads the code of
// kernels and does not generate any.
#if defined(PTB_SIM) || !defined(__CUDA_ARCH__) || defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define PTB_HAS_WGMMA 1
#else
#define PTB_HAS_WGMMA 0
#endif

// ---- operands in shared memory
//
// A tile of 64 columns has its rows one after the other, 128 bytes each, in the order of ptb_tile_at<64>,
// which is the PTX ISA's swizzle of 128 bytes when the tile starts at a multiple of 1024 bytes. A descriptor
// has the address in bits 0-13, the leading and the stride offset in 16-29 and 32-45 (all in 16 bytes) and
// the swizzle in 62-63. Eight rows are 1024 bytes: the stride offset of both forms. The leading offset
// separates blocks of 64 columns in the transposed form, of which there is one, and is not read in the other:
// 0 and 1, so that all bits are those that CUTLASS has for the same tiles (make_gmma_desc).

enum { PTB_WGMMA_ALIGNMENT = 1024 };

static __device__ __forceinline__ void ptb_wgmma_begin();

static __device__ __forceinline__ uint32_t ptb_shared_address(const void *shared)
{
#ifdef PTB_SIM
    return (uint32_t)((uintptr_t)shared & 0x3ffff);
#else
    return (uint32_t)__cvta_generic_to_shared(shared);
#endif
}

// The first place at or behind `shared` where a tile may start. Every thread calls this before all else here.
template <typename T> __device__ __forceinline__ T *ptb_wgmma_align(T *shared)
{
    ptb_wgmma_begin();
    uint32_t skip = -ptb_shared_address(shared) & (PTB_WGMMA_ALIGNMENT - 1);
    return shared + skip / sizeof(T);
}

// The lower half of the descriptor of what starts at row `row` of a tile, a multiple of 8, for a product with
// this TRANS.
template <bool TRANS, typename T> __device__ __forceinline__ uint32_t ptb_wgmma_row(const T *tile, int row)
{
    return ((ptb_shared_address(tile) + (uint32_t)row * 128) & 0x3ffff) >> 4 | (TRANS ? 0u : 1u << 16);
}

// The descriptor of what starts `bytes` further: 128 a row (a multiple of 8 of them), 2 a column (of 16).
static __device__ __forceinline__ uint64_t ptb_wgmma_at(uint32_t row, int bytes)
{
    return (uint64_t)(row + (uint32_t)(bytes >> 4)) | (uint64_t)(1u << 30 | 1024 >> 4) << 32;
}

// ---- products of a group
//
// d [64, 64] = a [64, 16] * b [16, 64] (+ d when `add`), sums in f32. Warp w of the group has rows 16w to
// 16w + 15 of a and d in its registers as ptb_mma has them; d[n] are columns 8n to 8n + 7. In shared memory
// `a` is 64 rows from a descriptor on. b: TRANS false, 64 rows of a tile are the columns of b, 16 of its
// columns the depth; TRANS true, 16 rows of a tile are the depth, its 64 columns the columns of b.

#ifndef PTB_SIM

#define PTB_WGMMA_SUMS                                                                                       \
    "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, "  \
    "%22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "
#define PTB_WGMMA_SUM(n) "+f"(d[n][0]), "+f"(d[n][1]), "+f"(d[n][2]), "+f"(d[n][3])
#define PTB_WGMMA_SUM_LIST                                                                                   \
    PTB_WGMMA_SUM(0), PTB_WGMMA_SUM(1), PTB_WGMMA_SUM(2), PTB_WGMMA_SUM(3), PTB_WGMMA_SUM(4),                \
        PTB_WGMMA_SUM(5), PTB_WGMMA_SUM(6), PTB_WGMMA_SUM(7)

#define PTB_WGMMA(type, name)                                                                                \
    template <bool TRANS>                                                                                    \
    __device__ __forceinline__ void ptb_wgmma(float(&d)[8][4], const uint32_t(&a)[4], uint64_t b, bool add,  \
                                              type)                                                          \
    {                                                                                                        \
        asm volatile(                                                                                        \
            "{.reg .pred p; setp.ne.b32 p, %37, 0; wgmma.mma_async.sync.aligned.m64n64k16.f32." name         \
            "." name " " PTB_WGMMA_SUMS "{%32, %33, %34, %35}, %36, p, 1, 1, %38;}"                          \
            : PTB_WGMMA_SUM_LIST                                                                             \
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"((int)add), "n"((int)TRANS));           \
    }                                                                                                        \
    template <bool TRANS>                                                                                    \
    __device__ __forceinline__ void ptb_wgmma(float(&d)[8][4], uint64_t a, uint64_t b, bool add, type)       \
    {                                                                                                        \
        asm volatile(                                                                                        \
            "{.reg .pred p; setp.ne.b32 p, %34, 0; wgmma.mma_async.sync.aligned.m64n64k16.f32." name         \
            "." name " " PTB_WGMMA_SUMS "%32, %33, p, 1, 1, 0, %35;}"                                        \
            : PTB_WGMMA_SUM_LIST                                                                             \
            : "l"(a), "l"(b), "r"((int)add), "n"((int)TRANS));                                               \
    }
PTB_WGMMA(__nv_bfloat16, "bf16")
PTB_WGMMA(__half, "f16")
#undef PTB_WGMMA
#undef PTB_WGMMA_SUM_LIST
#undef PTB_WGMMA_SUM
#undef PTB_WGMMA_SUMS

static __device__ __forceinline__ void ptb_wgmma_begin() {}

// Group. Registers that were written before are ready for the products after it.
static __device__ __forceinline__ void ptb_wgmma_fence()
{
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

static __device__ __forceinline__ void ptb_wgmma_commit()
{
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

// Group. All but the latest N committed sets of products are complete.
template <int N> __device__ __forceinline__ void ptb_wgmma_wait()
{
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory");
}

// The compiler reads sums neither before nor after this from another place than their registers: it does not
// know that a wait writes them.
static __device__ __forceinline__ void ptb_wgmma_hold(float (&d)[8][4])
{
#pragma unroll
    for (int n = 0; n < 8; n++)
        asm volatile("" : "+f"(d[n][0]), "+f"(d[n][1]), "+f"(d[n][2]), "+f"(d[n][3])::"memory");
}

// What this thread wrote to shared memory (copies that it waited for included) before is what tensor cores
// read after a barrier.
static __device__ __forceinline__ void ptb_proxy_fence()
{
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

#else // the same on the simulated device: each warp computes its rows

static inline const char *ptb_sim_operand(uint64_t descriptor, unsigned offset)
{
    if (descriptor >> 62 != 1 || (descriptor >> 49 & 7) != 0)
        sim_abort_grid(cudaErrorIllegalInstruction, "wgmma: a descriptor of another swizzle than 128 bytes");
    char *base = (char *)sim_dynamic_shared();
    uintptr_t address = (uintptr_t)base + (((descriptor & 0x3fff) * 16 - (uintptr_t)base) & 0x3ffff) + offset;
    return (const char *)(address ^ (address >> 7 & 7) << 4);
}

// Rows (or columns) of an operand, 8 at a time from the one given on: calls take(8 elements side by side,
// their place in [depth][columns], the step from one to the next there).
template <bool TRANS, typename F>
void ptb_sim_pieces(uint64_t descriptor, unsigned first, unsigned columns, F take)
{
    unsigned leading = (unsigned)(descriptor >> 16 & 0x3fff) * 16,
             stride = (unsigned)(descriptor >> 32 & 0x3fff) * 16;
    for (unsigned k = 0; TRANS && k < 16; k++)
        take(
            ptb_sim_operand(descriptor, first / 64 * leading + first % 64 * 2 + k / 8 * stride + k % 8 * 128),
            k * columns, 1u);
    for (unsigned row = first; !TRANS && row < first + 8; row++)
        for (unsigned k = 0; k < 16; k += 8)
            take(ptb_sim_operand(descriptor, row / 8 * stride + row % 8 * 128 + k * 2),
                 k * columns + (row - first), columns);
}

template <typename T, bool TRANS>
void ptb_sim_rows(uint64_t number, uint64_t descriptor, unsigned first, float *to, unsigned columns)
{
    ptb_sim_pieces<TRANS>(descriptor, first, columns, [=](const char *piece, unsigned at, unsigned step) {
        sim_product_reads(number, piece, 16, true);
        const ptb_sim_eight values = ptb_sim_widen(piece, T());
        if (step == 1)
            memcpy(to + at, &values, sizeof values);
        for (unsigned i = 0; step != 1 && i < 8; i++)
            to[at + i * step] = values[i];
    });
}

// The product of a warp's rows as it was asked for: read and computed when it is waited for and not before.
struct ptb_sim_product {
    void (*compute)(const ptb_sim_product &);
    bool trans;
    float (*d[32])[4];
    const uint32_t *registers[32]; // NULL: a descriptor
    uint64_t a, b;
    bool add;
    unsigned warp;   // of the block
    long group;      // -1: not committed
    uint64_t number; // sim_product_number
};

struct ptb_sim_products {
    ptb_sim_product asked[64]; // in order
    unsigned count;
    long groups; // committed so far
};

struct ptb_sim_block_products {
    ptb_sim_products *warps = new ptb_sim_products[32]();
    ~ptb_sim_block_products() { delete[] warps; }
};

// Of the calling thread's warp; one of all files that include this. Checks of accesses take variables of a
// thread of the system for shared memory, which this one is not.
__attribute__((no_sanitize("thread"))) inline ptb_sim_products *ptb_sim_warp_products()
{
    static thread_local ptb_sim_block_products products;
    return products.warps + threadIdx.x / 32;
}

template <typename T, bool TRANS> void ptb_sim_compute(const ptb_sim_product &p)
{
    float a[16][16], b[16][64]; // [depth][row], [depth][column]
    const bool in_registers = p.registers[0] != NULL;
    for (unsigned lane = 0; in_registers && lane < 32; lane++)
        for (unsigned i = 0; i < 4; i++) {
            float2 pair = ptb_unpair(p.registers[lane][i], T());
            unsigned row = lane / 4 + i % 2 * 8, k = lane % 4 * 2 + i / 2 * 8;
            a[k][row] = pair.x, a[k + 1][row] = pair.y;
        }
    for (unsigned row = 0; !in_registers && row < 16; row += 8)
        ptb_sim_rows<T, false>(p.number, p.a, p.warp % 4 * 16 + row, &a[0][row], 16);
    for (unsigned column = 0; column < 64; column += 8)
        ptb_sim_rows<T, TRANS>(p.number, p.b, column, &b[0][column], 64);
    for (unsigned row = 0; row < 16; row++) {
        ptb_sim_sixteen sums[4] = {};
        for (unsigned k = 0; k < 16; k++)
#pragma GCC unroll 4
            for (unsigned i = 0; i < 4; i++) {
                ptb_sim_sixteen right;
                memcpy(&right, &b[k][i * 16], sizeof right);
                sums[i] += a[k][row] * right;
            }
        for (unsigned column = 0; column < 64; column++) {
            float *d = &p.d[row % 8 * 4 + column % 8 / 2][column / 8][row / 8 * 2 + column % 2],
                  sum = sums[column / 16][column % 16];
            *d = p.add ? *d + sum : sum;
        }
    }
    for (unsigned lane = 0; lane < 32; lane++)
        sim_registers_written(p.warp * 32 + lane, p.d[lane], sizeof(float[8][4]));
}

// Lane `lane` has left its registers of the product alone since its fence.
static inline void ptb_sim_check_lane(const ptb_sim_product &p, unsigned lane)
{
    sim_registers_check(p.warp * 32 + lane, p.d[lane], sizeof(float[8][4]), "the sums");
    if (p.registers[lane])
        sim_registers_check(p.warp * 32 + lane, p.registers[lane], sizeof(uint32_t[4]), "the left operand");
}

// The product may be asked for, as far as registers and shared memory go.
static inline void ptb_sim_check(const ptb_sim_product &p)
{
    auto reads = [&](const char *piece, unsigned, unsigned) {
        sim_product_reads(p.number, piece, 16, false);
    };
    for (unsigned lane = 0; lane < 32; lane++)
        ptb_sim_check_lane(p, lane);
    for (unsigned row = 0; !p.registers[0] && row < 16; row += 8)
        ptb_sim_pieces<false>(p.a, p.warp % 4 * 16 + row, 16, reads);
    for (unsigned column = 0; column < 64; column += 8)
        p.trans ? ptb_sim_pieces<true>(p.b, column, 64, reads)
                : ptb_sim_pieces<false>(p.b, column, 64, reads);
}

struct ptb_sim_asking {
    ptb_sim_product one; // d and registers of this lane in [0]
    static void run(void *const lanes[])
    {
        ptb_sim_product all = ((const ptb_sim_asking *)lanes[0])->one;
        for (unsigned lane = 0; lane < 32; lane++) {
            const ptb_sim_product &of = ((const ptb_sim_asking *)lanes[lane])->one;
            if (of.b != all.b || of.a != all.a || of.add != all.add)
                sim_abort_grid(cudaErrorIllegalInstruction, "wgmma: operands differ between lanes");
            all.d[lane] = of.d[0], all.registers[lane] = of.registers[0];
        }
        ptb_sim_products *of = ptb_sim_warp_products();
        if (of->count == sizeof of->asked / sizeof *of->asked)
            sim_abort_grid(cudaErrorIllegalInstruction, "wgmma: more products than this device queues");
        all.number = sim_product_number(all.warp, all.a, all.b, all.add);
        ptb_sim_check(all);
        of->asked[of->count++] = all;
    }
};

template <bool TRANS, typename T>
void ptb_wgmma(float (&d)[8][4], const uint32_t (&a)[4], uint64_t b, bool add, T)
{
    ptb_sim_asking mine = {{ptb_sim_compute<T, TRANS>, TRANS, {d}, {a}, 0, b, add, threadIdx.x / 32, -1}};
    sim_warp_run(0xffffffffu, ptb_sim_asking::run, &mine);
}

template <bool TRANS, typename T> void ptb_wgmma(float (&d)[8][4], uint64_t a, uint64_t b, bool add, T)
{
    ptb_sim_asking mine = {{ptb_sim_compute<T, TRANS>, TRANS, {d}, {}, a, b, add, threadIdx.x / 32, -1}};
    sim_warp_run(0xffffffffu, ptb_sim_asking::run, &mine);
}

// *lane: how many committed sets may stay open; -1: a commit.
inline void ptb_sim_order(void *const lanes[])
{
    ptb_sim_products *of = ptb_sim_warp_products();
    int open = *(const int *)lanes[0];
    if (open < 0) {
        for (unsigned i = 0; i < of->count; i++)
            if (of->asked[i].group < 0)
                of->asked[i].group = of->groups;
        of->groups++;
        return;
    }
    unsigned done = 0;
    for (; done < of->count; done++) {
        const ptb_sim_product &p = of->asked[done];
        if (p.group < 0 || p.group >= of->groups - open)
            break;
        for (unsigned lane = 0; lane < 32; lane++)
            ptb_sim_check_lane(p, lane);
        p.compute(p);
    }
    of->count -= done;
    memmove(of->asked, of->asked + done, of->count * sizeof *of->asked);
}

// Products that a kernel left behind that was ended by an error are nobody's.
static inline void ptb_wgmma_begin()
{
    ptb_sim_warp_products()->count = 0;
}

static inline void ptb_wgmma_fence()
{
    const ptb_sim_products *of = ptb_sim_warp_products();
    for (unsigned i = 0; i < of->count; i++)
        ptb_sim_check_lane(of->asked[i], threadIdx.x % 32);
    sim_registers_keep();
}

static inline void ptb_wgmma_commit()
{
    int commit = -1;
    sim_warp_run(0xffffffffu, ptb_sim_order, &commit);
}

template <int N> void ptb_wgmma_wait()
{
    int open = N;
    sim_warp_run(0xffffffffu, ptb_sim_order, &open);
}

static inline void ptb_wgmma_hold(float (&)[8][4]) {}
static inline void ptb_proxy_fence()
{
    sim_proxy_fence();
}

#endif

#endif
