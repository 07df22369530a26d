// Which strategy wins, and why: sentences made of the numbers in "Strategies side by side", nothing else. A
// difference is called one only where the 95 % intervals of the medians do not meet.
#include "reports/report.h"
#include "reports/strategies.h"

// clang-format off
// One row a comparison: the fastest and the next (before others one whose interval meets the fastest's), the
// leanest, the one that sends least.
#define COMPARED                                                                                             \
    PTB_SQL_STRATEGIES                                                                                       \
    ", o AS (SELECT *, strategy || coalesce(' of ' || run, '') AS named, model || ', ' || ranks_text || ', global batch ' || batch_size AS heading,"           \
    " row_number() OVER (PARTITION BY model, note, ranks, batch_size ORDER BY median) AS by_time,"           \
    " row_number() OVER (PARTITION BY model, note, ranks, batch_size ORDER BY memory, median) AS by_memory," \
    " row_number() OVER (PARTITION BY model, note, ranks, batch_size ORDER BY memory DESC) AS by_most"       \
    " FROM s WHERE strategies > 1),"                                                                         \
    " a AS (SELECT f.heading AS heading, f.note AS note, f.named AS first, f.median AS t1, f.low AS low1,"\
    " f.high AS high1, f.compute AS compute, f.exposed AS exposed, f.optimizer AS optimizer,"                \
    " f.efficiency AS efficiency, f.ideal AS ideal, f.memory AS memory1,"                                    \
    " n.named AS second, n.median AS t2, n.low AS low2, n.high AS high2, n.exposed AS exposed2,"          \
    " n.compute AS compute2, n.optimizer AS optimizer2,"                                                     \
    " m.named AS leanest, m.memory AS least, m.median AS lean_t, x.named AS widest, x.memory AS most"  \
    " FROM o AS f JOIN o AS n ON n.heading = f.heading AND n.note = f.note AND n.by_time ="                  \
    " (SELECT coalesce(min(q.by_time) FILTER (WHERE coalesce(q.low <= f.high, 1)), min(q.by_time))"          \
    " FROM o AS q WHERE q.heading = f.heading AND q.note = f.note AND q.strategy <> f.strategy)"             \
    " JOIN o AS m ON m.heading = f.heading AND m.note = f.note AND m.by_memory = 1"                          \
    " JOIN o AS x ON x.heading = f.heading AND x.note = f.note AND x.by_most = 1 WHERE f.by_time = 1) "

// What explains most of a difference in time.
#define REASON                                                                                               \
    "CASE max(coalesce(compute2 - compute, 0), coalesce(exposed2 - exposed, 0),"                             \
    " coalesce(optimizer2 - optimizer, 0), 0) WHEN 0 THEN 'the spans do not say why'"                               \
    " WHEN exposed2 - exposed THEN printf('%.3g ms less of its communication is exposed', exposed2 - exposed)" \
    " WHEN compute2 - compute THEN printf('it computes %.3g ms less', compute2 - compute)"                   \
    " ELSE printf('its optimizer takes %.3g ms less', optimizer2 - optimizer) END"

static const char table_sql[] =
    COMPARED " SELECT heading, note, 1 AS at, 'fastest' AS question,"
    " CASE WHEN high1 < low2 THEN first ELSE first || ' or ' || second END AS answer,"
    " CASE WHEN high1 < low2 THEN printf('%.4g ms against %.4g of %s: %.2f times as fast; ', t1, t2, second, t2 / t1)"
    " || " REASON " WHEN low2 IS NULL OR high1 IS NULL"
    " THEN printf('%.4g and %.4g ms, too few samples for an interval: no winner', t1, t2)"
    " ELSE printf('%.4g and %.4g ms, and their 95 %% intervals meet: no winner', t1, t2) END AS because FROM a"
    " UNION ALL SELECT heading, note, 2, 'what it loses', first,"
    " printf('%.3g %% of the step to communication that nothing hides, %.3g %% to the optimizer',"
    " 100 * exposed / t1, 100 * optimizer / t1)"
    " || CASE WHEN ideal IS NULL THEN '' WHEN ideal >= t1"
    " THEN printf('; but with no communication it takes no less: %.4g ms', ideal)"
    " ELSE printf('; with no communication it would take %.4g ms (%.3g %% of"
    " bound)', ideal, efficiency) END"
    " FROM a WHERE exposed IS NOT NULL"
    " UNION ALL SELECT heading, note, 3, 'least memory', leanest,"
    " printf('%.4g MB a rank against %.4g of %s', least, most, widest)"
    " || CASE WHEN leanest = first THEN ', and it is the fastest'"
    " ELSE printf(', for %.2f times the time of the fastest', lean_t / t1) END"
    " FROM a WHERE least < most"
    " UNION ALL SELECT heading, note, 4, 'what staleness costs', named,"
    " printf('gradients lack %.2g updates; the loss of steps 8 to 15 is %.4g against %.4g of synchronous ones',"
    " staleness, early, synchronous) FROM o WHERE staleness > 0 AND early + synchronous IS NOT NULL"
    " ORDER BY heading, note, at";
// clang-format on

static const ptb_report_column columns[] = {
    {.name = "question", .title = "question"},
    {.name = "answer", .title = "answer"},
    {.name = "because", .title = "because"},
};

static const ptb_report strategy_guide = {
    .plugin = {"strategy_guide", "Which strategy wins here, and why"},
    .order = 58,
    .where = PTB_REPORT_HTML | PTB_REPORT_TERMINAL,
    .title = "Which strategy wins here",
    .caption =
        "Read off the numbers of the section below, for this model, batch and these ranks alone. A strategy "
        "is called faster only where the 95 % intervals of the two medians do not meet.",
    .table_sql = table_sql,
    .columns = columns,
    .column_count = sizeof columns / sizeof *columns,
};
PTB_REGISTER(PTB_KIND_REPORT, strategy_guide);
