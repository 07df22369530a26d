// What the simulated device catches, and the faults that it makes on request. Each scenario runs in a process
// of its own, since most of them end the device.
#include "core/cuda_kernel.cuh"
#include "tests/simcuda/shared.hpp"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>

extern "C" {
#include <cmocka.h>
}

#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

namespace {
// 0, or the line that failed.
#define EXPECT(condition)                                                                                    \
    do {                                                                                                     \
        if (!(condition)) {                                                                                  \
            fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition);                                  \
            return 1;                                                                                        \
        }                                                                                                    \
    } while (0)
#define EXPECT_ERROR(call, error)                                                                            \
    do {                                                                                                     \
        const cudaError_t got_ = (call);                                                                     \
        if (got_ != (error)) {                                                                               \
            fprintf(stderr, "%s:%d: %s: %s, not %s\n", __FILE__, __LINE__, #call, cudaGetErrorName(got_),    \
                    cudaGetErrorName(error));                                                                \
            return 1;                                                                                        \
        }                                                                                                    \
    } while (0)

typedef int scenario(void);

// Exit code of the scenario, or minus the signal that ended it.
int run(scenario *of, const char *settings)
{
    const pid_t child = fork();
    if (child == 0) {
        setenv("PTB_SIM", settings, 1);
        for (int number : {SIGSEGV, SIGBUS})
            signal(number, SIG_DFL); // not cmocka's
        alarm(120);
        _exit(of());
    }
    int status = 0;
    assert_int_equal(waitpid(child, &status, 0), child);
    return WIFSIGNALED(status) ? -WTERMSIG(status) : WEXITSTATUS(status);
}

// The error sticks, as CUDA's do.
int expect_end(cudaError_t error)
{
    void *memory;
    int value = 0;
    EXPECT_ERROR(cudaStreamSynchronize(NULL), error);
    EXPECT_ERROR(cudaGetLastError(), error);
    EXPECT_ERROR(cudaMalloc(&memory, 4), error);
    EXPECT_ERROR(cudaDeviceSynchronize(), error);
    EXPECT_ERROR(cudaMemcpy(&value, &value, 4, cudaMemcpyDefault), error);
    return 0;
}
} // namespace

// For what the simulated device finds by itself: sanitizers look away.
#define PLANTED __attribute__((no_sanitize("address", "undefined")))

PLANTED __global__ void write_at(float *to, long at)
{
    to[at] = 1.0f;
}
PLANTED __global__ void read_at(float *to, const float *from, long at)
{
    *to = from[at];
}
PLANTED __global__ void copy_vector(float4 *to, const float4 *from)
{
    *to = *from;
}
__global__ void half_of_a_warp()
{
    if (threadIdx.x < 16)
        __syncwarp(0xffffffffu);
    else
        __syncthreads();
}
__global__ void other_operations()
{
    if (threadIdx.x < 16)
        __syncwarp();
    else
        __shfl_sync(0xffffffffu, 1, 0);
}
__global__ void trap()
{
    if (threadIdx.x == 3)
        __trap();
}
__global__ void asserts(int value)
{
    assert(value == 1);
}
__attribute__((noinline)) static __device__ int descend(volatile char *to, int depth)
{
    volatile char frame[1024];
    frame[depth % 1024] = *to;
    return depth ? descend(to, depth - 1) + frame[depth % 1024] : 0;
}
__global__ void deep(char *to, int depth)
{
    *to = (char)descend(to, depth);
}

#ifdef __SANITIZE_ADDRESS__
// What the address sanitizer finds: it ends the device process.
__global__ void reads_beyond(float *to, const float *from, int at)
{
    *to = from[at];
}
__global__ void writes_beyond_shared(int at)
{
    PTB_DYNAMIC_SHARED(char, bytes);
    bytes[at] = 1;
}
__global__ void writes_beyond_local(float *to, int at)
{
    volatile float local[8] = {};
    __syncthreads(); // other threads have run on stacks of their own
    local[at] = 1;
    *to = local[0];
}

