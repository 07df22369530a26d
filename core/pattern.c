// The verification pattern (core/pattern.h). Elements are made in blocks, in two steps that the compiler
// vectorises: 32-bit integers from a 32-bit hash of the index, then the element type. Checking makes the
// block that is wanted, compares it as bytes, and looks at single elements only where that fails. To add a
// type: a row in `types` and a case in `convert`.
#include "core/pattern.h"

#include "core/random.h"

#include <string.h>

enum {
    BLOCK = 1024,        // elements made at a time; all buffers of a block stay in the L1 and L2 caches
    EXACT_MAX = 1 << 20, // no need for larger sums, whatever the type
    CENTRE_MAX = 32,     // of the sum cycle; its values are below 64
    LOW = 1,             // the cycle of min and max
    HIGH = 100,
    BETWEEN = 2,
    BETWEEN_MASK = 63,
};

static const struct {
    bool is_signed;
    int exact;       // all integers up to this one are exact
    int powers;      // 2^powers is in the type
    int moved_shift; // bits dropped from the 32-bit hash so that it fits
} types[PTB_DTYPE_COUNT] = {
    [PTB_F64] = {true, EXACT_MAX, 30, 0}, [PTB_F32] = {true, EXACT_MAX, 30, 8},
    [PTB_F16] = {true, 2048, 15, 20},     [PTB_BF16] = {true, 256, 30, 23},
    [PTB_I64] = {true, EXACT_MAX, 30, 0}, [PTB_I32] = {true, EXACT_MAX, 30, 0},
    [PTB_I8] = {true, 127, 6, 24},        [PTB_U8] = {false, 255, 7, 24},
};

// 64-bit types spread the 32-bit hash over 52 bits, which a double holds exactly.
enum { SPREAD = (1 << 20) + 1 };

static unsigned power_of_two_up_to(unsigned n)
{
    unsigned power = 1;
    while (power * 2 <= n)
        power *= 2;
    return power;
}

static void init_sum(ptb_pattern *p)
{
    int exact = types[p->dtype].exact, n = p->ranks;
    if (n <= exact) {
        p->centre = exact / n < CENTRE_MAX ? exact / n : CENTRE_MAX;
        p->active = n;
        p->pairs = p->centre > 1 ? n / 2 : n > 1; // centre 1: a single pair 0, 2
        p->mask = p->centre > 1 ? power_of_two_up_to((unsigned)p->centre - 1) - 1 : 0;
        p->reduced = p->op == PTB_AVG ? p->centre : (double)n * p->centre;
    } else if (p->op == PTB_SUM) {
        p->centre = 1;
        p->active = exact;
        p->reduced = exact;
    } else {
        p->active = types[p->dtype].is_signed ? exact / 2 * 2 : 0;
        p->pairs = p->active / 2;
        p->reduced = 0;
    }
}

static void init_product(ptb_pattern *p)
{
    int powers = types[p->dtype].powers;
    p->active = p->ranks < powers - 1 ? p->ranks : powers - 1; // the first one takes two powers
    double product = (double)(1 << (p->active + 1));
    p->reduced = types[p->dtype].is_signed ? -product : product;
}

static void init_extremes(ptb_pattern *p)
{
    p->low = LOW;
    p->high = p->ranks > 1 ? HIGH : LOW;
    p->active = p->ranks;
    p->reduced = p->op == PTB_MIN ? p->low : p->high;
}

void ptb_pattern_init(ptb_pattern *pattern, uint64_t seed, ptb_dtype dtype, ptb_redop op, int ranks)
{
    *pattern = (ptb_pattern){.seed = seed, .dtype = dtype, .op = op, .ranks = ranks};
    if (op == PTB_PROD)
        init_product(pattern);
    else if (op == PTB_MIN || op == PTB_MAX)
        init_extremes(pattern);
    else
        init_sum(pattern);
}

// 32-bit finaliser of low bias (Chris Wellons, "Prospecting for Hash Functions", 2018: lowbias32).
static inline uint32_t mix32(uint32_t x)
{
    x ^= x >> 16;
    x *= 0x7feb352du;
    x ^= x >> 15;
    x *= 0x846ca68bu;
    return x ^ x >> 16;
}

enum { STREAM_MOVED = 1, STREAM_REDUCED = 2 };

