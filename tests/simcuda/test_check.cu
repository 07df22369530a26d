// The checks of every access: planted errors are found, and correct kernels are let through. This file is
// compiled with the compiler's instrumentation.
#include "strategies/transformer/kernels_cuda_wgmma.cuh"

#include <setjmp.h>
#include <stdarg.h>

extern "C" {
#include <cmocka.h>
}

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

// The sum of a block's values; what is left out is a planted error.
enum { NONE, NO_FIRST_BARRIER, NO_LAST_BARRIER, NO_SYNCWARP, WRITES_SAME };
template <int LEFT_OUT> __global__ void block_sum(float *out, const float *in)
{
    __shared__ float part[64];
    __shared__ float total;
    const unsigned t = threadIdx.x;
    part[t] = in[t];
    if (LEFT_OUT != NO_FIRST_BARRIER)
        __syncthreads();
    if (t < 32) {
        part[t] += part[t + 32];
        for (unsigned step = 16; step > 0; step /= 2) {
            __syncwarp();
            const float other = part[(t + step) % 32];
            if (LEFT_OUT != NO_SYNCWARP)
                __syncwarp();
            part[t] += other;
        }
        if (t == 0 || LEFT_OUT == WRITES_SAME)
            total = part[0];
    }
    if (LEFT_OUT != NO_LAST_BARRIER)
        __syncthreads();
    out[t] = total;
}

// Dynamic shared memory, 16-byte and 2-byte accesses side by side, copies in the background.
template <bool WAITS, bool BARRIER> __global__ void transposed(__nv_bfloat16 *out, const __nv_bfloat16 *in)
{
    PTB_DYNAMIC_SHARED(__nv_bfloat16, tile); // [8, 8]
    const unsigned t = threadIdx.x;
    if (t < 8)
        sim_async_copy(tile + 8 * t, in + 8 * t, 16, 16);
    sim_async_commit();
    if (WAITS)
        sim_async_wait(0);
    if (BARRIER)
        __syncthreads();
    out[t] = tile[t % 8 * 8 + t / 8];
    if (!WAITS)
        sim_async_wait(0);
}

// A wait is for copies that were committed.
template <bool COMMITS> __global__ void leaves_copies(const float4 *in)
{
    PTB_DYNAMIC_SHARED(float4, shared);
    sim_async_copy(shared + threadIdx.x, in + threadIdx.x, 16, 16);
    if (COMMITS)
        sim_async_commit();
    sim_async_wait(0);
}

__global__ void writes_global(float *to, long at)
{
    to[at] = 1;
}
__global__ void reads_global(float *to, const float4 *from, long at)
{
    const float4 of = from[at];
    *to = of.x + of.w;
}
__global__ void copies_global(float4 *to, const float *from)
{
    *to = *(const float4 *)from;
}
__global__ void writes_dynamic(long at)
{
    PTB_DYNAMIC_SHARED(char, bytes);
    bytes[at] = 1;
}
__global__ void writes_static(float *out, long at)
{
    __shared__ float last[16];
    if (at < 0) // behind all shared memory of the program
        at = (float *)__builtin_thread_pointer() - last;
    last[at] = 1;
    *out = last[0];
}
__global__ void counts(int *out)
{
    __shared__ int count;
    if (threadIdx.x == 0)
        count = 0;
    __syncthreads();
    atomicAdd(&count, 1);
    __syncthreads();
    out[threadIdx.x] = count;
}
__global__ void counts_plainly(int *out)
{
    __shared__ int count;
    if (threadIdx.x == 0)
        count = 0;
    __syncthreads();
    if (threadIdx.x == 40)
        count++;
    else
        atomicAdd(&count, 1);
    __syncthreads();
    out[threadIdx.x] = count;
}

