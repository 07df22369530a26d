// SQL that several reports share.
#ifndef PTB_REPORTS_SQL_H
#define PTB_REPORTS_SQL_H

// Separates the items of the `tokens` column (reports/report.h); one character, so that it may be split.
#define PTB_SQL_SEP "char(31)"

// A run's name in legends and headings: its label and id, so that two runs of one label stay apart.
#define PTB_SQL_RUN_NAME                                                                                     \
    "CASE WHEN run.label IS NULL OR run.label = '' THEN 'run ' || run.id"                                    \
    " ELSE run.label || ' (run ' || run.id || ')' END"

// A run's state as a reader takes it: "running on HOST, since ..." where it cannot be known whether it still
// does.
#define PTB_SQL_RUN_STATE                                                                                    \
    "ptb_run_state(run.state, run.processes) || coalesce(' on ' || ptb_run_host(run.state, run.processes)"   \
    " || ', since ' || strftime('%Y-%m-%dT%H:%M:%SZ', run.started_utc_s, 'unixepoch'), '')"

// The CPU models of a run's hosts, each once.
#define PTB_SQL_CPUS                                                                                         \
    "coalesce((SELECT group_concat(m, ' and ') FROM (SELECT DISTINCT json_extract(h.value, '$.cpu_model') "  \
    "AS m"                                                                                                   \
    " FROM json_each(run.hosts) AS h)), 'unknown CPU')"

// Params of strategies alone: they belong to the strategy's name, so that strategies which have them and
// which have not stand side by side. And what of them is not worth a word.
#define PTB_SQL_STRATEGY_PARAMS                                                                              \
    "'in_flight','prefetch','reshard','local_steps','staleness','sequence_parallel','tensor_chunks',"        \
    "'expert_overlap'"
#define PTB_SQL_STRATEGY_DEFAULTS "'in_flight 2','prefetch 1','reshard yes','expert_overlap yes'"

// Params that the reports name themselves; the others are listed as name=value.
#define PTB_SQL_KNOWN_PARAMS                                                                                 \
    "'comm','algo','type','op','place','count','bytes','ranks','root','strategy','model','layers','hidden'," \
    "'heads','sequence','vocabulary','batch','precision','mesh','context','context_degree','expert_"         \
    "dispatch'," PTB_SQL_STRATEGY_PARAMS

#define PTB_SQL_OTHER_PARAMS                                                                                 \
    " FROM json_each(bench_case.params) AS p WHERE p.key NOT IN (" PTB_SQL_KNOWN_PARAMS                      \
    ") AND p.value NOT IN ('none', 'any', 'auto', 'default', ''))"

#define PTB_SQL_PARAM(name) "json_extract(bench_case.params, '$." name "')"

// Fewer than 6 samples have no 95 % interval of the median: their widest one covers less, and is not shown.
#define PTB_SQL_CI(column) "iif(ci_confidence >= 0.945, " column ", NULL) AS " column

// WITH-clause: table c, one row a case of the runs in ?1, oldest first, with what the reports need.
// clang-format off
#define PTB_SQL_CASES                                                                                        \
    "WITH c AS (SELECT bench_case.id AS id, bench_case.key AS key, bench_case.bench AS bench,"               \
    " bench_case.bytes AS bytes, bench_case.ranks AS ranks, bench_case.hosts AS hosts,"                      \
    " bench_case.params AS params, bench_case.facts AS facts, bench_case.state AS state,"                    \
    " bench_case.reason AS reason, bench_case.mode AS mode, bench_case.combine AS combine,"                  \
    " bench_case.stopped AS stopped, bench_case.batch AS batch, bench_case.samples AS samples,"              \
    " median_ns, p99_ns, min_ns, max_ns, cv, ci_confidence,"                                                 \
    " " PTB_SQL_CI("ci_low_ns") ", " PTB_SQL_CI("ci_high_ns") ","                                            \
    " repetition.ordinal AS ordinal, repetition.id AS repetition_id, run.id AS run_id,"                      \
    " run.simulated AS simulated, run.version AS version, run.git_revision AS revision,"                     \
    " " PTB_SQL_RUN_NAME " AS run_name, " PTB_SQL_CPUS " AS cpus,"                                           \
    " CASE WHEN run.simulated THEN ' [SIMULATED DEVICE]' ELSE '' END AS sim,"                                \
    " bench_case.ranks || CASE bench_case.ranks WHEN 1 THEN ' rank' ELSE ' ranks' END AS ranks_text,"        \
    " bench_case.hosts || CASE bench_case.hosts WHEN 1 THEN ' host' ELSE ' hosts' END AS hosts_text,"        \
    " coalesce(bench_case.mode, 'unknown') || ' mode' AS mode_text,"                                         \
    " CASE bench_case.combine WHEN 'max' THEN 'time = maximum over ranks'"                                   \
    " WHEN 'avg' THEN 'time = average over ranks'"                                                           \
    " ELSE coalesce('time = ' || bench_case.combine, '') END AS combine_text,"                               \
    " " PTB_SQL_PARAM("comm") " AS comm, " PTB_SQL_PARAM("algo") " AS algo,"                                 \
    " " PTB_SQL_PARAM("type") " AS type, " PTB_SQL_PARAM("op") " AS op, " PTB_SQL_PARAM("root") " AS root,"  \
    " CAST(" PTB_SQL_PARAM("count") " AS INTEGER) AS count,"                                                 \
    " CASE " PTB_SQL_PARAM("place") " WHEN 'in' THEN 'in-place' ELSE 'out-of-place' END AS place,"           \
    " (SELECT group_concat(p.key || ' ' || p.value, ', ')" PTB_SQL_OTHER_PARAMS " AS other_params,"          \
    " (SELECT group_concat(p.key || ' ' || p.value, " PTB_SQL_SEP ")" PTB_SQL_OTHER_PARAMS                   \
    " AS other_tokens,"                                                                                      \
    " CASE WHEN (SELECT count(*) FROM repetition AS p WHERE p.run_id = run.id) > 1"                          \
    " THEN repetition.ordinal + 1 END AS repetition"                                                         \
    " FROM run JOIN repetition ON repetition.run_id = run.id"                                                \
    " JOIN bench_case ON bench_case.repetition_id = repetition.id"                                           \
    " WHERE run.id IN (SELECT value FROM json_each(?1))) "
