// See step_division.h.
#include "strategies/step_division.h"

#include "core/log.h"
#include "strategies/context/context.h"
#include "strategies/crowd.h"
#include "strategies/tensor/tensor.h"

#include <stdio.h>
#include <string.h>

// Whether attention goes over sequences that are split so.
static ptb_status check_context(const ptb_step_config *c, const ptb_model_shape *shape, ptb_step_division *d)
{
    const ptb_context *way = (const ptb_context *)ptb_registry_find(PTB_KIND_CONTEXT, c->context);
    ptb_context_axis axis;
    ptb_layout layout;
    if (d->mesh.size[PTB_MESH_CP] == 1)
        return PTB_OK;
    ptb_layout_cut cut = ptb_mesh_cut(&d->mesh);
    PTB_TRY(ptb_layout_init(&layout, shape, &cut));
    ptb_context_env env = {.rank = d->mesh.place[PTB_MESH_CP],
                           .size = d->mesh.size[PTB_MESH_CP],
                           .degree = (int)c->context_degree,
                           .layout = &layout,
                           .batch = 1};
    ptb_status status = ptb_context_describe(&axis, way, &env, d->skip);
    ptb_layout_release(&layout);
    return status;
}

ptb_status ptb_step_divide(const ptb_step_config *c, const ptb_bench_env *env, const ptb_model_shape *shape,
                           const char *strategy, ptb_step_division *d)
{
    bool asked = c->mesh && *c->mesh;
    ptb_mesh_sizes sizes;
    *d = (ptb_step_division){.strategy = ptb_strategy_find(strategy)};
    PTB_TRY(ptb_mesh_parse(c->mesh, &sizes));
    ptb_mesh_sizes_text(&sizes, d->asked);
    ptb_status status = ptb_strategy_mesh(d->strategy, &sizes, env->world, shape, &d->mesh, d->skip);
    if (status == PTB_OK)
        status = check_context(c, shape, d);
    if (status != PTB_OK && asked && !env->sweeps) {
        ptb_error("%s", d->skip);
        return status;
    }
    return PTB_OK;
}

ptb_status ptb_step_divide_batch(const ptb_step_config *c, const ptb_bench_env *env,
                                 const ptb_model_shape *shape, int64_t batch, ptb_step_division *d)
{
    if (d->skip[0])
        return PTB_OK;
    int data = ptb_mesh_size(&d->mesh, PTB_MESH_DATA), tp = d->mesh.size[PTB_MESH_TP];
    if (batch % (data * c->micro_batches)) {
        int64_t effective;
        ptb_status status = ptb_step_batch(c, data, &effective, d->skip);
        if (!env->sweeps)
            ptb_error("%s", d->skip);
        return env->sweeps ? PTB_OK : status;
    }
    int64_t rows = batch / data / c->micro_batches * shape->sequence / d->mesh.size[PTB_MESH_CP];
    bool sequence = c->sequence_parallel || d->strategy->sequence;
    if (tp > 1)
        (void)ptb_tensor_axis_fits((size_t)tp, (size_t)rows, sequence, (int)c->tensor_chunks, d->skip);
    return PTB_OK;
}

void ptb_step_division_facts(const ptb_step_config *c, const ptb_world *world, const ptb_mesh *mesh,
                             ptb_params *facts)
{
    char text[PTB_MESH_TEXT];
    ptb_mesh_text(mesh, text);
    ptb_params_set(facts, "mesh", "%s", text);
    if (strcmp(c->device, "host") == 0)
        ptb_crowd_facts(world, (int)c->threads, "waiting for a turn counts as communication", facts);
}
