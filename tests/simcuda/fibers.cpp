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
__thread unsigned sim_thread;
__thread void *sim_shared_memory;

namespace {
#ifdef PTB_SANITIZED // frames are larger
enum { STACK_BYTES = 512 * 1024 };
#else
enum { STACK_BYTES = 128 * 1024 };
#endif
enum { WARPS = SIM_BLOCK_THREADS / SIM_WARP, GUARD_BYTES = 4096, STAGGER_BYTES = 192 };
enum { SHARED_BYTES = 256 * 1024 };

struct executor;

struct async_copy {
    void *to;
    const void *from;
    unsigned bytes, valid, group;
};

struct fiber {
    executor *owner;
    unsigned number;
    unsigned char *stack;
};

struct alignas(64) warp {
    unsigned number, first; // of its threads
    uint32_t live;          // lanes that have not ended
    uint32_t runnable;      // of these, those that wait for nothing
    uint32_t barrier;       // at the block's barrier
    uint32_t arrived;       // in a warp operation
    uint32_t syncs;         // __syncwarp's so far
    alignas(64) uint32_t mask[SIM_WARP];
    sim_warp_operation *operation[SIM_WARP];
    void *mine[SIM_WARP];
    uint32_t synced[SIM_SYNCS]; // the lanes of __syncwarp's
};

enum { NO_FIBER = 0xffff };

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
    warp warp_of[WARPS];
    // Switching reads one place of each of these: together they are small enough for the first-level cache.
    uint16_t fiber_of[SIM_BLOCK_THREADS];   // by thread; NO_FIBER: not begun
    sim_context context[SIM_BLOCK_THREADS]; // by fiber
    uint3 index[SIM_BLOCK_THREADS];         // threadIdx
    uint3 index_block;                      // the block shape that index is for
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

void make_ready(executor *e, warp *of, uint32_t lanes)
{
    of->runnable |= lanes;
    if (lanes)
        e->ready |= 1u << of->number;
}

void begin_block(executor *e)
{
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
        make_ready(e, of, of->live);
    }
    if (e->copies_used)
        for (pending &of : e->copies)
            of.copies.clear();
}

// False after the last block.
bool next_block(executor *e)
{
    if (++e->block == e->blocks)
        return false;
    const uint3 grid = e->grid->grid;
    if (++blockIdx.x == grid.x) {
        blockIdx.x = 0;
        if (++blockIdx.y == grid.y) {
            blockIdx.y = 0;
            blockIdx.z++;
        }
    }
    begin_block(e);
    return true;
}

unsigned first_of(const executor *e, uint32_t set)
{
    return (unsigned)(e->reverse ? 31 - __builtin_clz(set) : __builtin_ctz(set));
}

