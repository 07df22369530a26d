// See step_profile.h.
#include "strategies/step_profile.h"

#include "core/clock.h"
#include "core/log.h"

#include <inttypes.h>

enum { PROFILED_STEPS = 6 };

bool ptb_step_is_captured(const ptb_trainer *t)
{
    return !t->compute->ops->stream_call;
}

// Begins recording on all ranks, or on none: then *cannot, and a rank that is kept from it says by what.
static ptb_status start(ptb_trainer *t, bool *cannot)
{
    ptb_world *world = t->config.world;
    ptb_status mine = ptb_capture_start(t->capture), status = mine == PTB_UNSUPPORTED ? PTB_OK : mine;
    double kept = mine == PTB_UNSUPPORTED;
    if (kept > 0)
        ptb_warn("rank %d: the step cannot be broken down: %s", world->rank, t->capture->cannot);
    status = ptb_world_agree(world, status);
    if (status == PTB_OK)
        status = ptb_world_reduce_max(world, &kept, 1);
    *cannot = kept > 0;
    if (mine == PTB_OK && (status != PTB_OK || *cannot))
        (void)ptb_capture_stop(t->capture);
    return status;
}

// The timed steps launched a graph that was recorded while nobody watched whose its work is.
static ptb_status record_graph(ptb_trainer *t, bool *cannot)
{
    *cannot = false;
    if (!t->config.graph)
        return PTB_OK;
    t->capture->without_inside = true; // or it would be another graph than the timed one
    ptb_status started = start(t, cannot);
    if (started != PTB_OK || *cannot) {
        t->capture->without_inside = false;
        return started;
    }
    ptb_status status = ptb_trainer_record_graph(t), stopped = ptb_capture_stop(t->capture);
    t->capture->without_inside = false;
    ptb_trace_clear(t->config.trace);
    return ptb_world_agree(t->config.world, status == PTB_OK ? stopped : status);
}

// Their spans are in the trainer's trace afterwards. times_ns[steps]: each has its part of the whole.
static ptb_status profile_steps(ptb_trainer *t, uint64_t steps, double *times_ns, bool *cannot)
{
    ptb_trace_clear(t->config.trace);
    PTB_TRY(start(t, cannot));
    if (*cannot)
        return PTB_OK;
    ptb_status status = PTB_OK;
    int64_t begin_ns = ptb_clock_ns();
    for (uint64_t i = 0; i < steps && status == PTB_OK; i++)
        status = ptb_trainer_step(t);
    if (status == PTB_OK)
        status = ptb_trainer_drain(t);
    for (uint64_t i = 0; i < steps; i++)
        times_ns[i] = (double)(ptb_clock_ns() - begin_ns) / (double)steps;
    ptb_status stopped = ptb_capture_stop(t->capture);
    return ptb_world_agree(t->config.world, status == PTB_OK ? stopped : status);
}

static ptb_status take_spans(ptb_trainer *t, ptb_trace *to, uint64_t lost, ptb_step_breakdown *breakdown)
{
    size_t count, dropped;
    const ptb_span *spans = ptb_trace_spans(t->config.trace, &count, &dropped);
    PTB_TRY(ptb_step_breakdown_add(breakdown, spans, count, dropped + (size_t)lost, t->clocks > 0, t->steps));
    for (size_t i = 0; i < count; i++)
        ptb_trace_record(to, &spans[i]);
    return PTB_OK;
}

// They are in no sum, so only the timeline lacks them.
static void warn_of_inside(const ptb_trainer *t)
{
    const ptb_capture_stats *s = &t->capture->stats;
    if (s->inside_dropped + s->inside_late > 0)
        ptb_warn("rank %d: the trace lacks %" PRIu64 " events of NCCL's inside: %" PRIu64
                 " did not fit, %" PRIu64 " had not ended when the step was read",
                 t->config.world->rank, s->inside_dropped + s->inside_late, s->inside_dropped,
                 s->inside_late);
}

// Their breakdown would have zeros where there is something.
static void warn_of_nodes(const ptb_trainer *t)
{
    const ptb_capture_stats *s = &t->capture->stats;
    const char *why = t->capture->nodes_cannot;
    if (s->unattributed_nodes > 0)
        ptb_warn("rank %d: of %" PRIu64
                 " pieces of work of the recorded graph it is not known whose they are, "
                 "so the step is not broken down%s%s; without --graph it is",
                 t->config.world->rank, s->unattributed_nodes, why[0] ? ": " : "", why);
}

