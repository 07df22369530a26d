// The threads of a block as fibers: scheduling, barriers and warp operations. context.hpp has the switch
// itself.
#include "tests/simcuda/fibers.hpp"
#include "tests/simcuda/check.hpp"
#include "tests/simcuda/context.hpp"
#include "tests/simcuda/products.hpp"
#include "tests/simcuda/sanitize.hpp"
#include "tests/simcuda/sim.hpp"

#include <atomic>
#include <mutex>
#include <vector>

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

__thread uint3 threadIdx, blockIdx, blockDim, gridDim;

namespace {
#ifdef PTB_SANITIZED // frames are larger
enum { STACK_BYTES = 512 * 1024 };
#else
enum { STACK_BYTES = 128 * 1024 };
#endif
enum { WARPS = SIM_BLOCK_THREADS / SIM_WARP, GUARD_BYTES = 4096 };
enum { SHARED_BYTES = 256 * 1024 };

struct executor;

struct async_copy {
    void *to;
    const void *from;
    unsigned bytes, valid, group;
};

struct fiber {
    sim_context context;
    executor *owner;
    unsigned thread; // that it runs
    unsigned char *stack;
};

struct warp {
    uint32_t live;     // lanes that have not ended
    uint32_t runnable; // of these, those that wait for nothing
    uint32_t barrier;  // at the block's barrier
    uint32_t arrived;  // in a warp operation
    uint32_t mask[SIM_WARP];
    sim_warp_operation *operation[SIM_WARP];
    void *mine[SIM_WARP];
    uint32_t syncs;             // __syncwarp's so far
    uint32_t synced[SIM_SYNCS]; // their lanes
};

// Copies of a thread that it has not waited for.
struct pending {
    std::vector<async_copy> copies;
    unsigned group = 0;
};

// All that a running grid needs; kept for the next one.
struct executor {
    const sim_grid *grid;
    unsigned threads, warps;
    uint64_t block, blocks; // running, of how many
    uint32_t ready;         // warps with a runnable lane
    unsigned live, waiting; // threads of the block; of these, at the barrier
    int votes, result;      // of the barrier
    fiber *current;
    warp warp_of[WARPS];
    fiber *fiber_of[SIM_BLOCK_THREADS]; // NULL: not begun
    uint3 index[SIM_BLOCK_THREADS];     // threadIdx
    uint3 index_block;                  // the block shape that index is for
    std::vector<fiber *> idle, all;
    std::vector<pending> copies;
    bool copies_used, reverse;
    uint64_t epoch, begun; // changes at each barrier and block; what it was when the block began
    sim_context main;
    cudaError_t error;
    unsigned char *shared; // SHARED_BYTES, then a guard page
};

std::atomic<uint64_t> epochs; // of all executors
std::mutex pool_lock;
std::vector<executor *> pool;
__thread executor *here; // of the grid that this thread runs

void fiber_main(void *argument);

void make_ready(executor *e, unsigned w, uint32_t lanes)
{
    e->warp_of[w].runnable |= lanes;
    if (lanes)
        e->ready |= 1u << w;
}

void begin_block(executor *e)
{
    const uint3 g = e->grid->grid;
    blockIdx = {(unsigned)(e->block % g.x), (unsigned)(e->block / g.x % g.y),
                (unsigned)(e->block / g.x / g.y)};
    e->live = e->threads;
    e->waiting = 0;
    e->votes = 0;
    e->epoch = e->begun = epochs.fetch_add(1, std::memory_order_relaxed) + 1;
    e->ready = 0;
    for (unsigned w = 0; w < e->warps; w++) {
        const unsigned lanes = e->threads - w * SIM_WARP;
        warp *of = &e->warp_of[w];
        of->live = lanes >= SIM_WARP ? 0xffffffffu : (1u << lanes) - 1;
        of->runnable = of->barrier = of->arrived = 0;
        make_ready(e, w, of->live);
    }
    if (e->copies_used)
        for (pending &of : e->copies)
            of.copies.clear();
}

// A thread that can run, best one of the warp that ran last: its lanes meet soon.
bool pick(executor *e, unsigned last, unsigned *thread)
{
    if (!e->ready)
        return false;
    unsigned w = last / SIM_WARP;
    if (!(e->ready >> w & 1)) {
        const uint32_t after = e->reverse ? e->ready & ((1u << w) - 1) : e->ready & ~((2u << w) - 1);
        const uint32_t from = after ? after : e->ready;
        w = (unsigned)(e->reverse ? 31 - __builtin_clz(from) : __builtin_ctz(from));
    }
    const uint32_t lanes = e->warp_of[w].runnable;
    *thread = w * SIM_WARP + (unsigned)(e->reverse ? 31 - __builtin_clz(lanes) : __builtin_ctz(lanes));
    return true;
}

void describe_waiters(const executor *e)
{
    int told = 0;
    for (unsigned t = 0; t < e->threads && told < 8; t++) {
        const warp *of = &e->warp_of[t / SIM_WARP];
        const uint32_t bit = 1u << t % SIM_WARP;
        if (of->arrived & bit)
            fprintf(stderr, "  thread %u waits in a warp operation for lanes 0x%08x (in it: 0x%08x)\n", t,
                    of->mask[t % SIM_WARP], of->arrived);
        else if (of->barrier & bit)
            fprintf(stderr, "  thread %u waits at the block's barrier\n", t);
        else
            continue;
        told++;
    }
}

[[noreturn]] void deadlock(executor *e)
{
    describe_waiters(e);
    sim_abort_grid(
        cudaErrorLaunchTimeout,
        "deadlock: each thread of the block waits for one that does not come (on a GPU it would hang)");
}

fiber *take_fiber(executor *e)
{
    if (!e->idle.empty()) {
        fiber *f = e->idle.back();
        e->idle.pop_back();
        return f;
    }
    fiber *f = new fiber;
    f->owner = e;
    f->stack = (unsigned char *)mmap(NULL, STACK_BYTES, PROT_READ | PROT_WRITE,
                                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (f->stack == MAP_FAILED || mprotect(f->stack, GUARD_BYTES, PROT_NONE)) {
        fprintf(stderr, "simulated device: no memory for the stack of thread %zu of a block\n",
                e->all.size());
        abort();
    }
    // Staggered, so that the tops of all stacks do not fall into the same cache sets.
    sim_context_make(&f->context, f->stack, STACK_BYTES - e->all.size() % 16 * 192, fiber_main, f);
    e->all.push_back(f);
    return f;
}

// Makes `thread` the running one on fiber f.
void enter(executor *e, fiber *f, unsigned thread)
{
    f->thread = thread;
    e->fiber_of[thread] = f;
    e->current = f;
    warp *of = &e->warp_of[thread / SIM_WARP];
    of->runnable &= ~(1u << thread % SIM_WARP);
    if (!of->runnable)
        e->ready &= ~(1u << thread / SIM_WARP);
    threadIdx = e->index[thread];
}

// The running thread waits: another one runs until this one is made ready.
void park(executor *e)
{
    fiber *me = e->current;
    const unsigned mine = me->thread;
    unsigned next;
    if (!pick(e, mine, &next))
        deadlock(e);
    fiber *f = e->fiber_of[next];
    if (!f)
        f = take_fiber(e);
    enter(e, f, next);
    sim_context_switch(&me->context, &f->context);
}

void release_barrier(executor *e)
{
    e->epoch = epochs.fetch_add(1, std::memory_order_relaxed) + 1;
    e->result = e->votes;
    e->votes = 0;
    e->waiting = 0;
    for (unsigned w = 0; w < e->warps; w++) {
        make_ready(e, w, e->warp_of[w].barrier);
        e->warp_of[w].barrier = 0;
    }
}

// The operation of __syncwarp: nothing but to meet.
void meet(void *const[SIM_WARP]) {}

// Completes the operation that lane `lane` waits in, if all it waits for are there. `running` has come last
// and goes on without becoming runnable (SIM_WARP: nobody).
bool complete_operation(executor *e, unsigned w, unsigned lane, unsigned running)
{
    warp *of = &e->warp_of[w];
    const uint32_t group = of->mask[lane] & of->live;
    if ((of->arrived & group) != group)
        return false;
    void *lanes[SIM_WARP] = {};
    for (uint32_t rest = group; rest; rest &= rest - 1) {
        const unsigned i = (unsigned)__builtin_ctz(rest);
        if (of->mask[i] != of->mask[lane])
            return false; // it waits for others
        if (of->operation[i] != of->operation[lane])
            sim_abort_grid(cudaErrorLaunchFailure,
                           "lanes %u and %u of warp %u meet in different warp operations (mask 0x%08x)", i,
                           lane, w, of->mask[lane]);
        lanes[i] = of->mine[i];
    }
    if (of->operation[lane] == meet)
        of->synced[++of->syncs % SIM_SYNCS] = group;
    else
        of->operation[lane](lanes);
    of->arrived &= ~group;
    make_ready(e, w, running < SIM_WARP ? group & ~(1u << running) : group);
    return true;
}

// The running thread has ended: whoever waited for it need not any more.
void leave(executor *e, unsigned thread)
{
    const unsigned w = thread / SIM_WARP;
    warp *of = &e->warp_of[w];
    if (e->copies_used && !e->copies[thread].copies.empty())
        sim_abort_grid(cudaErrorLaunchFailure, "the thread ends before copies (cp.async) that it has begun");
    of->live &= ~(1u << thread % SIM_WARP);
    e->fiber_of[thread] = NULL;
    e->live--;
    if (e->live && e->waiting == e->live)
        release_barrier(e);
    for (uint32_t rest = of->arrived; rest;) {
        const unsigned lane = (unsigned)__builtin_ctz(rest);
        rest &= ~of->mask[lane];
        rest &= ~(1u << lane);
        complete_operation(e, w, lane, SIM_WARP);
    }
}

// What a fiber does after a thread: true when it shall run another one itself.
__attribute__((noinline)) bool after_thread(fiber *f)
{
    executor *e = f->owner;
    const unsigned ended = f->thread;
    leave(e, ended);
    unsigned next = e->reverse ? e->threads - 1 : 0;
    if (!e->live) {
        sim_products_end();
        if (++e->block == e->blocks) {
            e->idle.push_back(f);
            sim_context_switch(&f->context, &e->main);
            return true; // taken again by a later grid
        }
        begin_block(e);
    } else if (!pick(e, ended, &next)) {
        deadlock(e);
    }
    fiber *to = e->fiber_of[next];
    if (!to) {
        enter(e, f, next);
        return true;
    }
    e->idle.push_back(f);
    enter(e, to, next);
    sim_context_switch(&f->context, &to->context);
    return true;
}

void fiber_main(void *argument)
{
    fiber *f = (fiber *)argument;
    sim_context_begun(&f->context);
    do
        f->owner->grid->call(f->owner->grid->arguments);
    while (after_thread(f));
}

executor *take_executor(void)
{
    std::lock_guard<std::mutex> hold(pool_lock);
    if (!pool.empty()) {
        executor *e = pool.back();
        pool.pop_back();
        return e;
    }
    executor *e = new executor();
    e->shared = (unsigned char *)mmap(NULL, SHARED_BYTES + GUARD_BYTES, PROT_READ | PROT_WRITE,
                                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (e->shared == MAP_FAILED || mprotect(e->shared + SHARED_BYTES, GUARD_BYTES, PROT_NONE)) {
        fprintf(stderr, "simulated device: no memory for the shared memory of a block\n");
        abort();
    }
    e->copies.resize(SIM_BLOCK_THREADS);
    e->reverse = sim_option("order") == 1;
    return e;
}

void give_executor(executor *e)
{
    if (e->error) { // fibers were left in the middle
        e->idle = e->all;
        for (size_t i = 0; i < e->all.size(); i++)
            sim_context_make(&e->all[i]->context, e->all[i]->stack, STACK_BYTES - i % 16 * 192, fiber_main,
                             e->all[i]);
    }
    std::lock_guard<std::mutex> hold(pool_lock);
    pool.push_back(e);
}

void set_shape(executor *e, const sim_grid *grid)
{
    const uint3 b = grid->block;
    e->grid = grid;
    e->error = cudaSuccess;
    e->threads = b.x * b.y * b.z;
    e->warps = (e->threads + SIM_WARP - 1) / SIM_WARP;
    e->block = 0;
    e->blocks = (uint64_t)grid->grid.x * grid->grid.y * grid->grid.z;
    e->copies_used = false;
    blockDim = b;
    gridDim = grid->grid;
    memset(e->fiber_of, 0, sizeof e->fiber_of);
    if (!memcmp(&b, &e->index_block, sizeof b))
        return;
    e->index_block = b;
    for (unsigned t = 0; t < e->threads; t++)
        e->index[t] = {t % b.x, t / b.x % b.y, t / b.x / b.y};
}
} // namespace

cudaError_t sim_run_grid(const sim_grid *grid)
{
    executor *e = take_executor();
    here = e;
    set_shape(e, grid);
    // Nothing is in shared memory that a kernel has not written: NaN.
    unsigned char *shared = (unsigned char *)sim_dynamic_shared(), *end = e->shared + SHARED_BYTES;
    sim_allow(shared, end - shared);
    memset(shared, 0xff, (size_t)(end - shared));
    sim_forbid(e->shared, shared - e->shared);
    sim_forbid(shared + grid->shared_bytes, end - shared - grid->shared_bytes);
    begin_block(e);
    sim_context_here(&e->main);
    fiber *f = take_fiber(e);
    enter(e, f, e->reverse ? e->threads - 1 : 0);
    sim_context_switch(&e->main, &f->context);
    here = NULL;
    const cudaError_t error = e->error;
    give_executor(e);
    return error;
}

void *sim_dynamic_shared(void)
{
    // It ends at the guard page.
    return here->shared + SHARED_BYTES - (here->grid->shared_bytes + 15) / 16 * 16;
}

int sim_block_barrier(int predicate)
{
    executor *e = here;
    const unsigned thread = e->current->thread;
    e->votes += predicate != 0;
    if (++e->waiting == e->live) {
        release_barrier(e);
        return e->result;
    }
    e->warp_of[thread / SIM_WARP].barrier |= 1u << thread % SIM_WARP;
    park(e);
    return e->result;
}

void sim_warp_run(uint32_t mask, sim_warp_operation *operation, void *mine)
{
    executor *e = here;
    const unsigned thread = e->current->thread, w = thread / SIM_WARP, lane = thread % SIM_WARP;
    warp *of = &e->warp_of[w];
    if (!(mask >> lane & 1))
        sim_abort_grid(cudaErrorLaunchFailure,
                       "lane %u calls a warp operation for lanes 0x%08x without itself", lane, mask);
    of->mask[lane] = mask;
    of->operation[lane] = operation;
    of->mine[lane] = mine;
    of->arrived |= 1u << lane;
    if (!complete_operation(e, w, lane, lane))
        park(e);
}

void sim_warp_sync(uint32_t mask)
{
    sim_warp_run(mask, meet, NULL);
}

uint32_t sim_warp_live(void)
{
    return here->warp_of[here->current->thread / SIM_WARP].live;
}

unsigned sim_lane(void)
{
    return here->current->thread % SIM_WARP;
}

const char *sim_kernel_name(void)
{
    return here ? here->grid->name : NULL;
}

bool sim_is_stack_guard(uintptr_t address)
{
    return here && address - (uintptr_t)here->current->stack < GUARD_BYTES;
}

void sim_async_copy(void *shared, const void *global, unsigned bytes, unsigned valid)
{
    executor *e = here;
    if ((bytes != 4 && bytes != 8 && bytes != 16) || ((uintptr_t)shared | (uintptr_t)global) % bytes)
        sim_abort_grid(cudaErrorMisalignedAddress, "cp.async of %u bytes from %p to %p: not aligned to them",
                       bytes, global, shared);
    if (sim_checking) { // from now on the bytes may change
        sim_check_access(shared, bytes, true, false);
        if (valid)
            sim_check_access(global, valid < bytes ? valid : bytes, false, false);
    }
    pending *of = &e->copies[e->current->thread];
    e->copies_used = true;
    of->copies.push_back({shared, global, bytes, valid < bytes ? valid : bytes, of->group});
}

void sim_async_commit(void)
{
    here->copies[here->current->thread].group++;
}

void sim_async_wait(unsigned groups)
{
    pending *of = &here->copies[here->current->thread];
    size_t done = 0;
    for (; done < of->copies.size() && of->group - of->copies[done].group > groups; done++) {
        const async_copy *copy = &of->copies[done];
        if (sim_checking)
            sim_check_access(copy->to, copy->bytes, true, false);
        memcpy(copy->to, copy->from, copy->valid);
        memset((char *)copy->to + copy->valid, 0, copy->bytes - copy->valid);
    }
    of->copies.erase(of->copies.begin(), of->copies.begin() + (ptrdiff_t)done);
}

bool sim_check_running(sim_check_thread *thread)
{
    const executor *e = here;
    if (!e)
        return false;
    const warp *of = &e->warp_of[e->current->thread / SIM_WARP];
    thread->thread = e->current->thread;
    thread->epoch = e->epoch;
    thread->begun = e->begun;
    thread->stack_end = (uintptr_t)e->current->stack + STACK_BYTES;
    thread->sync = of->syncs;
    thread->masks = of->synced;
    thread->shared = (uintptr_t)e->shared;
    thread->shared_end = thread->shared + SHARED_BYTES;
    thread->dynamic = (uintptr_t)sim_dynamic_shared();
    thread->dynamic_bytes = e->grid->shared_bytes;
    thread->block_shape = e->grid->block;
    return true;
}

void sim_abort_grid(cudaError_t error, const char *format, ...)
{
    executor *e = here;
    char text[512];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    const uint3 t = threadIdx, b = blockIdx;
    fprintf(stderr, "simulated device: kernel %s, block (%u,%u,%u), thread (%u,%u,%u): %s\n", e->grid->name,
            b.x, b.y, b.z, t.x, t.y, t.z, text);
    e->error = error;
    sim_context lost;
    sim_context_switch(&lost, &e->main);
    __builtin_unreachable();
}
