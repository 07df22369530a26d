// What is said of a measurement on the processor where ranks have fewer processors than threads: it is a
// number of that crowd, not of the machine.
#ifndef PTB_STRATEGIES_CROWD_H
#define PTB_STRATEGIES_CROWD_H

#include "core/bench.h"

// Whether OpenMP's threads spin before they sleep where they wait: its library has read that from the
// environment before main.
bool ptb_crowd_spins(void);

// Facts of a case with so many threads a rank: how those of a rank wait for each other (`openmp_wait`), and a
// warning where ranks anywhere have fewer processors than threads, with what comes of it (`effect`).
void ptb_crowd_facts(const ptb_world *world, int threads, const char *effect, ptb_params *facts);

#endif
