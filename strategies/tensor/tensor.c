// See tensor.h.
#include "strategies/tensor/tensor.h"

#include "core/bench.h"
#include "core/log.h"

#include <stdio.h>
#include <stdlib.h>

static size_t row_bytes(const ptb_tensor_env *e)
{
    return (size_t)e->layout->shape.hidden * ptb_dtype_size(e->type);
}

static size_t statistics_bytes(const ptb_tensor_env *e)
{
    return (size_t)e->layout->cut.tp * 3 * e->loss_rows * sizeof(float);
}

ptb_status ptb_tensor_axis_fits(size_t tp, size_t rows, bool sequence, int chunks, char *reason)
{
    size_t parts = tp * (size_t)(chunks > 0 ? chunks : 1);
    if (chunks < 1 || (size_t)chunks > rows) {
        snprintf(reason, PTB_REASON_BYTES,
                 "%zu rows (tokens) of a microbatch cannot be communicated in %d chunks; 1 to %zu are "
                 "possible: use a smaller --tensor-chunks",
                 rows, chunks, rows);
        return PTB_USAGE;
    }
    if (!sequence || rows % parts == 0)
        return PTB_OK;
    snprintf(reason, PTB_REASON_BYTES,
             "sequence parallelism cuts the %zu rows (tokens) of a microbatch into tp %zu x chunks %d equal "
             "parts: %zu = %zu x %zu + %zu; choose another --sequence, --batch or --tensor-chunks",
             rows, tp, chunks, rows, parts, rows / parts, rows % parts);
    return PTB_USAGE;
}

ptb_status ptb_tensor_axis_check(const ptb_tensor_env *e)
{
    char reason[PTB_REASON_BYTES];
    ptb_status status =
        ptb_tensor_axis_fits((size_t)e->layout->cut.tp, e->rows, e->sequence, e->chunks, reason);
    if (status != PTB_OK)
        ptb_error("%s", reason);
    return status;
}

void ptb_tensor_axis_memory(const ptb_tensor_env *e, uint64_t bytes[PTB_MEMORY_COUNT])
{
    bytes[PTB_MEMORY_COMMUNICATION] += (e->sequence ? 2 : 1) * e->rows * row_bytes(e) + statistics_bytes(e);
}

static ptb_status make_events(ptb_tensor_axis *a)
{
    a->arrived = calloc((size_t)a->env.chunks, sizeof *a->arrived);
    if (!a->arrived) {
        ptb_error("no memory for the events of %d chunks", a->env.chunks);
        return PTB_NO_MEMORY;
    }
    for (int i = 0; i < a->env.chunks; i++)
        PTB_TRY(ptb_event_new(a->env.device, &a->arrived[i]));
    return PTB_OK;
}

static ptb_status allocate(ptb_tensor_axis *a)
{
    const ptb_tensor_env *e = &a->env;
    void *statistics = NULL;
    PTB_TRY(ptb_world_agree(e->lane->comm->world, make_events(a)));
    PTB_TRY(ptb_lane_alloc(e->lane, PTB_MEMORY_COMMUNICATION, e->rows * row_bytes(e), &a->partial));
    if (e->sequence)
        PTB_TRY(ptb_lane_alloc(e->lane, PTB_MEMORY_COMMUNICATION, e->rows * row_bytes(e), &a->gathered));
    ptb_status status = ptb_lane_alloc(e->lane, PTB_MEMORY_COMMUNICATION, statistics_bytes(e), &statistics);
    a->statistics = statistics;
    return status;
}

ptb_status ptb_tensor_axis_open(const ptb_tensor_env *env, ptb_tensor_axis **axis)
{
    PTB_TRY(ptb_tensor_axis_check(env)); // all ranks have the same
    void *state;
    PTB_TRY(
        ptb_world_calloc(env->lane->comm->world, sizeof(ptb_tensor_axis), "a tensor-parallel axis", &state));
    ptb_tensor_axis *a = state;
    a->env = *env;
    ptb_status status = allocate(a);
    if (status != PTB_OK) {
        ptb_tensor_axis_close(a);
        return status;
    }
    *axis = a;
    return PTB_OK;
}

void ptb_tensor_axis_close(ptb_tensor_axis *a)
{
    if (!a)
        return;
    ptb_lane_free(a->env.lane, PTB_MEMORY_COMMUNICATION, statistics_bytes(&a->env), a->statistics);
    ptb_lane_free(a->env.lane, PTB_MEMORY_COMMUNICATION, a->env.rows * row_bytes(&a->env), a->gathered);
    ptb_lane_free(a->env.lane, PTB_MEMORY_COMMUNICATION, a->env.rows * row_bytes(&a->env), a->partial);
    for (int i = 0; a->arrived && i < a->env.chunks; i++)
        ptb_event_free(a->arrived[i]);
    free(a->arrived);
    free(a);
}