template <int KIND> static int read_or_written_beyond(void)
{
    float *memory;
    EXPECT_ERROR(cudaMalloc((void **)&memory, 100 * sizeof(float)), cudaSuccess);
    for (int beyond = 0; beyond < 2; beyond++) {
        if (KIND == 0)
            EXPECT_ERROR(PTB_LAUNCH(reads_beyond, 1, 1, 0, NULL, memory, memory, 99 + beyond), cudaSuccess);
        if (KIND == 1)
            EXPECT_ERROR(PTB_LAUNCH(writes_beyond_shared, 1, 1, 40, NULL, 39 + beyond), cudaSuccess);
        if (KIND == 2)
            EXPECT_ERROR(PTB_LAUNCH(writes_beyond_local, 1, 33, 0, NULL, memory, 7 + beyond), cudaSuccess);
        if (!beyond)
            EXPECT_ERROR(cudaDeviceSynchronize(), cudaSuccess);
    }
    return expect_end(cudaErrorUnknown);
}

static void sanitizer_looks(void **)
{
    assert_int_equal(run(read_or_written_beyond<0>, ""), 0);
    assert_int_equal(run(read_or_written_beyond<1>, ""), 0);
    assert_int_equal(run(read_or_written_beyond<2>, ""), 0);
}
#endif

static int host_touches_device(void)
{
    float *memory;
    EXPECT_ERROR(cudaMalloc((void **)&memory, 4), cudaSuccess);
    *(volatile float *)memory = 1;
    return 0;
}

