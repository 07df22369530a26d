// Tensor parallelism around the layers of a unit; see model_internal.h. Where there is no axis all of it does
// nothing but name the rows.
#include "strategies/transformer/model_internal.h"

static ptb_tensor_axis *axis_of(const ptb_pass *p)
{
    return p->m->config.tensor;
}

bool ptb_pass_is_sliced(const ptb_pass *p)
{
    return axis_of(p) && axis_of(p)->env.sequence;
}

bool ptb_pass_is_first(const ptb_pass *p)
{
    return p->m->config.layout->cut.tp_rank == 0;
}

size_t ptb_pass_run(const ptb_pass *p, size_t row, size_t *whole)
{
    if (axis_of(p))
        return ptb_tensor_axis_run(axis_of(p), row, whole);
    *whole = row;
    return p->m->w.rows - row;
}

ptb_pass ptb_pass_parts(const ptb_pass *p, int parts)
{
    ptb_pass some = *p;
    some.parts &= parts;
    return some;
}

ptb_status ptb_pass_gather(const ptb_pass *p, const void *slice)
{
    return ptb_pass_is_sliced(p) ? ptb_tensor_axis_gather(axis_of(p), slice) : PTB_OK;
}

const void *ptb_pass_whole(const ptb_pass *p, const void *slice)
{
    return ptb_pass_is_sliced(p) ? axis_of(p)->gathered : slice;
}

int ptb_pass_sum_chunks(const ptb_pass *p)
{
    return axis_of(p) ? axis_of(p)->env.chunks : 1;
}

int ptb_pass_gather_chunks(const ptb_pass *p)
{
    return ptb_pass_is_sliced(p) ? axis_of(p)->env.chunks : 1;
}

ptb_range ptb_pass_sum_chunk(const ptb_pass *p, int chunk)
{
    return ptb_block(p->m->w.rows, ptb_pass_sum_chunks(p), chunk);
}

ptb_range ptb_pass_gather_chunk(const ptb_pass *p, int chunk)
{
    return ptb_block(p->m->w.rows, ptb_pass_gather_chunks(p), chunk);
}

ptb_status ptb_pass_wait(const ptb_pass *p, int chunk)
{
    return ptb_pass_is_sliced(p) ? ptb_tensor_axis_wait(axis_of(p), chunk) : PTB_OK;
}

ptb_status ptb_pass_wait_all(const ptb_pass *p)
{
    return ptb_pass_wait(p, ptb_pass_gather_chunks(p) - 1);
}

void *ptb_pass_term(const ptb_pass *p, void *out)
{
    return axis_of(p) ? axis_of(p)->partial : out;
}

ptb_status ptb_pass_sum(const ptb_pass *p, int chunk, void *out)
{
    return axis_of(p) ? ptb_tensor_axis_reduce(axis_of(p), chunk, out) : PTB_OK;
}

ptb_status ptb_pass_sum_values(const ptb_pass *p, float *values, size_t count)
{
    return axis_of(p) ? ptb_tensor_axis_sum(axis_of(p), values, count) : PTB_OK;
}

ptb_status ptb_pass_join(const ptb_pass *p)
{
    return axis_of(p) ? ptb_tensor_axis_join(axis_of(p)) : PTB_OK;
}

static bool drops(const ptb_pass *p)
{
    return p->m->config.layout->shape.dropout > 0;
}

const void *ptb_pass_residual(const ptb_pass *p, const void *residual)
{
    return drops(p) || ptb_pass_is_sliced(p) || !ptb_pass_is_first(p) ? NULL : residual;
}

ptb_status ptb_pass_add_residual(const ptb_pass *p, ptb_dropout_place place, const void *residual, void *out)
{
    if (drops(p))
        return ptb_pass_dropout(p, place, out, residual, out);
    if (!ptb_pass_is_sliced(p))
        return PTB_OK;
    return p->k->add(p->stream, &(ptb_add){.type = p->m->config.type,
                                           .out = out,
                                           .a = out,
                                           .b = residual,
                                           .count = p->m->w.slice * p->m->w.hidden});
}

// base + `row` rows of a tensor that has `width` columns
static const void *rows_at(const ptb_pass *p, const void *base, size_t row, size_t width)
{
    return base ? (const char *)base + row * width * p->m->w.element : NULL;
}

