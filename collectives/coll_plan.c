// From options to a plan: every list is expanded and checked against what exists, so that a mistake is told
// once and before anything is measured.
#include "collectives/coll_run.h"
#include "core/log.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char *const ptb_coll_place_names[] = {"out", "in", NULL};
const char *const ptb_coll_gpu_direct_names[] = {"default", "off", "on", NULL};

// A parsed list option; `storage` owns the pieces.
typedef struct {
    char *storage;
    const char *items[PTB_COLL_LIST_MAX];
    size_t count;
} list;

// USAGE when the list is longer than there is room for; an empty one has no items.
static ptb_status list_split(const ptb_coll_plan *plan, const char *option, const char *text, list *l)
{
    *l = (list){0};
    if (!text || !*text)
        return PTB_OK;
    size_t pieces = ptb_text_pieces(text, ',');
    if (pieces > PTB_COLL_LIST_MAX) {
        ptb_coll_refuse(plan, "--%s: the list has %zu entries; at most %d are taken, so make several runs",
                        option, pieces, PTB_COLL_LIST_MAX);
        return PTB_USAGE;
    }
    l->count = ptb_text_split(text, ',', &l->storage, l->items, PTB_COLL_LIST_MAX);
    return PTB_OK;
}

static size_t names_count(const char *const *names)
{
    size_t n = 0;
    while (names && names[n])
        n++;
    return n;
}

static ptb_status unknown(const ptb_coll_plan *plan, const char *option, const char *word, const char *what,
                          const char *const *names)
{
    char near[256];
    ptb_text_nearest(word, names, names_count(names), near, sizeof near);
    ptb_coll_refuse(plan, "--%s: there is no %s '%s'; did you mean %s?", option, what, word, near);
    return PTB_USAGE;
}

// What this program would have if it had been built for GPUs is refused with how to build it so.
static const ptb_plugin *find_plugin(const ptb_coll_plan *plan, ptb_kind kind, const char *name)
{
    bool of_gpus = strcmp(name, kind == PTB_KIND_DEVICE ? "cuda" : "nccl") == 0;
    if (of_gpus && !ptb_registry_find(kind, name)) {
        ptb_coll_refuse(plan,
                        "%s '%s': this ptbench was built without GPUs; configure it with -DPTB_GPU=cuda",
                        ptb_kind_word(kind), name);
        return NULL;
    }
    return plan->speaks ? ptb_registry_need(kind, name) : ptb_registry_find(kind, name);
}

static ptb_status parse_types(const ptb_coll_plan *plan, const char *text, ptb_dtype *types, int *count)
{
    list l;
    ptb_status status = list_split(plan, "type", text, &l);
    *count = 0;
    for (size_t i = 0; i < l.count && status == PTB_OK; i++) {
        ptb_dtype type;
        if (strcmp(l.items[i], "all") == 0) {
            for (int t = 0; t < PTB_DTYPE_COUNT; t++)
                types[t] = (ptb_dtype)t;
            *count = PTB_DTYPE_COUNT;
            break;
        }
        if (!ptb_dtype_parse(l.items[i], &type))
            status = unknown(plan, "type", l.items[i], "element type", ptb_dtype_names);
        else
            types[(*count)++] = type;
    }
    if (status == PTB_OK && *count == 0) {
        ptb_coll_refuse(plan, "--type: the list is empty");
        status = PTB_USAGE;
    }
    free(l.storage);
    return status;
}

static ptb_status parse_ops(const ptb_coll_plan *plan, const char *text, ptb_redop *ops, int *count)
{
    list l;
    ptb_status status = list_split(plan, "op", text, &l);
    *count = 0;
    for (size_t i = 0; i < l.count && status == PTB_OK; i++) {
        ptb_redop op;
        if (strcmp(l.items[i], "all") == 0) {
            for (int o = 0; o < PTB_REDOP_COUNT; o++)
                ops[o] = (ptb_redop)o;
            *count = PTB_REDOP_COUNT;
            break;
        }
        if (!ptb_redop_parse(l.items[i], &op))
            status = unknown(plan, "op", l.items[i], "reduction operation", ptb_redop_names);
        else
            ops[(*count)++] = op;
    }
    if (status == PTB_OK && *count == 0) {
        ptb_coll_refuse(plan, "--op: the list is empty");
        status = PTB_USAGE;
    }
    free(l.storage);
    return status;
}

