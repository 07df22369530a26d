// What a reader must know before any number: runs that did not complete, wrong results, simulated devices.
#include "reports/sql.h"
#include "reports/view.h"

static const char sql[] = PTB_SQL_CASES
    ", r AS (SELECT *, " PTB_SQL_RUN_NAME " AS name, " PTB_SQL_RUN_STATE " AS now FROM run"
    " WHERE id IN (SELECT value FROM json_each(?1)))"
    " SELECT severity, text FROM ("
    "SELECT id, 1 AS o, 'bad' AS severity, name || ' is not complete: state ' || now || CASE"
    " WHEN now = 'died' THEN ' (its processes are gone and stored no end; `ptbench run --resume ' ||"
    " substr(uuid, 1, 8) || '` measures what is missing)'"
    " WHEN now = 'running' AND processes <> '' THEN ' (its processes live)'"
    " WHEN state = 'running' THEN ' (it still runs, or it died without saying so)' ELSE '' END"
    " || coalesce('; ' || reason, '') || '. What is shown is what was stored until then.' AS text"
    " FROM r WHERE state <> 'complete'"
    " UNION ALL SELECT id, 2, 'bad', name || ' used a SIMULATED device. Its numbers say nothing about real "
    "hardware.' FROM r WHERE simulated"
    " UNION ALL SELECT run_id, 3, 'bad', run_name || ': ' || count(*) || CASE count(*) WHEN 1 THEN ' case' "
    "ELSE ' cases' END || ' gave WRONG results. Their times are shown, but must not be used.' FROM c"
    " WHERE state = 'wrong' GROUP BY run_id"
    " UNION ALL SELECT run_id, 4, 'bad', run_name || ': ' || count(*) || CASE count(*) WHEN 1 THEN ' case'"
    " ELSE ' cases' END || ' failed.' FROM c WHERE state = 'failed' GROUP BY run_id"
    " UNION ALL SELECT run_id, 5, 'warn', run_name || ': ' || count(*) || CASE count(*) WHEN 1 THEN ' case "
    "was'"
    " ELSE ' cases were' END || ' skipped; the reasons are listed below.' FROM c WHERE state = 'skipped'"
    " GROUP BY run_id"
    " UNION ALL SELECT run_id, 6, 'warn', run_name || ': ' || count(*) || CASE count(*) WHEN 1 THEN ' case'"
    " ELSE ' cases' END || ' came with a warning; see below.' FROM c"
    " WHERE json_extract(facts, '$.warning') <> '' OR " PTB_SQL_METRIC("hfu") " > 100 GROUP BY run_id"
                                                                              ") ORDER BY id, o";

ptb_status ptb_notices_query(ptb_store *store, const char *runs_json, ptb_table **table)
{
    return ptb_store_query(store, sql, &runs_json, 1, table);
}
