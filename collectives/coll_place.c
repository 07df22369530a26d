// Where the buffers of a collective benchmark lie: the devices of its communicators, opened once, and the
// buffers, kept for all cases that can use them.
#include "collectives/coll_run.h"
#include "core/log.h"

#include <stdio.h>
#include <string.h>

const char *ptb_coll_place_name(const ptb_coll_plan *plan, int comm)
{
    return plan->device ? plan->device : ptb_comm_device(plan->comms[comm]);
}

// Bytes of the two buffers of a case, the most that any rank of this rank's group needs.
static void needs(const ptb_bench_run *run, const ptb_coll_point *point, size_t bytes[2])
{
    const ptb_collective *coll = &run->plan.subjects[point->subject].collective;
    int n = run->plan.group_size[run->env->world->rank];
    size_t element = ptb_dtype_size(point->type);
    size_t around = 2 * PTB_COLL_GUARD_BYTES + (size_t)run->plan.misalign * element;
    bytes[0] = bytes[1] = 0;
    for (int r = 0; r < n; r++) {
        ptb_coll_shape shape;
        coll->shape(point->count, n, r, run->plan.root, &shape);
        size_t send = point->in_place ? shape.in_place_count : shape.send_count;
        size_t recv = point->in_place ? 0 : shape.recv_count;
        bytes[0] = send > bytes[0] ? send : bytes[0];
        bytes[1] = recv > bytes[1] ? recv : bytes[1];
    }
    for (int b = 0; b < 2; b++)
        bytes[b] = bytes[b] * element + around;
}

// Places over which a buffer of this size is staggered (ptb_coll_buffer) in memory of that device.
static size_t stagger_places(const char *device, size_t bytes)
{
    bool is_host = strcmp(device, "host") == 0;
    return is_host && bytes >= PTB_COLL_STAGGERS * PTB_COLL_STAGGER_BYTES ? PTB_COLL_STAGGERS : 1;
}

static size_t staggered_bytes(const char *device, size_t bytes)
{
    return bytes + (stagger_places(device, bytes) - 1) * PTB_COLL_STAGGER_BYTES;
}

// What this case needs: its buffers, and libraries copy up to S bytes into memory of their own.
static uint64_t total_need(const ptb_bench_run *run, const ptb_coll_point *point)
{
    size_t bytes[2];
    const char *device = ptb_coll_place_name(&run->plan, point->comm);
    needs(run, point, bytes);
    return (uint64_t)staggered_bytes(device, bytes[0]) + staggered_bytes(device, bytes[1]) +
           (uint64_t)point->count * ptb_dtype_size(point->type);
}

// The place of communicator `comm`, if its device is open.
static ptb_coll_place *find_place(ptb_bench_run *run, int comm)
{
    const char *name = ptb_coll_place_name(&run->plan, comm);
    for (int i = 0; i < run->place_count; i++)
        if (strcmp(run->places[i].device->ops->plugin.name, name) == 0)
            return &run->places[i];
    return NULL;
}

// Why its device cannot be used here, "" where another rank knows; NULL: it can.
static const char *why_refused(const ptb_bench_run *run, int comm)
{
    for (int i = 0; i < run->refused_count; i++)
        if (strcmp(run->refused[i], ptb_coll_place_name(&run->plan, comm)) == 0)
            return run->refused_why[i];
    return NULL;
}

// Of available bytes, those that buffers may take.
static uint64_t budget_of(uint64_t available)
{
    double spare = (double)available * 0.9;
    return spare < 0x1p63 ? (uint64_t)spare : UINT64_MAX / 2;
}

static ptb_status find_budget(ptb_bench_run *run, ptb_coll_place *place)
{
    double most = -(double)budget_of(ptb_device_available(place->device)); // the largest of negatives
    PTB_TRY(ptb_world_reduce_max(run->env->world, &most, 1));
    place->budget_bytes = -most < 0x1p63 ? (uint64_t)-most : UINT64_MAX / 2;
    for (size_t i = 0; i < run->plan.point_count; i++) {
        const ptb_coll_point *point = &run->plan.points[i];
        size_t bytes[2];
        needs(run, point, bytes);
        if (find_place(run, point->comm) != place || total_need(run, point) > place->budget_bytes)
            continue;
        for (int b = 0; b < 2; b++)
            place->capacity[b] = bytes[b] > place->capacity[b] ? bytes[b] : place->capacity[b];
    }
    return PTB_OK;
}

static ptb_status fill_place(ptb_coll_place *place)
{
    PTB_TRY(ptb_stream_new(place->device, PTB_STREAM_CALLER, 0, &place->stream));
    PTB_TRY(ptb_device_alloc(place->device, PTB_MEMORY_COMMUNICATION, 64, (void **)&place->mark));
    return ptb_stream_set(place->stream, place->mark, 1, 64);
}

static void close_place(ptb_coll_place *place)
{
    ptb_stream_free(place->stream);
    ptb_device_free(place->device, place->mark);
    ptb_device_close(place->device);
    *place = (ptb_coll_place){.device = NULL};
}

// On all ranks or on none.
static ptb_status open_place(ptb_bench_run *run, const char *name)
{
    if (run->place_count + run->refused_count == PTB_COLL_PLACES) {
        ptb_error("the communicators are of more than %d devices", PTB_COLL_PLACES);
        return PTB_USAGE;
    }
    ptb_coll_place *place = &run->places[run->place_count];
    PTB_TRY(ptb_device_open_local(name, run->env->world, run->env->share_gpu, &place->device));
    ptb_status status = ptb_world_agree(run->env->world, fill_place(place));
    if (status == PTB_OK)
        run->place_count++;
    else
        close_place(place);
    return status;
}

