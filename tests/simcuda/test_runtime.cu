// The CUDA runtime of the simulated device: order of streams and events, copies, calls of the host, memory,
// graphs, devices, records of what ran.
#include "core/cuda_kernel.cuh"
#include "tests/simcuda/shared.hpp"

#include <setjmp.h>
#include <stdarg.h>

extern "C" {
#include <cmocka.h>
}

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define CHECK(call) assert_int_equal(call, cudaSuccess)

__global__ void add_to(int *values, int count, int what)
{
    const int i = (int)(blockIdx.x * blockDim.x + threadIdx.x);
    if (i < count)
        values[i] += what;
}

// values[0] = values[0] * factor + summand: an order shows.
__global__ void step(int *values, int factor, int summand)
{
    values[0] = (int)((unsigned)values[0] * (unsigned)factor + (unsigned)summand);
}

static int *device_zeros(int count)
{
    int *values;
    CHECK(cudaMalloc((void **)&values, sizeof(int) * (size_t)count));
    CHECK(cudaMemset(values, 0, sizeof(int) * (size_t)count));
    return values;
}

static int first_of(const int *values)
{
    int value;
    CHECK(cudaMemcpy(&value, values, sizeof value, cudaMemcpyDeviceToHost));
    return value;
}

static cudaStream_t new_stream(void)
{
    cudaStream_t stream;
    CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    return stream;
}

static cudaEvent_t new_event(unsigned flags)
{
    cudaEvent_t event;
    CHECK(cudaEventCreateWithFlags(&event, flags));
    return event;
}

// A stream keeps order, also when far more is enqueued than fits.
static void order(void **)
{
    enum { STEPS = 3000 };
    int *values = device_zeros(1);
    cudaStream_t stream = new_stream();
    unsigned want = 0;
    for (int i = 0; i < STEPS; i++) {
        want = want * 3u + (unsigned)i;
        CHECK(PTB_LAUNCH(step, 1, 1, 0, stream, values, 3, i));
    }
    CHECK(cudaStreamSynchronize(stream));
    assert_int_equal((unsigned)first_of(values), want);
    CHECK(cudaStreamDestroy(stream));
    assert_int_equal(cudaStreamSynchronize(stream), cudaErrorInvalidResourceHandle);
    assert_int_equal(cudaGetLastError(), cudaErrorInvalidResourceHandle);
    CHECK(cudaFree(values));
}

static void events(void **)
{
    int *values = device_zeros(1);
    cudaStream_t a = new_stream(), b = new_stream();
    cudaEvent_t first = new_event(0), second = new_event(0), never = new_event(0);
    float ms = -1;
    CHECK(cudaStreamWaitEvent(a, never, 0)); // holds nobody up
    CHECK(cudaEventSynchronize(never));
    CHECK(cudaEventRecord(first, a));
    for (int i = 1; i <= 20; i++) { // from one to the other and back
        CHECK(PTB_LAUNCH(step, 1, 1, 0, i % 2 ? a : b, values, 2, i));
        CHECK(cudaEventRecord(second, i % 2 ? a : b));
        CHECK(cudaStreamWaitEvent(i % 2 ? b : a, second, 0));
    }
    CHECK(cudaEventSynchronize(second));
    CHECK(cudaEventQuery(second));
    CHECK(cudaEventElapsedTime(&ms, first, second));
    assert_true(ms >= 0 && ms < 100000);
    int want = 0;
    for (int i = 1; i <= 20; i++)
        want = want * 2 + i;
    assert_int_equal(first_of(values), want);
    for (cudaEvent_t event : {first, second, never})
        CHECK(cudaEventDestroy(event));
    CHECK(cudaStreamDestroy(a));
    CHECK(cudaStreamDestroy(b));
    CHECK(cudaFree(values));
}

// Streams that are not made non-blocking wait for the legacy stream, and it for them.
static void legacy_stream(void **)
{
    int *values = device_zeros(1), want = 0;
    cudaStream_t blocking;
    CHECK(cudaStreamCreate(&blocking));
    for (int i = 1; i <= 16; i++) {
        CHECK(PTB_LAUNCH(step, 1, 1, 0, i % 2 ? blocking : NULL, values, 3, i));
        want = want * 3 + i;
    }
    CHECK(cudaStreamSynchronize(NULL));
    assert_int_equal(first_of(values), want);
    CHECK(cudaStreamDestroy(blocking));
    CHECK(cudaFree(values));
}

