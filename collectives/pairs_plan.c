// The options of the benchmark `pairs`, and the cases that follow from them.
#include "collectives/pairs.h"
#include "core/log.h"

#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LIST_MAX = 16, CASES_MAX = 1 << 14 };

const char *const ptb_path_names[] = {"send", "h2d", "d2h", "d2d", "peer", "peer-kernel", NULL};

static const char *const pair_choices[] = {"all", "across", "ring", NULL};

#define FIELD(field) .offset = offsetof(ptb_pairs_config, field)
const ptb_opt ptb_pairs_opts[] = {
    {.name = "paths",
     .type = PTB_OPT_LIST,
     FIELD(paths),
     .def = "auto",
     .metavar = "LIST",
     .help =
         "send (through the communicator), h2d and d2h (pinned host memory), d2d (within a device), peer (to "
         "another device by the copy engine), peer-kernel (by a kernel); auto: send, on devices other than "
         "the "
         "host all of them"},
    {.name = "pairs",
     .type = PTB_OPT_CHOICE,
     FIELD(pairs),
     .def = "all",
     .choices = pair_choices,
     .help = "Which ranks send to which: all to all others; across: only to ranks of the same number on "
             "other hosts "
             "(over whichever network cards the communicator takes; what each port counted is stored); ring: "
             "each to "
             "the next"},
    {.name = "comm",
     .type = PTB_OPT_STRING,
     FIELD(comm),
     .def = "auto",
     .metavar = "NAME",
     .help = "Communicator of send; auto: host, or nccl where the device is cuda"},
    {.name = "transport",
     .type = PTB_OPT_STRING,
     FIELD(transport),
     .metavar = "NAME",
     .help = "Transport that send must use"},
    {.name = "device",
     .type = PTB_OPT_STRING,
     FIELD(device),
     .def = "host",
     .metavar = "NAME",
     .help = "Where the buffers are"},
    {.name = "bytes",
     .letter = 'b',
     .type = PTB_OPT_LIST,
     FIELD(bytes),
     .def = "64M",
     .metavar = "LIST",
     .help = "Bytes of one transfer"},
};

_Static_assert(sizeof ptb_pairs_opts / sizeof *ptb_pairs_opts == PTB_PAIRS_OPT_COUNT, "count of options");

// ---- options to cases

static ptb_status parse_paths(const char *text, bool is_host, bool wanted[PTB_PATHS])
{
    if (strcmp(text, "auto") == 0) {
        for (int p = 0; p < PTB_PATHS; p++)
            wanted[p] = p == PTB_PATH_SEND || !is_host;
        return PTB_OK;
    }
    char *storage;
    const char *items[LIST_MAX];
    size_t n = ptb_text_split(text, ',', &storage, items, LIST_MAX);
    ptb_status status = PTB_OK;
    for (size_t i = 0; i < n && status == PTB_OK; i++) {
        int p = 0;
        while (p < PTB_PATHS && strcmp(ptb_path_names[p], items[i]) != 0)
            p++;
        if (p < PTB_PATHS) {
            wanted[p] = true;
            continue;
        }
        char near[128];
        ptb_text_nearest(items[i], ptb_path_names, PTB_PATHS, near, sizeof near);
        ptb_error("--paths: there is no path '%s'; did you mean %s?", items[i], near);
        status = PTB_USAGE;
    }
    free(storage);
    return status;
}

static ptb_status parse_bytes(const char *text, size_t *bytes, size_t *count)
{
    char *storage;
    const char *items[LIST_MAX];
    size_t n = ptb_text_split(text, ',', &storage, items, LIST_MAX), pieces = ptb_text_pieces(text, ',');
    ptb_status status = n && pieces <= LIST_MAX ? PTB_OK : PTB_USAGE;
    for (size_t i = 0; i < n && status == PTB_OK; i++) {
        uint64_t value;
        if (!ptb_text_parse_size(items[i], &value) || value == 0 || value > 1ull << 40) {
            ptb_error("--bytes '%s': expected a size from 1 to 1T, such as 64M", items[i]);
            status = PTB_USAGE;
        } else {
            bytes[i] = (size_t)value;
        }
    }
    if (n == 0)
        ptb_error("--bytes: expected at least one size, such as 64M");
    else if (pieces > LIST_MAX)
        ptb_error("--bytes: the list has %zu entries; at most %d are taken, so make several runs", pieces,
                  LIST_MAX);
    *count = n;
    free(storage);
    return status;
}

// Whether `from` sends to `to` under --pairs.
static bool is_paired(const ptb_world *w, const char *pairs, int from, int to)
{
    if (from == to)
        return false;
    if (strcmp(pairs, "ring") == 0)
        return to == (from + 1) % w->size;
    if (strcmp(pairs, "all") == 0)
        return true;
    return w->host_of[from] != w->host_of[to] && ptb_world_local_rank(w, from) == ptb_world_local_rank(w, to);
}

