// What the simulated NCCL does in the device process: collectives and messages through the shared segment.
#include "tests/simcuda/nccl.hpp"
#include "tests/simcuda/shared.hpp"

#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

// One rank of one communicator, in the memory of the device process.
struct sim_nccl_side {
    sim_nccl_shared *shared;
    size_t bytes;
    sim_nccl_attach set;
    long operations;  // begun so far
    long collectives; // of them; ranks may differ in messages
    std::mutex one;   // piece of work at a time
    bool is_detached; // what is still in a queue finds nothing to do
};

namespace {
// globaltimer counts from 1970, and nobody sets it.
uint64_t gpu_clock_ns(void)
{
    static const uint64_t from_ns = [] {
        struct timespec now;
        clock_gettime(CLOCK_REALTIME, &now);
        return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec - sim_now_ns();
    }();
    return from_ns + sim_now_ns();
}

void pause_ns(long ns)
{
    const struct timespec time = {ns / 1000000000, ns % 1000000000};
    nanosleep(&time, NULL);
}

// Whether this rank is to leave what it does: aborted, or the communicator has failed.
bool stopped(const sim_nccl_side *side)
{
    const sim_nccl_shared *s = side->shared;
    return s->error.load() || s->rank[side->set.rank].aborted.load();
}

// All ranks leave after the last has come; false: stopped meanwhile.
bool meet(sim_nccl_side *side)
{
    sim_nccl_shared *s = side->shared;
    const uint32_t mine = s->generation.load();
    if (stopped(side))
        return false;
    if (s->arrived.fetch_add(1) + 1 == (uint32_t)side->set.ranks) {
        s->arrived.store(0);
        s->generation.fetch_add(1);
        syscall(SYS_futex, &s->generation, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
        return true;
    }
    for (int turn = 0; s->generation.load() == mine; turn++) {
        if (stopped(side))
            return false;
        if (turn < 20) {
            sched_yield();
            continue;
        }
        const struct timespec limit = {0, 2000000};
        syscall(SYS_futex, &s->generation, FUTEX_WAIT, mine, &limit, NULL, 0);
    }
    return true;
}

bool is_dead(const sim_nccl_side *side, int a, int b)
{
    const int *dead = side->set.dead;
    return (a == dead[0] && b == dead[1]) || (a == dead[1] && b == dead[0]);
}

// Faults; false: the work is not to be done.
bool begin(sim_nccl_side *side)
{
    const sim_nccl_attach *set = &side->set;
    const long number = ++side->operations;
    if (set->slow_us > 0)
        pause_ns(set->slow_us * 1000);
    if (number == set->error_at)
        sim_nccl_fail(side->shared, ncclRemoteError,
                      "rank %d: remote process has closed the connection (simulated fault ncclerr=%ld)",
                      set->rank, number);
    while (number == set->hang_at && !stopped(side))
        pause_ns(1000000);
    return !stopped(side);
}

// The ring of the ranks has a dead link; of two ranks each other's.
bool ring_is_dead(const sim_nccl_side *side)
{
    const int *dead = side->set.dead, n = side->set.ranks;
    if (dead[0] < 0 || n < 2)
        return false;
    const int apart = dead[0] < dead[1] ? dead[1] - dead[0] : dead[0] - dead[1];
    return dead[0] < n && dead[1] < n && (apart == 1 || apart == n - 1);
}

void print_call(const sim_nccl_call *call, char text[160])
{
    static const char *const ops[] = {"sum", "prod", "max", "min", "avg"};
    const bool reduces = call->function == SIM_NCCL_ALL_REDUCE || call->function == SIM_NCCL_REDUCE ||
                         call->function == SIM_NCCL_REDUCE_SCATTER;
    const bool rooted = call->function == SIM_NCCL_BROADCAST || call->function == SIM_NCCL_REDUCE;
    int at = snprintf(text, 160, "nccl%s of %llu %s", sim_nccl_function_name(call->function),
                      (unsigned long long)call->count, sim_nccl_type_name(call->type));
    if (reduces)
        at += snprintf(text + at, (size_t)(160 - at), ", %s", ops[call->op]);
    if (rooted)
        snprintf(text + at, (size_t)(160 - at), ", root %d", call->root);
}

// Symmetric kernels take one place for all ranks.
bool same_places(sim_nccl_side *side, const sim_nccl_call *first, const sim_nccl_call *mine)
{
    for (int b = 0; b < 2; b++) {
        if (first->place[b].window == mine->place[b].window &&
            first->place[b].offset == mine->place[b].offset)
            continue;
        sim_nccl_fail(
            side->shared, ncclInvalidUsage,
            "mismatched windows: the %s buffer of nccl%s lies in window %llu at %llu on rank 0, in "
            "window %llu at %llu on rank %d (window 0: none), and a symmetric kernel takes one place "
            "for all ranks",
            b ? "receive" : "send", sim_nccl_function_name(mine->function),
            (unsigned long long)first->place[b].window, (unsigned long long)first->place[b].offset,
            (unsigned long long)mine->place[b].window, (unsigned long long)mine->place[b].offset,
            side->set.rank);
        return false;
    }
    return true;
}

// Every rank posts its call; all of them must be the same.
bool agree(sim_nccl_side *side, const sim_nccl_call *call)
{
    sim_nccl_shared *s = side->shared;
    const int me = side->set.rank, parity = (int)(side->collectives++ & 1);
    s->rank[me].call[parity] = *call;
    if (!meet(side))
        return false;
    const sim_nccl_call *first = &s->rank[0].call[parity];
    if (first->function == call->function && first->type == call->type && first->op == call->op &&
        first->root == call->root && first->count == call->count)
        return same_places(side, first, call);
    char theirs[160], mine[160];
    print_call(first, theirs);
    print_call(call, mine);
    sim_nccl_fail(s, ncclInvalidUsage, "mismatched calls: rank 0 called %s, rank %d called %s", theirs, me,
                  mine);
    return false;
}

// A collective in flight, chunk by chunk.
struct flight {
    sim_nccl_side *side;
    const sim_nccl_collective *work;
    size_t element;
};

void put(const flight *f, int parity, uint64_t first, uint64_t count)
{
    const sim_nccl_call *call = &f->work->call;
    const int me = f->side->set.rank, n = f->side->set.ranks;
    char *slot = sim_nccl_slot(f->side->shared, parity, me);
    const char *send = (const char *)f->work->send;
    if (call->function == SIM_NCCL_REDUCE_SCATTER) {
        for (int r = 0; r < n; r++)
            memcpy(slot + (uint64_t)r * count * f->element,
                   send + ((uint64_t)r * call->count + first) * f->element, count * f->element);
    } else if (call->function != SIM_NCCL_BROADCAST || me == call->root) {
        memcpy(slot, send + first * f->element, count * f->element);
    }
}

void take(const flight *f, int parity, uint64_t first, uint64_t count)
{
    const sim_nccl_call *call = &f->work->call;
    const int me = f->side->set.rank, n = f->side->set.ranks;
    const size_t bytes = count * f->element;
    char *recv = (char *)f->work->recv;
    const char *slots[SIM_NCCL_RANKS];
    for (int r = 0; r < n; r++)
        slots[r] = sim_nccl_slot(f->side->shared, parity, r);
    switch (call->function) {
    case SIM_NCCL_ALL_GATHER:
        for (int r = 0; r < n; r++)
            memcpy(recv + ((uint64_t)r * call->count + first) * f->element, slots[r], bytes);
        return;
    case SIM_NCCL_BROADCAST:
        memcpy(recv + first * f->element, slots[call->root], bytes);
        return;
    case SIM_NCCL_REDUCE:
        if (me != call->root)
            return;
        break;
    case SIM_NCCL_REDUCE_SCATTER:
        for (int r = 0; r < n; r++)
            slots[r] += (uint64_t)me * bytes;
        break;
    }
    sim_nccl_reduce(call->type, call->op, recv + first * f->element, slots, n, count);
}

void run_collective(sim_nccl_side *side, const sim_nccl_collective *work)
{
    const sim_nccl_call *call = &work->call;
    const flight f = {side, work, sim_nccl_type_size(call->type)};
    const int parts = call->function == SIM_NCCL_REDUCE_SCATTER ? side->set.ranks : 1;
    const uint64_t most = SIM_NCCL_SLOT_BYTES / f.element / (uint64_t)parts;
    while (ring_is_dead(side) && !stopped(side))
        pause_ns(1000000);
    if (!agree(side, call))
        return;
    int parity = 0;
    for (uint64_t first = 0; first < call->count; first += most, parity ^= 1) {
        const uint64_t count = call->count - first < most ? call->count - first : most;
        put(&f, parity, first, count);
        if (!meet(side))
            return;
        take(&f, parity, first, count);
    }
    // Slots may be written again once all have taken: the next operation begins with a meeting.
}

// ---- messages

struct message_header {
    uint64_t count;
    int64_t type;
};

// A message in flight: the header goes before the data.
struct progress {
    const sim_nccl_message *message;
    uint64_t at, total; // bytes, header included
    message_header header;
};

// Moves what fits now; false: nothing did.
bool advance_send(sim_nccl_channel *c, progress *p)
{
    const uint64_t written = c->written.load(), room = SIM_NCCL_CHANNEL_BYTES - (written - c->read.load());
    uint64_t bytes = p->total - p->at < room ? p->total - p->at : room;
    const bool in_header = p->at < sizeof p->header;
    if (in_header && bytes > sizeof p->header - p->at)
        bytes = sizeof p->header - p->at;
    const uint64_t place = written % SIM_NCCL_CHANNEL_BYTES;
    if (bytes > SIM_NCCL_CHANNEL_BYTES - place)
        bytes = SIM_NCCL_CHANNEL_BYTES - place;
    if (bytes == 0)
        return false;
    const char *from = in_header ? (const char *)&p->header + p->at
                                 : (const char *)p->message->buffer + (p->at - sizeof p->header);
    memcpy(c->data + place, from, bytes);
    c->written.store(written + bytes);
    p->at += bytes;
    return true;
}

bool advance_recv(sim_nccl_channel *c, progress *p)
{
    const uint64_t read = c->read.load(), there = c->written.load() - read;
    uint64_t bytes = p->total - p->at < there ? p->total - p->at : there;
    const bool in_header = p->at < sizeof p->header;
    if (in_header && bytes > sizeof p->header - p->at)
        bytes = sizeof p->header - p->at;
    const uint64_t place = read % SIM_NCCL_CHANNEL_BYTES;
    if (bytes > SIM_NCCL_CHANNEL_BYTES - place)
        bytes = SIM_NCCL_CHANNEL_BYTES - place;
    if (bytes == 0)
        return false;
    char *to =
        in_header ? (char *)&p->header + p->at : (char *)p->message->buffer + (p->at - sizeof p->header);
    memcpy(to, c->data + place, bytes);
    c->read.store(read + bytes);
    p->at += bytes;
    return true;
}

bool check_header(sim_nccl_side *side, const progress *p)
{
    const sim_nccl_message *m = p->message;
    if (p->header.count == m->count && p->header.type == m->type)
        return true;
    sim_nccl_fail(
        side->shared, ncclInvalidUsage,
        "mismatched messages: rank %d called ncclSend of %llu %s to rank %d, which called ncclRecv of "
        "%llu %s from it",
        m->peer, (unsigned long long)p->header.count, sim_nccl_type_name((int)p->header.type), side->set.rank,
        (unsigned long long)m->count, sim_nccl_type_name(m->type));
    return false;
}

// One turn over all messages. Those of one direction and peer go one after the other.
bool advance_all(sim_nccl_side *side, std::vector<progress> *all, size_t *left)
{
    const int me = side->set.rank;
    bool taken[2][SIM_NCCL_RANKS] = {{false}};
    bool moved = false;
    for (progress &p : *all) {
        const sim_nccl_message *m = p.message;
        if (p.at == p.total || taken[m->send ? 1 : 0][m->peer])
            continue;
        taken[m->send ? 1 : 0][m->peer] = true;
        if (is_dead(side, me, m->peer))
            continue;
        const bool before = p.at < sizeof p.header;
        const bool now = m->send ? advance_send(sim_nccl_channel_of(side->shared, me, m->peer), &p)
                                 : advance_recv(sim_nccl_channel_of(side->shared, m->peer, me), &p);
        if (now && !m->send && before && p.at >= sizeof p.header && !check_header(side, &p))
            return false;
        moved |= now;
        *left -= p.at == p.total;
    }
    return moved;
}

void run_messages(sim_nccl_side *side, const sim_nccl_messages *work)
{
    const sim_nccl_message *list = work->list ? work->list : work->own;
    std::vector<progress> all;
    for (uint32_t i = 0; i < work->count; i++) {
        const sim_nccl_message *m = &list[i];
        all.push_back({m,
                       0,
                       sizeof(message_header) + m->count * sim_nccl_type_size(m->type),
                       {m->send ? m->count : 0, m->type}});
    }
    size_t left = all.size();
    for (int idle = 0; left > 0 && !stopped(side);) {
        if (advance_all(side, &all, &left))
            idle = 0;
        else if (++idle < 50)
            sched_yield();
        else
            pause_ns(50000);
    }
}

// ---- around the work

sim_nccl_traffic_seat seat_of(const sim_nccl_side *side)
{
    const sim_nccl_attach *set = &side->set;
    return {side->shared, set->rank, set->ranks, set->gpu, {set->rail_moved[0], set->rail_moved[1]}};
}

struct work_in_hand {
    sim_nccl_side *side;
    sim_nccl_times *times;
    std::unique_lock<std::mutex> hold;
    work_in_hand(uint64_t address, sim_nccl_times *times_of)
        : side((sim_nccl_side *)address), times(times_of), hold(side->one)
    {
        if (times)
            times->begin_ns.store(gpu_clock_ns());
    }
    ~work_in_hand()
    {
        if (times)
            times->end_ns.store(gpu_clock_ns());
    }
};
} // namespace

cudaError_t sim_nccl_work_collective(void *args)
{
    const sim_nccl_collective *work = (const sim_nccl_collective *)args;
    work_in_hand hand(work->side, work->times);
    if (hand.side->is_detached)
        return cudaSuccess;
    const sim_nccl_traffic_seat seat = seat_of(hand.side);
    if (begin(hand.side))
        run_collective(hand.side, work);
    if (!stopped(hand.side))
        sim_nccl_count_collective(&seat, work);
    return cudaSuccess; // errors are the communicator's
}

cudaError_t sim_nccl_work_messages(void *args)
{
    const sim_nccl_messages *work = (const sim_nccl_messages *)args;
    work_in_hand hand(work->side, work->times);
    if (hand.side->is_detached)
        return cudaSuccess;
    const sim_nccl_traffic_seat seat = seat_of(hand.side);
    if (begin(hand.side))
        run_messages(hand.side, work);
    if (!stopped(hand.side))
        sim_nccl_count_messages(&seat, work->list ? work->list : work->own, work->count);
    return cudaSuccess;
}

cudaError_t sim_nccl_work_attach(void *args)
{
    const sim_nccl_attach *set = (const sim_nccl_attach *)args;
    sim_nccl_shared *shared = sim_nccl_map(set->name, set->ranks);
    if (!shared)
        return cudaErrorOperatingSystem;
    sim_nccl_side *side = new sim_nccl_side();
    side->shared = shared;
    side->bytes = sim_nccl_shared_bytes(set->ranks);
    side->set = *set;
    shared->rank[set->rank].side.store((uint64_t)side);
    return cudaSuccess;
}

// The side itself stays: after an abort there may be work in queues that points to it.
cudaError_t sim_nccl_work_detach(void *args)
{
    sim_nccl_side *side = (sim_nccl_side *)((const sim_nccl_detach *)args)->side;
    std::lock_guard<std::mutex> hold(side->one);
    side->is_detached = true;
    munmap(side->shared, side->bytes);
    return cudaSuccess;
}
