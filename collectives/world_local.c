// The world of threads of this process, for tests without a launcher. All waiting is on one mutex and one
// condition variable, so that any number of ranks runs on any number of cores and a race checker sees every
// dependency. Data moves by publishing pointers between two barriers.
#include "collectives/world.h"

#include "core/log.h"
#include "core/topology.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

// The threads of one ptb_world_run_local.
typedef struct {
    pthread_mutex_t mutex;
    pthread_cond_t changed; // some epoch or some `left` has changed
    int ranks;
    bool *left; // [ranks] has returned from body
} team;

// What the ranks of one world share.
typedef struct {
    team *team;
    int size, arrived;
    unsigned epoch;       // of the barrier
    const void **publish; // [size] a pointer from each rank, valid between two barriers
    int *member;          // [size] each rank's number in the team
    atomic_int users;
} shared;

typedef struct {
    ptb_world world;
    shared *shared;
    const int *key; // [team->ranks] pretended host of each of the team's ranks
} world_local;

static const ptb_world_ops world_local_ops;

static world_local *of(ptb_world *world)
{
    return (world_local *)world;
}

static void shared_drop(shared *s)
{
    if (atomic_fetch_sub(&s->users, 1) != 1)
        return;
    free(s->publish);
    free(s->member);
    free(s);
}

static shared *shared_new(team *team, int size)
{
    shared *s = calloc(1, sizeof *s);
    if (!s)
        return NULL;
    s->team = team;
    s->size = size;
    s->publish = calloc((size_t)size, sizeof *s->publish);
    s->member = calloc((size_t)size, sizeof *s->member);
    atomic_init(&s->users, size);
    if (s->publish && s->member)
        return s;
    free(s->publish);
    free(s->member);
    free(s);
    return NULL;
}

// ---- operations

// A rank of this world that has returned, or -1. With the mutex held.
static int someone_left(const shared *s)
{
    for (int r = 0; r < s->size; r++)
        if (s->team->left[s->member[r]])
            return r;
    return -1;
}

static ptb_status barrier(ptb_world *world, bool sleep)
{
    shared *s = of(world)->shared;
    team *t = s->team;
    (void)sleep; // every wait sleeps
    int gone = -1;
    pthread_mutex_lock(&t->mutex);
    unsigned epoch = s->epoch;
    if (++s->arrived == s->size) {
        s->arrived = 0;
        s->epoch++;
        pthread_cond_broadcast(&t->changed);
    }
    while (s->epoch == epoch && (gone = someone_left(s)) < 0)
        pthread_cond_wait(&t->changed, &t->mutex);
    bool passed = s->epoch != epoch;
    if (!passed)
        s->arrived--;
    pthread_mutex_unlock(&t->mutex);
    if (passed)
        return PTB_OK;
    ptb_error("rank %d returned while rank %d waited for it at a barrier", gone, world->rank);
    return PTB_LOST;
}

static ptb_status start(ptb_world *world)
{
    return barrier(world, false);
}

// Publishes a pointer to the other ranks until the next barrier.
static ptb_status publish(ptb_world *world, const void *pointer)
{
    of(world)->shared->publish[world->rank] = pointer;
    return barrier(world, false);
}

static ptb_status broadcast(ptb_world *world, int root, void *data, size_t bytes)
{
    PTB_TRY(publish(world, data));
    if (world->rank != root && bytes > 0)
        memcpy(data, of(world)->shared->publish[root], bytes);
    return barrier(world, false);
}

static ptb_status gather(ptb_world *world, int root, const void *send, size_t bytes, void *recv)
{
    PTB_TRY(publish(world, send));
    if (world->rank == root && bytes > 0)
        for (int r = 0; r < world->size; r++)
            memcpy((char *)recv + (size_t)r * bytes, of(world)->shared->publish[r], bytes);
    return barrier(world, false);
}

static ptb_status all_gather(ptb_world *world, const void *send, size_t bytes, void *recv)
{
    PTB_TRY(publish(world, send));
    for (int r = 0; r < world->size && bytes > 0; r++)
        memcpy((char *)recv + (size_t)r * bytes, of(world)->shared->publish[r], bytes);
    return barrier(world, false);
}