static ptb_status add_point(ptb_pairs_plan *plan, ptb_path path, int from, int to, size_t bytes)
{
    if (plan->count == CASES_MAX) {
        ptb_error("more than %d pairs; use --pairs across or --pairs ring, fewer --paths or fewer ranks",
                  CASES_MAX);
        return PTB_USAGE;
    }
    plan->points[plan->count++] = (ptb_pairs_point){path, from, to, bytes};
    return PTB_OK;
}

bool ptb_path_is_between_ranks(ptb_path path)
{
    return path == PTB_PATH_SEND || path == PTB_PATH_PEER || path == PTB_PATH_PEER_KERNEL;
}

static ptb_status add_path(ptb_pairs_plan *plan, const ptb_world *w, ptb_path path, const char *pairs,
                           size_t bytes)
{
    for (int from = 0; from < w->size; from++)
        for (int to = 0; to < w->size; to++)
            if (ptb_path_is_between_ranks(path) ? is_paired(w, pairs, from, to) : from == to)
                PTB_TRY(add_point(plan, path, from, to, bytes));
    return PTB_OK;
}

// Only messages go through a communicator.
static ptb_status check_used(const ptb_pairs_config *c, const bool wanted[PTB_PATHS])
{
    static const char send[] = "send in --paths", other[] = "send, peer or peer-kernel in --paths";
    const ptb_opt_set set = {
        .opts = ptb_pairs_opts, .count = PTB_PAIRS_OPT_COUNT, .config = (void *)c}; // read alone
    bool sends = wanted[PTB_PATH_SEND];
    const ptb_opt_use rows[] = {
        {"comm", send, sends},
        {"transport", send, sends},
        {"pairs", other, sends || wanted[PTB_PATH_PEER] || wanted[PTB_PATH_PEER_KERNEL]},
    };
    return ptb_opts_check_used(&set, rows, sizeof rows / sizeof *rows);
}

// Messages go through a communicator that moves the memory of the device.
static ptb_status choose_comm(ptb_pairs_plan *plan)
{
    char reason[PTB_REASON_BYTES];
    plan->comm_ops = (const ptb_comm_ops *)ptb_registry_need(PTB_KIND_COMM, plan->comm);
    if (!plan->comm_ops)
        return PTB_USAGE;
    if (ptb_comm_moves(plan->comm_ops, plan->device, reason))
        return PTB_OK;
    ptb_error("--comm %s with --device %s: %s; leave --comm out to get the device's own", plan->comm,
              plan->device, reason);
    return PTB_USAGE;
}

static ptb_status copy_names(const ptb_pairs_config *c, ptb_pairs_plan *plan)
{
    bool is_host = strcmp(c->device, "host") == 0;
    plan->device = strdup(c->device);
    plan->comm = strdup(strcmp(c->comm, "auto") ? c->comm : is_host ? "host" : "nccl");
    plan->transport = c->transport && *c->transport ? strdup(c->transport) : NULL;
    plan->points = malloc(CASES_MAX * sizeof *plan->points);
    if (plan->device && plan->comm && plan->points)
        return PTB_OK;
    ptb_error("no memory for the list of pairs");
    return PTB_NO_MEMORY;
}

ptb_status ptb_pairs_plan_make(const ptb_pairs_config *c, const ptb_world *world, ptb_pairs_plan *plan)
{
    bool wanted[PTB_PATHS] = {false};
    size_t bytes[LIST_MAX], sizes;
    *plan = (ptb_pairs_plan){.count = 0};
    PTB_TRY(copy_names(c, plan));
    if (!ptb_registry_need(PTB_KIND_DEVICE, c->device))
        return PTB_USAGE;
    PTB_TRY(parse_paths(c->paths, strcmp(c->device, "host") == 0, wanted));
    PTB_TRY(check_used(c, wanted));
    PTB_TRY(parse_bytes(c->bytes, bytes, &sizes));
    if (wanted[PTB_PATH_SEND])
        PTB_TRY(choose_comm(plan));
    for (int p = 0; p < PTB_PATHS; p++)
        for (size_t b = 0; b < sizes && wanted[p]; b++)
            PTB_TRY(add_path(plan, world, (ptb_path)p, c->pairs, bytes[b]));
    if (plan->count > 0)
        return PTB_OK;
    ptb_error("there are no pairs: %d rank%s on %d host%s; start more ranks (--np), or take other --paths or "
              "--pairs",
              world->size, world->size == 1 ? "" : "s", world->hosts, world->hosts == 1 ? "" : "s");
    return PTB_UNSUPPORTED;
}

void ptb_pairs_plan_release(ptb_pairs_plan *plan)
{
    free(plan->points);
    free(plan->comm);
    free(plan->transport);
    free(plan->device);
    *plan = (ptb_pairs_plan){.count = 0};
}
