// The `mpi` communicator: the MPI library's own collectives and messages, as they are. On a caller stream a
// call is the bare MPI call; on a worker stream it is enqueued with a copy of the ptb_coll, so the arrays of
// an all_to_all_v must stay valid until the stream has done it.
//
// Its calls block inside the library, which has no time limit: config.timeout_s cannot be kept here. A dead
// peer is noticed by the launcher, which ends the job, or by whoever watches this thread.
//
// A library that allocates inside a call pays the page faults of its temporaries every time once they are
// larger than malloc's threshold for mapping (32 MiB with glibc, unless MALLOC_MMAP_MAX_=0 and
// MALLOC_TRIM_THRESHOLD_ are set): whoever times calls sees it as minor faults (getrusage, ru_minflt) that
// grow with every iteration, and should say so.
#include "collectives/comm_mpi.h"

#include "collectives/world_mpi.h"
#include "core/log.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const ptb_comm_ops comm_mpi_ops;

ptb_comm_mpi *ptb_comm_mpi_of(ptb_comm *comm)
{
    return comm->ops == &comm_mpi_ops ? (ptb_comm_mpi *)comm : NULL;
}

void ptb_comm_mpi_set_limit(ptb_comm *comm, size_t elements)
{
    ptb_comm_mpi *c = ptb_comm_mpi_of(comm);
    if (c)
        c->limit = elements;
}

// ---- opening

static void close_comm(ptb_comm *comm)
{
    ptb_comm_mpi *c = (ptb_comm_mpi *)comm;
    while (c->memory) {
        ptb_mpi_memory *next = c->memory->next;
        ptb_memory_unmap(c->memory->memory, c->memory->bytes);
        free(c->memory);
        c->memory = next;
    }
    ptb_mpi_groups_free(c);
    ptb_mpi_types_free(c);
    if (c->mpi != MPI_COMM_NULL)
        MPI_Comm_free(&c->mpi);
    pthread_mutex_destroy(&c->spare_mutex);
    free(c->send_counts);
    free(c->parts);
    free(c);
}

static ptb_comm_mpi *comm_new(ptb_world *world)
{
    size_t n = (size_t)world->size;
    ptb_comm_mpi *c = calloc(1, sizeof *c);
    if (!c)
        return NULL;
    c->send_counts = calloc(4 * n, sizeof *c->send_counts);
    c->parts = calloc(2 * n, sizeof *c->parts);
    if (!c->send_counts || !c->parts) {
        free(c->send_counts);
        free(c->parts);
        free(c);
        return NULL;
    }
    c->send_first = c->send_counts + n;
    c->recv_counts = c->send_counts + 2 * n;
    c->recv_first = c->send_counts + 3 * n;
    c->comm = (ptb_comm){.ops = &comm_mpi_ops, .world = world, .rank = world->rank, .size = world->size};
    c->mpi = MPI_COMM_NULL;
    c->limit = INT_MAX;
    c->block = MPI_DATATYPE_NULL;
    c->type[PTB_F16] = c->type[PTB_BF16] = MPI_DATATYPE_NULL;
    for (int o = 0; o < PTB_REDOP_COUNT; o++)
        c->op[PTB_F16][o] = c->op[PTB_BF16][o] = MPI_OP_NULL;
    pthread_mutex_init(&c->spare_mutex, NULL);
    return c;
}

static ptb_status open_comm(ptb_world *world, const ptb_comm_config *config, ptb_comm **comm)
{
    MPI_Comm from = ptb_world_mpi_comm(world);
    if (from == MPI_COMM_NULL) {
        ptb_error("the communicator 'mpi' needs MPI processes: it cannot connect the threads of a %s world",
                  world->ops->name);
        return PTB_UNSUPPORTED;
    }
    if (config->threads && !ptb_world_mpi_threads(world)) {
        ptb_error("several threads are to use the MPI library, but it was started for one");
        return PTB_UNSUPPORTED;
    }
    ptb_comm_mpi *c = comm_new(world);
    if (!c) {
        ptb_error("no memory for a communicator of %d ranks", world->size);
        return PTB_NO_MEMORY;
    }
    c->threads = ptb_world_mpi_threads(world);
    c->gpu = config->device && strcmp(config->device, "host") != 0;
    ptb_status status = ptb_mpi_transport_find(world, c->transport, c->devices);
    if (status == PTB_OK)
        status = ptb_mpi_transport_check(world, config->transport, c->transport);
    if (status == PTB_OK)
        status = ptb_mpi_tuned_dup(world, from, config, &c->mpi, &c->tuning);
    if (status == PTB_OK)
        status = ptb_mpi_types_new(c);
    if (status != PTB_OK) {
        close_comm(&c->comm);
        return status;
    }
    *comm = &c->comm;
    return PTB_OK;
}

// ---- memory

static ptb_status alloc_memory(ptb_comm *comm, size_t bytes, void **memory)
{
    ptb_comm_mpi *c = (ptb_comm_mpi *)comm;
    ptb_mpi_memory *entry = malloc(sizeof *entry);
    if (!entry) {
        ptb_error("no memory for a buffer of %zu bytes", bytes);
        return PTB_NO_MEMORY;
    }
    ptb_status status = ptb_memory_map(bytes, &entry->memory);
    if (status != PTB_OK) {
        free(entry);
        return status;
    }
    entry->bytes = bytes;
    entry->next = c->memory;
    c->memory = entry;
    *memory = entry->memory;
    return PTB_OK;
}

static void free_memory(ptb_comm *comm, void *memory)
{
    ptb_comm_mpi *c = (ptb_comm_mpi *)comm;
    for (ptb_mpi_memory **at = &c->memory; memory && *at; at = &(*at)->next) {
        ptb_mpi_memory *entry = *at;
        if (entry->memory != memory)
            continue;
        *at = entry->next;
        ptb_memory_unmap(entry->memory, entry->bytes);
        free(entry);
        return;
    }
}

