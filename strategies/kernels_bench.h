// What the files of the benchmark `kernels` share: one prepared call of a kernel with its buffers, and the
// check of its results. Internal to strategies/kernels_bench*.c.
//
// To add a kernel (one that stands in PTB_KERNEL_LIST): a ptb_kernel_entry of the name
// ptb_kernel_entry_KERNEL in the file of its kind; the table in kernels_bench.c finds it by the list.
#ifndef PTB_STRATEGIES_KERNELS_BENCH_H
#define PTB_STRATEGIES_KERNELS_BENCH_H

#include "core/bench.h"
#include "strategies/transformer/kernels.h"
#include "strategies/transformer/layout.h"

#include <stdalign.h>

// PERIOD is a prime, so that no row of a buffer repeats the one before.
enum { PTB_CALL_BUFFERS = 16, PTB_CALL_PERIOD = 65521, PTB_CALL_SAMPLES = 40 };

typedef struct {
    void *memory; // device
    size_t count, bytes;
    ptb_dtype type;
    float *values; // element i starts as values[i % PTB_CALL_PERIOD], rounded to the type; NULL: see exact
    void *exact;   // all bytes at the start, host memory; NULL too: starts as NaN
} ptb_call_buffer;

typedef struct {
    const ptb_model_shape *shape;
    const ptb_kernels *kernels;
    ptb_device *device;
    ptb_stream *stream;
    const float *noise; /* [PTB_CALL_PERIOD], in [-1, 1) */
    const char *place;  // one of the entry's
    size_t rows, sequence;
    ptb_dtype type;
    int threads;
    uint64_t memory_limit; // bytes that buffers may take
    // From here on what prepare sets.
    alignas(16) unsigned char arguments[PTB_CALL_BYTES];
    ptb_call_buffer buffer[PTB_CALL_BUFFERS];
    uint64_t buffer_bytes;
    ptb_status status; // of the buffers so far
    double flops;      // of the matrix products in one call, as computed; 0: none
    double bytes;      // read and written by one call, each element once
    char sizes[64];    // "256 x 50257 x 768"
    bool is_changed;   // a call changes what it reads: before it is checked, it is run once from the start
} ptb_kernel_call;

typedef struct {
    const char *const *places; // where in a model the kernel is called; ends with NULL
    bool is_typed;             // has a compute type; else it is f32 alone
    bool only_reads;           // writes next to nothing: its limit is a read of its bytes, not a copy
    bool is_used_up;           // a call destroys what it reads: every timed call needs fresh input
    // Why a model of this shape does not call it there; NULL: it does.
    const char *(*absent)(const ptb_model_shape *shape, const char *place);
    // Makes the buffers and writes arguments, flops, bytes and sizes. Buffers that failed are NULL, and
    // c->status says so.
    void (*prepare)(ptb_kernel_call *c);
    // Compares results with plain loops in double precision: a sample of them, first and last included.
    void (*verify)(ptb_kernel_call *c, ptb_verdict *verdict);
    // Which of several kernels of the back-end ran, NULL where there is one kind; the member may be NULL too.
    const char *(*ran)(const ptb_kernel_call *c);
} ptb_kernel_entry;

// method, as in PTB_KERNEL_LIST
#define X(method, arguments) extern const ptb_kernel_entry ptb_kernel_entry_##method;
PTB_KERNEL_LIST(X)
#undef X

// Buffers; each returns the device memory, NULL once c->status is not PTB_OK. `slot` numbers the buffers of a
// call.
//
// Numbers in shift + [-scale, scale).
void *ptb_call_filled(ptb_kernel_call *c, int slot, ptb_dtype type, size_t count, double scale, double shift);
void *ptb_call_output(ptb_kernel_call *c, int slot, ptb_dtype type, size_t count); // all NaN
// These bytes.
void *ptb_call_exact(ptb_kernel_call *c, int slot, ptb_dtype type, size_t count, const void *bytes);
// Every buffer as it was at first.
ptb_status ptb_call_refill(ptb_kernel_call *c);
void ptb_call_release(ptb_kernel_call *c);

// What element i of a filled buffer was at first.
static inline double ptb_call_value(const ptb_kernel_call *c, int slot, size_t i)
{
    return c->buffer[slot].values[i % PTB_CALL_PERIOD];
}
// What element i of an int32 buffer made by ptb_call_exact was at first.
static inline int32_t ptb_call_integer(const ptb_kernel_call *c, int slot, size_t i)
{
    return ((const int32_t *)c->buffer[slot].exact)[i];
}
// What element i is now; NAN when it cannot be read.
double ptb_call_result(const ptb_kernel_call *c, int slot, size_t i);

// A wanted value as a sum of terms.
typedef struct {
    double value, squares;
} ptb_call_sum;
static inline void ptb_call_add(ptb_call_sum *sum, double term)
{
    sum->value += term;
    sum->squares += term * term;
}
// Compares element i of the buffer with a sum: the difference may be what rounding in the compute type makes
// of terms of this size (3e-5 in f32, 2e-3 in f16, 1.2e-2 in bf16, times the root of the sum of squares or
// the value).
void ptb_call_expect(const ptb_kernel_call *c, ptb_verdict *verdict, const char *name, int slot, size_t i,
                     ptb_call_sum wanted);
// The same with the rounding of another type.
void ptb_call_expect_in(const ptb_kernel_call *c, ptb_verdict *verdict, ptb_dtype type, const char *name,
                        int slot, size_t i, ptb_call_sum wanted);
// Sample number k, k < PTB_CALL_SAMPLES, of the numbers below n: the first, the last, then random ones.
size_t ptb_call_sample(size_t k, size_t n);

// Seconds that a copy takes which reads and writes `bytes` bytes in all: the median of some, streaming or
// not, whichever is faster. `memory` is twice bytes / 2 of device memory. NAN when the device has no copy.
double ptb_call_copy_s(const ptb_kernel_call *c, void *memory, size_t bytes);
// Seconds of the fastest read of `bytes` bytes of device memory. NAN when the device has none.
double ptb_call_read_s(const ptb_kernel_call *c, void *memory, size_t bytes);

// Writes c->sizes.
void ptb_call_sizes(ptb_kernel_call *c, const char *format, ...) __attribute__((format(printf, 2, 3)));

#endif
