// Sizes and cases: which vectors are measured, in which order, under which names, and which of them are known
// beforehand not to run.
#include "collectives/coll_run.h"
#include "core/log.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SIZES_MAX = 4096, POINTS_MAX = 1 << 20 };

// Counts of one type.
typedef struct {
    size_t counts[SIZES_MAX];
    size_t count;
} sizes;

static ptb_status sizes_add(const ptb_coll_plan *plan, sizes *s, uint64_t count)
{
    if (s->count == SIZES_MAX) {
        ptb_coll_refuse(plan,
                        "the sweep has more than %d sizes; choose a larger --step-factor or --step-bytes",
                        SIZES_MAX);
        return PTB_USAGE;
    }
    // The bytes of two buffers and a library's copy of them must be countable; what is merely larger than the
    // machine is skipped later, with the figures.
    if (count > (uint64_t)1 << 59) {
        ptb_coll_refuse(plan, "%llu elements are more than any memory holds; at most 2^59 can be asked for",
                        (unsigned long long)count);
        return PTB_USAGE;
    }
    s->counts[s->count++] = (size_t)count;
    return PTB_OK;
}

static ptb_status add_exact_bytes(const ptb_coll_plan *plan, const char *item, ptb_dtype type, sizes *s)
{
    uint64_t bytes, element = ptb_dtype_size(type);
    if (!ptb_text_parse_size(item, &bytes)) {
        ptb_coll_refuse(plan, "--bytes: '%s' is not a size; write it as 8, 64K, 1M, 2G", item);
        return PTB_USAGE;
    }
    if (bytes % element != 0) {
        ptb_coll_refuse(
            plan,
            "--bytes: %llu bytes are not a whole number of %s elements: %llu = %llu x %llu + %llu; the "
            "nearest sizes are %llu and %llu",
            (unsigned long long)bytes, ptb_dtype_name(type), (unsigned long long)bytes,
            (unsigned long long)(bytes / element), (unsigned long long)element,
            (unsigned long long)(bytes % element), (unsigned long long)(bytes / element * element),
            (unsigned long long)((bytes / element + 1) * element));
        return PTB_USAGE;
    }
    return sizes_add(plan, s, bytes / element);
}

static ptb_status add_exact_count(const ptb_coll_plan *plan, const char *item, ptb_dtype type, sizes *s)
{
    uint64_t count;
    if (!ptb_text_parse_size(item, &count) || count > SIZE_MAX / ptb_dtype_size(type)) {
        ptb_coll_refuse(plan, "--count: '%s' is not a number of elements; write it as 1000 or 64K (65536)",
                        item);
        return PTB_USAGE;
    }
    return sizes_add(plan, s, count);
}

static ptb_status
add_list(const ptb_coll_plan *plan, const char *text, ptb_dtype type,
         ptb_status (*add)(const ptb_coll_plan *plan, const char *item, ptb_dtype type, sizes *s), sizes *s)
{
    char *storage;
    const char *items[SIZES_MAX / 16];
    const size_t most = sizeof items / sizeof items[0];
    size_t count = ptb_text_split(text, ',', &storage, items, most), pieces = ptb_text_pieces(text, ',');
    ptb_status status = PTB_OK;
    if (pieces > most) {
        ptb_coll_refuse(plan, "a list of %zu sizes is too long; at most %zu, or a sweep with --step-factor",
                        pieces, most);
        status = PTB_USAGE;
    }
    for (size_t i = 0; i < count && status == PTB_OK; i++)
        status = add(plan, items[i], type, s);
    free(storage);
    return status;
}

// From min to max by a factor or a step, taken down to whole elements, each size once.
static ptb_status add_sweep(const ptb_coll_plan *plan, const ptb_coll_config *config, ptb_dtype type,
                            sizes *s)
{
    uint64_t element = ptb_dtype_size(type), min = config->min_bytes, max = config->max_bytes;
    if (min > max) {
        ptb_coll_refuse(plan, "--min-bytes %llu is more than --max-bytes %llu", (unsigned long long)min,
                        (unsigned long long)max);
        return PTB_USAGE;
    }
    uint64_t last = UINT64_MAX;
    for (uint64_t bytes = min; bytes <= max;) {
        uint64_t count = bytes / element;
        if (count != last && (count > 0 || bytes == 0))
            PTB_TRY(sizes_add(plan, s, count));
        if (count > 0 || bytes == 0)
            last = count;
        double next = config->step_bytes ? (double)bytes + (double)config->step_bytes
                                         : floor((double)bytes * config->step_factor);
        if (next >= 0x1p63)
            break;
        uint64_t step = (uint64_t)next;
        bytes = step > bytes ? step : bytes + 1; // from 0, or where the factor adds less than a byte
    }
    if (s->count == 0) {
        ptb_coll_refuse(plan, "--max-bytes %llu is less than one %s element (%llu bytes)",
                        (unsigned long long)max, ptb_dtype_name(type), (unsigned long long)element);
        return PTB_USAGE;
    }
    return PTB_OK;
}

