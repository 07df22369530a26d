// Calls on streams, groups of sends and receives, and what really ran, for `host` and `local`.
#include "collectives/team_comm.h"

#include "core/log.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MESSAGE_MAX ((size_t)1 << 30) // MPI counts in int

typedef struct {
    bool sends;
    int peer;
    const void *from;
    void *to;
    size_t bytes;
} message;

// The sends and receives of one group. Batches are kept and used again; a busy one belongs to a stream.
typedef struct ptb_team_batch {
    ptb_team_comm *comm;
    atomic_bool busy;
    message *messages;
    size_t count, capacity;
    struct ptb_team_batch *next;
} batch;

static ptb_team_comm *of(ptb_comm *comm)
{
    return (ptb_team_comm *)comm;
}

// ---- opening

static const char *transport_name(const ptb_team *team)
{
    if (team->size == 1)
        return "none";
    if (team->threads)
        return "threads";
    if (team->shared)
        return "shm";
    // Of all ranks, not only of this one: it may be alone on its host while others share memory.
    bool some_share = team->peers[team->rank].control && team->world->hosts < team->size;
    return some_share ? "shm+mpi" : "mpi";
}

// Whether the transport that was asked for is what all members have. Collective.
static ptb_status check_transport(const ptb_team *team, const char *asked)
{
    if (!asked || team->size == 1)
        return PTB_OK;
    const char *real = transport_name(team);
    ptb_status status = strcmp(asked, real) ? PTB_UNSUPPORTED : PTB_OK;
    if (status != PTB_OK && team->rank == 0)
        ptb_error("transport %s was asked for, but these ranks are connected by %s", asked, real);
    return ptb_world_agree(team->world, status);
}

static ptb_status choose_at_open(ptb_team_comm *c, ptb_world *world, const ptb_comm_config *config,
                                 bool threads)
{
    static const double budget_s = 4;
    const char *name = config->algorithm;
    if (name && strcmp(name, "auto") && strcmp(name, "default")) {
        c->algorithm = ptb_algorithm_need(name);
        return c->algorithm ? PTB_OK : PTB_USAGE;
    }
    c->choice = calloc(1, sizeof *c->choice);
    PTB_TRY(ptb_world_agree(world, c->choice ? PTB_OK : PTB_NO_MEMORY));
    if (threads || world->size == 1 || config->untimed)
        return PTB_OK;
    bool found;
    PTB_TRY(ptb_auto_load(world, c->choice, &found));
    return found || !config->measure ? PTB_OK : ptb_auto_tune(world, budget_s, c->choice);
}

ptb_status ptb_team_comm_open(ptb_world *world, const ptb_comm_config *config, const ptb_comm_ops *ops,
                              bool threads, ptb_comm **out)
{
    ptb_team_comm *c = calloc(1, sizeof *c);
    PTB_TRY(ptb_world_agree(world, c ? PTB_OK : PTB_NO_MEMORY));
    c->comm =
        (ptb_comm){.ops = ops, .world = world, .rank = world->rank, .size = world->size, .counts_sent = true};
    ptb_status status = choose_at_open(c, world, config, threads);
    if (status == PTB_OK)
        status = ptb_team_open(world, config, threads, &c->comm.sent, &c->team);
    if (status == PTB_OK)
        status = check_transport(c->team, config->transport);
    if (status != PTB_OK) {
        ptb_team_comm_close(&c->comm);
        return status;
    }
    *out = &c->comm;
    return PTB_OK;
}

void ptb_team_comm_close(ptb_comm *comm)
{
    ptb_team_comm *c = of(comm);
    ptb_team_close(c->team);
    while (c->batches) {
        batch *next = c->batches->next;
        free(c->batches->messages);
        free(c->batches);
        c->batches = next;
    }
    free(c->choice);
    free(c);
}

// ---- collectives

enum { NAMES_MAX = 32 };
typedef struct {
    const char *names[PTB_COLL_COUNT][NAMES_MAX + 1];
} name_table;

const char *const *ptb_team_comm_algorithms(ptb_coll_kind kind)
{
    // Filled once from the registry, which does not change after start. Threads that race write the same.
    static _Atomic(name_table *) table;
    name_table *names = atomic_load(&table);
    if (!names) {
        names = calloc(1, sizeof *names);
        if (!names)
            abort();
        for (int k = 0; k < PTB_COLL_COUNT; k++) {
            size_t count = 0;
            for (size_t i = 0; i < ptb_registry_count(PTB_KIND_ALGORITHM) && count < NAMES_MAX; i++) {
                const ptb_algorithm *a =
                    (const ptb_algorithm *)(const void *)ptb_registry_at(PTB_KIND_ALGORITHM, i);
                if (a->collectives & PTB_COLL_BIT(k))
                    names->names[k][count++] = a->plugin.name;
            }
        }
        name_table *expected = NULL;
        if (!atomic_compare_exchange_strong(&table, &expected, names)) {
            free(names);
            names = expected;
        }
    }
    return names->names[kind];
}

