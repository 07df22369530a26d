// See step_ideal.h.
#include "strategies/step_ideal.h"

#include "core/clock.h"
#include "core/stats.h"

enum { IDEAL_STEPS = 7, WARM_UP = 1 };

static void mute(ptb_trainer *t, bool muted)
{
    for (int i = 0; i < PTB_LANE_COUNT; i++)
        t->lanes.lane[i].muted = muted;
}

// Where updates go on beside later steps they do so here.
static ptb_status time_steps(ptb_trainer *t, double times_ns[IDEAL_STEPS])
{
    ptb_trace_clear(t->config.trace);
    for (int i = -WARM_UP; i < IDEAL_STEPS; i++) {
        PTB_TRY(ptb_world_start(t->config.world));
        int64_t begin_ns = ptb_clock_ns();
        ptb_status status = ptb_trainer_step(t);
        double time_ns = (double)(ptb_clock_ns() - begin_ns);
        PTB_TRY(ptb_world_agree(t->config.world, status));
        if (i >= 0)
            times_ns[i] = time_ns;
    }
    PTB_TRY(ptb_world_agree(t->config.world, ptb_trainer_drain(t)));
    // As a timed step: the slowest rank's.
    return ptb_world_reduce_max(t->config.world, times_ns, IDEAL_STEPS);
}

ptb_status ptb_step_ideal(ptb_trainer *t, double step_ns, ptb_metrics *metrics)
{
    double times_ns[IDEAL_STEPS];
    uint64_t steps = t->steps;
    if (t->config.world->size == 1 || t->config.graph || t->config.mesh.size[PTB_MESH_EP] > 1 ||
        t->steps + IDEAL_STEPS + WARM_UP > t->config.max_steps)
        return PTB_OK;
    mute(t, true);
    ptb_status status = time_steps(t, times_ns);
    mute(t, false);
    ptb_trace_clear(t->config.trace);
    t->steps = t->recorded = steps;
    PTB_TRY(status);
    ptb_summary summary = ptb_stats_summarise(times_ns, IDEAL_STEPS);
    ptb_metrics_add(metrics, "ideal_step", summary.median * 1e-6, "ms", PTB_NEUTRAL,
                    "median of 7 steps of the slowest rank with nothing communicated, after the timed ones");
    ptb_metrics_add(metrics, "comm_efficiency", 100 * summary.median / step_ns, "%", PTB_HIGHER_IS_BETTER,
                    "ideal_step / median timed step");
    return PTB_OK;
}