// A product of a group of warps whose right operand was copied in the background. Planted: what goes wrong.
enum {
    CORRECT,
    NO_PROXY_FENCE,
    PROXY_FENCE_BEFORE_WAIT,
    PROXY_FENCE_BEHIND_BARRIER,
    STORE_BEHIND_PROXY_FENCE,
    OPERAND_IN_FLIGHT,
    NO_FENCE,
    SUMS_BEHIND_FENCE,
    LEFT_BEHIND_FENCE,
    SUMS_IN_FLIGHT,
    LEFT_IN_FLIGHT,
    SUMS_BETWEEN,
    WARP_LEAVES_OUT,
    WARP_DIFFERS
};
template <int PLANTED> __global__ void multiplies(float *out, const uint32_t *in)
{
    PTB_DYNAMIC_SHARED(__nv_bfloat16, shared);
    __nv_bfloat16 *tile = ptb_wgmma_align(shared); // [64, 64]
    const int t = (int)threadIdx.x;
    for (int i = t; i < 64 * 8; i += 128)
        ptb_copy_async(tile + i * 8, in + i * 4, true);
    ptb_copy_commit();
    if (PLANTED == PROXY_FENCE_BEFORE_WAIT)
        ptb_proxy_fence();
    ptb_copy_wait<0>();
    if (PLANTED != PROXY_FENCE_BEFORE_WAIT && PLANTED != PROXY_FENCE_BEHIND_BARRIER &&
        PLANTED != NO_PROXY_FENCE)
        ptb_proxy_fence();
    if (PLANTED == STORE_BEHIND_PROXY_FENCE && t == 70)
        tile[t * 8] = __nv_bfloat16(1.0f);
    __syncthreads();
    if (PLANTED == PROXY_FENCE_BEHIND_BARRIER)
        ptb_proxy_fence();
    float d[8][4] = {}, other[8][4] = {};
    uint32_t left[4] = {in[t], in[t + 1], in[t + 2], in[t + 3]};
    const uint64_t right =
        ptb_wgmma_at(ptb_wgmma_row<true>(tile, 0), PLANTED == WARP_DIFFERS && t < 32 ? 1024 : 0);
    if (PLANTED != NO_FENCE)
        ptb_wgmma_fence();
    if (PLANTED == SUMS_BEHIND_FENCE && t == 70)
        d[3][1]++;
    if (PLANTED == LEFT_BEHIND_FENCE && t == 70)
        left[2]++;
    ptb_wgmma<true>(d, left, right, true, __nv_bfloat16());
    if (PLANTED == SUMS_BETWEEN && t == 70)
        other[7][3]++;
    if (PLANTED != WARP_LEAVES_OUT || t / 32 != 2)
        ptb_wgmma<true>(other, left, right, true, __nv_bfloat16());
    ptb_wgmma_commit();
    if (PLANTED == SUMS_IN_FLIGHT && t == 70)
        d[0][0]++;
    if (PLANTED == LEFT_IN_FLIGHT && t == 70)
        left[0]++;
    if (PLANTED == OPERAND_IN_FLIGHT) {
        __syncthreads();
        tile[t * 8] = __nv_bfloat16(1.0f);
    }
    ptb_wgmma_wait<0>();
    out[t] = d[0][0] + other[0][0];
    ptb_wgmma_fence(); // the sums were read, and the next products follow those that were waited for
    ptb_wgmma<true>(d, left, right, true, __nv_bfloat16());
    ptb_wgmma_commit();
    ptb_wgmma_wait<0>();
    out[t] += d[0][0];
}

namespace {
float *zeros(size_t count)
{
    float *memory;
    if (cudaMalloc((void **)&memory, count * sizeof *memory) || cudaMemset(memory, 0, count * sizeof *memory))
        _exit(100);
    return memory;
}

typedef cudaError_t scenario(void);
enum { FINE, RACE = 90, ILLEGAL, MISALIGNED };

// What became of a scenario, which runs in a process of its own. says: what must be told of it, if not NULL.
int run(scenario *of, const char *says = NULL)
{
    FILE *told = tmpfile();
    assert_non_null(told);
    const pid_t child = fork();
    if (child == 0) {
        alarm(120);
        if (says)
            dup2(fileno(told), STDERR_FILENO);
        const cudaError_t launched = of();
        const cudaError_t ran = cudaStreamSynchronize(NULL);
        _exit(launched                            ? 101
              : ran == cudaErrorIllegalAddress    ? ILLEGAL
              : ran == cudaErrorLaunchFailure     ? RACE
              : ran == cudaErrorMisalignedAddress ? MISALIGNED
                                                  : ran);
    }
    int status = 0;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    char text[1024] = "";
    rewind(told);
    text[fread(text, 1, sizeof text - 1, told)] = 0;
    fclose(told);
    if (says && !strstr(text, says))
        fail_msg("\"%s\" is not in: %s", says, text);
    return WEXITSTATUS(status);
}
template <int LEFT_OUT> cudaError_t sum(void)
{
    return PTB_LAUNCH((block_sum<LEFT_OUT>), 2, 64, 0, NULL, zeros(64), zeros(64));
}
template <bool WAITS, bool BARRIER> cudaError_t transpose(void)
{
    return PTB_LAUNCH((transposed<WAITS, BARRIER>), 1, 64, 128, NULL, (__nv_bfloat16 *)zeros(32),
                      (const __nv_bfloat16 *)zeros(32));
}
template <bool COMMITS> cudaError_t leave_copies(void)
{
    return PTB_LAUNCH((leaves_copies<COMMITS>), 2, 64, 1024, NULL, (const float4 *)zeros(256));
}
template <int AT> cudaError_t global_write(void)
{
    return PTB_LAUNCH(writes_global, 1, 1, 0, NULL, zeros(10), AT);
}
template <int AT> cudaError_t global_read(void)
{
    return PTB_LAUNCH(reads_global, 1, 1, 0, NULL, zeros(1), (const float4 *)zeros(10), AT);
}
template <int AT> cudaError_t global_copy(void)
{
    return PTB_LAUNCH(copies_global, 1, 1, 0, NULL, (float4 *)zeros(4), zeros(10) + AT);
}
template <int AT> cudaError_t pinned_write(void)
{
    float *pinned;
    return cudaMallocHost((void **)&pinned, 40) ? cudaErrorUnknown
                                                : PTB_LAUNCH(writes_global, 1, 1, 0, NULL, pinned, AT);
}
template <int AT> cudaError_t dynamic_write(void)
{
    return PTB_LAUNCH(writes_dynamic, 1, 1, 5, NULL, AT);
}
template <int AT> cudaError_t static_write(void)
{
    return PTB_LAUNCH(writes_static, 1, 1, 0, NULL, zeros(1), AT);
}
cudaError_t count(void)
{
    return PTB_LAUNCH(counts, 2, 64, 0, NULL, (int *)zeros(64));
}
cudaError_t count_plainly(void)
{
    return PTB_LAUNCH(counts_plainly, 1, 64, 0, NULL, (int *)zeros(64));
}
template <int PLANTED> cudaError_t multiply(void)
{
    return PTB_LAUNCH((multiplies<PLANTED>), 2, 128, 64 * 128 + PTB_WGMMA_ALIGNMENT, NULL, zeros(128),
                      (const uint32_t *)zeros(64 * 64));
}
} // namespace