// The hash of element `index` is mix32(low half of index ^ key); the key covers the rest.
static uint32_t key_of(const ptb_pattern *p, uint64_t stream, uint64_t index)
{
    return (uint32_t)ptb_random_u64(p->seed, stream, index >> 32);
}

static bool flips_sign(const ptb_pattern *p)
{
    return types[p->dtype].is_signed && p->op != PTB_PROD;
}

// values[i] = +1 or -1, by the top bit of the hash.
static inline int32_t sign_of(uint32_t hash, uint32_t sign_bit)
{
    return 1 - (int32_t)((hash & sign_bit) >> 30);
}

// Position of `rank` in the cycle of an element: rotated by the low 16 bits of its hash.
static inline uint32_t position_of(uint32_t hash, uint32_t rank, uint32_t ranks)
{
    uint32_t j = rank + ((hash & 0xffff) * ranks >> 16);
    return j >= ranks ? j - ranks : j;
}

static void make_moved(const ptb_pattern *p, int rank, uint64_t index, int32_t *restrict out, size_t count)
{
    const uint32_t key = key_of(p, STREAM_MOVED, index), first = (uint32_t)index;
    const int shift = types[p->dtype].moved_shift;
    // An odd multiple of the rank, added to the bits that are kept: different for different ranks.
    const uint32_t offset = ((uint32_t)rank * 0x9e3779b1u) << shift;
    if (types[p->dtype].is_signed)
        for (size_t i = 0; i < count; i++)
            out[i] = (int32_t)(mix32((first + (uint32_t)i) ^ key) + offset) >> shift;
    else
        for (size_t i = 0; i < count; i++)
            out[i] = (int32_t)((mix32((first + (uint32_t)i) ^ key) + offset) >> shift);
}

static void make_sum_input(const ptb_pattern *p, int rank, uint64_t index, int32_t *restrict out,
                           size_t count)
{
    const uint32_t key = key_of(p, STREAM_REDUCED, index), first = (uint32_t)index;
    const uint32_t sign_bit = flips_sign(p) ? 0x80000000u : 0, ranks = (uint32_t)p->ranks, r = (uint32_t)rank;
    const int32_t centre = p->centre, pairs = p->pairs, active = p->active, mask = (int32_t)p->mask;
    for (size_t i = 0; i < count; i++) {
        uint32_t hash = mix32((first + (uint32_t)i) ^ key);
        int32_t j = (int32_t)position_of(hash, r, ranks), pair = j >> 1;
        int32_t spread = pair < pairs ? 1 + (pair & mask) : 0;
        int32_t w = centre + (j & 1 ? spread : -spread);
        out[i] = (j < active ? w : 0) * sign_of(hash, sign_bit);
    }
}

static void make_product_input(const ptb_pattern *p, int rank, uint64_t index, int32_t *restrict out,
                               size_t count)
{
    const uint32_t key = key_of(p, STREAM_REDUCED, index), first = (uint32_t)index;
    const uint32_t ranks = (uint32_t)p->ranks, r = (uint32_t)rank;
    const int32_t active = p->active, head = types[p->dtype].is_signed ? -4 : 4;
    for (size_t i = 0; i < count; i++) {
        int32_t j = (int32_t)position_of(mix32((first + (uint32_t)i) ^ key), r, ranks);
        int32_t w = j < active ? 2 : 1;
        out[i] = j == 0 ? head : w;
    }
}

static void make_extreme_input(const ptb_pattern *p, int rank, uint64_t index, int32_t *restrict out,
                               size_t count)
{
    const uint32_t key = key_of(p, STREAM_REDUCED, index), first = (uint32_t)index;
    const uint32_t sign_bit = flips_sign(p) ? 0x80000000u : 0, ranks = (uint32_t)p->ranks, r = (uint32_t)rank;
    for (size_t i = 0; i < count; i++) {
        uint32_t hash = mix32((first + (uint32_t)i) ^ key);
        int32_t j = (int32_t)position_of(hash, r, ranks);
        int32_t w = j == 1 ? HIGH : BETWEEN + (j & BETWEEN_MASK);
        out[i] = (j == 0 ? LOW : w) * sign_of(hash, sign_bit);
    }
}

static void make_input(const ptb_pattern *p, int rank, uint64_t index, int32_t *out, size_t count)
{
    if (p->op == PTB_PROD)
        make_product_input(p, rank, index, out, count);
    else if (p->op == PTB_MIN || p->op == PTB_MAX)
        make_extreme_input(p, rank, index, out, count);
    else
        make_sum_input(p, rank, index, out, count);
}

