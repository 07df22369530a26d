// SQL of the two reports that compare strategies.
#ifndef PTB_REPORTS_STRATEGIES_H
#define PTB_REPORTS_STRATEGIES_H

#include "reports/sql.h"

// WITH-clause: table s, one row a training step's case on several ranks (one has nothing to divide), times in
// ms, memory and volume in MB; `strategies` is how many different ones there are of the same model, ranks,
// batch and conditions, `run` its name where there are several, `synchronous` the loss of those of them whose
// steps compute with all updates.
// clang-format off
#define PTB_SQL_STRATEGIES                                                                                   \
    PTB_SQL_CASES                                                                                            \
    ", r AS (SELECT c.*, " PTB_SQL_STEP_HEADING " AS model, " PTB_SQL_STEP_NOTE " AS note,"                  \
    " " PTB_SQL_STEP_CONDITIONS " AS conditions, " PTB_SQL_STRATEGY " AS strategy,"                          \
    " CAST(" PTB_SQL_STEP_PARAM("batch") " AS INTEGER) AS batch_size,"                                       \
    " median_ns / 1e6 AS median, ci_low_ns / 1e6 AS low, ci_high_ns / 1e6 AS high,"                          \
    " " PTB_SQL_METRIC("ideal_step") " AS ideal, " PTB_SQL_METRIC("comm_efficiency") " AS efficiency,"       \
    " " PTB_SQL_METRIC("forward") " + " PTB_SQL_METRIC("backward") " AS compute,"                            \
    " " PTB_SQL_METRIC("exposed_dp") " AS exposed_dp, " PTB_SQL_METRIC("exposed_tp") " AS exposed_tp,"       \
    " " PTB_SQL_METRIC("exposed_pp") " AS exposed_pp, " PTB_SQL_METRIC("exposed_cp") " AS exposed_cp,"       \
    " " PTB_SQL_METRIC("exposed_ep") " AS exposed_ep, " PTB_SQL_METRIC("exposed_comm") " AS exposed,"        \
    " " PTB_SQL_METRIC("optimizer") " AS optimizer, " PTB_SQL_METRIC("input") " AS input,"                   \
    " " PTB_SQL_METRIC("other") " AS other, " PTB_SQL_METRIC("imbalance") " AS imbalance,"                   \
    " " PTB_SQL_METRIC("tokens_per_s") " AS tokens, " PTB_SQL_METRIC("peak_memory") " / 1e6 AS memory,"      \
    " " PTB_SQL_METRIC("comm_volume") " / 1e6 AS volume, " PTB_SQL_METRIC("loss_steps_8_15") " AS early,"    \
    " " PTB_SQL_METRIC("staleness_mean") " AS staleness, " PTB_SQL_METRIC("staleness_max") " AS most_stale," \
    " " PTB_SQL_METRIC("stale_gradients") " / 100 AS stale, " PTB_SQL_STEP_PARAM("strategy") " AS name"      \
    " FROM c WHERE c.state = 'ok' AND c.bench = 'step' AND c.median_ns > 0 AND c.ranks > 1),"                \
    " s AS (SELECT r.*, CASE WHEN (SELECT count(DISTINCT run_id) FROM r) > 1 THEN run_name END AS run,"      \
    " (SELECT count(DISTINCT o.strategy) FROM r AS o WHERE o.model = r.model"              \
    " AND o.note = r.note AND o.ranks = r.ranks AND o.batch_size = r.batch_size) AS strategies,"             \
    " (SELECT avg(o.early) FROM r AS o WHERE o.model = r.model AND o.note = r.note AND o.ranks = r.ranks"    \
    " AND o.batch_size = r.batch_size AND o.name NOT IN ('async', 'local-sgd')) AS synchronous FROM r) "
// clang-format on

#endif
