// A thread beside each rank that does two things the rank itself cannot while it waits for others: it takes
// signals (interrupt, terminate, user 1) as a wish to stop, and it ends the job when a case makes no
// progress.
#ifndef PTB_BENCH_WATCH_H
#define PTB_BENCH_WATCH_H

#include "core/world.h"

#include <stdatomic.h>
#include <stdint.h>

typedef struct ptb_watch ptb_watch;

// Blocks the signals in the calling thread and hence in all that it starts later; call before the MPI library
// starts.
ptb_status ptb_watch_new(ptb_watch **watch);
void ptb_watch_free(ptb_watch *watch);
// From here on a hang ends the job of this world (exit code 5).
void ptb_watch_set_world(ptb_watch *watch, ptb_world *world);
// `what` is being done: no beat for timeout_s is a hang; 0: never. The text is copied. NULL watch is allowed
// everywhere.
void ptb_watch_begin(ptb_watch *watch, const char *what, double timeout_s);
// Nothing is being done that could hang (a rank that sleeps while others work).
void ptb_watch_pause(ptb_watch *watch);
// Progress. One store; called between samples.
void ptb_watch_beat(ptb_watch *watch);
// Set once a signal has asked to stop.
const atomic_bool *ptb_watch_stop(const ptb_watch *watch);

#endif