ptb_status ptb_pass_row_parallel(const ptb_pass *p, ptb_tensor_role weight, ptb_dropout_place place,
                                 const void *in, const void *residual, void *out)
{
    const ptb_tensor *w = ptb_unit_tensor(p->unit, weight);
    const void *early = ptb_pass_residual(p, residual);
    void *term = ptb_pass_term(p, out);
    for (int i = 0; i < ptb_pass_sum_chunks(p); i++) {
        ptb_range rows = ptb_pass_sum_chunk(p, i);
        ptb_pass_layer layer = {.weight = weight, .rows = rows.count};
        PTB_TRY(ptb_pass_linear(p, layer, rows_at(p, in, rows.first, w->columns),
                                rows_at(p, early, rows.first, w->rows),
                                ptb_pass_at(p, term, rows.first * w->rows)));
        PTB_TRY(ptb_pass_sum(p, i, out));
    }
    PTB_TRY(ptb_pass_join(p));
    return ptb_pass_add_residual(p, place, residual, out);
}

ptb_status ptb_pass_column_backward(const ptb_pass *p, ptb_tensor_role weight, const void *d_out,
                                    const void *in)
{
    const ptb_tensor *w = ptb_unit_tensor(p->unit, weight);
    ptb_pass input = ptb_pass_parts(p, PTB_BACKWARD_INPUT), later = ptb_pass_parts(p, PTB_BACKWARD_WEIGHT);
    void *term = ptb_pass_term(p, p->m->d_norm);
    for (int i = 0; i < ptb_pass_sum_chunks(p) && input.parts; i++) {
        ptb_range rows = ptb_pass_sum_chunk(p, i);
        ptb_pass_layer layer = {.weight = weight, .rows = rows.count};
        PTB_TRY(ptb_pass_linear_backward(&input, layer, rows_at(p, d_out, rows.first, w->rows), NULL,
                                         ptb_pass_at(p, term, rows.first * w->columns), false));
        PTB_TRY(ptb_pass_sum(p, i, p->m->d_norm));
    }
    if (later.parts) { // beside the sums
        ptb_pass_layer all = {.weight = weight, .rows = p->m->w.rows};
        PTB_TRY(ptb_pass_wait_all(p));
        PTB_TRY(ptb_pass_linear_backward(&later, all, d_out, ptb_pass_whole(p, in), NULL, false));
    }
    return input.parts ? ptb_pass_join(p) : PTB_OK;
}

ptb_status ptb_pass_row_backward(const ptb_pass *p, ptb_tensor_role weight, const void *d_out, const void *in,
                                 void *d_in)
{
    const ptb_tensor *w = ptb_unit_tensor(p->unit, weight);
    ptb_pass input = ptb_pass_parts(p, PTB_BACKWARD_INPUT), later = ptb_pass_parts(p, PTB_BACKWARD_WEIGHT);
    const void *whole = ptb_pass_whole(p, d_out);
    PTB_TRY(ptb_pass_gather(p, d_out));
    for (int i = 0; i < ptb_pass_gather_chunks(p); i++) {
        ptb_range rows = ptb_pass_gather_chunk(p, i);
        ptb_pass_layer layer = {.weight = weight, .rows = rows.count};
        PTB_TRY(ptb_pass_wait(p, i));
        PTB_TRY(ptb_pass_linear_backward(&input, layer, rows_at(p, whole, rows.first, w->rows), NULL,
                                         ptb_pass_at(p, d_in, rows.first * w->columns), false));
    }
    ptb_pass_layer all = {.weight = weight, .rows = p->m->w.rows};
    return ptb_pass_linear_backward(&later, all, whole, in, NULL, false);
}

// Gradients of tensors that every tp rank has, from its slice of the rows, or, where all rows were gathered,
// from the first rank alone (ptb_pass_linear_backward): one call for the unit.
static ptb_status sum_replicated(const ptb_pass *p)
{
    size_t first = p->unit->replicated_first, end = p->unit->group[PTB_GROUP_DENSE].count;
    if (!ptb_pass_is_sliced(p) || p->unit->kind == PTB_UNIT_EMBEDDING || first == end)
        return PTB_OK;
    PTB_TRY(ptb_tensor_axis_sum(axis_of(p), p->memory->gradients + first, end - first));
    return ptb_pass_join(p);
}

ptb_status ptb_pass_ready(const ptb_pass *p, const ptb_gradient_ready *ready, size_t first)
{
    if (!ready || !(p->parts & PTB_BACKWARD_WEIGHT) || first == p->unit->count)
        return PTB_OK;
    if (first == 0)
        PTB_TRY(sum_replicated(p));
    return ready->call(ready->context, p->number, first);
}