// Only the sign depends on the element; a negative one exchanges minimum and maximum.
static void make_reduced(const ptb_pattern *p, uint64_t index, int32_t *restrict out, size_t count)
{
    const uint32_t key = key_of(p, STREAM_REDUCED, index), first = (uint32_t)index;
    const uint32_t sign_bit = flips_sign(p) ? 0x80000000u : 0;
    const bool is_extreme = p->op == PTB_MIN || p->op == PTB_MAX;
    const int32_t plus = (int32_t)p->reduced;
    const int32_t minus = is_extreme ? -(int32_t)(p->op == PTB_MIN ? p->high : p->low) : -plus;
    for (size_t i = 0; i < count; i++)
        out[i] = mix32((first + (uint32_t)i) ^ key) & sign_bit ? minus : plus;
}

// The block buffers, aligned for vectors; elements of 8 bytes are the largest.
typedef union {
    _Alignas(64) double f64[BLOCK];
    float f32[BLOCK];
    uint16_t u16[BLOCK];
    int64_t i64[BLOCK];
    int32_t i32[BLOCK];
    int8_t i8[BLOCK];
} block;

// Integers become elements; all are exact. `spread` for moved data.
static void convert(ptb_dtype type, const int32_t *restrict in, int64_t spread, block *restrict out,
                    size_t count)
{
    float wide[BLOCK];
    switch (type) {
    case PTB_F64:
        for (size_t i = 0; i < count; i++)
            out->f64[i] = (double)in[i] * (double)spread;
        break;
    case PTB_F32:
        for (size_t i = 0; i < count; i++)
            out->f32[i] = (float)in[i];
        break;
    case PTB_F16:
        for (size_t i = 0; i < count; i++)
            wide[i] = (float)in[i];
        ptb_f32_to_f16_array(out->u16, wide, count);
        break;
    case PTB_BF16:
        for (size_t i = 0; i < count; i++) {
            float value = (float)in[i];
            uint32_t bits;
            memcpy(&bits, &value, sizeof bits);
            out->u16[i] = (uint16_t)(bits >> 16);
        }
        break;
    case PTB_I64:
        for (size_t i = 0; i < count; i++)
            out->i64[i] = in[i] * spread;
        break;
    case PTB_I32:
        memcpy(out->i32, in, count * sizeof *in);
        break;
    case PTB_I8:
    case PTB_U8:
        for (size_t i = 0; i < count; i++)
            out->i8[i] = (int8_t)(in[i] & 0xff);
        break;
    case PTB_DTYPE_COUNT:
        break;
    }
}

typedef enum { MOVED, INPUT, REDUCED } source;

static int64_t spread_of(const ptb_pattern *p, source from)
{
    return from == MOVED && ptb_dtype_size(p->dtype) == 8 ? SPREAD : 1;
}

// Integers of at most BLOCK elements from `index`; all have the same upper half of their index.
static void make(const ptb_pattern *p, source from, int rank, uint64_t index, int32_t *out, size_t count)
{
    if (from == MOVED)
        make_moved(p, rank, index, out, count);
    else if (from == INPUT)
        make_input(p, rank, index, out, count);
    else
        make_reduced(p, index, out, count);
}

// Elements that one block may cover from `index`: not across a multiple of 2^32, where the key changes.
static size_t block_count(uint64_t index, size_t left)
{
    uint64_t until_key = ((uint64_t)1 << 32) - (index & 0xffffffffu);
    size_t count = left < BLOCK ? left : BLOCK;
    return until_key < count ? (size_t)until_key : count;
}

static double value_of(const ptb_pattern *p, source from, int rank, uint64_t index)
{
    int32_t value;
    make(p, from, rank, index, &value, 1);
    return (double)value * (double)spread_of(p, from);
}

double ptb_pattern_moved(const ptb_pattern *pattern, int rank, size_t index)
{
    return value_of(pattern, MOVED, rank, index);
}

double ptb_pattern_input(const ptb_pattern *pattern, int rank, size_t index)
{
    return value_of(pattern, INPUT, rank, index);
}

double ptb_pattern_reduced(const ptb_pattern *pattern, size_t index)
{
    return value_of(pattern, REDUCED, 0, index);
}