static ptb_status reduce_max(ptb_world *world, double *values, size_t count)
{
    double *largest = malloc((count ? count : 1) * sizeof *largest);
    if (!largest) {
        ptb_error("no memory for the maximum of %zu values", count);
        return PTB_NO_MEMORY;
    }
    ptb_status status = publish(world, values);
    if (status == PTB_OK) {
        memcpy(largest, values, count * sizeof *values);
        for (int r = 0; r < world->size; r++) {
            const double *theirs = of(world)->shared->publish[r];
            for (size_t i = 0; i < count; i++)
                if (theirs[i] > largest[i])
                    largest[i] = theirs[i];
        }
        status = barrier(world, false);
    }
    if (status == PTB_OK)
        memcpy(values, largest, count * sizeof *values);
    free(largest);
    return status;
}

static ptb_status open_rank(shared *s, int rank, const int *key, ptb_world **out)
{
    world_local *w = calloc(1, sizeof *w);
    int *keys = malloc((size_t)s->size * sizeof *keys);
    if (!w || !keys) {
        ptb_error("no memory for a world of %d ranks", s->size);
        free(w);
        free(keys);
        return PTB_NO_MEMORY;
    }
    w->world = (ptb_world){.ops = &world_local_ops, .rank = rank, .size = s->size};
    w->shared = s;
    w->key = key;
    for (int r = 0; r < s->size; r++)
        keys[r] = key ? key[s->member[r]] : 0;
    ptb_status status = ptb_world_set_hosts(&w->world, keys);
    free(keys);
    if (status != PTB_OK) {
        free(w);
        return status;
    }
    // The threads of all pretended hosts share this machine.
    int quota = ptb_topology_cgroup_cpus(), cpus = ptb_topology_allowed_cpus();
    w->world.sharing_ranks = s->team->ranks;
    w->world.shared_cpus = quota > 0 && quota < cpus ? quota : cpus;
    w->world.oversubscribed = w->world.shared_cpus < s->team->ranks;
    *out = &w->world;
    return PTB_OK;
}

typedef struct {
    int colour, key;
    shared *part; // made by the first rank of the new world
} split_wish;

// The ranks of `world` with this colour in the new order, into order [size]; returns how many.
static int split_order(const shared *s, int colour, int *order)
{
    int count = 0;
    for (int r = 0; r < s->size; r++) {
        const split_wish *wish = s->publish[r];
        if (wish->colour != colour)
            continue;
        int at = count++;
        while (at > 0 && ((const split_wish *)s->publish[order[at - 1]])->key > wish->key) {
            order[at] = order[at - 1];
            at--;
        }
        order[at] = r;
    }
    return count;
}

static ptb_status split_published(ptb_world *world, split_wish *wish, int *order, ptb_world **out)
{
    shared *s = of(world)->shared;
    int mine = 0, count = wish->colour < 0 ? 0 : split_order(s, wish->colour, order);
    if (count > 0 && order[0] == world->rank && (wish->part = shared_new(s->team, count)))
        for (int i = 0; i < count; i++)
            wish->part->member[i] = s->member[order[i]];
    PTB_TRY(barrier(world, false));
    shared *part = count > 0 ? ((const split_wish *)s->publish[order[0]])->part : NULL;
    while (count > 0 && order[mine] != world->rank)
        mine++;
    PTB_TRY(barrier(world, false)); // wishes are on the ranks' stacks
    if (count == 0) {
        *out = NULL;
        return PTB_OK;
    }
    if (!part) {
        ptb_error("no memory for a world of %d ranks", count);
        return PTB_NO_MEMORY;
    }
    ptb_status status = open_rank(part, mine, of(world)->key, out);
    if (status != PTB_OK)
        shared_drop(part);
    return status;
}