static void copies(void **)
{
    enum { COUNT = 1500003 }; // several times what passes at once
    int *plain = (int *)malloc(COUNT * sizeof(int)), *back = (int *)calloc(COUNT, sizeof(int)), *pinned;
    int *a, *b;
    cudaStream_t stream = new_stream();
    CHECK(cudaMalloc((void **)&a, COUNT * sizeof(int)));
    CHECK(cudaMallocAsync((void **)&b, COUNT * sizeof(int), stream));
    CHECK(cudaMallocHost((void **)&pinned, COUNT * sizeof(int)));
    for (int i = 0; i < COUNT; i++)
        plain[i] = i * 7;
    CHECK(cudaMemcpyAsync(a, plain, COUNT * sizeof(int), cudaMemcpyHostToDevice, stream));
    memset(plain, 0, COUNT * sizeof(int)); // has been read
    CHECK(PTB_LAUNCH(add_to, (COUNT + 255) / 256, 256, 0, stream, a, COUNT, 1));
    CHECK(cudaMemcpyAsync(b, a, COUNT * sizeof(int), cudaMemcpyDefault, stream));
    CHECK(cudaMemcpyAsync(pinned, b, COUNT * sizeof(int), cudaMemcpyDefault, stream));
    CHECK(cudaMemcpyAsync(back, b, COUNT * sizeof(int), cudaMemcpyDeviceToHost, stream)); // waits
    for (int i = 0; i < COUNT; i++)
        assert_true(back[i] == i * 7 + 1 && pinned[i] == i * 7 + 1);
    CHECK(PTB_LAUNCH(add_to, (COUNT + 255) / 256, 256, 0, stream, pinned, COUNT, 1)); // kernels reach it too
    CHECK(cudaStreamSynchronize(stream));
    assert_int_equal(pinned[COUNT - 1], (COUNT - 1) * 7 + 2);
    CHECK(cudaFreeAsync(b, stream));
    CHECK(cudaFree(a));
    CHECK(cudaFreeHost(pinned));
    CHECK(cudaStreamDestroy(stream));
    free(plain);
    free(back);
}

struct called {
    int *seen, value, self;
};
static void look(void *data)
{
    called *c = (called *)data;
    c->value = *c->seen;
    c->self = (int)getpid();
}

static void calls_of_the_host(void **)
{
    int *pinned;
    cudaStream_t stream = new_stream();
    called before = {}, after = {};
    CHECK(cudaMallocHost((void **)&pinned, sizeof *pinned));
    *pinned = 0;
    before.seen = after.seen = pinned;
    CHECK(cudaLaunchHostFunc(stream, look, &before));
    CHECK(PTB_LAUNCH(add_to, 1, 1, 0, stream, pinned, 1, 5));
    CHECK(cudaLaunchHostFunc(stream, look, &after));
    CHECK(cudaStreamSynchronize(stream));
    assert_int_equal(before.value, 0);
    assert_int_equal(after.value, 5);
    assert_int_equal(after.self, getpid());
    CHECK(cudaFreeHost(pinned));
    CHECK(cudaStreamDestroy(stream));
}

static void pointers_and_pools(void **)
{
    cudaPointerAttributes of;
    cudaMemPool_t pool;
    uint64_t before, now;
    void *device, *pinned, *pooled;
    int plain;
    CHECK(cudaMalloc(&device, 1000));
    CHECK(cudaMallocHost(&pinned, 1000));
    CHECK(cudaPointerGetAttributes(&of, (char *)device + 999));
    assert_int_equal(of.type, cudaMemoryTypeDevice);
    CHECK(cudaPointerGetAttributes(&of, pinned));
    assert_int_equal(of.type, cudaMemoryTypeHost);
    CHECK(cudaPointerGetAttributes(&of, &plain));
    assert_int_equal(of.type, cudaMemoryTypeUnregistered);
    CHECK(cudaDeviceGetDefaultMemPool(&pool, 0));
    CHECK(cudaMemPoolGetAttribute(pool, cudaMemPoolAttrUsedMemCurrent, &before));
    CHECK(cudaMallocAsync(&pooled, 1000, NULL));
    CHECK(cudaMemPoolGetAttribute(pool, cudaMemPoolAttrUsedMemCurrent, &now));
    assert_int_equal(now - before, 1024);
    CHECK(cudaFreeAsync(pooled, NULL));
    CHECK(cudaMemPoolGetAttribute(pool, cudaMemPoolAttrUsedMemCurrent, &now));
    assert_int_equal(now, before);
    assert_int_equal(cudaFree(pooled), cudaErrorInvalidValue);
    assert_int_equal(cudaFreeHost(device), cudaErrorInvalidValue);
    cudaGetLastError();
    CHECK(cudaFree(device));
    CHECK(cudaFreeHost(pinned));
    CHECK(cudaFree(NULL));
}