static ptb_status sizes_of(const ptb_coll_plan *plan, const ptb_coll_config *config, ptb_dtype type, sizes *s)
{
    s->count = 0;
    if (!plan->subjects[0].collective.has_data)
        return sizes_add(plan, s, 0);
    bool bytes = config->bytes && *config->bytes, count = config->count && *config->count;
    if (bytes && count) {
        ptb_coll_refuse(plan, "--bytes and --count both give the sizes; choose one");
        return PTB_USAGE;
    }
    if (bytes)
        return add_list(plan, config->bytes, type, add_exact_bytes, s);
    if (count)
        return add_list(plan, config->count, type, add_exact_count, s);
    return add_sweep(plan, config, type, s);
}

static ptb_status points_add(ptb_coll_plan *plan, ptb_coll_point point)
{
    size_t n = plan->point_count;
    if (n == POINTS_MAX) {
        ptb_coll_refuse(plan, "more than %d cases; ask for fewer sizes, types or algorithms at once",
                        POINTS_MAX);
        return PTB_USAGE;
    }
    if ((n & (n - 1)) == 0) { // grows at powers of two
        ptb_coll_point *points = realloc(plan->points, (n ? 2 * n : 1) * sizeof *points);
        if (!points) {
            ptb_error("no memory for %zu cases", 2 * n);
            return PTB_NO_MEMORY;
        }
        plan->points = points;
    }
    plan->points[plan->point_count++] = point;
    return PTB_OK;
}

// All cases of one subject, communicator and algorithm.
static ptb_status add_points(ptb_coll_plan *plan, ptb_coll_point point, const sizes *all,
                             const ptb_dtype *types, int type_count, const ptb_redop *ops, int op_count,
                             const bool *in_place, int place_count)
{
    for (int t = 0; t < type_count; t++)
        for (int o = 0; o < op_count; o++)
            for (int p = 0; p < place_count; p++)
                for (size_t i = 0; i < all[t].count; i++) {
                    point.type = types[t];
                    point.op = ops[o];
                    point.in_place = in_place[p];
                    point.count = all[t].counts[i];
                    PTB_TRY(points_add(plan, point));
                }
    return PTB_OK;
}

ptb_status ptb_coll_sweep(const ptb_coll_config *config, const ptb_dtype *types, int type_count,
                          const ptb_redop *ops, int op_count, const bool *in_place, int place_count,
                          ptb_coll_plan *plan)
{
    sizes *all = calloc((size_t)type_count, sizeof *all);
    if (!all) {
        ptb_error("no memory for the sizes of %d types", type_count);
        return PTB_NO_MEMORY;
    }
    ptb_status status = PTB_OK;
    for (int t = 0; t < type_count && status == PTB_OK; t++)
        status = sizes_of(plan, config, types[t], &all[t]);
    for (int s = 0; s < plan->subject_count; s++)
        for (int c = 0; c < plan->comm_count; c++)
            for (int a = 0; a < plan->algo_count; a++)
                if (status == PTB_OK)
                    status = add_points(plan, (ptb_coll_point){.subject = s, .comm = c, .algo = a}, all,
                                        types, type_count, ops, op_count, in_place, place_count);
    free(all);
    return status;
}

// The parameters, in the order of the canonical key. What is at its default or means nothing here is left
// out.
static void set_params(const ptb_bench_run *run, const ptb_coll_point *point, ptb_params *params)
{
    const ptb_coll_plan *plan = &run->plan;
    const ptb_collective *coll = &plan->subjects[point->subject].collective;
    bool p2p = ptb_coll_is_p2p(&plan->subjects[point->subject]);
    ptb_params_set(params, "comm", "%s", plan->comms[point->comm]->plugin.name);
    if (plan->subject_names[point->subject])
        ptb_params_set(params, "pattern", "%s", plan->subject_names[point->subject]);
    if (!p2p)
        ptb_params_set(params, "algo", "%s", plan->algos[point->algo]);
    if (coll->has_data)
        ptb_params_set(params, "type", "%s", ptb_dtype_name(point->type));
    if (coll->reduces)
        ptb_params_set(params, "op", "%s", ptb_redop_name(point->op));
    if (coll->rooted && plan->root)
        ptb_params_set(params, "root", "%d", plan->root);
    if (coll->in_place)
        ptb_params_set(params, "place", "%s", ptb_coll_place_names[point->in_place]);
    if (strcmp(plan->split, "all") != 0)
        ptb_params_set(params, "split", "%s", plan->split);
    if (plan->transport)
        ptb_params_set(params, "transport", "%s", plan->transport);
    if (plan->segment_bytes)
        ptb_params_set(params, "segment", "%llu", (unsigned long long)plan->segment_bytes);
    if (plan->aggregate > 1)
        ptb_params_set(params, "aggregate", "%d", plan->aggregate);
    if (plan->misalign)
        ptb_params_set(params, "misalign", "%d", plan->misalign);
    if (coll->has_data && !plan->registered)
        ptb_params_set(params, "register", "no");
    const char *device = ptb_coll_place_name(plan, point->comm);
    if (strcmp(device, "host") != 0) {
        bool is_nccl = strcmp(plan->comms[point->comm]->plugin.name, "nccl") == 0;
        ptb_params_set(params, "device", "%s", device);
        if (is_nccl && plan->channels)
            ptb_params_set(params, "channels", "%d", plan->channels);
        if (is_nccl && plan->gpu_direct != PTB_GPU_DIRECT_DEFAULT)
            ptb_params_set(params, "gpu_direct", "%s", ptb_coll_gpu_direct_names[plan->gpu_direct]);
        if (plan->blocking)
            ptb_params_set(params, "blocking", "yes");
        if (plan->graph)
            ptb_params_set(params, "graph", "yes");
    }
    if (coll->has_data) {
        ptb_params_set(params, "count", "%zu", point->count);
        ptb_params_set(params, "bytes", "%llu",
                       (unsigned long long)coll->size_bytes(point->count, ptb_dtype_size(point->type), 1));
    }
    ptb_params_set(params, "ranks", "%d", run->env->world->size);
}

