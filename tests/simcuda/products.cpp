// Checks of products of warp groups (products.hpp). A block runs on one thread of the system, and so does
// what is remembered of its threads; what a block before has left there is told by its time.
#include "tests/simcuda/products.hpp"
#include "tests/simcuda/check.hpp"
#include "tests/simcuda/fibers.hpp"

#include <string.h>
#include <vector>

namespace {
struct thread_state {
    uint64_t kept_epoch;               // of the block's barriers, at the last wgmma.fence
    uintptr_t at;                      // of the copy that it made
    std::vector<unsigned char> copied; // the stack from there on
    uint64_t fence, fence_epoch;       // number and time of the last fence.proxy.async
    uint64_t fence_before;             // number of the last one that a barrier followed, before that
};

struct product {
    uint64_t a, b;
    bool add;
};

enum { WARPS_OF_GROUP = 4, GROUPS = SIM_BLOCK_THREADS / SIM_WARP / WARPS_OF_GROUP };

// What a group has asked for in a block, and how many of these products each of its warps.
struct group_state {
    uint64_t begun; // which block
    std::vector<product> asked;
    size_t count[WARPS_OF_GROUP];
};

thread_local std::vector<thread_state> threads(SIM_BLOCK_THREADS);
thread_local group_state groups[GROUPS];
thread_local bool are_groups_used; // in this block
} // namespace

__thread uint64_t sim_products_clock;

// Not memcpy: the stack has places that the address sanitizer forbids.
__attribute__((no_sanitize("address"))) static void copy_words(unsigned char *to, uintptr_t from,
                                                               size_t bytes)
{
    for (size_t i = 0; i < bytes; i += sizeof(uint64_t)) {
        const uint64_t word = *(const volatile uint64_t *)(from + i);
        __builtin_memcpy(to + i, &word, sizeof word);
    }
}

__attribute__((noinline)) void sim_registers_keep(void)
{
    sim_check_thread running;
    if (!sim_check_running(&running))
        return;
    thread_state *of = &threads[running.thread];
    of->kept_epoch = running.epoch;
    of->at = (uintptr_t)__builtin_frame_address(0) & ~(uintptr_t)(sizeof(uint64_t) - 1);
    of->copied.resize(running.stack_end - of->at);
    copy_words(of->copied.data(), of->at, of->copied.size());
}

// The copy of the registers; NULL when they are not on the part of the stack that there was.
static unsigned char *kept_of(unsigned thread, const void *registers, size_t bytes)
{
    thread_state *of = &threads[thread];
    const uintptr_t offset = (uintptr_t)registers - of->at;
    return offset < of->copied.size() && bytes <= of->copied.size() - offset ? of->copied.data() + offset
                                                                             : NULL;
}

void sim_registers_check(unsigned thread, const void *registers, size_t bytes, const char *what)
{
    sim_check_thread running;
    if (!sim_check_running(&running))
        return;
    if (threads[thread].kept_epoch < running.begun)
        sim_abort_grid(cudaErrorLaunchFailure,
                       "wgmma: a product of thread %u without a wgmma.fence before it", thread);
    const unsigned char *kept = kept_of(thread, registers, bytes);
    if (kept && memcmp(kept, registers, bytes))
        sim_abort_grid(cudaErrorLaunchFailure,
                       "wgmma: thread %u has written %s between its wgmma.fence and the wait for the product",
                       thread, what);
}

void sim_registers_written(unsigned thread, const void *registers, size_t bytes)
{
    unsigned char *kept = kept_of(thread, registers, bytes);
    if (kept)
        memcpy(kept, registers, bytes);
}

void sim_proxy_fence(void)
{
    sim_check_thread running;
    if (!sim_checking || !sim_check_running(&running))
        return;
    thread_state *of = &threads[running.thread];
    if (of->fence_epoch != running.epoch)
        of->fence_before = of->fence;
    of->fence = ++sim_products_clock;
    of->fence_epoch = running.epoch;
}

uint64_t sim_products_fenced(unsigned thread, uint64_t epoch)
{
    const thread_state *of = &threads[thread];
    return of->fence_epoch < epoch ? of->fence : of->fence_before;
}

uint64_t sim_product_number(unsigned warp, uint64_t a, uint64_t b, bool add)
{
    sim_check_thread running;
    group_state *of = &groups[warp / WARPS_OF_GROUP];
    size_t *count = &of->count[warp % WARPS_OF_GROUP];
    if (sim_check_running(&running) && of->begun != running.begun) {
        of->begun = running.begun;
        of->asked.clear();
        memset(of->count, 0, sizeof of->count);
        are_groups_used = true;
    }
    if (*count == of->asked.size())
        of->asked.push_back({a, b, add});
    const product *other = &of->asked[(*count)++];
    if (other->a != a || other->b != b || other->add != add)
        sim_abort_grid(cudaErrorLaunchFailure, "wgmma: warps of a group ask for different products");
    return ++sim_products_clock;
}

void sim_products_end(void)
{
    sim_check_thread running;
    if (!are_groups_used || !sim_check_running(&running))
        return;
    are_groups_used = false;
    for (const group_state &of : groups)
        for (size_t count : of.count)
            if (of.begun == running.begun && count != of.asked.size())
                sim_abort_grid(cudaErrorLaunchFailure,
                               "wgmma: a warp asks for %zu products, another one of its group for %zu", count,
                               of.asked.size());
}