static ptb_status parse_places(const ptb_coll_plan *plan, const char *text, bool *in_place, int *count)
{
    list l;
    ptb_status status = list_split(plan, "place", text, &l);
    *count = 0;
    for (size_t i = 0; i < l.count && status == PTB_OK; i++) {
        if (strcmp(l.items[i], "out") == 0 || strcmp(l.items[i], "in") == 0)
            in_place[(*count)++] = l.items[i][0] == 'i';
        else
            status = unknown(plan, "place", l.items[i], "place", ptb_coll_place_names);
    }
    if (status == PTB_OK && *count == 0)
        in_place[(*count)++] = false;
    free(l.storage);
    return status;
}

// What --comm stands for when it is not given: those that move the memory of the device that is.
static ptb_status default_comms(ptb_coll_plan *plan)
{
    static const char *const names[] = {"mpi", "host"};
    if (!plan->device || strcmp(plan->device, "host") == 0) {
        for (int i = 0; i < 2; i++)
            plan->comms[plan->comm_count++] =
                (const ptb_comm_ops *)(const void *)ptb_registry_find(PTB_KIND_COMM, names[i]);
        return PTB_OK;
    }
    for (size_t i = 0; i < ptb_registry_count(PTB_KIND_COMM) && plan->comm_count < PTB_COLL_LIST_MAX; i++) {
        const ptb_comm_ops *ops = (const ptb_comm_ops *)(const void *)ptb_registry_at(PTB_KIND_COMM, i);
        if (strcmp(ptb_comm_device(ops), plan->device) == 0)
            plan->comms[plan->comm_count++] = ops;
    }
    if (plan->comm_count > 0)
        return PTB_OK;
    ptb_coll_refuse(plan, "--device %s: this ptbench has no communicator for its memory", plan->device);
    return PTB_USAGE;
}

static ptb_status parse_comms(const char *text, ptb_coll_plan *plan)
{
    list l;
    if (!text)
        return default_comms(plan);
    ptb_status status = list_split(plan, "comm", text, &l);
    for (size_t i = 0; i < l.count && status == PTB_OK; i++) {
        const ptb_plugin *found = find_plugin(plan, PTB_KIND_COMM, l.items[i]);
        if (!found)
            status = PTB_USAGE;
        else
            plan->comms[plan->comm_count++] = (const ptb_comm_ops *)(const void *)found;
    }
    if (status == PTB_OK && plan->comm_count == 0) {
        ptb_coll_refuse(plan, "--comm: the list is empty");
        status = PTB_USAGE;
    }
    free(l.storage);
    return status;
}

static bool has_name(const char *const *names, const char *name)
{
    for (; names && *names; names++)
        if (strcmp(*names, name) == 0)
            return true;
    return false;
}

// A name must be known to one of the communicators, if only for another collective (a suite's list of
// algorithms is for several); where it is not, the cases are skipped with the reason.
static ptb_status check_algorithm(const ptb_coll_plan *plan, const char *name)
{
    ptb_coll_kind mine = plan->subjects[0].collective.kind;
    if (strcmp(name, "default") == 0 || strcmp(name, "auto") == 0)
        return PTB_OK;
    const char *all[PTB_COLL_LIST_MAX * 2 + 2] = {"default"};
    size_t count = 1;
    for (int c = 0; c < plan->comm_count; c++)
        for (int kind = 0; kind < PTB_COLL_COUNT; kind++) {
            const char *const *names = plan->comms[c]->algorithms((ptb_coll_kind)kind);
            if (has_name(names, name))
                return PTB_OK;
            for (; (int)mine == kind && names && *names && count < PTB_COLL_LIST_MAX * 2; names++)
                if (!has_name(all, *names))
                    all[count++] = *names;
        }
    char near[512];
    ptb_text_nearest(name, all, count, near, sizeof near);
    ptb_coll_refuse(plan, "--algo: no chosen communicator has an algorithm '%s'; for %s did you mean %s?",
                    name, plan->subjects[0].collective.plugin.name, near);
    return PTB_USAGE;
}