size_t ptb_tensor_axis_slice(const ptb_tensor_env *e)
{
    return e->sequence ? e->rows / (size_t)e->layout->cut.tp : e->rows;
}

ptb_range ptb_tensor_axis_chunk(const ptb_tensor_axis *a, int chunk)
{
    return ptb_block(a->env.rows, a->env.chunks, chunk);
}

size_t ptb_tensor_axis_run(const ptb_tensor_axis *a, size_t row, size_t *whole)
{
    const ptb_tensor_env *e = &a->env;
    if (!e->sequence) {
        *whole = row;
        return e->rows - row;
    }
    size_t part = ptb_tensor_axis_slice(e) / (size_t)e->chunks, chunk = row / part, at = row % part;
    *whole = (chunk * (size_t)e->layout->cut.tp + (size_t)e->layout->cut.tp_rank) * part + at;
    return part - at;
}

// Row `row` of rows of the residual stream.
static char *row_of(const ptb_tensor_env *e, const void *rows, size_t row)
{
    return (char *)rows + row * row_bytes(e);
}

// The first row of the slice that is of this chunk.
static size_t slice_row(const ptb_tensor_env *e, int chunk)
{
    return ptb_tensor_axis_slice(e) / (size_t)e->chunks * (size_t)chunk;
}

ptb_status ptb_tensor_axis_gather(ptb_tensor_axis *a, const void *slice)
{
    const ptb_tensor_env *e = &a->env;
    PTB_TRY(ptb_lane_fork(e->lane));
    for (int i = 0; i < e->chunks; i++) {
        ptb_range rows = ptb_tensor_axis_chunk(a, i);
        ptb_coll call = {.kind = PTB_ALL_GATHER,
                         .send = row_of(e, slice, slice_row(e, i)),
                         .recv = row_of(e, a->gathered, rows.first),
                         .count = rows.count * (size_t)e->layout->shape.hidden,
                         .dtype = e->type};
        PTB_TRY(ptb_lane_collective(e->lane, &call, NULL));
        PTB_TRY(ptb_event_record(a->arrived[i], e->lane->stream));
    }
    return PTB_OK;
}

ptb_status ptb_tensor_axis_wait(ptb_tensor_axis *a, int chunk)
{
    return ptb_lane_wait(a->env.lane, a->arrived[chunk]);
}

ptb_status ptb_tensor_axis_reduce(ptb_tensor_axis *a, int chunk, void *out)
{
    const ptb_tensor_env *e = &a->env;
    ptb_range rows = ptb_tensor_axis_chunk(a, chunk);
    ptb_coll call = {.kind = e->sequence ? PTB_REDUCE_SCATTER : PTB_ALL_REDUCE,
                     .send = row_of(e, a->partial, rows.first),
                     .recv = row_of(e, out, e->sequence ? slice_row(e, chunk) : rows.first),
                     .count = rows.count * (size_t)e->layout->shape.hidden,
                     .dtype = e->type,
                     .op = PTB_SUM};
    PTB_TRY(ptb_lane_fork(e->lane));
    return ptb_lane_collective(e->lane, &call, NULL);
}

ptb_status ptb_tensor_axis_sum(ptb_tensor_axis *a, float *values, size_t count)
{
    ptb_coll call = {.kind = PTB_ALL_REDUCE,
                     .send = values,
                     .recv = values,
                     .count = count,
                     .dtype = PTB_F32,
                     .op = PTB_SUM};
    PTB_TRY(ptb_lane_fork(a->env.lane));
    return ptb_lane_collective(a->env.lane, &call, NULL);
}

ptb_status ptb_tensor_axis_share(ptb_tensor_axis *a, size_t rows)
{
    size_t part = 3 * rows;
    ptb_coll call = {.kind = PTB_ALL_GATHER,
                     .send = a->statistics + (size_t)a->env.lane->rank * part,
                     .recv = a->statistics,
                     .count = (size_t)a->env.lane->size * part,
                     .dtype = PTB_F32};
    return ptb_lane_now(a->env.lane, &call, "all_gather statistics");
}

ptb_status ptb_tensor_axis_join(ptb_tensor_axis *a)
{
    return ptb_lane_join(a->env.lane);
}
