// Encoding and decoding of the blobs described in blob.h. To add a kind of array: a letter, a record size and
// a pair of functions that lay one record out.
#include "results/blob.h"

#include "core/log.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <zstd.h>

enum {
    HEAD_BYTES = 2,
    VERSION = 1,
    KIND_F64 = 'F',
    KIND_SPANS = 'S',
    F64_BYTES = 8,
    SPAN_BYTES = 76,
    SPAN_NAME_BYTES = 24,
    ZSTD_LEVEL = 1, // shuffled times do not shrink much further at higher levels
};
// No array of ours is near this; a damaged frame header may claim anything.
#define MAX_PLAIN_BYTES ((uint64_t)1 << 31)

void ptb_blob_release(ptb_blob *blob)
{
    free(blob->data);
    *blob = (ptb_blob){NULL, 0};
}

static void put(uint8_t **at, uint64_t value, int bytes)
{
    for (int i = 0; i < bytes; i++)
        *(*at)++ = (uint8_t)(value >> (8 * i));
}

static uint64_t get(const uint8_t **at, int bytes)
{
    uint64_t value = 0;
    for (int i = 0; i < bytes; i++)
        value |= (uint64_t) * (*at)++ << (8 * i);
    return value;
}

static void shuffle(const uint8_t *records, size_t count, size_t record_bytes, uint8_t *out)
{
    for (size_t b = 0; b < record_bytes; b++)
        for (size_t i = 0; i < count; i++)
            out[b * count + i] = records[i * record_bytes + b];
}

static void unshuffle(const uint8_t *planes, size_t count, size_t record_bytes, uint8_t *out)
{
    for (size_t b = 0; b < record_bytes; b++)
        for (size_t i = 0; i < count; i++)
            out[i * record_bytes + b] = planes[b * count + i];
}

static ptb_status no_memory(size_t bytes)
{
    ptb_error("not enough memory for %zu bytes of results", bytes);
    return PTB_NO_MEMORY;
}

static ptb_status pack(int kind, const uint8_t *records, size_t count, size_t record_bytes, ptb_blob *blob)
{
    size_t plain = count * record_bytes, bound = ZSTD_compressBound(plain);
    uint8_t *planes = malloc(plain), *out = malloc(HEAD_BYTES + bound);
    ptb_status status = PTB_OK;
    if (!planes || !out) {
        status = no_memory(plain + bound);
        goto done;
    }
    shuffle(records, count, record_bytes, planes);
    out[0] = (uint8_t)kind;
    out[1] = VERSION;
    size_t packed = ZSTD_compress(out + HEAD_BYTES, bound, planes, plain, ZSTD_LEVEL);
    if (ZSTD_isError(packed)) {
        ptb_error("zstd could not compress %zu bytes of results: %s", plain, ZSTD_getErrorName(packed));
        status = PTB_SYSTEM;
        goto done;
    }
    *blob = (ptb_blob){out, HEAD_BYTES + packed};
    out = NULL;
done:
    free(planes);
    free(out);
    return status;
}

static ptb_status damaged(const char *why)
{
    ptb_error("stored samples are damaged: %s. Check the database with `sqlite3 FILE 'PRAGMA "
              "integrity_check'`",
              why);
    return PTB_STORE;
}

// *records is a heap array of *count records.
static ptb_status unpack(int kind, const void *data, size_t bytes, size_t record_bytes, uint8_t **records,
                         size_t *count)
{
    const uint8_t *in = data;
    if (bytes < HEAD_BYTES || in[0] != kind)
        return damaged("the blob is not of the kind its column says");
    if (in[1] != VERSION)
        return damaged("the blob has a version this ptbench does not know");
    unsigned long long plain = ZSTD_getFrameContentSize(in + HEAD_BYTES, bytes - HEAD_BYTES);
    if (plain == ZSTD_CONTENTSIZE_UNKNOWN || plain == ZSTD_CONTENTSIZE_ERROR || plain > MAX_PLAIN_BYTES ||
        plain == 0 || plain % record_bytes)
        return damaged("the zstd frame has an impossible size");
    uint8_t *planes = malloc(plain), *out = malloc(plain);
    ptb_status status = PTB_OK;
    if (!planes || !out) {
        status = no_memory(2 * plain);
        goto done;
    }
    size_t got = ZSTD_decompress(planes, plain, in + HEAD_BYTES, bytes - HEAD_BYTES);
    if (ZSTD_isError(got) || got != plain) {
        status = damaged(ZSTD_isError(got) ? ZSTD_getErrorName(got) : "the zstd frame is short");
        goto done;
    }
    unshuffle(planes, plain / record_bytes, record_bytes, out);
    *records = out;
    *count = plain / record_bytes;
    out = NULL;
done:
    free(planes);
    free(out);
    return status;
}