// The warp that runs after one that cannot; there is one.
__attribute__((noinline)) warp *next_warp(executor *e, const warp *last)
{
    const unsigned w = last->number;
    const uint32_t after = e->reverse ? e->ready & ((1u << w) - 1) : e->ready & ~((2u << w) - 1);
    return &e->warp_of[first_of(e, after ? after : e->ready)];
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

void make_context(const fiber *f)
{
    // Staggered, so that the tops of all stacks do not fall into the same cache sets.
    sim_context_make(&f->owner->context[f->number], f->stack, STACK_BYTES - f->number * STAGGER_BYTES % 4096,
                     fiber_main, (void *)f);
}

__attribute__((noinline)) unsigned take_fiber(executor *e)
{
    if (!e->idle.empty()) {
        const fiber *f = e->idle.back();
        e->idle.pop_back();
        return f->number;
    }
    fiber *f = new fiber;
    f->owner = e;
    f->number = (unsigned)e->all.size();
    f->stack = (unsigned char *)mmap(NULL, STACK_BYTES, PROT_READ | PROT_WRITE,
                                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (f->stack == MAP_FAILED || mprotect(f->stack, GUARD_BYTES, PROT_NONE)) {
        fprintf(stderr, "simulated device: no memory for the stack of thread %u of a block\n", f->number);
        abort();
    }
    make_context(f);
    e->all.push_back(f);
    return f->number;
}

// Makes lane `lane` of the warp, a runnable one, the running thread.
inline unsigned enter(executor *e, warp *of, unsigned lane)
{
    const unsigned thread = of->first + lane;
    of->runnable &= ~(1u << lane);
    if (!of->runnable)
        e->ready &= ~(1u << of->number);
    sim_thread = thread;
    threadIdx = e->index[thread];
    return thread;
}

// The same for the lane that runs after one of warp `last`: best one of the same, whose lanes meet soon.
unsigned enter_next(executor *e, warp *last)
{
    if (!e->ready)
        deadlock(e);
    warp *of = last->runnable ? last : next_warp(e, last);
    return enter(e, of, first_of(e, of->runnable));
}

__attribute__((noinline)) void park_anywhere(executor *e, warp *of)
{
    const unsigned from = e->fiber_of[sim_thread], next = enter_next(e, of);
    if (e->fiber_of[next] == NO_FIBER)
        e->fiber_of[next] = (uint16_t)take_fiber(e);
    sim_context_switch(&e->context[from], &e->context[e->fiber_of[next]]);
}

// The running thread, of warp *of, waits: another one runs until this one is made ready. To be the last that
// a function does: then nothing is kept for after the switch, and the processor has one jump to predict.
inline void park(executor *e, warp *of)
{
    const uint32_t lanes = of->runnable;
    const unsigned lane = lanes ? first_of(e, lanes) : 0;
    const unsigned from = e->fiber_of[sim_thread], to = e->fiber_of[of->first + lane];
    if (!lanes || to == NO_FIBER) {
        park_anywhere(e, of);
        return;
    }
    enter(e, of, lane);
    if (of->runnable) { // whoever comes after that one; its fiber or, when it has none, any
        const unsigned after = e->fiber_of[of->first + first_of(e, of->runnable)];
        sim_context_prefetch(&e->context[after % SIM_BLOCK_THREADS]);
    }
    sim_context_switch(&e->context[from], &e->context[to]);
}

void release_barrier(executor *e)
{
    e->epoch = epochs.fetch_add(1, std::memory_order_relaxed) + 1;
    e->result = e->votes;
    e->votes = 0;
    e->waiting = 0;
    for (unsigned w = 0; w < e->warps; w++) {
        warp *of = &e->warp_of[w];
        make_ready(e, of, of->barrier);
        of->barrier = 0;
    }
}

// The operation of __syncwarp: nothing but to meet.
void meet(void *const[SIM_WARP]) {}

// Whether all lanes of a whole warp wait in the same operation for the same lanes.
inline bool is_one_operation(const warp *of)
{
    uint32_t masks = 0;
    uintptr_t operations = 0;
    for (int i = 1; i < SIM_WARP; i++) {
        masks |= of->mask[i] ^ of->mask[0];
        operations |= (uintptr_t)of->operation[i] ^ (uintptr_t)of->operation[0];
    }
    return !masks && !operations;
}

// lanes[i] = what lane i of the group passed to the operation; false: one of them waits for others.
__attribute__((noinline)) bool gather_lanes(const warp *of, unsigned lane, uint32_t group,
                                            void *lanes[SIM_WARP])
{
    memset(lanes, 0, SIM_WARP * sizeof *lanes);
    for (uint32_t rest = group; rest; rest &= rest - 1) {
        const unsigned i = (unsigned)__builtin_ctz(rest);
        if (of->mask[i] != of->mask[lane])
            return false;
        if (of->operation[i] != of->operation[lane])
            sim_abort_grid(cudaErrorLaunchFailure,
                           "lanes %u and %u of warp %u meet in different warp operations (mask 0x%08x)", i,
                           lane, of->number, of->mask[lane]);
        lanes[i] = of->mine[i];
    }
    return true;
}

[[noreturn]] __attribute__((noinline)) void refuse_mask(const warp *of, unsigned lane)
{
    sim_abort_grid(cudaErrorLaunchFailure, "lane %u calls a warp operation for lanes 0x%08x without itself",
                   lane, of->mask[lane]);
}

// Completes the operation that lane `lane` waits in, if all it waits for are there. `running` has come last
// and goes on without becoming runnable (0: nobody).
inline bool complete_operation(executor *e, warp *of, unsigned lane, uint32_t running)
{
    const uint32_t group = of->mask[lane] & of->live;
    if (group & ~of->arrived)
        return false;
    void *some[SIM_WARP], *const *lanes = of->mine;
    if (group != 0xffffffffu || !is_one_operation(of)) {
        if (!gather_lanes(of, lane, group, some))
            return false;
        lanes = some;
    }
    if (of->operation[lane] == meet)
        of->synced[++of->syncs % SIM_SYNCS] = group;
    else
        of->operation[lane](lanes);
    of->arrived &= ~group;
    make_ready(e, of, group & ~running);
    return true;
}

// The running thread has ended: whoever waited for it need not any more.
void leave(executor *e, warp *of, unsigned thread)
{
    if (e->copies_used && !e->copies[thread].copies.empty())
        sim_abort_grid(cudaErrorLaunchFailure, "the thread ends before copies (cp.async) that it has begun");
    of->live &= ~(1u << thread % SIM_WARP);
    e->live--;
    if (e->live && e->waiting == e->live)
        release_barrier(e);
    for (uint32_t rest = of->arrived; rest;) {
        const unsigned lane = (unsigned)__builtin_ctz(rest);
        rest &= ~of->mask[lane];
        rest &= ~(1u << lane);
        complete_operation(e, of, lane, 0);
    }
}

// What a fiber does after a thread: true when it shall run another one itself.
__attribute__((noinline)) bool after_thread(fiber *f)
{
    executor *e = f->owner;
    const unsigned ended = sim_thread;
    warp *of = &e->warp_of[ended / SIM_WARP];
    leave(e, of, ended);
    if (!e->live)
        sim_products_end(); // whose checks still want the thread's stack
    e->fiber_of[ended] = NO_FIBER;
    if (!e->live && !next_block(e)) {
        e->idle.push_back(f);
        sim_context_switch(&e->context[f->number], &e->main);
        return true; // taken again by a later grid
    }
    const unsigned next = enter_next(e, e->live < e->threads ? of : &e->warp_of[first_of(e, e->ready)]);
    const unsigned to = e->fiber_of[next];
    if (to == NO_FIBER) {
        e->fiber_of[next] = (uint16_t)f->number;
        return true;
    }
    e->idle.push_back(f);
    sim_context_switch(&e->context[f->number], &e->context[to]);
    return true;
}

void fiber_main(void *argument)
{
    fiber *f = (fiber *)argument;
    executor *e = f->owner;
    sim_context_begun(&e->context[f->number]);
    do
        e->grid->call(e->grid->arguments);
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
    for (unsigned w = 0; w < WARPS; w++) {
        e->warp_of[w].number = w;
        e->warp_of[w].first = w * SIM_WARP;
    }
    e->reverse = sim_option("order") == 1;
    return e;
}

void give_executor(executor *e)
{
    if (e->error) { // fibers were left in the middle
        e->idle = e->all;
        for (const fiber *f : e->all)
            make_context(f);
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
    blockIdx = {0, 0, 0};
    memset(e->fiber_of, 0xff, sizeof e->fiber_of);
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
    // Dynamic shared memory ends at the guard page. Nothing is in it that a kernel has not written: NaN.
    unsigned char *end = e->shared + SHARED_BYTES, *shared = end - (grid->shared_bytes + 15) / 16 * 16;
    sim_shared_memory = shared;
    sim_allow(shared, end - shared);
    memset(shared, 0xff, (size_t)(end - shared));
    sim_forbid(e->shared, shared - e->shared);
    sim_forbid(shared + grid->shared_bytes, end - shared - grid->shared_bytes);
    begin_block(e);
    sim_context_here(&e->main);
    const unsigned first = enter_next(e, &e->warp_of[first_of(e, e->ready)]), f = take_fiber(e);
    e->fiber_of[first] = (uint16_t)f;
    sim_context_switch(&e->main, &e->context[f]);
    here = NULL;
    const cudaError_t error = e->error;
    give_executor(e);
    return error;
}

void sim_block_sync(void)
{
    executor *e = here;
    warp *of = &e->warp_of[sim_thread / SIM_WARP];
    if (++e->waiting == e->live) {
        release_barrier(e);
        return;
    }
    of->barrier |= 1u << sim_thread % SIM_WARP;
    park(e, of);
}

int sim_block_barrier(int predicate)
{
    here->votes += predicate != 0;
    sim_block_sync();
    return here->result;
}

// The running thread is the last to come, or another one will be.
static __attribute__((noinline)) void complete_or_park(executor *e, warp *of)
{
    const unsigned lane = sim_thread % SIM_WARP;
    if (!complete_operation(e, of, lane, 1u << lane))
        park(e, of);
}

void sim_warp_run(uint32_t mask, sim_warp_operation *operation, void *mine)
{
    executor *e = here;
    const unsigned lane = sim_thread % SIM_WARP;
    warp *of = &e->warp_of[sim_thread / SIM_WARP];
    of->mask[lane] = mask;
    of->operation[lane] = operation;
    of->mine[lane] = mine;
    of->arrived |= 1u << lane;
    if (!(mask >> lane & 1))
        refuse_mask(of, lane);
    if (mask & of->live & ~of->arrived)
        park(e, of);
    else
        complete_or_park(e, of);
}

void sim_warp_sync(uint32_t mask)
{
    sim_warp_run(mask, meet, NULL);
}

uint32_t sim_warp_live(void)
{
    return here->warp_of[sim_thread / SIM_WARP].live;
}

const char *sim_kernel_name(void)
{
    return here ? here->grid->name : NULL;
}

bool sim_is_stack_guard(uintptr_t address)
{
    return here && address - (uintptr_t)here->all[here->fiber_of[sim_thread]]->stack < GUARD_BYTES;
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
    pending *of = &e->copies[sim_thread];
    e->copies_used = true;
    of->copies.push_back({shared, global, bytes, valid < bytes ? valid : bytes, of->group});
}

void sim_async_commit(void)
{
    here->copies[sim_thread].group++;
}

void sim_async_wait(unsigned groups)
{
    pending *of = &here->copies[sim_thread];
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
    const warp *of = &e->warp_of[sim_thread / SIM_WARP];
    thread->thread = sim_thread;
    thread->epoch = e->epoch;
    thread->begun = e->begun;
    thread->stack_end = (uintptr_t)e->all[e->fiber_of[sim_thread]]->stack + STACK_BYTES;
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
