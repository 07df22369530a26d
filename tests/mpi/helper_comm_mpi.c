// helper_comm_mpi check|forced|worker|facts|early|asks [ALGORITHM [TRANSPORT]]: what test_comm_mpi.sh starts
// under mpirun. `check` runs every collective, type, operation and place of the mpi communicator with even,
// odd and empty counts, whole and split into pieces, and every algorithm that the library offers, against the
// verification pattern. `forced` counts which of the library's functions really run.
#include "collectives/collective.h"
#include "collectives/comm_mpi.h"
#include "collectives/launcher.h"
#include "collectives/world.h"
#include "core/log.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define REQUIRE(condition)                                                                                   \
    do {                                                                                                     \
        if (!(condition)) {                                                                                  \
            ptb_error("rank %d: line %d: %s", world->rank, __LINE__, #condition);                            \
            ptb_world_abort(world, 21);                                                                      \
        }                                                                                                    \
    } while (0)

static ptb_world *world;
static ptb_device *device;
static ptb_stream *stream;
static size_t runs, refused; // collectives done; combinations with a reason against them

enum { MOST = 5000, GUARD = 16 };

// ---- one call, checked

typedef struct {
    unsigned char *send, *recv; // out of place
} buffers;

static void fail(const ptb_comm *comm, const ptb_coll *call, bool in_place, const ptb_check *check,
                 const char *what)
{
    ptb_params facts = {.count = 0};
    comm->ops->describe((ptb_comm *)comm, call, &facts);
    ptb_error(
        "rank %d of %d: %s, %s %s, %zu elements, root %d, in place %d, algorithm %s, %s: %s: element %llu: "
        "wanted %g, got %g",
        comm->rank, comm->size, ptb_coll_name(call->kind), ptb_dtype_name(call->dtype),
        ptb_redop_name(call->op), call->count, call->root, in_place, ptb_params_get(&facts, "algorithm"),
        ptb_params_get(&facts, "call"), what, (unsigned long long)check->first_wrong, check->wanted,
        check->got);
    ptb_world_abort(world, 22);
}

static void check_one(ptb_comm *comm, const ptb_collective *what, ptb_coll call, bool in_place, buffers *b)
{
    int n = comm->size, r = comm->rank;
    size_t size = ptb_dtype_size(call.dtype), lists[4][64];
    ptb_coll_shape shape;
    ptb_pattern pattern;
    char reason[PTB_REASON_BYTES] = "";
    what->shape(call.count, n, r, call.root, &shape);
    ptb_pattern_init(&pattern, 42, call.dtype, call.op, n);
    memset(b->send, 0x5a, MOST * 8);
    memset(b->recv, 0xa5, MOST * 8);
    unsigned char *send = b->send, *recv = b->recv + GUARD;
    size_t recv_count = shape.recv_count;
    if (in_place) {
        send = recv + shape.in_place_send * size;
        recv = recv + shape.in_place_recv * size;
    }
    ptb_pattern_fill(&pattern, what->reduces, r, 0, send, shape.send_count);
    call.kind = what->kind;
    call.send = send;
    call.recv = recv;
    if (what->counts) {
        what->counts(call.count, n, r, lists[0], lists[1], lists[2], lists[3]);
        call.send_counts = lists[0];
        call.send_first = lists[1];
        call.recv_counts = lists[2];
        call.recv_first = lists[3];
    }
    if (!comm->ops->supports(comm, &call, in_place, reason)) {
        REQUIRE(reason[0]);
        // Without a chosen algorithm only one combination is refused.
        const ptb_comm_mpi *c = ptb_comm_mpi_of(comm);
        REQUIRE(strcmp(c->tuning.algorithm, "default") != 0 ||
                (what->kind == PTB_ALL_TO_ALL_V && in_place && call.count > c->limit));
        refused++;
        return;
    }
    REQUIRE(ptb_comm_collective(comm, &call, stream) == PTB_OK);
    runs++;
    ptb_check check = {0};
    ptb_expect expect;
    for (size_t i = 0; what->has_data && what->expect(call.count, n, r, call.root, i, &expect); i++) {
        ptb_pattern_check(&pattern, &expect, recv, &check);
        if (check.wrong)
            fail(comm, &call, in_place, &check, "result");
    }
    for (int i = 0; i < GUARD && !in_place; i++)
        if (b->recv[i] != 0xa5 || recv[recv_count * size + (size_t)i] != 0xa5)
            fail(comm, &call, in_place, &check, "written outside the buffer");
}

// Counts around the number of ranks, odd ones, and one that many ranks divide.
static void check_counts(ptb_comm *comm, const ptb_collective *what, ptb_dtype dtype, ptb_redop op, bool thin,
                         buffers *b)
{
    size_t n = (size_t)comm->size, counts[] = {0, 1, n - 1, n, n + 1, 840, 1009};
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++)
        for (int root = 0; root<comm->size; root += comm->size> 1 ? comm->size - 1 : 1)
            for (int in_place = 0; in_place <= what->in_place; in_place++) {
                if ((root > 0 && !what->rooted) || (thin && (i + (size_t)dtype + (size_t)op) % 2))
                    continue;
                ptb_coll call = {.count = counts[i], .dtype = dtype, .op = op, .root = root};
                // In place, all-to-all needs equal parts.
                if (in_place && what->kind == PTB_ALL_TO_ALL && counts[i] % n != 0)
                    continue;
                check_one(comm, what, call, in_place, b);
            }
}