ptb_status ptb_coll_places_open(ptb_bench_run *run)
{
    for (int c = 0; c < run->plan.comm_count; c++) {
        char reason[PTB_REASON_BYTES];
        const char *name = ptb_coll_place_name(&run->plan, c);
        if (!ptb_comm_moves(run->plan.comms[c], name, reason) || find_place(run, c) || why_refused(run, c))
            continue;
        ptb_listener listener;
        ptb_listen_begin(&listener);
        ptb_status status = open_place(run, name);
        ptb_listen_end(&listener);
        if (status == PTB_UNSUPPORTED) { // told already; the other communicators' cases go on
            memcpy(run->refused_why[run->refused_count], listener.heard, PTB_HEARD_BYTES);
            run->refused[run->refused_count++] = name;
        } else if (status != PTB_OK)
            return status;
    }
    for (int i = 0; i < run->place_count; i++)
        PTB_TRY(find_budget(run, &run->places[i]));
    return PTB_OK;
}

void ptb_coll_places_close(ptb_bench_run *run)
{
    for (int i = run->place_count; i-- > 0;)
        close_place(&run->places[i]);
    run->place_count = 0;
}

static ptb_status check_memory(uint64_t need, uint64_t budget, int sharers, bool is_gpu, char *reason)
{
    if (need <= budget)
        return PTB_OK;
    snprintf(reason, PTB_REASON_BYTES,
             "not enough memory: %d rank%s on this %s need%s about %.2f GB (%.2f GB each for buffers and the "
             "library's copies), and %.2f GB can be used",
             sharers, sharers == 1 ? "" : "s", is_gpu ? "GPU" : "host", sharers == 1 ? "s" : "",
             (double)need * sharers / 1e9, (double)need / 1e9, (double)budget * sharers / 1e9);
    return PTB_SKIPPED;
}

ptb_status ptb_coll_place_foresee(ptb_bench_run *run, const ptb_coll_point *point, char *skip)
{
    const char *name = ptb_coll_place_name(&run->plan, point->comm);
    ptb_coll_prospect *p = run->prospects, *end = p + PTB_COLL_PLACES;
    while (p < end && p->device && strcmp(p->device, name) != 0)
        p++;
    if (p == end) // open_place refuses so many devices
        return PTB_OK;
    if (!p->device) {
        uint64_t bytes;
        PTB_TRY(ptb_device_foresee(name, run->env->world, &bytes, &p->sharers));
        p->budget_bytes = budget_of(bytes);
        p->device = name;
    }
    (void)check_memory(total_need(run, point), p->budget_bytes, p->sharers, strcmp(name, "host") != 0, skip);
    return PTB_OK;
}

ptb_status ptb_coll_place_use(ptb_bench_run *run, const ptb_coll_point *point, char *reason)
{
    run->place = find_place(run, point->comm);
    const char *why = run->place ? NULL : why_refused(run, point->comm);
    if (why) {
        if (*why)
            snprintf(reason, PTB_REASON_BYTES, "device '%s': %s",
                     ptb_coll_place_name(&run->plan, point->comm), why);
        return PTB_SKIPPED;
    }
    if (!run->place) {
        ptb_error("no device is open for communicator %s", run->plan.comms[point->comm]->plugin.name);
        return PTB_INTERNAL;
    }
    run->device = run->place->device;
    run->stream = run->place->stream;
    return check_memory(total_need(run, point), run->place->budget_bytes, run->device->sharers,
                        run->device->identity[0], reason);
}

void ptb_coll_buffers_free(ptb_bench_run *run)
{
    ptb_coll_buffers *buffers = &run->buffers;
    for (int b = 0; b < 2; b++) {
        if (buffers->memory[b] && buffers->owner)
            buffers->owner->ops->free(buffers->owner, buffers->memory[b]);
        else if (buffers->memory[b])
            ptb_device_free(buffers->place->device, buffers->memory[b]);
    }
    *buffers = (ptb_coll_buffers){0};
}

ptb_status ptb_coll_buffers_use(ptb_bench_run *run, char *reason)
{
    ptb_coll_buffers *buffers = &run->buffers;
    // A communicator's own memory is that of its own device.
    const char *own = ptb_comm_device(run->comm->ops);
    const char *device = run->device->ops->plugin.name;
    bool is_own = strcmp(own, device) == 0;
    ptb_comm *owner = run->plan.registered && is_own ? run->comm : NULL;
    const size_t *capacity = run->place->capacity;
    if (buffers->memory[1] && buffers->owner == owner && buffers->place == run->place)
        return PTB_OK;
    ptb_coll_buffers_free(run);
    buffers->owner = owner;
    buffers->place = run->place;
    ptb_status status = PTB_OK;
    for (int b = 0; b < 2 && status == PTB_OK; b++) {
        size_t places = stagger_places(device, capacity[b]), bytes = staggered_bytes(device, capacity[b]);
        buffers->stagger[b] = (size_t)(2 * run->env->world->local_rank + b) % places * PTB_COLL_STAGGER_BYTES;
        status = owner ? owner->ops->alloc(owner, bytes, &buffers->memory[b])
                       : ptb_device_alloc(run->device, PTB_MEMORY_COMMUNICATION, bytes, &buffers->memory[b]);
    }
    if (status == PTB_NO_MEMORY) {
        snprintf(reason, PTB_REASON_BYTES, "buffers of %zu and %zu bytes for each rank cannot be allocated",
                 capacity[0], capacity[1]);
        return PTB_SKIPPED;
    }
    return status;
}