static ptb_status split(ptb_world *world, int colour, int key, ptb_world **out)
{
    split_wish wish = {.colour = colour, .key = key};
    int *order = malloc((size_t)world->size * sizeof *order);
    if (!order) {
        ptb_error("no memory to split a world of %d ranks", world->size);
        return PTB_NO_MEMORY;
    }
    ptb_status status = publish(world, &wish);
    if (status == PTB_OK)
        status = split_published(world, &wish, order, out);
    free(order);
    return status;
}

static void abort_job(ptb_world *world, int exit_code)
{
    (void)world;
    _exit(exit_code);
}

static void close_world(ptb_world *world)
{
    world_local *w = of(world);
    shared_drop(w->shared);
    free((void *)w->world.host_of);
    free(w);
}

static const ptb_world_ops world_local_ops = {
    .name = "local",
    .barrier = barrier,
    .start = start,
    .broadcast = broadcast,
    .gather = gather,
    .all_gather = all_gather,
    .reduce_max = reduce_max,
    .split = split,
    .abort = abort_job,
    .close = close_world,
};

// ---- running

typedef struct {
    pthread_t thread;
    ptb_world *world;
    ptb_status (*body)(ptb_world *, void *);
    void *arg;
    ptb_status status;
} member;

static void *run_member(void *arg)
{
    member *m = arg;
    team *t = of(m->world)->shared->team;
    m->status = m->body(m->world, m->arg);
    pthread_mutex_lock(&t->mutex);
    t->left[m->world->rank] = true;
    pthread_cond_broadcast(&t->changed);
    pthread_mutex_unlock(&t->mutex);
    return NULL;
}

// Starts one thread a rank and waits for all. If a thread cannot be started its rank counts as returned.
static ptb_status run_members(team *t, member *members)
{
    ptb_status worst = PTB_OK;
    int started = 0;
    while (started < t->ranks &&
           pthread_create(&members[started].thread, NULL, run_member, &members[started]) == 0)
        started++;
    if (started < t->ranks) {
        ptb_error("only %d of %d threads could be started", started, t->ranks);
        pthread_mutex_lock(&t->mutex);
        for (int r = started; r < t->ranks; r++)
            t->left[r] = true;
        pthread_cond_broadcast(&t->changed);
        pthread_mutex_unlock(&t->mutex);
        worst = PTB_SYSTEM;
    }
    for (int r = 0; r < started; r++) {
        pthread_join(members[r].thread, NULL);
        if (members[r].status > worst)
            worst = members[r].status;
    }
    return worst;
}

static ptb_status run_team(team *t, const int *host_of, ptb_status (*body)(ptb_world *, void *), void *arg)
{
    member *members = calloc((size_t)t->ranks, sizeof *members);
    shared *s = shared_new(t, t->ranks);
    if (!members || !s) {
        ptb_error("no memory for %d ranks", t->ranks);
        free(members);
        if (s) {
            atomic_store(&s->users, 1);
            shared_drop(s);
        }
        return PTB_NO_MEMORY;
    }
    for (int r = 0; r < t->ranks; r++)
        s->member[r] = r;
    ptb_status status = PTB_OK;
    int opened = 0;
    for (; opened < t->ranks && status == PTB_OK; opened++) {
        members[opened] = (member){.body = body, .arg = arg};
        status = open_rank(s, opened, host_of, &members[opened].world);
    }
    if (status == PTB_OK)
        status = run_members(t, members);
    for (int r = 0; r < t->ranks; r++) {
        if (members[r].world)
            close_world(members[r].world);
        else
            shared_drop(s);
    }
    free(members);
    return status;
}

ptb_status ptb_world_run_local(int ranks, const int *host_of, ptb_status (*body)(ptb_world *, void *),
                               void *arg)
{
    team t = {.ranks = ranks, .left = calloc((size_t)ranks, sizeof *t.left)};
    if (!t.left) {
        ptb_error("no memory for %d ranks", ranks);
        return PTB_NO_MEMORY;
    }
    pthread_mutex_init(&t.mutex, NULL);
    pthread_cond_init(&t.changed, NULL);
    ptb_status status = run_team(&t, host_of, body, arg);
    pthread_cond_destroy(&t.changed);
    pthread_mutex_destroy(&t.mutex);
    free(t.left);
    return status;
}