// clang-format on

#define PTB_SQL_METRIC(name)                                                                                 \
    "(SELECT value FROM metric WHERE metric.case_id = c.id AND metric.name = '" name "')"
#define PTB_SQL_UNIT(name)                                                                                   \
    "(SELECT unit FROM metric WHERE metric.case_id = c.id AND metric.name = '" name "')"

// Elements checked and found wrong, over all ranks.
#define PTB_SQL_CHECKED "(SELECT sum(checked) FROM case_rank WHERE case_rank.case_id = c.id)"
#define PTB_SQL_WRONG                                                                                        \
    "(SELECT CASE WHEN sum(checked) > 0 THEN sum(wrong) END FROM case_rank WHERE case_rank.case_id = c.id)"

// The model of a step's case in words, and its strategy with rank count.
#define PTB_SQL_STEP_PARAM(name) "json_extract(c.params, '$." name "')"
// clang-format off
#define PTB_SQL_MODEL                                                                                        \
    "ltrim(coalesce(', model ' || " PTB_SQL_STEP_PARAM("model") ", '')"                                      \
    " || coalesce(', ' || " PTB_SQL_STEP_PARAM("layers") " || ' layers', '')"                                \
    " || coalesce(', hidden ' || " PTB_SQL_STEP_PARAM("hidden") ", '')"                                      \
    " || coalesce(', ' || " PTB_SQL_STEP_PARAM("heads") " || ' heads', '')"                                  \
    " || coalesce(', sequence ' || " PTB_SQL_STEP_PARAM("sequence") ", '')"                                  \
    " || coalesce(', vocabulary ' || " PTB_SQL_STEP_PARAM("vocabulary") ", '')"                              \
    " || coalesce(', ' || " PTB_SQL_STEP_PARAM("precision") ", ''), ', ')"
// clang-format on
// A strategy with what it was asked for besides: the mesh, how attention and experts communicate, and its own
// settings that are not the usual ones.
// clang-format off
#define PTB_SQL_STRATEGY                                                                                     \
    PTB_SQL_STEP_PARAM("strategy")                                                                           \
    " || coalesce(' (' || " PTB_SQL_STEP_PARAM("mesh") " || ')', '')"                                        \
    " || coalesce(' ' || " PTB_SQL_STEP_PARAM("context") ", '')"                                             \
    " || coalesce(' of ' || " PTB_SQL_STEP_PARAM("context_degree") ", '')"                                   \
    " || coalesce(' ' || " PTB_SQL_STEP_PARAM("expert_dispatch") ", '')"                                     \
    " || coalesce((SELECT group_concat(' ' || replace(p.key, '_', ' ') || ' ' || p.value, ',')"              \
    " FROM json_each(c.params) AS p WHERE p.key IN (" PTB_SQL_STRATEGY_PARAMS ")"                            \
    " AND p.key || ' ' || p.value NOT IN (" PTB_SQL_STRATEGY_DEFAULTS ")), '')"
// clang-format on
#define PTB_SQL_STEP_SERIES "coalesce(" PTB_SQL_STRATEGY " || ', ', '') || c.ranks_text"
// What steps of one table and figure share, and the conditions under which they were measured.
#define PTB_SQL_STEP_HEADING "c.bench || ', ' || " PTB_SQL_MODEL " || c.sim"
#define PTB_SQL_STEP_NOTE                                                                                    \
    "c.cpus || ', ' || c.hosts_text || ', ' || c.combine_text || coalesce(', ' || c.other_params, '')"
// Conditions of a step's case, for `tokens`.
// clang-format off
#define PTB_SQL_STEP_CONDITIONS                                                                              \
    "coalesce('comm ' || c.comm, '') || " PTB_SQL_SEP                                                        \
    " || coalesce('global batch ' || " PTB_SQL_STEP_PARAM("batch") ", '') || " PTB_SQL_SEP                   \
    " || " PTB_SQL_CONDITIONS
// clang-format on

// What a collective's figure is about, and its curve's own name.
#define PTB_SQL_COLLECTIVE                                                                                   \
    "c.bench || coalesce(', ' || c.type, '') || coalesce(' ' || nullif(c.op, 'none'), '') || ', ' || "       \
    "c.place"                                                                                                \
    " || ', ' || c.ranks_text || c.sim"
#define PTB_SQL_COLLECTIVE_SERIES "coalesce(c.comm, '') || coalesce(' ' || c.algo, '')"
// Conditions of a collective's or a step's case, for `tokens`.
#define PTB_SQL_CONDITIONS                                                                                   \
    "c.run_name || " PTB_SQL_SEP " || c.cpus || " PTB_SQL_SEP " || c.hosts_text || " PTB_SQL_SEP             \
    " || c.combine_text || " PTB_SQL_SEP " || coalesce('root ' || c.root, '') || " PTB_SQL_SEP               \
    " || coalesce(c.other_tokens, '')"

#endif
