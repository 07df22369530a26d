// See step_estimate.h.
#include "strategies/step_estimate.h"

#include "core/device.h"
#include "strategies/datasheet.h"
#include "strategies/step_config.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

// Between the model FLOPs utilisation of 30 to 50 % that is reported for training of models that fit (PaLM,
// section 4.1, table 3; Megatron-LM on A100: 44 to 52 %) and the less that small models reach.
static const double share = 0.35;

// FLOP/s that this rank may reach. guess: "35 % of the 989.5 TFLOP/s of the data sheet of NVIDIA H200".
static double guess_rate(const char *device, const ptb_world *world, const char *precision,
                         char guess[PTB_GUESS_BYTES])
{
    const double of_a_processor = 100e9, of_a_gpu = 20e12;
    const ptb_device_ops *ops = (const ptb_device_ops *)ptb_registry_find(PTB_KIND_DEVICE, device);
    char description[128] = "";
    if (!ops || !ops->describe || !ops->describe(world->local_rank, description) ||
        strstr(description, "simulated")) {
        snprintf(guess, PTB_GUESS_BYTES, "%g GFLOP/s a rank", of_a_processor / 1e9);
        return of_a_processor;
    }
    int name = (int)strcspn(description, ",");
    double peak = ptb_datasheet_flops(description, ptb_step_type(precision), ptb_step_is_tf32(precision));
    if (isnan(peak)) {
        snprintf(guess, PTB_GUESS_BYTES, "%g TFLOP/s, with no data sheet of %.*s", of_a_gpu / 1e12, name,
                 description);
        return of_a_gpu;
    }
    snprintf(guess, PTB_GUESS_BYTES, "%g %% of the %g TFLOP/s of the data sheet of %.*s", 100 * share,
             peak / 1e12, name, description);
    return share * peak;
}

void ptb_step_guess(const ptb_bench_env *env, const char *device, const char *precision, double flops,
                    ptb_case *c)
{
    c->estimate_s = flops / env->world->size / guess_rate(device, env->world, precision, c->guess);
}
