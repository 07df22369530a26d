// See crowd.h.
#include "strategies/crowd.h"

#include "core/text.h"

#include <stdio.h>
#include <stdlib.h>
#include <strings.h>

// GCC's library: a count that is given wins over the policy.
bool ptb_crowd_spins(void)
{
    const char *policy = getenv("OMP_WAIT_POLICY"), *spins = getenv("GOMP_SPINCOUNT");
    int64_t count;
    if (spins && ptb_text_parse_int(spins, &count))
        return count != 0;
    return !policy || strcasecmp(policy, "passive") != 0;
}

void ptb_crowd_facts(const ptb_world *world, int threads, const char *effect, ptb_params *facts)
{
    int ranks = world->sharing_ranks, cpus = world->shared_cpus;
    bool spins = threads > 1 && ptb_crowd_spins();
    char who[64];
    if (threads > 1)
        ptb_params_set(facts, "openmp_wait", "%s", spins ? "spin, then sleep" : "sleep at once");
    if ((int64_t)ranks * threads <= cpus)
        return;
    if (ranks == 1)
        snprintf(who, sizeof who, "a rank (threads %d) has", threads);
    else
        snprintf(who, sizeof who, "%d ranks (threads %d) share", ranks, threads);
    // A value has room for 103 characters.
    ptb_params_set(facts, "warning", "%s %d processor%s: %s", who, cpus, cpus == 1 ? "" : "s",
                   spins ? "OpenMP's threads spin; set OMP_WAIT_POLICY=passive" : effect);
}