// What makes the parts of a step unknown.
static uint64_t unknown_of(const ptb_trainer *t)
{
    return t->capture->stats.dropped + t->capture->stats.unattributed_nodes;
}

ptb_status ptb_step_profile(ptb_trainer *t, ptb_trace *to, ptb_step_breakdown *breakdown, double timed_ns,
                            uint64_t *steps, ptb_metrics *metrics)
{
    double times_ns[PROFILED_STEPS], without = !t->capture;
    *steps = 0;
    if (!ptb_step_is_captured(t))
        return PTB_OK;
    PTB_TRY(ptb_world_reduce_max(t->config.world, &without, 1));
    if (without > 0)
        return PTB_OK;
    uint64_t more = t->config.max_steps - t->steps, wanted = more < PROFILED_STEPS ? more : PROFILED_STEPS;
    uint64_t at_once = t->clocks ? wanted : 1; // where one goes on in the next
    bool stop;
    PTB_TRY(record_graph(t, &stop));
    while (!stop && *steps < wanted) {
        uint64_t unknown = unknown_of(t);
        PTB_TRY(profile_steps(t, at_once, &times_ns[*steps], &stop));
        if (stop)
            break;
        PTB_TRY(take_spans(t, to, unknown_of(t) - unknown, breakdown));
        *steps += at_once;
    }
    ptb_trace_clear(t->config.trace);
    if (!*steps)
        return PTB_OK;
    warn_of_inside(t);
    warn_of_nodes(t);
    ptb_summary summary = ptb_stats_summarise(times_ns, (size_t)*steps);
    ptb_metrics_add(metrics, "capture_overhead", 100 * (summary.median / timed_ns - 1), "%", PTB_NEUTRAL,
                    "median of rank 0's 6 recorded steps / median timed step - 1");
    return PTB_OK;
}

static void attention_facts(const ptb_trainer *t, ptb_params *facts)
{
    static const char *const names[] = {"attention_kernels", "attention_grad_kernels"};
    const ptb_kernels *kernels = t->config.kernels;
    for (int gradient = 0; gradient < 2; gradient++) {
        const char *ran =
            kernels->attention_kernels ? kernels->attention_kernels(t->compute, gradient) : NULL;
        if (ran)
            ptb_params_set(facts, names[gradient], "%s", ran);
    }
}

void ptb_step_profile_facts(const ptb_trainer *t, ptb_params *facts)
{
    attention_facts(t, facts);
    if (!ptb_step_is_captured(t))
        return;
    if (t->capture)
        ptb_params_set(facts, "timed_beside", "%s",
                       t->capture->was_attached
                           ? "a profiler that has recorded an earlier case of this process"
                           : "no profiler");
    if (!t->capture || t->capture->cannot[0]) {
        ptb_params_set(facts, "capture", "none: %s",
                       t->capture ? t->capture->cannot : "no profiler for this device");
        return;
    }
    const ptb_capture_stats *s = &t->capture->stats;
    ptb_params_set(facts, "capture", "%s", t->capture->ops->plugin.summary);
    ptb_params_set(facts, "captured_kernels", "%" PRIu64, s->kernels);
    ptb_params_set(facts, "captured_copies", "%" PRIu64, s->copies + s->sets);
    ptb_params_set(facts, "captured_graph_nodes", "%" PRIu64, s->graph_nodes);
    ptb_params_set(facts, "capture_unattributed", "%" PRIu64, s->unattributed);
    if (s->graph_nodes)
        ptb_params_set(facts, "capture_unknown_nodes", "%" PRIu64, s->unattributed_nodes);
    ptb_params_set(facts, "capture_dropped", "%" PRIu64, s->dropped);
    ptb_params_set(facts, "capture_nccl_dropped", "%" PRIu64, s->inside_dropped);
    ptb_params_set(facts, "capture_nccl_late", "%" PRIu64, s->inside_late);
    ptb_params_set(facts, "capture_overhead_ns", "%" PRIu64, s->overhead_ns);
}