// Captured over two streams: nothing runs before the launch, and each launch runs all of it in order.
static void graphs(void **)
{
    int *values = device_zeros(1);
    cudaStream_t a = new_stream(), b = new_stream();
    cudaEvent_t fork = new_event(cudaEventDisableTiming), join = new_event(cudaEventDisableTiming);
    cudaStreamCaptureStatus status;
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    size_t nodes = 0;
    CHECK(cudaStreamBeginCapture(a, cudaStreamCaptureModeThreadLocal));
    CHECK(PTB_LAUNCH(step, 1, 1, 0, a, values, 2, 1));
    CHECK(cudaEventRecord(fork, a));
    CHECK(cudaStreamWaitEvent(b, fork, 0));
    CHECK(cudaStreamIsCapturing(b, &status));
    assert_int_equal(status, cudaStreamCaptureStatusActive);
    CHECK(PTB_LAUNCH(step, 1, 1, 0, b, values, 3, 5));
    CHECK(cudaEventRecord(join, b));
    CHECK(cudaStreamWaitEvent(a, join, 0));
    CHECK(PTB_LAUNCH(step, 1, 1, 0, a, values, 7, 2));
    CHECK(cudaStreamEndCapture(a, &graph));
    CHECK(cudaStreamIsCapturing(b, &status));
    assert_int_equal(status, cudaStreamCaptureStatusNone);
    assert_int_equal(first_of(values), 0);
    CHECK(cudaGraphGetNodes(graph, NULL, &nodes));
    assert_int_equal(nodes, 3);
    CHECK(cudaGraphInstantiate(&exec, graph, 0));
    CHECK(cudaGraphDestroy(graph));
    int want = 0;
    for (int i = 0; i < 4; i++) {
        CHECK(cudaGraphLaunch(exec, a));
        want = ((want * 2 + 1) * 3 + 5) * 7 + 2;
    }
    CHECK(cudaStreamSynchronize(a));
    assert_int_equal(first_of(values), want);
    CHECK(cudaGraphExecDestroy(exec));
    for (cudaStream_t stream : {a, b})
        CHECK(cudaStreamDestroy(stream));
    for (cudaEvent_t event : {fork, join})
        CHECK(cudaEventDestroy(event));
    CHECK(cudaFree(values));
}

