// Which algorithms the communicators of the benchmark `step` have for gradients.
#ifndef PTB_STRATEGIES_STEP_ALGORITHMS_H
#define PTB_STRATEGIES_STEP_ALGORITHMS_H

#include "core/status.h"

#include <stdbool.h>
#include <stddef.h>

// Whether a communicator (registered) has an all-reduce of that name; all have "auto".
bool ptb_step_has_algorithm(const char *comm, const char *algorithm);
// USAGE, logged with the nearest names, for an algorithm that none of the communicators has: it was mistyped.
// One that some have is skipped for the others.
ptb_status ptb_step_check_algorithms(const char *const *comms, size_t comm_count,
                                     const char *const *algorithms, size_t algorithm_count);

#endif