static const char *skip_algorithm(const ptb_coll_plan *plan, const ptb_coll_point *point, char *skip)
{
    const char *name = plan->algos[point->algo];
    const ptb_coll_subject *subject = &plan->subjects[point->subject];
    if (ptb_coll_is_p2p(subject) || strcmp(name, "default") == 0 || strcmp(name, "auto") == 0)
        return NULL;
    const char *const *names = plan->comms[point->comm]->algorithms(subject->collective.kind);
    size_t count = 0;
    for (; names && names[count]; count++)
        if (strcmp(names[count], name) == 0)
            return NULL;
    char near[256] = "none to choose from";
    if (count)
        ptb_text_nearest(name, names, count, near, sizeof near);
    snprintf(skip, PTB_REASON_BYTES, "%s has no algorithm '%s' for %s; it has %s",
             plan->comms[point->comm]->plugin.name, name, subject->collective.plugin.name, near);
    return skip;
}

// Reasons that follow from the options and the world alone.
static void set_skip(const ptb_bench_run *run, const ptb_coll_point *point, char *skip)
{
    const ptb_coll_plan *plan = &run->plan;
    const ptb_coll_subject *subject = &plan->subjects[point->subject];
    const ptb_collective *coll = &subject->collective;
    const ptb_comm_ops *comm = plan->comms[point->comm];
    if (!ptb_comm_moves(comm, ptb_coll_place_name(plan, point->comm), skip))
        return;
    skip[0] = 0;
    if (skip_algorithm(plan, point, skip))
        return;
    if (point->in_place && coll->in_place_changes_input && plan->aggregate > 1) {
        snprintf(skip, PTB_REASON_BYTES,
                 "in place, %s overwrites its input, so %d operations in one iteration would compound",
                 coll->plugin.name, plan->aggregate);
        return;
    }
    for (int r = 0; r < run->env->world->size; r++) {
        int n = plan->group_size[r];
        if (n < 2 && plan->groups > 1) {
            snprintf(skip, PTB_REASON_BYTES, "under --split %s rank %d would be alone in its group",
                     plan->split, r);
            return;
        }
        if (n < 2 && ptb_coll_is_p2p(subject)) {
            snprintf(skip, PTB_REASON_BYTES, "point to point needs at least two ranks");
            return;
        }
        if (point->in_place && coll->kind == PTB_ALL_TO_ALL && point->count % (size_t)n != 0) {
            snprintf(skip, PTB_REASON_BYTES,
                     "in place, all_to_all needs equal parts, and %zu elements do not divide by %d ranks",
                     point->count, n);
            return;
        }
    }
}

// Expected seconds of an iteration: a few microseconds a hop and a few GB/s, which is right within a factor
// of ten on hosts; it only has to order cases and warn of long runs.
static double estimate(const ptb_coll_plan *plan, const ptb_collective *coll, uint64_t bytes, int n)
{
    const double hop_s = 1e-6, bytes_per_s = 4e9;
    double hops = n > 1 ? ceil(log2(n)) : 1;
    double moved = (double)bytes * (1 + coll->bus_factor(n));
    return plan->aggregate * (hops * hop_s + moved / bytes_per_s);
}

ptb_status ptb_coll_bench_next(ptb_bench_run *run, ptb_case *c, bool *more)
{
    *more = run->next < run->plan.point_count;
    if (!*more)
        return PTB_OK;
    *c = (ptb_case){.index = run->next++};
    const ptb_coll_point *point = &run->plan.points[c->index];
    const ptb_collective *coll = &run->plan.subjects[point->subject].collective;
    set_params(run, point, &c->params);
    set_skip(run, point, c->skip);
    if (run->env->dry_run && !c->skip[0])
        PTB_TRY(ptb_coll_place_foresee(run, point, c->skip));
    c->bytes = coll->size_bytes(point->count, ptb_dtype_size(point->type), run->plan.group_size[0]);
    c->estimate_s = estimate(&run->plan, coll, c->bytes, run->plan.group_size[0]);
    c->fixed_batch = point->in_place && coll->in_place_changes_input;
    return PTB_OK;
}
