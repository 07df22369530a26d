// What a plan is measured on: the device of its parts, and what the machine offers to their conditions.
#include "bench/plan.h"

#include "collectives/comm.h"
#include "core/log.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

enum { NAMES_MAX = 32 }; // of a list

// The name as the registry has it, where its devices are counted: not the host's.
static const char *counted_device(const char *name)
{
    const ptb_plugin *plugin = ptb_registry_find(PTB_KIND_DEVICE, name);
    return plugin && ((const ptb_device_ops *)(const void *)plugin)->count ? plugin->name : NULL;
}

static const char *device_of_comm(const char *name)
{
    const ptb_plugin *plugin = ptb_registry_find(PTB_KIND_COMM, name);
    return plugin ? counted_device(ptb_comm_device((const ptb_comm_ops *)(const void *)plugin)) : NULL;
}

// By the option's value, a list of names; NULL as well where the benchmark has no such option.
static const char *device_by(const ptb_part *part, const char *option, const char *(*device_of)(const char *))
{
    ptb_opt_set set = ptb_part_bench_set(part);
    const ptb_opt *opt = ptb_opts_find(&set, option);
    ptb_text value = PTB_TEXT_INIT;
    const char *found = NULL;
    if (opt && (opt->type == PTB_OPT_STRING || opt->type == PTB_OPT_LIST)) {
        char *storage = NULL;
        const char *names[NAMES_MAX];
        ptb_opts_render(&set, (size_t)(opt - set.opts), &value);
        size_t count = ptb_text_split(ptb_text_string(&value), ',', &storage, names, NAMES_MAX);
        for (size_t i = 0; i < count && !found; i++)
            found = device_of(names[i]);
        free(storage);
    }
    ptb_text_release(&value);
    return found;
}

const char *ptb_plan_device(const ptb_plan *plan)
{
    const char *found = NULL;
    for (size_t i = 0; i < plan->count && !found; i++) {
        found = device_by(&plan->parts[i], "device", counted_device);
        if (!found)
            found = device_by(&plan->parts[i], "comm", device_of_comm);
    }
    return found;
}

// The i-th registered device, where it is counted.
static const char *counted_at(size_t i)
{
    return counted_device(ptb_registry_at(PTB_KIND_DEVICE, i)->name);
}

static int count_gpus(void)
{
    int count = 0;
    for (size_t i = 0; i < ptb_registry_count(PTB_KIND_DEVICE); i++)
        count += counted_at(i) ? ptb_device_count(counted_at(i)) : 0;
    return count;
}

ptb_status ptb_plan_offer(const ptb_plan *plan, ptb_world *world, const ptb_topology *topology,
                          ptb_offer *offer)
{
    bool asks = false;
    for (size_t i = 0; i < plan->count; i++)
        asks = asks || ptb_requires_asks(plan->parts[i].requires, "gpu");
    int mine = asks ? count_gpus() : 0, least = INT_MAX;
    int *all = calloc((size_t)world->size, sizeof *all);
    ptb_status status = ptb_world_agree(world, all ? PTB_OK : PTB_NO_MEMORY);
    if (status == PTB_OK)
        status = ptb_world_all_gather(world, &mine, sizeof mine, all);
    for (int r = 0; r < world->size && status == PTB_OK; r++)
        least = all[r] < least ? all[r] : least;
    free(all);
    *offer = (ptb_offer){world->size, world->hosts, topology->cores, least};
    return status != PTB_OK ? status : ptb_world_broadcast(world, 0, offer, sizeof *offer);
}

void ptb_plan_mention_gpus(const ptb_plan *plan, const ptb_topology *topology)
{
    bool can = false;
    for (size_t i = 0; i < ptb_registry_count(PTB_KIND_DEVICE); i++)
        can = can || counted_at(i);
    if (can && strstr(topology->parts, "\"gpus\"") && !ptb_plan_device(plan))
        ptb_info(
            "this machine has GPUs, and nothing of this run is on them: `ptbench run gpu-quick` is the first "
            "look at them, --device cuda puts a benchmark there");
}
