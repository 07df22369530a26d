// What the matrix products of a microbatch cost, counted from the tensors and from attention's own blocks.
#include "strategies/transformer/model_internal.h"

// Multiplications and additions of a unit's linear layers in one forward pass of a row. again: without the
// last product of a block, which recomputation leaves out.
static double linear_flops(const ptb_layout *layout, const ptb_unit *unit, bool again)
{
    double sum = 0;
    for (size_t t = 0; t < unit->tensors; t++) {
        const ptb_tensor *w = &unit->tensor[t];
        double uses = w->group == PTB_GROUP_EXPERT ? (double)layout->shape.top_k : 1;
        bool last = w->role == PTB_BLOCK_DOWN_WEIGHT || w->role == PTB_BLOCK_SHARED_DOWN_WEIGHT;
        if (w->decay && !(again && last))
            sum += 2 * uses * (double)w->rows * (double)w->columns;
    }
    return sum;
}

double ptb_model_flops(const ptb_model *m)
{
    const ptb_layout *layout = m->config.layout;
    ptb_attention_shape shape = ptb_block_attention_shape(&m->config);
    const ptb_context_axis *context = m->config.context;
    // two products; five in backward
    double attention = context ? context->ops->flops(context) : m->config.kernels->attention_flops(&shape);
    double rows = (double)m->w.rows, sum = 6 * rows * (double)m->w.vocabulary * (double)m->w.hidden;
    for (size_t u = 1; u + 1 < layout->units; u++) {
        sum += 3 * rows * linear_flops(layout, &layout->unit[u], false) + 3.5 * attention;
        if (!ptb_model_recomputes(m, u - 1))
            continue;
        sum += attention;
        if (m->config.recompute == PTB_RECOMPUTE_FULL)
            sum += rows * linear_flops(layout, &layout->unit[u], true);
    }
    return sum;
}
