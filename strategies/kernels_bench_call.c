// Buffers of a kernel's call and the comparison of its results; see kernels_bench.h.
#include "strategies/kernels_bench.h"

#include "core/clock.h"
#include "core/log.h"
#include "core/random.h"

#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void ptb_call_sizes(ptb_kernel_call *c, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(c->sizes, sizeof c->sizes, format, arguments);
    va_end(arguments);
}

static size_t period(const ptb_call_buffer *b)
{
    return b->count < PTB_CALL_PERIOD ? b->count : PTB_CALL_PERIOD;
}

// Copies of one period, one after the other.
static ptb_status write_values(const ptb_kernel_call *c, const ptb_call_buffer *b)
{
    size_t size = ptb_dtype_size(b->type), repeat = period(b);
    void *memory;
    PTB_TRY(ptb_device_alloc_host(c->device, repeat * size + 1, &memory));
    unsigned char *typed = memory;
    for (size_t i = 0; i < repeat; i++)
        ptb_dtype_store(b->type, typed + i * size, b->values[i]);
    ptb_status status = PTB_OK;
    for (size_t first = 0; status == PTB_OK && first < b->count; first += repeat) {
        size_t n = b->count - first < repeat ? b->count - first : repeat;
        status = ptb_stream_copy(c->stream, (char *)b->memory + first * size, typed, n * size);
    }
    ptb_status synced = ptb_stream_sync(c->stream);
    ptb_device_free_host(c->device, memory);
    return status != PTB_OK ? status : synced;
}

static ptb_status write_buffer(const ptb_kernel_call *c, const ptb_call_buffer *b)
{
    if (!b->count)
        return PTB_OK;
    if (b->values)
        return write_values(c, b);
    PTB_TRY(b->exact ? ptb_stream_copy(c->stream, b->memory, b->exact, b->bytes)
                     : ptb_stream_set(c->stream, b->memory, 0xff, b->bytes));
    return ptb_stream_sync(c->stream);
}

ptb_status ptb_call_refill(ptb_kernel_call *c)
{
    for (int i = 0; i < PTB_CALL_BUFFERS; i++)
        if (c->buffer[i].memory)
            PTB_TRY(write_buffer(c, &c->buffer[i]));
    return PTB_OK;
}

static ptb_status make(ptb_kernel_call *c, ptb_call_buffer *b, double scale, double shift, bool is_filled,
                       const void *bytes)
{
    c->buffer_bytes += b->bytes;
    if (c->buffer_bytes > c->memory_limit)
        return PTB_NO_MEMORY;
    PTB_TRY(ptb_device_alloc(c->device, PTB_MEMORY_WORKSPACE, b->bytes ? b->bytes : 1, &b->memory));
    size_t number = (size_t)(b - c->buffer);
    if (is_filled) {
        b->values = malloc((period(b) + 1) * sizeof *b->values);
        if (!b->values)
            return PTB_NO_MEMORY;
        for (size_t i = 0; i < period(b); i++) {
            double value = shift + scale * c->noise[(i + 4099 * number) % PTB_CALL_PERIOD];
            uint64_t rounded;
            ptb_dtype_store(b->type, &rounded, value);
            b->values[i] = (float)ptb_dtype_load(b->type, &rounded);
        }
    }
    if (bytes) {
        b->exact = malloc(b->bytes + 1);
        if (!b->exact)
            return PTB_NO_MEMORY;
        memcpy(b->exact, bytes, b->bytes);
    }
    return write_buffer(c, b);
}

static void *add(ptb_kernel_call *c, int slot, ptb_dtype type, size_t count, double scale, double shift,
                 bool is_filled, const void *bytes)
{
    ptb_call_buffer *b = &c->buffer[slot];
    *b = (ptb_call_buffer){.count = count, .bytes = count * ptb_dtype_size(type), .type = type};
    if (c->status == PTB_OK)
        c->status = make(c, b, scale, shift, is_filled, bytes);
    else
        c->buffer_bytes += b->bytes; // for the figure that was needed
    return c->status == PTB_OK ? b->memory : NULL;
}

void *ptb_call_filled(ptb_kernel_call *c, int slot, ptb_dtype type, size_t count, double scale, double shift)
{
    return add(c, slot, type, count, scale, shift, true, NULL);
}

void *ptb_call_output(ptb_kernel_call *c, int slot, ptb_dtype type, size_t count)
{
    return add(c, slot, type, count, 0, 0, false, NULL);
}

