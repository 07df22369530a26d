// How one element of the verification pattern is made, shared by core/pattern.c (host) and the kernels that
// fill and check the memory of GPUs, so that the two cannot differ. What depends on the pattern, the source
// and the rank alone is worked out once, as a recipe; an element is then a function of the recipe and of the
// 32-bit hash of its index.
#ifndef PTB_CORE_PATTERN_ELEMENT_H
#define PTB_CORE_PATTERN_ELEMENT_H

#include "core/pattern.h"
#include "core/random.h"

// MOVED: data that is only moved; the others are a rank's contribution to a reduction (by the cycle of its
// operation), and what comes out of one.
typedef enum {
    PTB_RECIPE_MOVED,
    PTB_RECIPE_SUM,
    PTB_RECIPE_PRODUCT,
    PTB_RECIPE_EXTREME,
    PTB_RECIPE_REDUCED
} ptb_recipe_kind;

typedef struct {
    ptb_recipe_kind kind;
    ptb_dtype dtype;
    uint64_t seed, stream; // of the key, which covers the upper half of an index
    uint32_t offset;       // MOVED: an odd multiple of the rank, added to the bits that are kept
    int32_t shift;         // MOVED: bits dropped so that the rest fits the type
    bool is_signed;
    int32_t spread;    // 64-bit types spread the 32-bit hash over 52 bits, which a double holds exactly
    uint32_t sign_bit; // of the hash: 0 where no sign is drawn
    uint32_t rank, ranks;
    int32_t centre, pairs, active, mask; // SUM; PRODUCT: active
    int32_t head;                        // PRODUCT: position 0 of the cycle
    int32_t plus, minus;                 // REDUCED: by the sign of the element
} ptb_recipe;

enum { PTB_PATTERN_LOW = 1, PTB_PATTERN_HIGH = 100, PTB_PATTERN_BETWEEN = 2, PTB_PATTERN_BETWEEN_MASK = 63 };

// core/pattern.c. POISON has no recipe.
ptb_recipe ptb_recipe_fill(const ptb_pattern *pattern, bool reduced, int rank);
ptb_recipe ptb_recipe_expect(const ptb_pattern *pattern, const ptb_expect *expect);

// 32-bit finaliser of low bias (Chris Wellons, "Prospecting for Hash Functions", 2018: lowbias32).
PTB_HOST_DEVICE static inline uint32_t ptb_pattern_mix(uint32_t x)
{
    x ^= x >> 16;
    x *= 0x7feb352du;
    x ^= x >> 15;
    x *= 0x846ca68bu;
    return x ^ x >> 16;
}

// The hash of element `index` is mix(low half of index ^ key).
PTB_HOST_DEVICE static inline uint32_t ptb_recipe_key(const ptb_recipe *r, uint64_t index)
{
    return (uint32_t)ptb_random_u64(r->seed, r->stream, index >> 32);
}

// +1 or -1, by the top bit of the hash.
PTB_HOST_DEVICE static inline int32_t ptb_pattern_sign(uint32_t hash, uint32_t sign_bit)
{
    return 1 - (int32_t)((hash & sign_bit) >> 30);
}

// Position of `rank` in the cycle of an element: rotated by the low 16 bits of its hash.
PTB_HOST_DEVICE static inline int32_t ptb_pattern_position(uint32_t hash, uint32_t rank, uint32_t ranks)
{
    uint32_t j = rank + ((hash & 0xffff) * ranks >> 16);
    return (int32_t)(j >= ranks ? j - ranks : j);
}

PTB_HOST_DEVICE static inline int32_t ptb_recipe_moved(const ptb_recipe *r, uint32_t hash)
{
    return r->is_signed ? (int32_t)(hash + r->offset) >> r->shift : (int32_t)((hash + r->offset) >> r->shift);
}

PTB_HOST_DEVICE static inline int32_t ptb_recipe_sum(const ptb_recipe *r, uint32_t hash)
{
    int32_t j = ptb_pattern_position(hash, r->rank, r->ranks), pair = j >> 1;
    int32_t spread = pair < r->pairs ? 1 + (pair & r->mask) : 0;
    int32_t w = r->centre + (j & 1 ? spread : -spread);
    return (j < r->active ? w : 0) * ptb_pattern_sign(hash, r->sign_bit);
}

PTB_HOST_DEVICE static inline int32_t ptb_recipe_product(const ptb_recipe *r, uint32_t hash)
{
    int32_t j = ptb_pattern_position(hash, r->rank, r->ranks);
    int32_t w = j < r->active ? 2 : 1;
    return j == 0 ? r->head : w;
}

PTB_HOST_DEVICE static inline int32_t ptb_recipe_extreme(const ptb_recipe *r, uint32_t hash)
{
    int32_t j = ptb_pattern_position(hash, r->rank, r->ranks);
    int32_t w = j == 1 ? PTB_PATTERN_HIGH : PTB_PATTERN_BETWEEN + (j & PTB_PATTERN_BETWEEN_MASK);
    return (j == 0 ? PTB_PATTERN_LOW : w) * ptb_pattern_sign(hash, r->sign_bit);
}

PTB_HOST_DEVICE static inline int32_t ptb_recipe_reduced(const ptb_recipe *r, uint32_t hash)
{
    return hash & r->sign_bit ? r->minus : r->plus;
}

PTB_HOST_DEVICE static inline int32_t ptb_recipe_value(const ptb_recipe *r, uint32_t hash)
{
    switch (r->kind) {
    case PTB_RECIPE_MOVED:
        return ptb_recipe_moved(r, hash);
    case PTB_RECIPE_SUM:
        return ptb_recipe_sum(r, hash);
    case PTB_RECIPE_PRODUCT:
        return ptb_recipe_product(r, hash);
    case PTB_RECIPE_EXTREME:
        return ptb_recipe_extreme(r, hash);
    default:
        return ptb_recipe_reduced(r, hash);
    }
}

#endif