ptb_status ptb_blob_from_f64(const double *values, size_t count, ptb_blob *blob)
{
    if (count == 0) {
        *blob = (ptb_blob){NULL, 0};
        return PTB_OK;
    }
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
    return pack(KIND_F64, (const uint8_t *)values, count, F64_BYTES, blob);
#else
    uint8_t *records = malloc(count * F64_BYTES), *at = records;
    if (!records)
        return no_memory(count * F64_BYTES);
    for (size_t i = 0; i < count; i++) {
        uint64_t bits;
        memcpy(&bits, &values[i], sizeof bits);
        put(&at, bits, F64_BYTES);
    }
    ptb_status status = pack(KIND_F64, records, count, F64_BYTES, blob);
    free(records);
    return status;
#endif
}

ptb_status ptb_blob_to_f64(const void *data, size_t bytes, double **values, size_t *count)
{
    if (bytes == 0) {
        *values = NULL;
        *count = 0;
        return PTB_OK;
    }
    uint8_t *records;
    size_t n;
    PTB_TRY(unpack(KIND_F64, data, bytes, F64_BYTES, &records, &n));
    const uint8_t *at = records;
    double *out = (double *)(void *)records; // decoded in place: a record and a value are both 8 bytes
    for (size_t i = 0; i < n; i++) {
        uint64_t bits = get(&at, F64_BYTES);
        memcpy(&out[i], &bits, sizeof bits);
    }
    *values = out;
    *count = n;
    return PTB_OK;
}

static void put_span(uint8_t **at, const ptb_span *s, int64_t previous_begin)
{
    put(at, (uint64_t)s->begin_ns - (uint64_t)previous_begin, 8);
    put(at, (uint64_t)s->end_ns - (uint64_t)s->begin_ns, 8);
    put(at, (uint32_t)s->rank, 4);
    put(at, (uint16_t)s->stream, 2);
    put(at, s->kind, 1);
    put(at, s->phase, 1);
    put(at, (uint32_t)s->unit, 4);
    put(at, (uint32_t)s->microbatch, 4);
    put(at, (uint32_t)s->axis, 4);
    put(at, s->bytes, 8);
    put(at, s->correlation, 8);
    size_t length = strnlen(s->name, SPAN_NAME_BYTES);
    memcpy(*at, s->name, length);
    memset(*at + length, 0, SPAN_NAME_BYTES - length);
    *at += SPAN_NAME_BYTES;
}

static void get_span(const uint8_t **at, int64_t previous_begin, ptb_span *s)
{
    s->begin_ns = (int64_t)((uint64_t)previous_begin + get(at, 8));
    s->end_ns = (int64_t)((uint64_t)s->begin_ns + get(at, 8));
    s->rank = (int32_t)get(at, 4);
    s->stream = (int16_t)get(at, 2);
    s->kind = (uint8_t)get(at, 1);
    s->phase = (uint8_t)get(at, 1);
    s->unit = (int32_t)get(at, 4);
    s->microbatch = (int32_t)get(at, 4);
    s->axis = (int32_t)get(at, 4);
    s->bytes = get(at, 8);
    s->correlation = get(at, 8);
    memcpy(s->name, *at, SPAN_NAME_BYTES);
    s->name[SPAN_NAME_BYTES - 1] = '\0';
    *at += SPAN_NAME_BYTES;
}

ptb_status ptb_blob_from_spans(const ptb_span *spans, size_t count, ptb_blob *blob)
{
    _Static_assert(sizeof spans->name == SPAN_NAME_BYTES, "the layout of a stored span names 24 bytes");
    if (count == 0) {
        *blob = (ptb_blob){NULL, 0};
        return PTB_OK;
    }
    uint8_t *records = malloc(count * SPAN_BYTES), *at = records;
    if (!records)
        return no_memory(count * SPAN_BYTES);
    for (size_t i = 0; i < count; i++)
        put_span(&at, &spans[i], i ? spans[i - 1].begin_ns : 0);
    ptb_status status = pack(KIND_SPANS, records, count, SPAN_BYTES, blob);
    free(records);
    return status;
}

ptb_status ptb_blob_to_spans(const void *data, size_t bytes, ptb_span **spans, size_t *count)
{
    if (bytes == 0) {
        *spans = NULL;
        *count = 0;
        return PTB_OK;
    }
    uint8_t *records;
    size_t n;
    PTB_TRY(unpack(KIND_SPANS, data, bytes, SPAN_BYTES, &records, &n));
    ptb_span *out = calloc(n, sizeof *out);
    if (!out) {
        free(records);
        return no_memory(n * sizeof *out);
    }
    const uint8_t *at = records;
    for (size_t i = 0; i < n; i++)
        get_span(&at, i ? out[i - 1].begin_ns : 0, &out[i]);
    free(records);
    *spans = out;
    *count = n;
    return PTB_OK;
}