static void check_collective(ptb_comm *comm, const ptb_collective *what, bool every, buffers *b)
{
    for (int dtype = 0; dtype < PTB_DTYPE_COUNT; dtype++) {
        bool full = dtype == PTB_F32 || dtype == PTB_I32;
        if (!every && dtype != PTB_F32 && dtype != PTB_BF16)
            continue;
        for (int op = 0; op < (what->reduces && every ? PTB_REDOP_COUNT : 1); op++)
            check_counts(comm, what, dtype, op, every && !full, b); // pairwise for the other types
    }
}

static void check_all(ptb_comm *comm, bool every, buffers *b)
{
    for (size_t i = 0; i < ptb_registry_count(PTB_KIND_COLLECTIVE); i++)
        check_collective(comm, (const ptb_collective *)ptb_registry_at(PTB_KIND_COLLECTIVE, i), every, b);
}

// ---- messages

// A ring shift and the exchange with both neighbours, in groups; then plain send and receive in pairs.
static void check_messages(ptb_comm *comm, ptb_stream *on, size_t count, buffers *b)
{
    int n = comm->size, r = comm->rank, next = (r + 1) % n, last = (r + n - 1) % n;
    size_t bytes = count * 4;
    float *send = (float *)b->send, *recv = (float *)b->recv;
    for (int round = 0; round < 3; round++) {
        for (size_t i = 0; i < count; i++)
            send[i] = (float)(1000 * r + (int)i % 1000 + round);
        memset(recv, 0xff, 2 * bytes);
        REQUIRE(comm->ops->group_begin(comm) == PTB_OK);
        REQUIRE(comm->ops->send(comm, send, count, PTB_F32, next, on) == PTB_OK);
        REQUIRE(comm->ops->recv(comm, recv, count, PTB_F32, last, on) == PTB_OK);
        REQUIRE(comm->ops->send(comm, send, count, PTB_F32, last, on) == PTB_OK);
        REQUIRE(comm->ops->recv(comm, recv + count, count, PTB_F32, next, on) == PTB_OK);
        REQUIRE(comm->ops->group_end(comm, on) == PTB_OK);
        REQUIRE(ptb_stream_sync(on) == PTB_OK);
        bool swapped = n == 2; // both neighbours are the same: messages come in order of sending
        for (size_t i = 0; i < count; i++) {
            int from = 1000 * last + (int)i % 1000 + round, other = 1000 * next + (int)i % 1000 + round;
            REQUIRE(recv[i] == (float)from || swapped);
            REQUIRE(recv[count + i] == (float)other);
        }
    }
    if (n < 2 || r > 1)
        return;
    for (int round = 0; round < 2; round++) {
        if (r == round)
            REQUIRE(comm->ops->send(comm, send, count, PTB_F32, 1 - r, on) == PTB_OK);
        else
            REQUIRE(comm->ops->recv(comm, recv, count, PTB_F32, 1 - r, on) == PTB_OK);
        REQUIRE(ptb_stream_sync(on) == PTB_OK);
        for (size_t i = 0; i < count && r != round; i++)
            REQUIRE(recv[i] == (float)(1000 * (1 - r) + (int)i % 1000 + 2));
    }
}

