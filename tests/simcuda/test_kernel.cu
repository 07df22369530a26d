// What a kernel can do on the simulated device: blocks and threads of any shape, barriers, operations of a
// warp, shared memory, atomics, asynchronous copies; and that a deadlock is told and not waited for.
#include "core/cuda_kernel.cuh"

#include <setjmp.h>
#include <stdarg.h>

extern "C" {
#include <cmocka.h>
}

#include <stdlib.h>
#include <string.h>

namespace {
const unsigned FULL = 0xffffffffu;

struct buffer {
    void *device;
    size_t bytes;
};

buffer to_device(const void *from, size_t bytes)
{
    buffer b = {NULL, bytes};
    assert_int_equal(cudaMalloc(&b.device, bytes), cudaSuccess);
    if (from)
        assert_int_equal(cudaMemcpy(b.device, from, bytes, cudaMemcpyHostToDevice), cudaSuccess);
    return b;
}

void to_host(void *to, buffer b)
{
    assert_int_equal(cudaMemcpy(to, b.device, b.bytes, cudaMemcpyDeviceToHost), cudaSuccess);
    assert_int_equal(cudaFree(b.device), cudaSuccess);
}
} // namespace

// Each thread writes its place, worked out from all built-in variables.
__global__ void places(unsigned *out)
{
    const unsigned block = (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
    const unsigned thread = (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x;
    const unsigned i = block * blockDim.x * blockDim.y * blockDim.z + thread;
    out[i] = i;
}

static void shapes(void **)
{
    enum { COUNT = 3 * 2 * 4 * 5 * 7 * 2 };
    unsigned got[COUNT];
    buffer out = to_device(NULL, sizeof got);
    assert_int_equal(PTB_LAUNCH(places, dim3(3, 2, 4), dim3(5, 7, 2), 0, NULL, (unsigned *)out.device),
                     cudaSuccess);
    to_host(got, out);
    for (unsigned i = 0; i < COUNT; i++)
        assert_int_equal(got[i], i);
}

// Sums of rows: shuffles in a warp, shared memory and a barrier between warps.
template <class T, int COLUMNS> __global__ void row_sums(float *out, const T *in)
{
    __shared__ float part[32];
    float sum = 0;
    for (unsigned i = threadIdx.x; i < COLUMNS; i += blockDim.x)
        sum += (float)in[blockIdx.x * COLUMNS + i];
    for (int step = 16; step > 0; step >>= 1)
        sum += __shfl_down_sync(FULL, sum, step);
    if (threadIdx.x % 32 == 0)
        part[threadIdx.x / 32] = sum;
    __syncthreads();
    if (threadIdx.x == 0) {
        float total = 0;
        for (unsigned w = 0; w < blockDim.x / 32; w++)
            total += part[w];
        out[blockIdx.x] = total;
    }
}

static void reductions(void **)
{
    enum { ROWS = 9, COLUMNS = 300 };
    __nv_bfloat16 in[ROWS * COLUMNS];
    float want[ROWS] = {0}, got[ROWS];
    for (int i = 0; i < ROWS * COLUMNS; i++) {
        in[i] = __float2bfloat16((float)(i % 7));
        want[i / COLUMNS] += (float)(i % 7);
    }
    buffer a = to_device(in, sizeof in), b = to_device(NULL, sizeof got);
    assert_int_equal(PTB_LAUNCH((row_sums<__nv_bfloat16, COLUMNS>), ROWS, 128, 0, NULL, (float *)b.device,
                                (const __nv_bfloat16 *)a.device),
                     cudaSuccess);
    to_host(got, b);
    to_host(in, a);
    for (int i = 0; i < ROWS; i++)
        assert_true(got[i] == want[i]);
}

enum { WARP_RESULTS = 14 };
__global__ void warp_operations(int *out)
{
    const int lane = (int)(threadIdx.x % 32);
    int *to = out + threadIdx.x * WARP_RESULTS;
    to[0] = __shfl_sync(FULL, lane * 10, lane + 5, 8);
    to[1] = __shfl_up_sync(FULL, lane, 3);
    to[2] = __shfl_down_sync(FULL, lane, 3, 16);
    to[3] = __shfl_xor_sync(FULL, lane, 17);
    to[4] = (int)__ballot_sync(FULL, lane % 3 == 0);
    to[5] = __any_sync(FULL, lane == 31) * 2 + __all_sync(FULL, lane < 31);
    to[6] = (int)__match_any_sync(FULL, lane / 4);
    int all = 7;
    to[7] = (int)__match_all_sync(FULL, 5, &all) + all;
    to[8] = __reduce_add_sync(FULL, lane);
    to[9] = (int)__reduce_max_sync(FULL, (unsigned)lane ^ 21u);
    // The halves of a warp on their own, in different order.
    if (lane < 16)
        to[10] = __reduce_add_sync(0x0000ffffu, lane);
    else
        to[10] = __reduce_min_sync(0xffff0000u, lane) + __reduce_max_sync(0xffff0000u, lane);
    __syncwarp();
    to[11] = __syncthreads_count(lane == 4);
    to[12] = __syncthreads_or(threadIdx.x == 40) * 2 + __syncthreads_and(lane < 31);
    int lanes[32];
    sim_warp_gather(lane * lane, lanes);
    to[13] = lanes[(lane + 1) % 32];
}

static void warps(void **)
{
    enum { THREADS = 64 };
    static int got[THREADS * WARP_RESULTS];
    buffer out = to_device(NULL, sizeof got);
    assert_int_equal(PTB_LAUNCH(warp_operations, 1, THREADS, 0, NULL, (int *)out.device), cudaSuccess);
    to_host(got, out);
    unsigned thirds = 0;
    for (int i = 0; i < 32; i += 3)
        thirds |= 1u << i;
    for (int t = 0; t < THREADS; t++) {
        const int lane = t % 32, *of = got + t * WARP_RESULTS;
        assert_int_equal(of[0], (lane / 8 * 8 + (lane + 5) % 8) * 10);
        assert_int_equal(of[1], lane < 3 ? lane : lane - 3);
        assert_int_equal(of[2], lane % 16 + 3 < 16 ? lane + 3 : lane);
        assert_int_equal(of[3], lane ^ 17);
        assert_int_equal((unsigned)of[4], thirds);
        assert_int_equal(of[5], 2);
        assert_int_equal((unsigned)of[6], 0xfu << lane / 4 * 4);
        assert_int_equal(of[7], 0);
        assert_int_equal(of[8], 496);
        assert_int_equal(of[9], 31);
        assert_int_equal(of[10], lane < 16 ? 120 : 47);
        assert_int_equal(of[11], 2);
        assert_int_equal(of[12], 2);
        assert_int_equal(of[13], (lane + 1) % 32 * ((lane + 1) % 32));
    }
}

// Threads that end early are waited for by nobody; what is in shared memory at the beginning is no number.
__global__ void ends_early(float *out)
{
    PTB_DYNAMIC_SHARED(float, tile);
    const bool poisoned = isnan(tile[threadIdx.x]);
    if (threadIdx.x >= 40)
        return;
    tile[threadIdx.x] = (float)threadIdx.x;
    __syncthreads();
    const float sum = tile[(threadIdx.x + 39) % 40] + __shfl_xor_sync(FULL, 1.0f, 1);
    out[threadIdx.x] = poisoned ? sum : -1.0f;
}

static void dynamic_shared(void **)
{
    float got[40];
    buffer out = to_device(NULL, sizeof got);
    assert_int_equal(PTB_LAUNCH(ends_early, 1, 70, 60000, NULL, (float *)out.device), cudaErrorInvalidValue);
    assert_int_equal(cudaGetLastError(), cudaErrorInvalidValue);
    assert_int_equal(PTB_ALLOW_SHARED(ends_early, 60000), cudaSuccess);
    assert_int_equal(PTB_LAUNCH(ends_early, 1, 70, 60000, NULL, (float *)out.device), cudaSuccess);
    to_host(got, out);
    for (int i = 0; i < 40; i++)
        assert_true(got[i] == (float)((i + 39) % 40 + 1));
}

__global__ void count_all(float *f, double *d, unsigned *u, unsigned long long *l, __nv_bfloat16 *b)
{
    atomicAdd(f, 0.5f);
    atomicAdd(d, 0.25);
    atomicAdd(u, 1);
    atomicMax(l, (unsigned long long)(blockIdx.x * blockDim.x + threadIdx.x));
    if (threadIdx.x < 3)
        atomicAdd(b, __float2bfloat16(1.0f));
}

static void atomics(void **)
{
    struct {
        double d;
        unsigned long long l;
        float f;
        unsigned u;
        __nv_bfloat16 b[2];
    } of;
    memset(&of, 0, sizeof of);
    buffer on = to_device(&of, sizeof of);
    auto *at = (decltype(&of))on.device;
    assert_int_equal(PTB_LAUNCH(count_all, 10, 96, 0, NULL, &at->f, &at->d, &at->u, &at->l, at->b),
                     cudaSuccess);
    to_host(&of, on);
    assert_true(of.f == 480.0f && of.d == 240.0 && of.u == 960 && of.l == 959);
    assert_true(__bfloat162float(of.b[0]) == 30.0f);
}

// A copy is there after the wait and not before.
__global__ void copies(int *out, const int4 *in)
{
    __shared__ __align__(16) int4 tile[2];
    if (threadIdx.x < 2) {
        tile[threadIdx.x] = make_int4(-1, -1, -1, -1);
        sim_async_copy(&tile[threadIdx.x], &in[threadIdx.x], 16, 16);
        sim_async_commit();
        sim_async_wait(1);
    }
    __syncthreads();
    if (threadIdx.x == 0)
        out[0] = tile[1].x;
    __syncthreads();
    if (threadIdx.x < 2)
        sim_async_wait(0);
    __syncthreads();
    if (threadIdx.x == 0)
        out[1] = tile[1].x;
}

static void asynchronous_copies(void **)
{
    const int in[8] = {1, 2, 3, 4, 5, 6, 7, 8};
    int got[2];
    buffer a = to_device(in, sizeof in), b = to_device(NULL, sizeof got);
    assert_int_equal(PTB_LAUNCH(copies, 1, 32, 0, NULL, (int *)b.device, (const int4 *)a.device),
                     cudaSuccess);
    to_host(got, b);
    assert_int_equal(got[0], -1);
    assert_int_equal(got[1], 5);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(shapes),         cmocka_unit_test(reductions), cmocka_unit_test(warps),
        cmocka_unit_test(dynamic_shared), cmocka_unit_test(atomics),    cmocka_unit_test(asynchronous_copies),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