// What a capture refuses, as CUDA's does.
static void captures_refuse(void **)
{
    int *values = device_zeros(1);
    cudaStream_t a = new_stream(), b = new_stream();
    cudaEvent_t fork = new_event(cudaEventDisableTiming), outside = new_event(cudaEventDisableTiming);
    cudaGraph_t graph;
    void *memory;
    assert_int_equal(cudaStreamBeginCapture(NULL, cudaStreamCaptureModeGlobal),
                     cudaErrorStreamCaptureUnsupported);
    // A stream that was not joined.
    CHECK(cudaStreamBeginCapture(a, cudaStreamCaptureModeGlobal));
    CHECK(cudaEventRecord(fork, a));
    CHECK(cudaStreamWaitEvent(b, fork, 0));
    CHECK(PTB_LAUNCH(step, 1, 1, 0, b, values, 3, 5));
    assert_int_equal(cudaEventQuery(fork), cudaErrorCapturedEvent);
    assert_int_equal(cudaStreamEndCapture(b, &graph), cudaErrorStreamCaptureUnmatched);
    assert_int_equal(cudaStreamEndCapture(a, &graph), cudaErrorStreamCaptureInvalidated);
    CHECK(cudaStreamBeginCapture(a, cudaStreamCaptureModeGlobal));
    CHECK(cudaEventRecord(fork, a));
    CHECK(cudaStreamWaitEvent(b, fork, 0));
    CHECK(PTB_LAUNCH(step, 1, 1, 0, b, values, 3, 5));
    assert_int_equal(cudaStreamEndCapture(a, &graph), cudaErrorStreamCaptureUnjoined);
    // Waiting, allocating, and events from outside.
    CHECK(cudaStreamBeginCapture(a, cudaStreamCaptureModeGlobal));
    assert_int_equal(cudaStreamSynchronize(a), cudaErrorStreamCaptureUnsupported);
    assert_int_equal(PTB_LAUNCH(step, 1, 1, 0, a, values, 3, 5), cudaErrorStreamCaptureInvalidated);
    assert_int_equal(cudaStreamEndCapture(a, &graph), cudaErrorStreamCaptureInvalidated);
    CHECK(cudaStreamBeginCapture(a, cudaStreamCaptureModeGlobal));
    assert_int_equal(cudaMalloc(&memory, 4), cudaErrorStreamCaptureUnsupported);
    assert_int_equal(cudaStreamEndCapture(a, &graph), cudaErrorStreamCaptureInvalidated);
    CHECK(cudaEventRecord(outside, b));
    CHECK(cudaStreamBeginCapture(a, cudaStreamCaptureModeRelaxed));
    CHECK(cudaMalloc(&memory, 4));
    assert_int_equal(cudaStreamWaitEvent(a, outside, 0), cudaErrorStreamCaptureIsolation);
    assert_int_equal(cudaStreamEndCapture(a, &graph), cudaErrorStreamCaptureInvalidated);
    cudaGetLastError();
    assert_int_equal(first_of(values), 0);
    for (cudaStream_t stream : {a, b})
        CHECK(cudaStreamDestroy(stream));
    for (cudaEvent_t event : {fork, outside})
        CHECK(cudaEventDestroy(event));
    CHECK(cudaFree(memory));
    CHECK(cudaFree(values));
}

// External events of a graph tie each launch to what is outside.
static void external_events(void **)
{
    int *values = device_zeros(1), want = 0;
    cudaStream_t a = new_stream(), b = new_stream();
    cudaEvent_t ready = new_event(cudaEventDisableTiming), done = new_event(cudaEventDisableTiming);
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    CHECK(cudaStreamBeginCapture(a, cudaStreamCaptureModeThreadLocal));
    CHECK(cudaStreamWaitEvent(a, ready, cudaEventWaitExternal));
    CHECK(PTB_LAUNCH(step, 1, 1, 0, a, values, 3, 1));
    CHECK(cudaEventRecordWithFlags(done, a, cudaEventRecordExternal));
    CHECK(cudaStreamEndCapture(a, &graph));
    CHECK(cudaGraphInstantiate(&exec, graph, 0));
    for (int i = 0; i < 5; i++) {
        CHECK(PTB_LAUNCH(step, 1, 1, 0, b, values, 2, i));
        CHECK(cudaEventRecord(ready, b));
        CHECK(cudaGraphLaunch(exec, a));
        CHECK(cudaStreamWaitEvent(b, done, 0));
        want = (want * 2 + i) * 3 + 1;
    }
    CHECK(cudaEventSynchronize(done));
    assert_int_equal(first_of(values), want);
    CHECK(cudaGraphDestroy(graph));
    CHECK(cudaGraphExecDestroy(exec));
    for (cudaStream_t stream : {a, b})
        CHECK(cudaStreamDestroy(stream));
    for (cudaEvent_t event : {ready, done})
        CHECK(cudaEventDestroy(event));
    CHECK(cudaFree(values));
}

static void devices(void **)
{
    cudaDeviceProp of;
    int count, device;
    CHECK(cudaGetDeviceCount(&count));
    assert_int_equal(count, 8);
    setenv("CUDA_VISIBLE_DEVICES", "3,1,9,0", 1); // ends before 9, of which there is none
    CHECK(cudaGetDeviceCount(&count));
    assert_int_equal(count, 8); // it was read before
    sim_look_again();
    CHECK(cudaGetDeviceCount(&count));
    assert_int_equal(count, 2);
    CHECK(cudaSetDevice(1));
    CHECK(cudaGetDevice(&device));
    assert_int_equal(device, 1);
    CHECK(cudaGetDeviceProperties(&of, 0));
    assert_string_equal(of.name, "simulated GPU");
    assert_int_equal(of.uuid.bytes[15], 3);
    assert_int_equal(cudaSetDevice(2), cudaErrorInvalidDevice);
    setenv("CUDA_VISIBLE_DEVICES", "GPU-73696d75-6c61-7465-6400-000000000005", 1);
    sim_look_again();
    CHECK(cudaSetDevice(0));
    CHECK(cudaGetDeviceProperties(&of, 0));
    assert_int_equal(of.uuid.bytes[15], 5);
    setenv("CUDA_VISIBLE_DEVICES", "", 1);
    sim_look_again();
    assert_int_equal(cudaGetDeviceCount(&count), cudaErrorNoDevice);
    unsetenv("CUDA_VISIBLE_DEVICES");
    sim_look_again();
    cudaGetLastError();
}