// ---- modes

static ptb_comm *open_with(const char *algorithm, uint64_t segment_bytes, const char *transport)
{
    ptb_comm *comm = NULL;
    ptb_comm_config config = {.algorithm = algorithm, .segment_bytes = segment_bytes, .transport = transport};
    REQUIRE(ptb_comm_open("mpi", world, &config, &comm) == PTB_OK);
    return comm;
}

static void mode_check(buffers *b)
{
    ptb_comm *comm = open_with(NULL, 0, NULL);
    void *memory = NULL, *other = NULL;
    REQUIRE(comm->ops->alloc(comm, 3 << 20, &memory) == PTB_OK);
    REQUIRE(comm->ops->alloc(comm, 100, &other) == PTB_OK);
    REQUIRE((size_t)memory % 4096 == 0 && (size_t)other % 64 == 0);
    comm->ops->free(comm, memory);
    comm->ops->free(comm, NULL);
    check_all(comm, true, b);
    REQUIRE(refused == 0);
    check_messages(comm, stream, 1000, b);
    // Limits that split vectors and blocks, and one that only splits the vector.
    const size_t limits[] = {7, 300};
    for (int i = 0; i < 2; i++) {
        ptb_comm_mpi_set_limit(comm, limits[i]);
        check_all(comm, false, b);
        check_messages(comm, stream, 1000, b);
    }
    ptb_comm_close(comm);
    size_t plain = runs, plain_refused = refused;
    for (size_t i = 0; i < ptb_registry_count(PTB_KIND_COLLECTIVE); i++) {
        const ptb_collective *what = (const ptb_collective *)ptb_registry_at(PTB_KIND_COLLECTIVE, i);
        const char *const *names = ptb_mpi_algorithms(what->kind);
        for (; *names; names++) {
            ptb_comm *forced = open_with(*names, 64, NULL);
            check_collective(forced, what, false, b);
            ptb_comm_close(forced);
        }
    }
    if (world->rank == 0)
        printf("check on %d ranks: %zu calls, %zu refused; %zu calls with a chosen algorithm, %zu refused\n",
               world->size, plain, plain_refused, runs - plain, refused - plain_refused);
}

// Functions of Open MPI's coll/base, counted on their way: this program's symbols come before the library's.
typedef int all_reduce_fn(const void *, void *, int, MPI_Datatype, MPI_Op, MPI_Comm, void *);
static int ring_calls, doubling_calls;
all_reduce_fn ompi_coll_base_allreduce_intra_ring, ompi_coll_base_allreduce_intra_recursivedoubling;

int ompi_coll_base_allreduce_intra_ring(const void *send, void *recv, int count, MPI_Datatype type, MPI_Op op,
                                        MPI_Comm comm, void *module)
{
    ring_calls++;
    all_reduce_fn *next = (all_reduce_fn *)dlsym(RTLD_NEXT, "ompi_coll_base_allreduce_intra_ring");
    return next(send, recv, count, type, op, comm, module);
}

int ompi_coll_base_allreduce_intra_recursivedoubling(const void *send, void *recv, int count,
                                                     MPI_Datatype type, MPI_Op op, MPI_Comm comm,
                                                     void *module)
{
    doubling_calls++;
    all_reduce_fn *next =
        (all_reduce_fn *)dlsym(RTLD_NEXT, "ompi_coll_base_allreduce_intra_recursivedoubling");
    return next(send, recv, count, type, op, comm, module);
}