// Each name once.
static ptb_status add_algo(ptb_coll_plan *plan, const char *name)
{
    for (int i = 0; i < plan->algo_count; i++)
        if (strcmp(plan->algos[i], name) == 0)
            return PTB_OK;
    if (plan->algo_count == PTB_COLL_LIST_MAX) {
        ptb_coll_refuse(plan, "--algo: there are more than %d algorithms; name those to be measured",
                        PTB_COLL_LIST_MAX);
        return PTB_USAGE;
    }
    plan->algos[plan->algo_count++] = name;
    return PTB_OK;
}

// The communicators' own choice and every algorithm that one of them has for this collective.
static ptb_status add_all_algos(ptb_coll_plan *plan)
{
    ptb_coll_kind kind = plan->subjects[0].collective.kind;
    PTB_TRY(add_algo(plan, "default"));
    for (int c = 0; c < plan->comm_count; c++)
        for (const char *const *name = plan->comms[c]->algorithms(kind); name && *name; name++)
            PTB_TRY(add_algo(plan, *name));
    return PTB_OK;
}

static ptb_status parse_algos(const char *text, ptb_coll_plan *plan)
{
    list l;
    PTB_TRY(list_split(plan, "algo", text, &l));
    plan->algo_text = l.storage;
    for (size_t i = 0; i < l.count; i++)
        PTB_TRY(strcmp(l.items[i], "all") == 0 ? add_all_algos(plan) : add_algo(plan, l.items[i]));
    if (plan->algo_count == 0)
        PTB_TRY(add_algo(plan, "default"));
    for (int i = 0; i < plan->algo_count; i++)
        PTB_TRY(check_algorithm(plan, plan->algos[i]));
    return PTB_OK;
}

// Colour of a rank under --split; -1 when the text is not understood.
static int split_colour(const char *split, const ptb_world *world, int rank)
{
    int64_t k = 0;
    bool number = strlen(split) > 4 && ptb_text_parse_int(split + 4, &k) && k >= 1 && k <= 1 << 30;
    if (strcmp(split, "all") == 0)
        return 0;
    if (strcmp(split, "node") == 0)
        return world->host_of[rank];
    if (strcmp(split, "across") == 0)
        return ptb_world_local_rank(world, rank);
    if (number && strncmp(split, "mod:", 4) == 0)
        return rank % (int)k;
    if (number && strncmp(split, "div:", 4) == 0)
        return rank / (int)k;
    return -1;
}

static ptb_status plan_groups(const char *split, const ptb_world *world, ptb_coll_plan *plan)
{
    size_t n = (size_t)world->size;
    int *colours = calloc(2 * n, sizeof *colours);
    plan->group_size = calloc(n, sizeof *plan->group_size);
    if (!colours || !plan->group_size) {
        free(colours);
        ptb_error("no memory for the groups of %d ranks", world->size);
        return PTB_NO_MEMORY;
    }
    int *members = colours + n; // by colour, which is less than n
    snprintf(plan->split, sizeof plan->split, "%s", split);
    ptb_status status = PTB_OK;
    for (int r = 0; r < world->size && status == PTB_OK; r++) {
        colours[r] = split_colour(split, world, r);
        if (colours[r] < 0) {
            ptb_coll_refuse(
                plan, "--split: '%s' is none of all, node, across, mod:K, div:K (K a whole number from 1)",
                split);
            status = PTB_USAGE;
        } else if (members[colours[r]]++ == 0) {
            plan->groups++;
        }
    }
    for (int r = 0; r < world->size && status == PTB_OK; r++)
        plan->group_size[r] = members[colours[r]];
    plan->colour = colours[world->rank];
    free(colours);
    return status;
}

