// The verification pattern (core/pattern.h). Elements are made in blocks, in two steps that the compiler
// vectorises: 32-bit integers from a 32-bit hash of the index, then the element type. Checking makes the
// block that is wanted, compares it as bytes, and looks at single elements only where that fails. To add a
// type: a row in `types`, a case in `convert` and one in core/device_cuda_pattern.cu.
#include "core/pattern.h"

#include "core/pattern_element.h"

#include <string.h>

enum {
    BLOCK = 1024,        // elements made at a time; all buffers of a block stay in the L1 and L2 caches
    EXACT_MAX = 1 << 20, // no need for larger sums, whatever the type
    CENTRE_MAX = 32,     // of the sum cycle; its values are below 64
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
    p->low = PTB_PATTERN_LOW;
    p->high = p->ranks > 1 ? PTB_PATTERN_HIGH : PTB_PATTERN_LOW;
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

enum { STREAM_MOVED = 1, STREAM_REDUCED = 2 };

static ptb_recipe recipe_moved(const ptb_pattern *p, int rank)
{
    const int shift = types[p->dtype].moved_shift;
    return (ptb_recipe){.kind = PTB_RECIPE_MOVED,
                        .dtype = p->dtype,
                        .seed = p->seed,
                        .stream = STREAM_MOVED,
                        .shift = shift,
                        // Different for different ranks.
                        .offset = ((uint32_t)rank * 0x9e3779b1u) << shift,
                        .is_signed = types[p->dtype].is_signed,
                        .spread = ptb_dtype_size(p->dtype) == 8 ? SPREAD : 1};
}

static ptb_recipe recipe_of_reduction(const ptb_pattern *p, ptb_recipe_kind kind, int rank)
{
    const bool is_signed = types[p->dtype].is_signed;
    return (ptb_recipe){.kind = kind,
                        .dtype = p->dtype,
                        .seed = p->seed,
                        .stream = STREAM_REDUCED,
                        .is_signed = is_signed,
                        .spread = 1,
                        .sign_bit = is_signed && p->op != PTB_PROD ? 0x80000000u : 0,
                        .rank = (uint32_t)rank,
                        .ranks = (uint32_t)p->ranks,
                        .centre = p->centre,
                        .pairs = p->pairs,
                        .active = p->active,
                        .mask = (int32_t)p->mask,
                        .head = is_signed ? -4 : 4};
}

static ptb_recipe recipe_input(const ptb_pattern *p, int rank)
{
    ptb_recipe_kind kind = p->op == PTB_PROD                      ? PTB_RECIPE_PRODUCT
                           : p->op == PTB_MIN || p->op == PTB_MAX ? PTB_RECIPE_EXTREME
                                                                  : PTB_RECIPE_SUM;
    return recipe_of_reduction(p, kind, rank);
}

// Only the sign depends on the element; a negative one exchanges minimum and maximum.
static ptb_recipe recipe_reduced(const ptb_pattern *p)
{
    ptb_recipe r = recipe_of_reduction(p, PTB_RECIPE_REDUCED, 0);
    const bool is_extreme = p->op == PTB_MIN || p->op == PTB_MAX;
    r.plus = (int32_t)p->reduced;
    r.minus = is_extreme ? -(int32_t)(p->op == PTB_MIN ? p->high : p->low) : -r.plus;
    return r;
}

ptb_recipe ptb_recipe_fill(const ptb_pattern *pattern, bool reduced, int rank)
{
    return reduced ? recipe_input(pattern, rank) : recipe_moved(pattern, rank);
}

ptb_recipe ptb_recipe_expect(const ptb_pattern *pattern, const ptb_expect *expect)
{
    if (expect->kind == PTB_EXPECT_COPY)
        return recipe_moved(pattern, expect->source_rank);
    return expect->kind == PTB_EXPECT_INPUT ? recipe_input(pattern, expect->source_rank)
                                            : recipe_reduced(pattern);
}

// out[i] is element index + i for i < count, all with the same upper half of their index. The recipe is a
// copy of the caller's, so that the compiler knows that no store changes it.
#define MAKE(name, element)                                                                                  \
    static void name(const ptb_recipe recipe, uint64_t index, int32_t *restrict out, size_t count)           \
    {                                                                                                        \
        const uint32_t key = ptb_recipe_key(&recipe, index), first = (uint32_t)index;                        \
        for (size_t i = 0; i < count; i++)                                                                   \
            out[i] = element(&recipe, ptb_pattern_mix((first + (uint32_t)i) ^ key));                         \
    }
MAKE(make_moved, ptb_recipe_moved)
MAKE(make_sum, ptb_recipe_sum)
MAKE(make_product, ptb_recipe_product)
MAKE(make_extreme, ptb_recipe_extreme)
MAKE(make_reduced, ptb_recipe_reduced)

static void make(const ptb_recipe *recipe, uint64_t index, int32_t *out, size_t count)
{
    static void (*const makers[])(ptb_recipe, uint64_t, int32_t *restrict, size_t) = {
        [PTB_RECIPE_MOVED] = make_moved,     [PTB_RECIPE_SUM] = make_sum,
        [PTB_RECIPE_PRODUCT] = make_product, [PTB_RECIPE_EXTREME] = make_extreme,
        [PTB_RECIPE_REDUCED] = make_reduced,
    };
    makers[recipe->kind](*recipe, index, out, count);
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

// Elements that one block may cover from `index`: not across a multiple of 2^32, where the key changes.
static size_t block_count(uint64_t index, size_t left)
{
    uint64_t until_key = ((uint64_t)1 << 32) - (index & 0xffffffffu);
    size_t count = left < BLOCK ? left : BLOCK;
    return until_key < count ? (size_t)until_key : count;
}

static double value_of(const ptb_recipe *recipe, uint64_t index)
{
    return (double)ptb_recipe_value(recipe,
                                    ptb_pattern_mix((uint32_t)index ^ ptb_recipe_key(recipe, index))) *
           (double)recipe->spread;
}

double ptb_pattern_moved(const ptb_pattern *pattern, int rank, size_t index)
{
    ptb_recipe recipe = recipe_moved(pattern, rank);
    return value_of(&recipe, index);
}

double ptb_pattern_input(const ptb_pattern *pattern, int rank, size_t index)
{
    ptb_recipe recipe = recipe_input(pattern, rank);
    return value_of(&recipe, index);
}

double ptb_pattern_reduced(const ptb_pattern *pattern, size_t index)
{
    ptb_recipe recipe = recipe_reduced(pattern);
    return value_of(&recipe, index);
}

double ptb_pattern_wanted(const ptb_pattern *pattern, const ptb_expect *expect, size_t at)
{
    if (expect->kind == PTB_EXPECT_POISON) {
        uint64_t poison;
        memset(&poison, PTB_PATTERN_POISON, sizeof poison);
        return ptb_dtype_load(pattern->dtype, &poison);
    }
    ptb_recipe recipe = ptb_recipe_expect(pattern, expect);
    return value_of(&recipe, expect->source_index + at);
}

void ptb_pattern_fill(const ptb_pattern *pattern, bool reduced, int rank, size_t first, void *buffer,
                      size_t count)
{
    const ptb_recipe recipe = ptb_recipe_fill(pattern, reduced, rank);
    const size_t size = ptb_dtype_size(pattern->dtype);
    _Alignas(64) int32_t values[BLOCK];
    block elements;
    for (size_t at = 0; at < count;) {
        size_t n = block_count(first + at, count - at);
        make(&recipe, first + at, values, n);
        convert(pattern->dtype, values, recipe.spread, &elements, n);
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
    const ptb_recipe recipe = ptb_recipe_expect(pattern, expect);
    const size_t size = ptb_dtype_size(pattern->dtype);
    _Alignas(64) int32_t values[BLOCK];
    block wanted;
    if (poison)
        memset(&wanted, PTB_PATTERN_POISON, sizeof wanted);
    for (size_t at = 0; at < expect->count;) {
        size_t n = block_count(poison ? 0 : expect->source_index + at, expect->count - at);
        if (!poison) {
            make(&recipe, expect->source_index + at, values, n);
            convert(pattern->dtype, values, recipe.spread, &wanted, n);
        }
        const char *got = (const char *)buffer + (expect->first + at) * size;
        if (memcmp(&wanted, got, n * size) != 0)
            count_wrong(pattern->dtype, &wanted, got, expect->first + at, n, check);
        at += n;
    }
    check->checked += expect->count;
}