static int kernel_touches_host(void)
{
    // Where the system maps nothing by itself: else there could be memory of the device process's own.
    void *const at = (void *)0x400000000000;
    float *plain = (float *)mmap(at, 4096, PROT_READ | PROT_WRITE,
                                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
    EXPECT(plain == at);
    EXPECT_ERROR(PTB_LAUNCH(write_at, 1, 1, 0, NULL, plain, 0), cudaSuccess);
    return expect_end(cudaErrorIllegalAddress);
}

static int kernel_touches_null(void)
{
    EXPECT_ERROR(PTB_LAUNCH(write_at, 1, 1, 0, NULL, (float *)NULL, 0), cudaSuccess);
    return expect_end(cudaErrorIllegalAddress);
}

static int beyond_the_end(void)
{
    float *memory;
    EXPECT_ERROR(cudaMalloc((void **)&memory, 100 * sizeof(float)), cudaSuccess);
    EXPECT_ERROR(PTB_LAUNCH(write_at, 1, 1, 0, NULL, memory, 128), cudaSuccess);
    return expect_end(cudaErrorIllegalAddress);
}

// Within the bytes that round the allocation up, so that only a look at them tells.
static int just_beyond_the_end(void)
{
    float *memory;
    EXPECT_ERROR(cudaMalloc((void **)&memory, 100 * sizeof(float)), cudaSuccess);
    EXPECT_ERROR(PTB_LAUNCH(write_at, 1, 1, 0, NULL, memory, 100), cudaSuccess);
    EXPECT_ERROR(cudaStreamSynchronize(NULL), cudaSuccess);
    EXPECT_ERROR(cudaDeviceSynchronize(), cudaErrorIllegalAddress);
    return expect_end(cudaErrorIllegalAddress);
}

static int before_the_beginning(void)
{
    float *memory;
    EXPECT_ERROR(cudaMalloc((void **)&memory, 100 * sizeof(float)), cudaSuccess);
    EXPECT_ERROR(PTB_LAUNCH(write_at, 1, 1, 0, NULL, memory, -1), cudaSuccess);
    EXPECT_ERROR(cudaFree(memory), cudaErrorIllegalAddress);
    return expect_end(cudaErrorIllegalAddress);
}

static int after_free(void)
{
    float *memory;
    EXPECT_ERROR(cudaMallocAsync((void **)&memory, 4, NULL), cudaSuccess);
    EXPECT_ERROR(PTB_LAUNCH(write_at, 1, 1, 0, NULL, memory, 0), cudaSuccess);
    EXPECT_ERROR(cudaFreeAsync(memory, NULL), cudaSuccess);
    EXPECT_ERROR(cudaStreamSynchronize(NULL), cudaSuccess);
    EXPECT_ERROR(PTB_LAUNCH(write_at, 1, 1, 0, NULL, memory, 0), cudaSuccess);
    return expect_end(cudaErrorIllegalAddress);
}

static int misaligned(void)
{
    char *memory;
    EXPECT_ERROR(cudaMalloc((void **)&memory, 64), cudaSuccess);
    EXPECT_ERROR(PTB_LAUNCH(copy_vector, 1, 1, 0, NULL, (float4 *)(memory + 4), (const float4 *)memory),
                 cudaSuccess);
    return expect_end(cudaErrorMisalignedAddress);
}

static int deadlocked(void)
{
    EXPECT_ERROR(PTB_LAUNCH(half_of_a_warp, 1, 32, 0, NULL), cudaSuccess);
    return expect_end(cudaErrorLaunchTimeout);
}

static int different_operations(void)
{
    EXPECT_ERROR(PTB_LAUNCH(other_operations, 1, 32, 0, NULL), cudaSuccess);
    return expect_end(cudaErrorLaunchFailure);
}

static int trapped(void)
{
    EXPECT_ERROR(PTB_LAUNCH(trap, 1, 32, 0, NULL), cudaSuccess);
    return expect_end(cudaErrorLaunchFailure);
}

static int asserted(void)
{
    EXPECT_ERROR(PTB_LAUNCH(asserts, 1, 32, 0, NULL, 1), cudaSuccess);
    EXPECT_ERROR(cudaDeviceSynchronize(), cudaSuccess);
    EXPECT_ERROR(PTB_LAUNCH(asserts, 1, 32, 0, NULL, 2), cudaSuccess);
    return expect_end(cudaErrorAssert);
}

static int stack_full(void)
{
    char *memory;
    EXPECT_ERROR(cudaMalloc((void **)&memory, 64), cudaSuccess);
    EXPECT_ERROR(PTB_LAUNCH(deep, 1, 1, 0, NULL, memory, 10), cudaSuccess);
    EXPECT_ERROR(cudaStreamSynchronize(NULL), cudaSuccess);
    EXPECT_ERROR(PTB_LAUNCH(deep, 1, 1, 0, NULL, memory, 1000), cudaSuccess);
    return expect_end(cudaErrorHardwareStackError);
}

// oom=2, with the program able to go on.
static int out_of_memory(void)
{
    void *memory;
    EXPECT_ERROR(cudaMalloc(&memory, 4), cudaSuccess);
    EXPECT_ERROR(cudaMalloc(&memory, 4), cudaErrorMemoryAllocation);
    EXPECT_ERROR(cudaGetLastError(), cudaErrorMemoryAllocation);
    EXPECT_ERROR(cudaGetLastError(), cudaSuccess);
    EXPECT_ERROR(cudaMalloc(&memory, 4), cudaSuccess);
    EXPECT_ERROR(cudaMalloc(&memory, (size_t)5 << 20), cudaErrorMemoryAllocation); // memory=4
    size_t free_bytes, total_bytes;
    EXPECT_ERROR(cudaMemGetInfo(&free_bytes, &total_bytes), cudaSuccess);
    EXPECT(total_bytes == 4 << 20 && free_bytes == total_bytes - 512);
    return 0;
}

// launch=2
static int launch_fails(void)
{
    float *memory;
    EXPECT_ERROR(cudaMalloc((void **)&memory, 4), cudaSuccess);
    EXPECT_ERROR(PTB_LAUNCH(write_at, 1, 1, 0, NULL, memory, 0), cudaSuccess);
    EXPECT_ERROR(cudaStreamSynchronize(NULL), cudaSuccess);
    EXPECT_ERROR(PTB_LAUNCH(write_at, 1, 1, 0, NULL, memory, 0), cudaSuccess);
    return expect_end(cudaErrorLaunchFailure);
}

// hang=1: nobody but a time-out of the program's own ends it.
static int hangs(void)
{
    float *memory;
    EXPECT_ERROR(cudaMalloc((void **)&memory, 4), cudaSuccess);
    EXPECT_ERROR(PTB_LAUNCH(write_at, 1, 1, 0, NULL, memory, 0), cudaSuccess);
    while (sim_shared()->works.load() == 0) // until it has begun: the next one is another one's number
        usleep(100);
    cudaStream_t other;
    EXPECT_ERROR(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking), cudaSuccess);
    EXPECT_ERROR(PTB_LAUNCH(write_at, 1, 1, 0, other, memory, 0), cudaSuccess);
    EXPECT_ERROR(cudaStreamSynchronize(other), cudaSuccess);
    usleep(300000); // it would have ended
    EXPECT_ERROR(cudaStreamQuery(NULL), cudaErrorNotReady);
    return 0;
}

