// The counters of links around a case: NVLinks of this rank's GPU and, on one rank of each host of several,
// the ports of network cards. Read before the first and after the last iteration, so they hold warming up,
// the start of each sample, and what others sent meanwhile; divided by all iterations of the case.
//
// Stored: nvlink_bytes and rail_bytes (sent by all together, an iteration), what the algorithm implies
// (nvlink_implied, rail_implied) and their ratio; the links that sent least and most; the bytes of each port
// by its name (rail_NAME); the expected peak.
#ifndef PTB_BENCH_COUNTERS_H
#define PTB_BENCH_COUNTERS_H

#include "core/bench.h"

typedef struct ptb_counters ptb_counters;

// The world is kept by reference.
ptb_status ptb_counters_new(ptb_world *world, ptb_counters **counters);
void ptb_counters_free(ptb_counters *counters); // NULL is allowed
// gpu: identity of the device, "" for none. Opens what is not open yet; the counters now.
ptb_status ptb_counters_begin(ptb_counters *counters, const char *gpu);
void ptb_counters_end(ptb_counters *counters);
// Collective. What the case of so many iterations moved beside what this rank's `implied` says; complete on
// rank 0. told: whether a person has heard what cannot be counted, which is said once; NULL: not to be said.
ptb_status ptb_counters_derive(ptb_counters *counters, const ptb_traffic *implied, uint64_t iterations,
                               bool *told, ptb_metrics *metrics, ptb_params *facts);

#endif