static const ptb_algorithm *algorithm_for(const ptb_team_comm *c, const ptb_coll *call)
{
    return c->algorithm ? c->algorithm : ptb_auto_choose(c->choice, c->team, call);
}

bool ptb_team_comm_supports(ptb_comm *comm, const ptb_coll *call, bool in_place, char *reason)
{
    ptb_team_comm *c = of(comm);
    return ptb_algorithm_supports(algorithm_for(c, call), c->team, call, in_place, reason);
}

static ptb_status run_call(ptb_team_comm *c, const ptb_coll *call)
{
    const ptb_algorithm *algorithm = algorithm_for(c, call);
    char reason[PTB_REASON_BYTES];
    bool in_place = call->kind == PTB_ALL_TO_ALL && call->send == call->recv && call->count;
    if (!ptb_algorithm_supports(algorithm, c->team, call, in_place, reason)) {
        ptb_error("%s", reason);
        return PTB_UNSUPPORTED;
    }
    return ptb_algorithm_run(algorithm, c->team, call);
}

typedef struct {
    ptb_team_comm *comm;
    ptb_coll call;
} enqueued;

static ptb_status run_enqueued(void *arg)
{
    enqueued *e = arg;
    return run_call(e->comm, &e->call);
}

ptb_status ptb_team_comm_collective(ptb_comm *comm, const ptb_coll *call, ptb_stream *stream)
{
    if (stream->kind == PTB_STREAM_CALLER)
        return run_call(of(comm), call);
    enqueued e = {of(comm), *call};
    _Static_assert(sizeof e <= PTB_CALL_BYTES, "a call must fit into a stream's queue");
    return ptb_stream_call(stream, run_enqueued, &e, sizeof e);
}

// ---- point to point

static void add_to_schedule(ptb_team *team, const message *m)
{
    size_t at = 0;
    do {
        size_t some = m->bytes - at < MESSAGE_MAX ? m->bytes - at : MESSAGE_MAX;
        if (m->sends)
            ptb_wire_send(team, m->peer, (const unsigned char *)m->from + at, some, PTB_WIRE_NONE);
        else
            ptb_wire_recv(team, m->peer, (unsigned char *)m->to + at, some, PTB_WIRE_NONE);
        at += some;
    } while (at < m->bytes);
}

// The k-th send to oneself meets the k-th receive from oneself.
static ptb_status copy_to_self(ptb_team *team, const message *messages, size_t count)
{
    size_t r = 0;
    for (size_t s = 0; s < count; s++) {
        if (messages[s].peer != team->rank || !messages[s].sends)
            continue;
        while (r < count && (messages[r].peer != team->rank || messages[r].sends))
            r++;
        if (r == count || messages[r].bytes != messages[s].bytes) {
            ptb_error("rank %d sends %zu bytes to itself without a receive of that size in the same group",
                      team->rank, messages[s].bytes);
            return PTB_USAGE;
        }
        ptb_copy_local(messages[r++].to, messages[s].from, messages[s].bytes);
    }
    while (r < count && (messages[r].peer != team->rank || messages[r].sends))
        r++;
    if (r == count)
        return PTB_OK;
    ptb_error("rank %d receives %zu bytes from itself without a send in the same group", team->rank,
              messages[r].bytes);
    return PTB_USAGE;
}

static ptb_status run_messages(ptb_team *team, const message *messages, size_t count)
{
    if (team->broken) {
        ptb_error("this communicator lost a rank and cannot be used any more");
        return PTB_LOST;
    }
    ptb_wire_begin(team, PTB_U8, PTB_SUM);
    for (size_t i = 0; i < count; i++)
        if (messages[i].peer != team->rank)
            add_to_schedule(team, &messages[i]);
    PTB_TRY(copy_to_self(team, messages, count));
    return ptb_wire_run(team);
}

static ptb_status run_batch(void *arg)
{
    batch *b = *(batch **)arg;
    ptb_status status = run_messages(b->comm->team, b->messages, b->count);
    atomic_store(&b->busy, false);
    return status;
}

typedef struct {
    ptb_team_comm *comm;
    message message;
} single;

static ptb_status run_single(void *arg)
{
    single *s = arg;
    return run_messages(s->comm->team, &s->message, 1);
}

