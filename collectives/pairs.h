// What the files of the benchmark `pairs` share: pairs_plan.c (options to cases) and pairs.c (running them).
#ifndef PTB_COLLECTIVES_PAIRS_H
#define PTB_COLLECTIVES_PAIRS_H

#include "collectives/comm.h"
#include "core/bench.h"
#include "core/option.h"

typedef enum {
    PTB_PATH_SEND,
    PTB_PATH_H2D,
    PTB_PATH_D2H,
    PTB_PATH_D2D,
    PTB_PATH_PEER,
    PTB_PATH_PEER_KERNEL,
    PTB_PATHS
} ptb_path;
extern const char *const ptb_path_names[]; // NULL-terminated

typedef struct {
    char *paths, *pairs, *comm, *transport, *device, *bytes;
} ptb_pairs_config;
extern const ptb_opt ptb_pairs_opts[];
enum { PTB_PAIRS_OPT_COUNT = 6 };

typedef struct {
    ptb_path path;
    int from, to; // ranks; equal where a rank moves to its own memory
    size_t bytes;
} ptb_pairs_point;

typedef struct {
    const ptb_comm_ops *comm_ops; // NULL: no case sends
    char *comm, *transport, *device;
    ptb_pairs_point *points; // heap
    size_t count;
} ptb_pairs_plan;

// Whether two ranks take part.
bool ptb_path_is_between_ranks(ptb_path path);
// USAGE, UNSUPPORTED (no pair among so many ranks) or NO_MEMORY, logged. The caller releases the plan also
// after an error.
ptb_status ptb_pairs_plan_make(const ptb_pairs_config *config, const ptb_world *world, ptb_pairs_plan *plan);
void ptb_pairs_plan_release(ptb_pairs_plan *plan);

#endif