// ---- calls

typedef struct {
    ptb_comm_mpi *comm;
    ptb_coll call;
} collective_call;
_Static_assert(sizeof(collective_call) <= PTB_CALL_BYTES, "a collective must fit a stream's call");

static ptb_status run_collective(void *arg)
{
    collective_call *call = arg;
    return ptb_mpi_run(call->comm, &call->call);
}

static ptb_status collective(ptb_comm *comm, const ptb_coll *call, ptb_stream *stream)
{
    ptb_comm_mpi *c = (ptb_comm_mpi *)comm;
    bool now;
    PTB_TRY(ptb_mpi_now(c, stream, &now));
    if (__builtin_expect(now, 1))
        return ptb_mpi_run(c, call);
    collective_call copy = {c, *call};
    return ptb_mpi_enqueue(c, stream, run_collective, &copy, sizeof copy);
}

static bool supports(ptb_comm *comm, const ptb_coll *call, bool in_place, char *reason)
{
    ptb_comm_mpi *c = (ptb_comm_mpi *)comm;
    ptb_mpi_plan plan = ptb_mpi_plan_for(c, call);
    if (in_place && call->kind == PTB_ALL_TO_ALL && call->count % (size_t)comm->size != 0) {
        snprintf(reason, PTB_REASON_BYTES,
                 "all_to_all in place needs a count that %d ranks divide evenly, not %zu", comm->size,
                 call->count);
        return false;
    }
    if (in_place && call->kind == PTB_ALL_TO_ALL_V && plan.call == PTB_MPI_MESSAGES) {
        snprintf(
            reason, PTB_REASON_BYTES,
            "MPI counts in int: %zu elements are more than one MPI_Alltoallv takes, and messages in place "
            "would overwrite what is still to be sent",
            call->count);
        return false;
    }
    return (!c->gpu || ptb_mpi_gpu_supports(c, call, in_place, reason)) &&
           ptb_mpi_tuning_supports(c, call, in_place, reason);
}

static bool reduces(ptb_coll_kind kind)
{
    return kind == PTB_ALL_REDUCE || kind == PTB_REDUCE || kind == PTB_REDUCE_SCATTER;
}

static void describe_call(const ptb_comm_mpi *c, const ptb_coll *call, ptb_params *facts)
{
    ptb_mpi_plan plan = ptb_mpi_plan_for(c, call);
    const ptb_mpi_tuning *tuning = &c->tuning;
    if (tuning->forced[plan.call])
        ptb_params_set(facts, "algorithm", "%s", tuning->algorithm);
    else if (tuning->found[plan.call][0])
        ptb_params_set(facts, "algorithm", "%s (set in the environment)", tuning->found[plan.call]);
    else
        ptb_params_set(facts, "algorithm", "default");
    ptb_params_set(facts, "call", "%s", ptb_mpi_call_name(plan.call));
    ptb_params_set(facts, "coll_component", "%s", tuning->component);
    if (tuning->forced[plan.call] && tuning->segment_bytes > 0)
        ptb_params_set(facts, "segment", "%llu", (unsigned long long)tuning->segment_bytes);
    if (plan.chunks > 1)
        ptb_params_set(facts, "chunks", "%zu", plan.chunks);
    if (plan.big_blocks)
        ptb_params_set(facts, "blocks", "one element of a derived type each");
    if (reduces(call->kind) && (call->dtype == PTB_F16 || call->dtype == PTB_BF16))
        ptb_params_set(facts, "reduction", "user-defined MPI_Op (MPI has no %s)",
                       ptb_dtype_name(call->dtype));
    if (reduces(call->kind) && call->op == PTB_AVG)
        ptb_params_set(facts, "average", "sum, then each rank divides (timed)");
    if (call->kind == PTB_REDUCE_SCATTER && ptb_mpi_in_place(c, call) && plan.call != PTB_MPI_REDUCES)
        ptb_params_set(facts, "in_place", "MPI_IN_PLACE, then a local move to the own block (timed)");
    if (call->kind == PTB_BROADCAST && call->send != call->recv)
        ptb_params_set(facts, "copies", "the root copies send to recv (timed)");
}

static void describe(ptb_comm *comm, const ptb_coll *call, ptb_params *facts)
{
    ptb_comm_mpi *c = (ptb_comm_mpi *)comm;
    if (call)
        describe_call(c, call, facts);
    else
        ptb_params_set(facts, "call", "MPI_Send/MPI_Recv; in groups MPI_Isend/MPI_Irecv/MPI_Waitall");
    ptb_params_set(facts, "transport", "%s", c->transport);
    if (c->devices[0])
        ptb_params_set(facts, "devices", "%s", c->devices);
    ptb_params_set(facts, "buffers", "private");
    if (c->gpu)
        ptb_params_set(facts, "memory", "GPU; the stream is idle before each call (timed)");
    ptb_params_set(facts, "mpi_threads", "%s", c->threads ? "multiple" : "single");
}

static const ptb_comm_ops comm_mpi_ops = {
    .plugin = {.name = "mpi", .summary = "the MPI library's own collectives"},
    .moves = ptb_mpi_moves,
    .open = open_comm,
    .close = close_comm,
    .algorithms = ptb_mpi_algorithms,
    .supports = supports,
    .alloc = alloc_memory,
    .free = free_memory,
    .collective = collective,
    .group_begin = ptb_mpi_group_begin,
    .group_end = ptb_mpi_group_end,
    .send = ptb_mpi_send,
    .recv = ptb_mpi_recv,
    .describe = describe,
};
PTB_REGISTER(PTB_KIND_COMM, comm_mpi_ops);
