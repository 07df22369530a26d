// A barrier between processes of one host through one page of shared memory: the start of a timed iteration.
// One counter of arrivals and one word of release, on cache lines of their own (the sense-reversing
// centralised barrier of Mellor-Crummey and Scott, ACM TOCS 9(1), 1991, section 3.1, with an epoch number for
// the sense). With `aligned` the last to arrive names a moment shortly ahead, and every rank leaves when the
// common clock reaches it, so that the exit skew is a clock read and not the time the word takes to reach
// each core (window synchronisation, Hunold and Carpen-Amarie, IEEE TPDS 27(12), 2016, section 4).
#ifndef PTB_COLLECTIVES_FLAG_BARRIER_H
#define PTB_COLLECTIVES_FLAG_BARRIER_H

#include "core/status.h"

#include <stddef.h>
#include <stdint.h>

typedef struct ptb_flag_page ptb_flag_page;
// Bytes of shared memory that `size` ranks need, a whole number of pages. It must be zeroed.
size_t ptb_flag_page_bytes(int size);

typedef struct {
    ptb_flag_page *page; // shared; NULL: none
    int rank, size;
    uint64_t epoch;      // barriers passed
    bool oversubscribed; // yield at once
    bool watch;          // peers' process ids mean something here: look whether they live
    // Called now and then while waiting, so that a library that moves data only inside its calls can finish
    // what a peer may still wait for. May be NULL.
    void (*progress)(void *arg);
    void *progress_arg;
} ptb_flag_barrier;

// Enters this process's id into the page. All ranks must have done so before the first wait.
void ptb_flag_barrier_enter(ptb_flag_barrier *barrier);
// LOST, logged, when a peer's process has ended. One that is stopped or hangs is for the caller to notice.
ptb_status ptb_flag_barrier_wait(ptb_flag_barrier *barrier, bool aligned);
// Whether every peer's process can be seen from here (false across PID namespaces). After all have entered.
bool ptb_flag_barrier_sees_peers(const ptb_flag_barrier *barrier);

#endif
