// Heads exchanged for tokens over all ranks (DeepSpeed Ulysses; heads.c): each rank has n-th of the heads of
// whole sequences. With a = A / n and w = W max(1, n / K) / n a block of the model sends
// 2 (n-1) e N (2 a + w) bytes a rank, and with documents 4 (n-1) N more.
#include "strategies/context/context_internal.h"

#include <stdio.h>

static int all_ranks(const ptb_context_env *env, char *reason)
{
    char why[PTB_CONTEXT_REASON];
    if (env->size <= PTB_CONTEXT_DEGREE_MAX && ptb_context_heads_divide(env, env->size, why))
        return env->size;
    if (env->size > PTB_CONTEXT_DEGREE_MAX)
        snprintf(why, sizeof why, "heads are exchanged between %d ranks at most", PTB_CONTEXT_DEGREE_MAX);
    snprintf(reason, PTB_REASON_BYTES, "all_to_all gives each of cp=%d ranks heads of its own: %s", env->size,
             why);
    return 0;
}

static const ptb_context all_to_all = {
    .plugin = {"all_to_all", "heads are exchanged for tokens before attention and back (Ulysses)"},
    .degree = all_ranks,
    .volume_form = "2 (n-1) e N (2 A + W max(1, n / K)) / n",
    .memory_form = "kept a block e N (2 A + c W), buffers e N (4 A + 3 c W); c = max(1, n / K)",
    .kept_bytes = ptb_context_heads_kept,
    .place = ptb_context_heads_place,
    .forward = ptb_context_heads_forward,
    .backward = ptb_context_heads_backward,
    .flops = ptb_context_ring_flops,
};
PTB_REGISTER(PTB_KIND_CONTEXT, all_to_all);
