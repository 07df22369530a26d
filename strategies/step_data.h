// Options of data-parallel strategies, for benchmarks: what is given by a mesh and by gradients alone is not
// here. A benchmark puts a ptb_step_data into its configuration and PTB_STEP_DATA_OPTS into its option table.
#ifndef PTB_STRATEGIES_STEP_DATA_H
#define PTB_STRATEGIES_STEP_DATA_H

#include "core/bench.h"
#include "core/option.h"
#include "strategies/data/data.h"
#include "strategies/mesh.h"

typedef struct {
    int64_t prefetch, in_flight, local_steps, staleness;
    bool reshard;
} ptb_step_data;

#define PTB_STEP_DATA_FIELD(type, member, field) (offsetof(type, member) + offsetof(ptb_step_data, field))
#define PTB_STEP_DATA_OPTS(type, member)                                                                     \
    {"prefetch",  0,                                                                                         \
     PTB_OPT_INT, PTB_STEP_DATA_FIELD(type, member, prefetch),                                               \
     "1",         0,                                                                                         \
     1024,        NULL,                                                                                      \
     NULL,        "fsdp: units whose parameters are gathered ahead of the one that computes"},               \
        {"in-flight", 0,                                                                                     \
         PTB_OPT_INT, PTB_STEP_DATA_FIELD(type, member, in_flight),                                          \
         "0",         0,                                                                                     \
         1024,        NULL,                                                                                  \
         NULL,        "fsdp, zero2: blocks that are whole at a time, at most; 0: --prefetch + 1"},           \
        {"reshard",                                                                                          \
         0,                                                                                                  \
         PTB_OPT_BOOL,                                                                                       \
         PTB_STEP_DATA_FIELD(type, member, reshard),                                                         \
         "yes",                                                                                              \
         0,                                                                                                  \
         0,                                                                                                  \
         NULL,                                                                                               \
         NULL,                                                                                               \
         "fsdp: a block gives its place to the next after forward; no: all stay whole until they change"},   \
        {"local-steps", 0,    PTB_OPT_INT, PTB_STEP_DATA_FIELD(type, member, local_steps),           "8", 1, \
         1 << 30,       NULL, "STEPS",     "local-sgd: steps between two averages of the parameters"},       \
    {                                                                                                        \
        "staleness", 0, PTB_OPT_INT, PTB_STEP_DATA_FIELD(type, member, staleness), "1", 0, 64, NULL,         \
            "STEPS",                                                                                         \
            "async: updates that the parameters of a step may lack, at most; the newest that have arrived "  \
            "are taken, with --deterministic the oldest. Steps are timed eight at a time, end to end"        \
    }

// USAGE, logged, when settings contradict each other.
ptb_status ptb_step_data_check(const ptb_step_data *config);
ptb_data_options ptb_step_data_options(const ptb_step_data *config);
// Of a strategy (its name in strategies/strategy.h): whether what it reduces goes in buckets (--bucket), and
// whether that is gradients (--reduce-type).
bool ptb_step_has_buckets(const char *strategy);
bool ptb_step_reduces(const char *strategy);
// What of it identifies a case of this strategy (its name in strategies/strategy.h).
void ptb_step_data_params(const ptb_step_data *config, const char *strategy, ptb_params *params);
// What else a case has that a strategy may not go with.
typedef struct {
    const ptb_mesh *mesh;
    ptb_dtype type;
    bool graph, overlap;
} ptb_step_setting;
// Whether a strategy can be run so; else why not, into reason (PTB_REASON_BYTES).
bool ptb_step_data_possible(const ptb_step_data *config, const char *strategy,
                            const ptb_step_setting *setting, char *reason);

#endif
