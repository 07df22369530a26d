// Bringing one measured case from all ranks to rank 0 and into the store.
#ifndef PTB_BENCH_RECORD_H
#define PTB_BENCH_RECORD_H

#include "bench/runner.h"
#include "results/store.h"

// Collective over `world`, the ranks that took part. `store` is used on rank 0 only (NULL elsewhere). `trace`
// may be NULL. Returns the same status on all ranks; STORE when rank 0 could not store.
ptb_status ptb_record_case(ptb_world *world, ptb_store *store, int64_t repetition, const char *bench,
                           const char *key, const ptb_case *c, const ptb_case_result *result,
                           const ptb_trace *trace);
// Whether a case's facts say that its device is not a real one.
bool ptb_record_is_simulated(const ptb_params *facts);
// On rank 0 alone: a case that never began ("skipped", "failed") with its reason.
ptb_status ptb_record_unrun(ptb_store *store, int64_t repetition, const char *bench, const char *key,
                            const ptb_params *params, int ranks, int hosts, const char *state,
                            const char *reason);

#endif