// lost=4
static int lost(void)
{
    void *memory;
    EXPECT_ERROR(cudaMalloc(&memory, 4), cudaSuccess);
    EXPECT_ERROR(cudaMalloc(&memory, 4), cudaSuccess);
    EXPECT_ERROR(cudaMalloc(&memory, 4), cudaSuccess);
    EXPECT_ERROR(cudaMalloc(&memory, 4), cudaErrorUnknown);
    return expect_end(cudaErrorUnknown);
}

// ecc=1
static int memory_fails(void)
{
    float *memory;
    EXPECT_ERROR(cudaMalloc((void **)&memory, 4), cudaSuccess);
    EXPECT_ERROR(cudaMemsetAsync(memory, 0, 4, NULL), cudaSuccess);
    return expect_end(cudaErrorECCUncorrectable);
}

static int another_rank(void)
{
    void *memory;
    EXPECT_ERROR(cudaMalloc(&memory, 4), cudaSuccess);
    return 0;
}

static int device_dies(void)
{
    float *memory;
    EXPECT_ERROR(cudaMalloc((void **)&memory, 4), cudaSuccess);
    const int device = sim_shared()->device_pid.load();
    struct pollfd gone = {(int)syscall(SYS_pidfd_open, device, 0), POLLIN, 0};
    EXPECT(gone.fd >= 0 && kill(device, SIGKILL) == 0);
    EXPECT(poll(&gone, 1, -1) == 1);
    cudaMemsetAsync(memory, 0, 4, NULL);
    return expect_end(cudaErrorUnknown);
}

static int forked(void)
{
    void *memory;
    EXPECT_ERROR(cudaMalloc(&memory, 4), cudaSuccess);
    int status;
    if (fork() == 0)
        _exit(cudaMalloc(&memory, 4) == cudaErrorInitializationError ? 0 : 1);
    EXPECT(wait(&status) > 0 && status == 0);
    EXPECT(wait(&status) < 0); // the device is no child of the program
    EXPECT_ERROR(cudaFree(memory), cudaSuccess);
    return 0;
}

// Memory that nobody has written is no number.
static int poisoned(void)
{
    float *memory, value = 0;
    EXPECT_ERROR(cudaMalloc((void **)&memory, 400), cudaSuccess);
    EXPECT_ERROR(cudaMemcpy(&value, memory + 99, 4, cudaMemcpyDeviceToHost), cudaSuccess);
    EXPECT(value != value);
    EXPECT_ERROR(cudaMemcpy(&value, memory + 100, 4, cudaMemcpyDeviceToHost), cudaErrorInvalidValue);
    EXPECT_ERROR(cudaMemcpy(memory, &value, 4, cudaMemcpyDeviceToHost), cudaErrorInvalidValue);
    return 0;
}