static ptb_status check_root(const ptb_coll_config *config, const ptb_world *world, ptb_coll_plan *plan)
{
    for (int r = 0; r < world->size; r++)
        if (config->root >= plan->group_size[r]) {
            ptb_coll_refuse(plan, "--root: rank %lld does not exist in %s of %d ranks",
                            (long long)config->root, plan->groups > 1 ? "a group" : "a world",
                            plan->group_size[r]);
            return PTB_USAGE;
        }
    plan->root = (int)config->root;
    return PTB_OK;
}

static char *copy_or_null(const char *text)
{
    return text && *text ? strdup(text) : NULL;
}

// A graph needs a device that can record one, and a loop that is nothing but calls.
static ptb_status check_graph(const ptb_coll_config *config, const ptb_coll_plan *plan)
{
    for (int c = 0; c < plan->comm_count && config->graph; c++) {
        const char *name = ptb_coll_place_name(plan, c);
        const ptb_device_ops *device =
            (const ptb_device_ops *)(const void *)ptb_registry_find(PTB_KIND_DEVICE, name);
        if (!device || !device->graph_begin) {
            ptb_coll_refuse(
                plan, "--graph needs a GPU stream capture, and device '%s' has none; leave it out", name);
            return PTB_UNSUPPORTED;
        }
    }
    if (config->graph && plan->subjects[0].loop) {
        ptb_coll_refuse(plan, "--graph: point to point is not captured; leave it out");
        return PTB_UNSUPPORTED;
    }
    return PTB_OK;
}

ptb_status ptb_coll_plan_make(const ptb_coll_subject *subjects, const char *const *subject_names,
                              int subject_count, const ptb_bench_env *env, const ptb_coll_config *config,
                              ptb_coll_plan *plan)
{
    *plan = (ptb_coll_plan){
        .subjects = subjects, .subject_count = subject_count, .speaks = env->world->rank == 0};
    for (int i = 0; subject_names && i < subject_count; i++)
        plan->subject_names[i] = subject_names[i];
    plan->device = copy_or_null(config->device);
    if (plan->device && !find_plugin(plan, PTB_KIND_DEVICE, plan->device))
        return PTB_USAGE;
    PTB_TRY(parse_comms(config->comm, plan));
    PTB_TRY(check_graph(config, plan));
    PTB_TRY(parse_algos(config->algo, plan));
    PTB_TRY(plan_groups(config->split ? config->split : "all", env->world, plan));
    PTB_TRY(check_root(config, env->world, plan));
    plan->transport = copy_or_null(config->transport);
    plan->channels = (int)config->channels;
    plan->blocking = config->blocking;
    plan->graph = config->graph;
    for (int i = 0; ptb_coll_gpu_direct_names[i]; i++)
        if (config->gpu_direct && strcmp(config->gpu_direct, ptb_coll_gpu_direct_names[i]) == 0)
            plan->gpu_direct = (ptb_gpu_direct)i;
    plan->segment_bytes = config->segment_bytes;
    plan->aggregate = config->aggregate > 0 ? (int)config->aggregate : 1;
    plan->misalign = (int)config->misalign;
    plan->registered = config->registered;

    ptb_dtype types[PTB_COLL_LIST_MAX] = {PTB_U8};
    ptb_redop ops[PTB_COLL_LIST_MAX] = {PTB_SUM};
    bool places[PTB_COLL_LIST_MAX] = {false};
    int type_count = 1, op_count = 1, place_count = 1;
    if (subjects[0].collective.has_data)
        PTB_TRY(parse_types(plan, config->type, types, &type_count));
    if (subjects[0].collective.reduces)
        PTB_TRY(parse_ops(plan, config->op, ops, &op_count));
    if (subjects[0].collective.in_place)
        PTB_TRY(parse_places(plan, config->place, places, &place_count));
    return ptb_coll_sweep(config, types, type_count, ops, op_count, places, place_count, plan);
}

void ptb_coll_plan_release(ptb_coll_plan *plan)
{
    free(plan->algo_text);
    free(plan->transport);
    free(plan->device);
    free(plan->group_size);
    free(plan->points);
    *plan = (ptb_coll_plan){0};
}