void *ptb_call_exact(ptb_kernel_call *c, int slot, ptb_dtype type, size_t count, const void *bytes)
{
    return add(c, slot, type, count, 0, 0, false, bytes);
}

void ptb_call_release(ptb_kernel_call *c)
{
    for (int i = 0; i < PTB_CALL_BUFFERS; i++) {
        ptb_device_free(c->device, c->buffer[i].memory);
        free(c->buffer[i].values);
        free(c->buffer[i].exact);
        c->buffer[i] = (ptb_call_buffer){0};
    }
}

// ---- checking

double ptb_call_result(const ptb_kernel_call *c, int slot, size_t i)
{
    const ptb_call_buffer *b = &c->buffer[slot];
    uint64_t element = 0;
    size_t size = ptb_dtype_size(b->type);
    if (ptb_stream_copy(c->stream, &element, (const char *)b->memory + i * size, size) != PTB_OK ||
        ptb_stream_sync(c->stream) != PTB_OK)
        return NAN;
    return ptb_dtype_load(b->type, &element);
}

void ptb_call_expect(const ptb_kernel_call *c, ptb_verdict *verdict, const char *name, int slot, size_t i,
                     ptb_call_sum wanted)
{
    ptb_call_expect_in(c, verdict, c->type, name, slot, i, wanted);
}

void ptb_call_expect_in(const ptb_kernel_call *c, ptb_verdict *verdict, ptb_dtype type, const char *name,
                        int slot, size_t i, ptb_call_sum wanted)
{
    double got = ptb_call_result(c, slot, i);
    double size = fmax(fabs(wanted.value), sqrt(wanted.squares));
    double relative = type == PTB_BF16 ? 1.2e-2 : type == PTB_F16 ? 2e-3 : 3e-5;
    // Below 2^-14 f16 has subnormal numbers, 2^-24 apart, and rounding is off by up to half of that.
    double limit = relative * size + (type == PTB_F16 ? 0x1p-25 : 1e-30);
    verdict->checked++;
    if (fabs(got - wanted.value) <= limit) // false for NaN
        return;
    if (!verdict->wrong++)
        snprintf(verdict->detail, sizeof verdict->detail,
                 "%s, element %zu: wanted %.7g within %.2g, got %.7g", name, i, wanted.value, limit, got);
}

size_t ptb_call_sample(size_t k, size_t n)
{
    return k == 0 ? 0 : k == 1 ? n - 1 : (size_t)(ptb_random_u64(1, 2000, k) % n);
}

// ---- the limit of memory

enum { COPIES = 12 };
// Shorter copies are timed several at a time. Where they are only enqueued a sample also holds the wait for
// the last one, some 10 us, and kernels are timed in batches that make it count for nothing.
static const double copy_sample_s = 50e-6, enqueued_sample_s = 1e-3;

typedef enum { COPY, COPY_STREAMING, READ } transfer;

static ptb_status transfer_once(const ptb_kernel_call *c, char *memory, size_t bytes, transfer kind)
{
    if (kind == READ)
        return c->kernels->read(c->stream, memory, bytes);
    return c->kernels->copy(c->stream, memory + bytes, memory, bytes, kind == COPY_STREAMING);
}

static double fastest_s(const ptb_kernel_call *c, char *memory, size_t bytes, transfer kind)
{
    double samples[COPIES], least_s = c->device->ops->stream_call ? copy_sample_s : enqueued_sample_s;
    uint64_t batch = 1;
    for (int i = 0; i < COPIES;) {
        int64_t begin_ns = ptb_clock_ns();
        for (uint64_t n = 0; n < batch; n++)
            if (transfer_once(c, memory, bytes, kind) != PTB_OK)
                return NAN;
        if (ptb_stream_sync(c->stream) != PTB_OK)
            return NAN;
        double seconds = (double)(ptb_clock_ns() - begin_ns) * 1e-9;
        if (seconds < least_s && batch < 1u << 20) {
            batch *= 2;
            i = 0;
            continue;
        }
        samples[i++] = seconds / (double)batch;
    }
    return ptb_stats_summarise(samples, COPIES).min;
}

double ptb_call_copy_s(const ptb_kernel_call *c, void *memory, size_t bytes)
{
    if (!c->kernels->copy)
        return NAN;
    double stored_s = fastest_s(c, memory, bytes / 2, COPY);
    return fmin(stored_s, fastest_s(c, memory, bytes / 2, COPY_STREAMING));
}

double ptb_call_read_s(const ptb_kernel_call *c, void *memory, size_t bytes)
{
    return c->kernels->read ? fastest_s(c, memory, bytes, READ) : NAN;
}
