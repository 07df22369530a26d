// Heads exchanged for tokens over all ranks (DeepSpeed Ulysses; heads.c): each rank has n-th of the heads of
// whole sequences. With a = A / n and w = W max(1, n / K) / n a block of the model sends
// 2 (n-1) e N (2 a + w) bytes a rank, and with documents 4 (n-1) N more.
#include "strategies/context/context_internal.h"

#include "core/log.h"

static int all_ranks(const ptb_context_env *env)
{
    char reason[PTB_CONTEXT_REASON];
    if (ptb_context_heads_divide(env, env->size, reason) && env->size <= PTB_CONTEXT_DEGREE_MAX)
        return env->size;
    if (env->size > PTB_CONTEXT_DEGREE_MAX)
        ptb_error("all_to_all over cp=%d ranks: heads are exchanged between %d at most; use ring_all_to_all",
                  env->size, PTB_CONTEXT_DEGREE_MAX);
    else
        ptb_error("all_to_all gives every rank of cp=%d whole heads: %s; use a cp that divides them, "
                  "ring_all_to_all, ring or all_gather",
                  env->size, reason);
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
