// What both processes of the simulated device use: waiting for each other, the process-wide error, records.
#include "tests/simcuda/shared.hpp"

#include <limits.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

uint64_t sim_now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

void sim_ring(sim_bell *bell)
{
    bell->count.fetch_add(1);
    if (bell->waiting.load())
        syscall(SYS_futex, &bell->count, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

static void await(sim_bell *bell, uint32_t seen, const struct timespec *limit)
{
    bell->waiting.fetch_add(1);
    syscall(SYS_futex, &bell->count, FUTEX_WAIT, seen, limit, NULL, 0);
    bell->waiting.fetch_sub(1);
}

void sim_await(sim_bell *bell, uint32_t seen)
{
    const struct timespec limit = {0, 50000000};
    await(bell, seen, &limit);
}

void sim_await_idle(sim_bell *bell, uint32_t seen)
{
    await(bell, seen, NULL);
}

void sim_set_error(cudaError_t error)
{
    int none = cudaSuccess;
    sim_shared()->error.compare_exchange_strong(none, error);
}

void sim_record_put(const sim_record *record)
{
    sim_shared_state *s = sim_shared();
    if (!s->records_on.load(std::memory_order_relaxed))
        return;
    uint64_t at = s->records_written.load();
    do {
        if (at - s->records_read.load() >= SIM_RECORDS) {
            s->records_dropped.fetch_add(1);
            return;
        }
    } while (!s->records_written.compare_exchange_weak(at, at + 1));
    s->record[at % SIM_RECORDS].record = *record;
    s->record[at % SIM_RECORDS].ready.store(at + 1);
}
