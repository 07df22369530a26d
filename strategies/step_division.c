// See step_division.h.
#include "strategies/step_division.h"

#include "core/log.h"

ptb_status ptb_step_divide(const ptb_step_config *c, const ptb_world *world, const ptb_model_shape *shape,
                           const char *strategy, ptb_step_division *d)
{
    bool asked = c->mesh && *c->mesh;
    ptb_mesh_sizes sizes;
    *d = (ptb_step_division){.strategy = ptb_strategy_find(strategy)};
    PTB_TRY(ptb_mesh_parse(c->mesh, &sizes));
    ptb_mesh_sizes_text(&sizes, d->asked);
    ptb_status status = ptb_strategy_mesh(d->strategy, &sizes, world, shape, &d->mesh, d->skip);
    if (status != PTB_OK && asked) {
        ptb_error("%s", d->skip);
        return status;
    }
    return PTB_OK;
}