static uint32_t hooked;
static void hook(const char *, uint32_t correlation)
{
    hooked = correlation;
}

// What ran, in order, with the call that enqueued it.
static void records(void **)
{
    sim_record record[16];
    uint64_t dropped;
    int *values = device_zeros(40), plain[40];
    cudaStream_t stream = new_stream();
    unsigned long long id;
    CHECK(cudaStreamGetId(stream, &id));
    sim_activity_on(true);
    sim_activity_hook(hook, NULL);
    const uint64_t begin_ns = sim_now_ns();
    CHECK(PTB_LAUNCH(add_to, dim3(2, 1, 1), 20, 0, stream, values, 40, 1));
    const uint32_t launched = hooked;
    CHECK(cudaMemcpyAsync(plain, values, sizeof plain, cudaMemcpyDeviceToHost, stream));
    CHECK(cudaMemsetAsync(values, 0, sizeof plain, stream));
    CHECK(cudaStreamSynchronize(stream));
    const uint64_t end_ns = sim_now_ns();
    sim_activity_on(false);
    sim_activity_hook(NULL, NULL);
    assert_int_equal(sim_activity_read(record, 16, &dropped), 3);
    assert_int_equal(dropped, 0);
    assert_int_equal(record[0].activity.kind, SIM_KERNEL);
    assert_string_equal(record[0].activity.name, "add_to");
    assert_int_equal(record[0].activity.grid[0], 2);
    assert_int_equal(record[0].activity.block[0], 20);
    assert_int_equal(record[0].activity.correlation, launched);
    assert_int_equal(record[1].activity.kind, SIM_COPY);
    assert_int_equal(record[1].activity.copy_kind, cudaMemcpyDeviceToHost);
    assert_int_equal(record[1].activity.bytes, sizeof plain);
    assert_int_equal(record[2].activity.kind, SIM_SET);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(record[i].stream, id);
        // Work may be shorter than what the clock resolves.
        assert_true(record[i].begin_ns >= (i ? record[i - 1].end_ns : begin_ns));
        assert_true(record[i].end_ns >= record[i].begin_ns && record[i].end_ns <= end_ns);
    }
    CHECK(cudaStreamDestroy(stream));
    CHECK(cudaFree(values));
}

static void errors(void **)
{
    int *values = device_zeros(1);
    assert_int_equal(PTB_LAUNCH(add_to, 1, 1025, 0, NULL, values, 1, 1), cudaErrorInvalidConfiguration);
    assert_int_equal(PTB_LAUNCH(add_to, 0, 1, 0, NULL, values, 1, 1), cudaErrorInvalidConfiguration);
    assert_int_equal(PTB_LAUNCH(add_to, dim3(1, 65536), 1, 0, NULL, values, 1, 1),
                     cudaErrorInvalidConfiguration);
    assert_int_equal(cudaPeekAtLastError(), cudaErrorInvalidConfiguration);
    assert_int_equal(cudaGetLastError(), cudaErrorInvalidConfiguration);
    CHECK(cudaGetLastError());
    CHECK(PTB_LAUNCH(add_to, 1, 1, 0, NULL, values, 1, 1)); // none of them sticks
    CHECK(cudaFree(values));
    assert_string_equal(cudaGetErrorName(cudaErrorInvalidConfiguration), "cudaErrorInvalidConfiguration");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(order),
        cmocka_unit_test(events),
        cmocka_unit_test(legacy_stream),
        cmocka_unit_test(copies),
        cmocka_unit_test(calls_of_the_host),
        cmocka_unit_test(pointers_and_pools),
        cmocka_unit_test(graphs),
        cmocka_unit_test(captures_refuse),
        cmocka_unit_test(external_events),
        cmocka_unit_test(devices),
        cmocka_unit_test(records),
        cmocka_unit_test(errors),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
