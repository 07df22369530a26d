// Options of collectives that not every run looks at: whoever gives one believes that it matters. One that
// some communicator, algorithm or pattern of the run looks at is taken.
#include "collectives/coll_run.h"
#include "core/log.h"

#include <string.h>

static bool is_comm(const ptb_coll_plan *plan, int comm, const char *name)
{
    return strcmp(plan->comms[comm]->plugin.name, name) == 0;
}

static bool has_comm(const ptb_coll_plan *plan, const char *name)
{
    for (int c = 0; c < plan->comm_count; c++)
        if (is_comm(plan, c, name))
            return true;
    return false;
}

// The MPI library takes a segment with an algorithm, where it is told which; NCCL has none to give.
static bool takes_segments(const ptb_coll_plan *plan)
{
    bool is_chosen = false;
    for (int a = 0; a < plan->algo_count; a++)
        is_chosen = is_chosen || (strcmp(plan->algos[a], "default") && strcmp(plan->algos[a], "auto"));
    for (int c = 0; c < plan->comm_count; c++)
        if (is_comm(plan, c, "mpi") ? is_chosen : !is_comm(plan, c, "nccl"))
            return true;
    return false;
}

// Both of one place: the command line's have replaced those of a suite (bench/plan.c).
static ptb_status check_sizes(const ptb_coll_plan *plan, const ptb_opt_set *options)
{
    static const char *const bounds[] = {"min-bytes", "max-bytes", "step-factor", "step-bytes"};
    const ptb_coll_config *c = options->config;
    bool bytes = c->bytes && *c->bytes, count = c->count && *c->count;
    for (size_t i = 0; (bytes || count) && i < sizeof bounds / sizeof *bounds; i++) {
        const ptb_opt *opt = ptb_opts_find(options, bounds[i]);
        if (!opt || ptb_opts_is_default(options, opt))
            continue;
        ptb_coll_refuse(
            plan,
            "--%s gives exact sizes and --%s belongs to a sweep: leave one of them out, since only "
            "one of them can give the sizes",
            bytes ? "bytes" : "count", bounds[i]);
        return PTB_USAGE;
    }
    return PTB_OK;
}

ptb_status ptb_coll_check_used(const ptb_coll_plan *plan, const ptb_opt_set *options)
{
    PTB_TRY(check_sizes(plan, options));
    bool nccl = has_comm(plan, "nccl");
    const ptb_opt_use rows[] = {
        {"channels", "--comm nccl", nccl},
        {"gpu-direct", "--comm nccl", nccl},
        {"segment", "--comm host, or --comm mpi with an --algo of its own", takes_segments(plan)},
        {"blocking", "a collective (patterns of point to point wait where they have to)",
         !ptb_coll_is_p2p(&plan->subjects[0])},
    };
    return ptb_opts_check_used(options, rows, sizeof rows / sizeof *rows);
}