static void races(void **)
{
    assert_int_equal(run(sum<NONE>), FINE);
    assert_int_equal(run(sum<NO_FIRST_BARRIER>), RACE);
    assert_int_equal(run(sum<NO_LAST_BARRIER>), RACE);
    assert_int_equal(run(sum<NO_SYNCWARP>), RACE);
    assert_int_equal(run(sum<WRITES_SAME>), RACE);
    assert_int_equal(run(transpose<true, true>), FINE);
    assert_int_equal(run(transpose<true, false>), RACE);
    assert_int_equal(run(transpose<false, true>), RACE);
    assert_int_equal(run(leave_copies<true>), FINE);
    assert_int_equal(run(leave_copies<false>, "ends before copies"), RACE);
    assert_int_equal(run(count), FINE);
    assert_int_equal(run(count_plainly), RACE);
}

static void bounds(void **)
{
    assert_int_equal(run(global_write<9>), FINE);
    assert_int_equal(run(global_write<10>), ILLEGAL);
    assert_int_equal(run(global_write<-1>), ILLEGAL);
    assert_int_equal(run(global_read<1>), FINE);
    assert_int_equal(run(global_read<2>), ILLEGAL); // its second half is beyond the end
    assert_int_equal(run(global_copy<4>), FINE);
    assert_int_equal(run(global_copy<3>), MISALIGNED);
    assert_int_equal(run(pinned_write<9>), FINE);
    assert_int_equal(run(pinned_write<10>), ILLEGAL);
    assert_int_equal(run(dynamic_write<4>), FINE);
    assert_int_equal(run(dynamic_write<5>), ILLEGAL);
    assert_int_equal(run(dynamic_write<-1>), ILLEGAL);
    assert_int_equal(run(static_write<15>), FINE);
    assert_int_equal(run(static_write<-1>), ILLEGAL);
}

static void products(void **)
{
    const char *proxy = "without fence.proxy.async and then a barrier", *in_flight = "before a wait for it",
               *sums = "thread 70 has written the sums", *left = "thread 70 has written the left operand";
    assert_int_equal(run(multiply<CORRECT>), FINE);
    assert_int_equal(run(multiply<NO_PROXY_FENCE>, proxy), RACE);
    assert_int_equal(run(multiply<PROXY_FENCE_BEFORE_WAIT>, proxy), RACE);
    assert_int_equal(run(multiply<PROXY_FENCE_BEHIND_BARRIER>, proxy), RACE);
    assert_int_equal(run(multiply<STORE_BEHIND_PROXY_FENCE>, proxy), RACE);
    assert_int_equal(run(multiply<OPERAND_IN_FLIGHT>, in_flight), RACE);
    assert_int_equal(run(multiply<NO_FENCE>, "without a wgmma.fence"), RACE);
    assert_int_equal(run(multiply<SUMS_BEHIND_FENCE>, sums), RACE);
    assert_int_equal(run(multiply<LEFT_BEHIND_FENCE>, left), RACE);
    assert_int_equal(run(multiply<SUMS_IN_FLIGHT>, sums), RACE);
    assert_int_equal(run(multiply<LEFT_IN_FLIGHT>, left), RACE);
    assert_int_equal(run(multiply<SUMS_BETWEEN>, sums), RACE);
    assert_int_equal(run(multiply<WARP_LEAVES_OUT>, "another one of its group for"), RACE);
    assert_int_equal(run(multiply<WARP_DIFFERS>, "ask for different products"), RACE);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(races), cmocka_unit_test(bounds),
                                       cmocka_unit_test(products)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