static void count_calls(ptb_comm *comm, buffers *b, int *ring, int *doubling)
{
    ptb_coll call = {
        .kind = PTB_ALL_REDUCE, .send = b->send, .recv = b->recv, .count = 1000, .dtype = PTB_F32};
    ring_calls = doubling_calls = 0;
    memset(b->send, 0, 4000);
    REQUIRE(ptb_comm_collective(comm, &call, stream) == PTB_OK);
    *ring = ring_calls;
    *doubling = doubling_calls;
}

static void refuses(ptb_comm *comm, ptb_coll_kind kind, size_t count, bool wanted, const char *because)
{
    char reason[PTB_REASON_BYTES] = "";
    ptb_coll call = {.kind = kind, .count = count, .dtype = PTB_F32};
    bool refused_it = !comm->ops->supports(comm, &call, false, reason);
    REQUIRE(refused_it == wanted);
    REQUIRE(!wanted || strstr(reason, because));
}

// Shapes that Open MPI would hand over to another algorithm without saying so.
static void check_reasons(ptb_comm *ring, ptb_comm *doubling)
{
    size_t n = (size_t)world->size;
    refuses(ring, PTB_ALL_REDUCE, n - 1, true, "runs recursive_doubling instead");
    refuses(ring, PTB_ALL_REDUCE, n, false, "");
    refuses(ring, PTB_ALL_GATHER, 10 * n, false, "");
    refuses(ring, PTB_ALL_GATHER, 10 * n + 1, true,
            "MPI_Allgatherv of the MPI library has no algorithm ring");
    refuses(ring, PTB_BROADCAST, 100, true, "MPI_Bcast of the MPI library has no algorithm ring");
    refuses(doubling, PTB_ALL_GATHER, 10 * n, (n & (n - 1)) != 0, "runs bruck instead");
}

static void mode_forced(buffers *b)
{
    int before[2], after[2], now[2];
    ptb_comm *first = open_with("default", 0, NULL);
    count_calls(first, b, &before[0], &before[1]);
    ptb_comm *ring = open_with("ring", 0, NULL), *doubling = open_with("recursive_doubling", 0, NULL);
    ptb_comm *second = open_with(NULL, 0, NULL);
    REQUIRE(!ptb_comm_mpi_of(second)->tuning.found[PTB_MPI_ALL_REDUCE][0]); // the variables are as before
    check_reasons(ring, doubling);
    count_calls(ring, b, &now[0], &now[1]);
    REQUIRE(now[0] == 1 && now[1] == 0);
    count_calls(doubling, b, &now[0], &now[1]);
    REQUIRE(now[0] == 0 && now[1] == 1);
    count_calls(ring, b, &now[0], &now[1]);
    REQUIRE(now[0] == 1 && now[1] == 0);
    count_calls(second, b, &after[0], &after[1]);
    REQUIRE(before[0] == after[0] && before[1] == after[1]);
    ptb_comm_close(first);
    ptb_comm_close(second);
    ptb_comm_close(ring);
    ptb_comm_close(doubling);
    ptb_comm_config config = {.algorithm = "rign"};
    ptb_comm *none = NULL;
    REQUIRE(ptb_comm_open("mpi", world, &config, &none) == PTB_USAGE && !none);
    if (world->rank == 0)
        printf("forced on %d ranks: good\n", world->size);
}