// What a stream reads that does not wait for the one that writes is not there yet, where kernels are slow.
static int missing_event(bool waits)
{
    float *memory, *seen;
    cudaStream_t writer, reader;
    cudaEvent_t written;
    EXPECT_ERROR(cudaMalloc((void **)&memory, 4), cudaSuccess);
    EXPECT_ERROR(cudaMallocHost((void **)&seen, 4), cudaSuccess);
    EXPECT_ERROR(cudaStreamCreateWithFlags(&writer, cudaStreamNonBlocking), cudaSuccess);
    EXPECT_ERROR(cudaStreamCreateWithFlags(&reader, cudaStreamNonBlocking), cudaSuccess);
    EXPECT_ERROR(cudaEventCreateWithFlags(&written, cudaEventDisableTiming), cudaSuccess);
    EXPECT_ERROR(PTB_LAUNCH(write_at, 1, 1, 0, writer, memory, 0), cudaSuccess);
    EXPECT_ERROR(cudaEventRecord(written, writer), cudaSuccess);
    if (waits)
        EXPECT_ERROR(cudaStreamWaitEvent(reader, written, 0), cudaSuccess);
    EXPECT_ERROR(cudaMemcpyAsync(seen, memory, 4, cudaMemcpyDeviceToHost, reader), cudaSuccess);
    EXPECT_ERROR(cudaStreamSynchronize(reader), cudaSuccess);
    EXPECT(waits ? *seen == 1.0f : *seen != *seen);
    return 0; // and ends the device, whatever it does
}
static int without_event(void)
{
    return missing_event(false);
}
static int with_event(void)
{
    return missing_event(true);
}

// A host that does not wait for the stream sees nothing yet.
static int missing_sync(bool waits)
{
    float *seen;
    EXPECT_ERROR(cudaMallocHost((void **)&seen, 4), cudaSuccess);
    *seen = 7;
    EXPECT_ERROR(PTB_LAUNCH(write_at, 1, 1, 0, NULL, seen, 0), cudaSuccess);
    if (waits)
        EXPECT_ERROR(cudaStreamSynchronize(NULL), cudaSuccess);
    EXPECT(*(volatile float *)seen == (waits ? 1 : 7));
    return 0;
}
static int without_sync(void)
{
    return missing_sync(false);
}
static int with_sync(void)
{
    return missing_sync(true);
}

static void memory_is_guarded(void **)
{
    assert_int_equal(run(host_touches_device, ""), -SIGSEGV);
    assert_int_equal(run(kernel_touches_host, ""), 0);
    assert_int_equal(run(kernel_touches_null, ""), 0);
    assert_int_equal(run(beyond_the_end, ""), 0);
    assert_int_equal(run(just_beyond_the_end, ""), 0);
    assert_int_equal(run(before_the_beginning, ""), 0);
    assert_int_equal(run(after_free, ""), 0);
    assert_int_equal(run(misaligned, ""), 0);
    assert_int_equal(run(poisoned, ""), 0);
}

static void kernels_that_go_wrong(void **)
{
    assert_int_equal(run(deadlocked, ""), 0);
    assert_int_equal(run(different_operations, ""), 0);
    assert_int_equal(run(trapped, ""), 0);
    assert_int_equal(run(asserted, ""), 0);
    assert_int_equal(run(stack_full, ""), 0);
}

static void order_is_needed(void **)
{
    // Nobody waits for kernels of 100 s: they are over with the process.
    assert_int_equal(run(without_event, "slow=100000000"), 0);
    assert_int_equal(run(with_event, "slow=50000"), 0);
    assert_int_equal(run(with_event, "delay=2000,seed=7"), 0);
    assert_int_equal(run(without_sync, "slow=100000000"), 0);
    assert_int_equal(run(with_sync, "slow=50000"), 0);
}

static void faults_on_request(void **)
{
    assert_int_equal(run(out_of_memory, "oom=2,memory=4"), 0);
    assert_int_equal(run(launch_fails, "launch=2"), 0);
    assert_int_equal(run(hangs, "hang=1"), 0);
    assert_int_equal(run(lost, "lost=4"), 0);
    assert_int_equal(run(memory_fails, "ecc=1"), 0);
    assert_int_equal(run(another_rank, "oom=1,rank=1"), 0);
}

static void processes(void **)
{
    assert_int_equal(run(device_dies, ""), 0);
    assert_int_equal(run(forked, ""), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(memory_is_guarded), cmocka_unit_test(kernels_that_go_wrong),
        cmocka_unit_test(order_is_needed),   cmocka_unit_test(faults_on_request),
        cmocka_unit_test(processes),
#ifdef __SANITIZE_ADDRESS__
        cmocka_unit_test(sanitizer_looks),
#endif
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
