// The kernel of experts on several ranks for the benchmark `kernels`: rows that come from a few ranks, in
// blocks that are half full, are put in order of expert.
#include "strategies/kernels_bench.h"

#include "core/log.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const places[] = {"block", NULL};

enum { SOURCES = 8, PLACE, OFFSETS, COUNTS };

static const char *absent(const ptb_model_shape *shape, const char *place)
{
    (void)place;
    return shape->experts ? NULL : "the model has no experts (--experts)";
}

// Elements of a source: what its rows choose of this rank's experts, were all as popular.
static size_t block(const ptb_kernel_call *c)
{
    size_t choices = c->rows * (size_t)c->shape->top_k;
    return choices < SOURCES ? 1 : choices / SOURCES;
}

// Between none and the even share of a block.
static int32_t rows_of(const ptb_kernel_call *c, size_t source, size_t expert)
{
    size_t experts = (size_t)c->shape->experts;
    float noise = c->noise[(source * experts + expert) % PTB_CALL_PERIOD]; // [-1, 1)
    return (int32_t)((noise + 1) / 2 * (float)(block(c) / experts + 1) + 0.5f) %
           (int32_t)(block(c) / experts + 1);
}

static void prepare(ptb_kernel_call *c)
{
    size_t experts = (size_t)c->shape->experts, elements = SOURCES * block(c);
    int32_t *counts = malloc(SOURCES * experts * sizeof *counts);
    if (!counts) {
        ptb_error("no memory for the counts of %zu experts", experts);
        c->status = PTB_NO_MEMORY;
        return;
    }
    for (size_t i = 0; i < SOURCES * experts; i++)
        counts[i] = rows_of(c, i / experts, i % experts);
    ptb_expert_order a = {.place = ptb_call_output(c, PLACE, PTB_I32, elements),
                          .offsets = ptb_call_output(c, OFFSETS, PTB_I32, experts + 1),
                          .counts = ptb_call_exact(c, COUNTS, PTB_I32, SOURCES * experts, counts),
                          .sources = SOURCES,
                          .elements = elements,
                          .block = block(c),
                          .stride = experts,
                          .experts = experts,
                          .local = experts};
    memcpy(c->arguments, &a, sizeof a);
    c->bytes = (double)((elements + (SOURCES + 1) * experts + 1) * sizeof(int32_t));
    ptb_call_sizes(c, "%zu rows from %d ranks, %zu experts", elements, SOURCES, experts);
    free(counts);
}

static void check(const ptb_kernel_call *c, ptb_verdict *verdict, const char *name, int slot, size_t i,
                  int32_t wanted)
{
    double got = ptb_call_result(c, slot, i);
    verdict->checked++;
    if (got != (double)wanted && !verdict->wrong++)
        snprintf(verdict->detail, sizeof verdict->detail, "%s, element %zu: wanted %d, got %.10g", name, i,
                 (int)wanted, got);
}

static void verify(ptb_kernel_call *c, ptb_verdict *verdict)
{
    size_t experts = (size_t)c->shape->experts;
    int32_t next = 0, filled[SOURCES] = {0};
    for (size_t e = 0; e < experts; e++) {
        check(c, verdict, "offsets", OFFSETS, e, next);
        for (size_t s = 0; s < SOURCES; s++)
            for (int32_t n = ptb_call_integer(c, COUNTS, s * experts + e); n > 0; n--)
                check(c, verdict, "place", PLACE, s * block(c) + (size_t)filled[s]++, next++);
    }
    check(c, verdict, "offsets", OFFSETS, experts, next);
    for (size_t s = 0; s < SOURCES; s++)
        for (size_t i = (size_t)filled[s]; i < block(c); i++)
            check(c, verdict, "place of no row", PLACE, s * block(c) + i, -1);
}

const ptb_kernel_entry ptb_kernel_entry_expert_order = {
    .places = places, .absent = absent, .prepare = prepare, .verify = verify};
