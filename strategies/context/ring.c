// Ring attention: blocks of K and V travel around the ranks while queries stay (ring_pass.c). A block of the
// model sends (n-1) e N W bytes forward and (n-1) e N W + 4 n N W backward a rank.
#include "strategies/context/context_internal.h"

static int no_groups(const ptb_context_env *env, char *reason)
{
    (void)env, (void)reason;
    return 1;
}

static void place(const ptb_context_axis *axis, ptb_context_buffers *b, ptb_context_arena *communication,
                  ptb_context_arena *workspace)
{
    ptb_context_ring_place(axis, ptb_context_split_of(axis).qkv, b, communication, workspace);
}

static ptb_context_ring ring_of(const ptb_context_axis *axis, const ptb_attention_shape *shape,
                                const void *qkv, void *out, float *lse)
{
    ptb_context_split x = ptb_context_split_of(axis);
    return (ptb_context_ring){.shape = *shape,
                              .query = qkv,
                              .kv = ptb_context_at(axis, qkv, x.query),
                              .query_stride = x.qkv,
                              .kv_stride = x.qkv,
                              .out = out,
                              .lse = lse};
}

static ptb_status forward(ptb_context_axis *axis, const ptb_context_forward *a)
{
    ptb_context_ring ring = ring_of(axis, &a->shape, a->qkv, a->out, a->lse);
    return ptb_context_ring_run(axis, &ring);
}

static ptb_status backward(ptb_context_axis *axis, const ptb_context_backward *a)
{
    ptb_context_split x = ptb_context_split_of(axis);
    ptb_context_ring_backward ring = {
        .forward = ring_of(axis, &a->shape, a->qkv, (void *)(uintptr_t)a->out, (float *)(uintptr_t)a->lse),
        .d_out = a->d_out,
        .d_query = a->d_qkv};
    PTB_TRY(ptb_context_ring_run_backward(axis, &ring));
    ptb_permute home = {.out = ptb_context_at(axis, a->d_qkv, x.query),
                        .in = ptb_context_ring_gradient(axis),
                        .out_stride = {0, 0, (int64_t)x.qkv},
                        .in_stride = {0, 0, (int64_t)x.kv},
                        .count = {1, 1, x.rows},
                        .width = x.kv,
                        .out_type = axis->env.type,
                        .in_type = PTB_F32};
    return axis->env.kernels->permute(ptb_context_compute(axis), &home);
}

static const ptb_context ring = {
    .plugin = {"ring", "K and V travel around the ranks beside compute; zig-zag pieces"},
    .degree = no_groups,
    .zigzag = true,
    .volume_form = "(2 (n-1) e + 4 n) N W",
    .memory_form = "(2 e + 8) N W + e N Q / 2 + e N W; 16 bits: + 4 N A",
    .place = place,
    .forward = forward,
    .backward = backward,
    .flops = ptb_context_ring_flops,
};
PTB_REGISTER(PTB_KIND_CONTEXT, ring);