// Two worker streams, each with a communicator of its own.
static void mode_worker(buffers *b)
{
    enum { COUNT = 600 };
    ptb_comm *comms[2] = {open_with(NULL, 0, NULL), open_with(NULL, 0, NULL)};
    ptb_stream *on[2];
    float *data = (float *)b->recv;
    for (int s = 0; s < 2; s++)
        REQUIRE(ptb_stream_new(device, PTB_STREAM_WORKER, s, &on[s]) == PTB_OK);
    for (int i = 0; i < 2 * COUNT; i++)
        data[i] = (float)world->rank;
    for (int round = 0; round < 20; round++)
        for (int s = 0; s < 2; s++) {
            ptb_coll call = {.kind = PTB_ALL_REDUCE,
                             .send = data + s * COUNT,
                             .recv = data + s * COUNT,
                             .count = COUNT,
                             .dtype = PTB_F32,
                             .op = round == 0 ? PTB_SUM : PTB_AVG};
            REQUIRE(ptb_comm_collective(comms[s], &call, on[s]) == PTB_OK);
        }
    for (int s = 0; s < 2; s++)
        REQUIRE(ptb_stream_sync(on[s]) == PTB_OK);
    for (int i = 0; i < 2 * COUNT; i++)
        REQUIRE(data[i] == (float)(world->size * (world->size - 1) / 2));
    check_messages(comms[0], on[0], 500, b);
    for (int s = 0; s < 2; s++) {
        ptb_stream_free(on[s]);
        ptb_comm_close(comms[s]);
    }
    if (world->rank == 0)
        printf("worker on %d ranks: good\n", world->size);
}

static void mode_facts(const char *algorithm, const char *transport)
{
    ptb_comm *comm = NULL;
    ptb_comm_config config = {.algorithm = algorithm, .segment_bytes = 4096, .transport = transport};
    if (ptb_comm_open("mpi", world, &config, &comm) != PTB_OK)
        return;
    const ptb_coll calls[] = {
        {.kind = PTB_ALL_REDUCE, .count = 1000, .dtype = PTB_F32},
        {.kind = PTB_ALL_REDUCE, .count = 3000000000, .dtype = PTB_BF16, .op = PTB_AVG},
        {.kind = PTB_ALL_GATHER, .count = 1001, .dtype = PTB_F32},
        {.kind = PTB_ALL_GATHER, .count = 3000000000, .dtype = PTB_F32},
        {.kind = PTB_REDUCE_SCATTER, .count = 3000000000, .dtype = PTB_F32},
    };
    for (size_t i = 0; i < sizeof calls / sizeof *calls && world->rank == 0; i++) {
        ptb_params facts = {.count = 0};
        comm->ops->describe(comm, &calls[i], &facts);
        printf("%s:", ptb_coll_name(calls[i].kind));
        for (size_t k = 0; k < facts.count; k++)
            printf(" %s=[%s]", facts.items[k].name, facts.items[k].value);
        char reason[PTB_REASON_BYTES];
        if (!comm->ops->supports(comm, &calls[i], false, reason))
            printf(" refused=[%s]", reason);
        printf("\n");
    }
    ptb_comm_close(comm);
}

int main(int argc, char **argv)
{
    const char *mode = argc > 1 ? argv[1] : "check", *word = argc > 2 ? argv[2] : NULL;
    const char *transport = argc > 3 ? argv[3] : NULL;
    bool worker = strcmp(mode, "worker") == 0;
    buffers b = {.send = malloc(MOST * 8 + GUARD), .recv = malloc(MOST * 8 + GUARD)};
    if (strcmp(mode, "early") == 0) // the names before the library has started, as a listing reads them
        printf("all_reduce: %s ...\n", ptb_mpi_algorithms(PTB_ALL_REDUCE)[0]);
    // "asks" wants a transport without having set it up.
    if ((strcmp(mode, "asks") != 0 && ptb_transport_apply(transport) != PTB_OK) ||
        ptb_world_open_mpi(worker, &world) != PTB_OK)
        return 13;
    REQUIRE(ptb_device_open("host", 0, &device) == PTB_OK);
    REQUIRE(ptb_stream_new(device, PTB_STREAM_CALLER, 0, &stream) == PTB_OK);
    if (worker)
        mode_worker(&b);
    else if (strcmp(mode, "forced") == 0)
        mode_forced(&b);
    else if (strcmp(mode, "check") != 0)
        mode_facts(word, transport);
    else
        mode_check(&b);
    ptb_stream_free(stream);
    ptb_device_close(device);
    ptb_world_close(world);
    free(b.send);
    free(b.recv);
    return 0;
}