static ptb_status add_message(ptb_team_comm *c, message m, ptb_stream *stream)
{
    if (m.peer < 0 || m.peer >= c->comm.size) {
        ptb_error("there is no rank %d to exchange with; ranks are 0 to %d", m.peer, c->comm.size - 1);
        return PTB_USAGE;
    }
    if (!c->group_depth) {
        if (stream->kind == PTB_STREAM_CALLER)
            return run_messages(c->team, &m, 1);
        single s = {c, m};
        return ptb_stream_call(stream, run_single, &s, sizeof s);
    }
    batch *b = c->open_group;
    if (b->count == b->capacity) {
        size_t capacity = b->capacity ? 2 * b->capacity : 16;
        message *messages = realloc(b->messages, capacity * sizeof *messages);
        if (!messages) {
            ptb_error("out of memory for a group of %zu messages", capacity);
            return PTB_NO_MEMORY;
        }
        b->messages = messages;
        b->capacity = capacity;
    }
    b->messages[b->count++] = m;
    return PTB_OK;
}

ptb_status ptb_team_comm_send(ptb_comm *comm, const void *buffer, size_t count, ptb_dtype dtype, int peer,
                              ptb_stream *stream)
{
    message m = {.sends = true, .peer = peer, .from = buffer, .bytes = count * ptb_dtype_size(dtype)};
    return add_message(of(comm), m, stream);
}

ptb_status ptb_team_comm_recv(ptb_comm *comm, void *buffer, size_t count, ptb_dtype dtype, int peer,
                              ptb_stream *stream)
{
    message m = {.peer = peer, .to = buffer, .bytes = count * ptb_dtype_size(dtype)};
    return add_message(of(comm), m, stream);
}

ptb_status ptb_team_comm_group_begin(ptb_comm *comm)
{
    ptb_team_comm *c = of(comm);
    if (c->group_depth++)
        return PTB_OK;
    batch *b = c->batches;
    while (b && atomic_load(&b->busy))
        b = b->next;
    if (!b) {
        b = calloc(1, sizeof *b);
        if (!b) {
            c->group_depth = 0;
            ptb_error("out of memory for a group of messages");
            return PTB_NO_MEMORY;
        }
        b->comm = c;
        b->next = c->batches;
        c->batches = b;
    }
    b->count = 0;
    c->open_group = b;
    return PTB_OK;
}

ptb_status ptb_team_comm_group_end(ptb_comm *comm, ptb_stream *stream)
{
    ptb_team_comm *c = of(comm);
    if (!c->group_depth) {
        ptb_error("group_end without group_begin");
        return PTB_USAGE;
    }
    if (--c->group_depth)
        return PTB_OK;
    batch *b = c->open_group;
    c->open_group = NULL;
    if (!b->count)
        return PTB_OK;
    if (stream->kind == PTB_STREAM_CALLER)
        return run_messages(c->team, b->messages, b->count);
    atomic_store(&b->busy, true);
    return ptb_stream_call(stream, run_batch, &b, sizeof b);
}

// ---- memory and description

ptb_status ptb_team_comm_alloc(ptb_comm *comm, size_t bytes, void **memory)
{
    return ptb_team_alloc(of(comm)->team, bytes, memory);
}

void ptb_team_comm_free(ptb_comm *comm, void *memory)
{
    ptb_team_free(of(comm)->team, memory);
}

// Whether the peers can read and write this member's buffers of the call.
static bool is_registered(const ptb_team *team, const ptb_coll *call)
{
    const void *buffers[2] = {call->send, call->recv};
    for (int i = 0; i < 2; i++)
        if (buffers[i] && ptb_team_place(team, buffers[i], 1).segment == PTB_PLACE_PRIVATE)
            return false;
    return true;
}

void ptb_team_comm_describe(ptb_comm *comm, const ptb_coll *call, ptb_params *facts)
{
    ptb_team_comm *c = of(comm);
    ptb_params_set(facts, "transport", "%s", transport_name(c->team));
    ptb_wire_describe(c->team, facts);
    ptb_params_set(facts, "symmetric_bytes", "%llu", (unsigned long long)ptb_team_segment_bytes(c->team));
    if (!call)
        return;
    const ptb_algorithm *algorithm = algorithm_for(c, call);
    ptb_params_set(facts, "algorithm", "%s", algorithm->plugin.name);
    ptb_params_set(facts, "chosen_by", "%s",
                   c->algorithm                                     ? "request"
                   : ptb_auto_is_measured(c->choice, c->team, call) ? "auto, measured table"
                                                                    : "auto, fixed rule");
    size_t segment = algorithm->segment_bytes && call->count ? algorithm->segment_bytes(c->team, call) : 0;
    if (segment)
        ptb_params_set(facts, "segment", "%zu", segment);
    ptb_params_set(facts, "buffers", "%s", is_registered(c->team, call) ? "registered" : "private");
}
