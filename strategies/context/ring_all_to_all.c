// Heads exchanged within groups of u neighbours, and rings of n/u ranks with the same heads (USP: Fang and
// Zhao 2024; heads.c, ring_pass.c). It goes where heads do not suffice for all_to_all, and keeps rings short.
// With a = A / u and w = W max(1, u / K) / u a block of the model sends 2 (u-1) e N (2 a + w) bytes a rank,
// with documents 4 (u-1) N more, and around the ring (2 (n/u-1) e + 4 n/u) u N w.
#include "strategies/context/context_internal.h"

#include <stdio.h>

static int asked(const ptb_context_env *env, char *reason)
{
    char why[PTB_CONTEXT_REASON];
    if (env->size % env->degree || env->degree > PTB_CONTEXT_DEGREE_MAX) {
        snprintf(reason, PTB_REASON_BYTES,
                 "groups of %d of cp=%d ranks: %d / %d = %d remainder %d, and %d at most", env->degree,
                 env->size, env->size, env->degree, env->size / env->degree, env->size % env->degree,
                 PTB_CONTEXT_DEGREE_MAX);
        return 0;
    }
    if (ptb_context_heads_divide(env, env->degree, why))
        return env->degree;
    snprintf(reason, PTB_REASON_BYTES,
             "ring_all_to_all gives each rank of a group of %d heads of its own: %s", env->degree, why);
    return 0;
}

static int largest_divisor(const ptb_context_env *env, char *reason)
{
    char why[PTB_CONTEXT_REASON];
    if (env->degree)
        return asked(env, reason);
    for (int degree = env->size / 2; degree > 1; degree--)
        if (env->size % degree == 0 && degree <= PTB_CONTEXT_DEGREE_MAX &&
            ptb_context_heads_divide(env, degree, why))
            return degree;
    snprintf(
        reason, PTB_REASON_BYTES,
        "ring_all_to_all of cp=%d ranks: no number between 1 and %d divides both %d and the heads (%d, %d of "
        "key and value)",
        env->size, env->size, env->size, (int)env->layout->local.heads, (int)env->layout->local.kv_heads);
    return 0;
}

static const ptb_context ring_all_to_all = {
    .plugin = {"ring_all_to_all", "heads exchanged within groups of neighbours, a ring between groups (USP)"},
    .degree = largest_divisor,
    .zigzag = true,
    .volume_form = "2 (u-1) e N (2 a + w) + (2 (n/u-1) e + 4 n/u) u N w; a = A/u, w = W max(1, u/K)/u",
    .memory_form = "kept a block e N (2 A + c W), buffers e N (4 A + 2 c W) and ring's; c = max(1, u / K)",
    .kept_bytes = ptb_context_heads_kept,
    .place = ptb_context_heads_place,
    .forward = ptb_context_heads_forward,
    .backward = ptb_context_heads_backward,
    .flops = ptb_context_ring_flops,
};
PTB_REGISTER(PTB_KIND_CONTEXT, ring_all_to_all);
