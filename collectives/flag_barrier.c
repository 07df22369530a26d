// The shared-memory start barrier; see the header for the method.
#include "collectives/flag_barrier.h"

#include "core/clock.h"
#include "core/log.h"
#include "core/pause.h"
#include "core/process.h"

#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <unistd.h>

enum {
    LINE_BYTES = 128, // two lines: the adjacent-line prefetcher fetches pairs
    SPINS = 2000,
    PROGRESS_EVERY = 16, // yields
    WATCH_EVERY_NS = 100000000,
};

struct ptb_flag_page {
    _Alignas(LINE_BYTES) _Atomic uint64_t arrived; // arrivals since the beginning
    _Alignas(LINE_BYTES) _Atomic uint64_t release; // last epoch that is complete
    int64_t leave_ns;                              // written before release: leave when the clock says so
    _Alignas(LINE_BYTES) _Atomic int pid[];        // [size]
};

size_t ptb_flag_page_bytes(int size)
{
    size_t bytes = sizeof(ptb_flag_page) + (size_t)size * sizeof(int), page = 4096;
    return (bytes + page - 1) / page * page;
}

void ptb_flag_barrier_enter(ptb_flag_barrier *barrier)
{
    atomic_store(&barrier->page->pid[barrier->rank], (int)getpid());
}

bool ptb_flag_barrier_sees_peers(const ptb_flag_barrier *barrier)
{
    for (int r = 0; r < barrier->size; r++)
        if (kill(atomic_load(&barrier->page->pid[r]), 0) != 0 && errno != EPERM)
            return false;
    return true;
}

static ptb_status check_peers(const ptb_flag_barrier *b)
{
    for (int r = 0; b->watch && r < b->size; r++) {
        int pid = atomic_load_explicit(&b->page->pid[r], memory_order_relaxed);
        if (r != b->rank && !ptb_process_lives(pid)) {
            ptb_error("rank %d (process %d) has ended while rank %d waited for it at a barrier", r, pid,
                      b->rank);
            return PTB_LOST;
        }
    }
    return PTB_OK;
}

// Waits until `release` has reached the epoch: spins, then yields, and looks after the peers.
static ptb_status wait_release(ptb_flag_barrier *b, uint64_t epoch)
{
    ptb_flag_page *page = b->page;
    for (int i = 0; i < SPINS && !b->oversubscribed; i++) {
        if (atomic_load_explicit(&page->release, memory_order_acquire) >= epoch)
            return PTB_OK;
        ptb_pause();
    }
    int64_t watched = ptb_clock_ns();
    for (unsigned i = 1; atomic_load_explicit(&page->release, memory_order_acquire) < epoch; i++) {
        sched_yield();
        if (i % PROGRESS_EVERY != 0)
            continue;
        if (b->progress)
            b->progress(b->progress_arg);
        int64_t now = ptb_clock_ns();
        if (now - watched < WATCH_EVERY_NS)
            continue;
        watched = now;
        PTB_TRY(check_peers(b));
    }
    return PTB_OK;
}

ptb_status ptb_flag_barrier_wait(ptb_flag_barrier *b, bool aligned)
{
    ptb_flag_page *page = b->page;
    uint64_t epoch = b->epoch + 1;
    // More ranks than cores cannot leave together anyway, and a wait for the clock would hold up others.
    aligned = aligned && !b->oversubscribed;
    uint64_t count = atomic_fetch_add_explicit(&page->arrived, 1, memory_order_acq_rel) + 1;
    if (count == epoch * (uint64_t)b->size) {
        // Long enough for the release word to reach every core: about 0.2 us each, one after the other.
        page->leave_ns = aligned ? ptb_clock_ns() + 500 + 200 * (int64_t)b->size : 0;
        atomic_store_explicit(&page->release, epoch, memory_order_release);
    } else {
        PTB_TRY(wait_release(b, epoch));
    }
    b->epoch = epoch;
    if (aligned) {
        // Stays as written until this rank has arrived at the next barrier.
        int64_t leave = page->leave_ns;
        while (ptb_clock_ns() < leave)
            ;
    }
    return PTB_OK;
}