void ptb_pattern_fill(const ptb_pattern *pattern, bool reduced, int rank, size_t first, void *buffer,
                      size_t count)
{
    const source from = reduced ? INPUT : MOVED;
    const size_t size = ptb_dtype_size(pattern->dtype);
    _Alignas(64) int32_t values[BLOCK];
    block elements;
    for (size_t at = 0; at < count;) {
        size_t n = block_count(first + at, count - at);
        make(pattern, from, rank, first + at, values, n);
        convert(pattern->dtype, values, spread_of(pattern, from), &elements, n);
        memcpy((char *)buffer + at * size, &elements, n * size);
        at += n;
    }
}

void ptb_pattern_poison(void *buffer, size_t bytes)
{
    if (bytes)
        memset(buffer, PTB_PATTERN_POISON, bytes);
}

// Elements differ when their bits do, except -0 and 0: `value_bits` leaves the sign of floats out, and two
// different patterns without any other bit are the two zeros.
#define COUNT_DIFFERENT(name, bits)                                                                          \
    static size_t name(const void *wanted, const void *got, size_t count, bits value_bits)                   \
    {                                                                                                        \
        typedef bits anywhere __attribute__((aligned(1), may_alias));                                        \
        const anywhere *x = wanted, *y = got;                                                                \
        size_t different = 0;                                                                                \
        for (size_t i = 0; i < count; i++)                                                                   \
            different += (x[i] != y[i]) & (((x[i] | y[i]) & value_bits) != 0);                               \
        return different;                                                                                    \
    }
COUNT_DIFFERENT(count_64, uint64_t)
COUNT_DIFFERENT(count_32, uint32_t)
COUNT_DIFFERENT(count_16, uint16_t)
COUNT_DIFFERENT(count_8, uint8_t)

static size_t count_different(size_t size, bool signed_zeros, const void *wanted, const void *got,
                              size_t count)
{
    const uint64_t dropped = signed_zeros ? 1 : 0;
    switch (size) {
    case 8:
        return count_64(wanted, got, count, UINT64_MAX >> dropped);
    case 4:
        return count_32(wanted, got, count, UINT32_MAX >> dropped);
    case 2:
        return count_16(wanted, got, count, UINT16_MAX >> dropped);
    default:
        return count_8(wanted, got, count, UINT8_MAX);
    }
}

// Counts the wrong elements of a block whose bytes differ, and describes the first one of all.
static void count_wrong(ptb_dtype type, const block *wanted, const char *got, size_t at, size_t count,
                        ptb_check *check)
{
    const size_t size = ptb_dtype_size(type);
    const bool signed_zeros = ptb_dtype_is_float(type);
    size_t wrong = count_different(size, signed_zeros, wanted, got, count);
    for (size_t i = 0; wrong && check->wrong == 0; i++) {
        const char *want = (const char *)wanted + i * size;
        if (count_different(size, signed_zeros, want, got + i * size, 1) == 0)
            continue;
        check->first_wrong = at + i;
        check->wanted = ptb_dtype_load(type, want);
        check->got = ptb_dtype_load(type, got + i * size);
        break;
    }
    check->wrong += wrong;
}

void ptb_pattern_check(const ptb_pattern *pattern, const ptb_expect *expect, const void *buffer,
                       ptb_check *check)
{
    const bool poison = expect->kind == PTB_EXPECT_POISON;
    const source from = expect->kind == PTB_EXPECT_COPY    ? MOVED
                        : expect->kind == PTB_EXPECT_INPUT ? INPUT
                                                           : REDUCED;
    const size_t size = ptb_dtype_size(pattern->dtype);
    _Alignas(64) int32_t values[BLOCK];
    block wanted;
    if (poison)
        memset(&wanted, PTB_PATTERN_POISON, sizeof wanted);
    for (size_t at = 0; at < expect->count;) {
        size_t n = block_count(poison ? 0 : expect->source_index + at, expect->count - at);
        if (!poison) {
            make(pattern, from, expect->source_rank, expect->source_index + at, values, n);
            convert(pattern->dtype, values, spread_of(pattern, from), &wanted, n);
        }
        const char *got = (const char *)buffer + (expect->first + at) * size;
        if (memcmp(&wanted, got, n * size) != 0)
            count_wrong(pattern->dtype, &wanted, got, expect->first + at, n, check);
        at += n;
    }
    check->checked += expect->count;
}
