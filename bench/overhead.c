// What the loop itself costs: the same loop around an iteration that does nothing.
#include "bench/sampling.h"

static ptb_status iterate_nothing(ptb_bench_run *run, uint64_t n)
{
    (void)run, (void)n;
    return PTB_OK;
}

ptb_status ptb_runner_overhead(ptb_world *world, double *overhead_ns)
{
    static const ptb_bench nothing = {.plugin = {"nothing", "an empty iteration"},
                                      .iterate = iterate_nothing};
    const ptb_runner_env env = {.world = world};
    enum { SAMPLES = 200 };
    ptb_sampler sampler;
    PTB_TRY(ptb_sampler_init(&sampler, &env, &nothing, SAMPLES, false));
    ptb_sampler_begin(&sampler, NULL, 1);
    ptb_status status = ptb_sampler_round(&sampler, SAMPLES);
    if (status == PTB_OK)
        *overhead_ns = ptb_stats_summarise(sampler.mine, sampler.count).median;
    ptb_sampler_release(&sampler);
    return status;
}
