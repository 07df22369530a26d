// Opening the store with everything that is known about the conditions of a run.
#include "bench/session_store.h"

#include "bench/build_info.h"
#include "bench/command.h"
#include "bench/revision.h"
#include "bench/runner.h"
#include "core/log.h"
#include "core/process.h"
#include "results/redact.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

// What rank 0 gathers before it opens the store.
typedef struct {
    ptb_text hosts, placement, environment, options, build, command, launcher, processes;
    char fingerprint[17];
    char revision[72];
    double overhead_ns;
    ptb_clock_quality clock;
} conditions;

static void release(conditions *c)
{
    ptb_text_release(&c->hosts);
    ptb_text_release(&c->placement);
    ptb_text_release(&c->environment);
    ptb_text_release(&c->options);
    ptb_text_release(&c->build);
    ptb_text_release(&c->command);
    ptb_text_release(&c->launcher);
    ptb_text_release(&c->processes);
}

static void join_json(char **items, int count, ptb_text *out)
{
    bool some = false;
    ptb_text_append(out, "[");
    for (int i = 0; i < count; i++) {
        if (!*items[i])
            continue;
        ptb_text_printf(out, "%s%s", some ? ", " : "", items[i]);
        some = true;
    }
    ptb_text_append(out, "]");
}

// What all ranks of this host together may use; each one's own is its placement.
static ptb_status merge_masks(ptb_world *world, ptb_topology *host)
{
    ptb_cpu_mask mine, together = {{0}};
    ptb_cpu_mask *all = malloc((size_t)world->size * sizeof *all);
    PTB_TRY(ptb_world_agree(world, all ? PTB_OK : PTB_NO_MEMORY));
    ptb_topology_mask(&mine);
    ptb_status status = ptb_world_all_gather(world, &mine, sizeof mine, all);
    for (int r = 0; status == PTB_OK && r < world->size; r++)
        for (size_t i = 0; world->host_of[r] == world->host && i < sizeof mine.bytes; i++)
            together.bytes[i] |= all[r].bytes[i];
    free(all);
    if (status == PTB_OK)
        ptb_topology_allow(host, &together);
    return status;
}

// One topology a host, in order of hosts, which is the order of their first ranks; one placement a rank.
static ptb_status gather_places(ptb_world *world, const ptb_topology *topology, conditions *c)
{
    ptb_text topology_json = PTB_TEXT_INIT, place = PTB_TEXT_INIT;
    char **hosts = NULL, **places = NULL;
    ptb_topology host = *topology;
    const char *visible =
        getenv("CUDA_VISIBLE_DEVICES"); // to this rank: an instance of MIG, or the launcher's
    PTB_TRY(merge_masks(world, &host));
    if (world->local_rank == 0)
        ptb_topology_json(&host, &topology_json);
    ptb_text_append(&place, "{\"host\": ");
    ptb_text_append_json(&place, topology->hostname);
    ptb_text_append(&place, ", \"cpus\": ");
    ptb_text_append_json(&place, topology->binding);
    if (visible) {
        ptb_text_append(&place, ", \"cuda_visible_devices\": ");
        ptb_text_append_json(&place, visible);
    }
    ptb_text_append(&place, "}");
    ptb_status status = ptb_world_gather_strings(world, 0, ptb_text_string(&topology_json), &hosts);
    if (status == PTB_OK)
        status = ptb_world_gather_strings(world, 0, ptb_text_string(&place), &places);
    if (status == PTB_OK && world->rank == 0) {
        join_json(hosts, world->size, &c->hosts);
        join_json(places, world->size, &c->placement);
    }
    ptb_world_free_strings(world->rank == 0 ? hosts : NULL, world->size);
    ptb_world_free_strings(world->rank == 0 ? places : NULL, world->size);
    ptb_text_release(&topology_json);
    ptb_text_release(&place);
    return status;
}

// All hosts' fingerprints folded into one; the same hosts in another order are the same machine.
static ptb_status combine_fingerprints(ptb_world *world, const ptb_topology *topology, conditions *c)
{
    uint64_t mine = world->local_rank == 0 ? topology->fingerprint : 0;
    uint64_t *all = malloc((size_t)world->size * sizeof *all);
    ptb_status status = ptb_world_agree(world, all ? PTB_OK : PTB_NO_MEMORY);
    if (status == PTB_OK)
        status = ptb_world_all_gather(world, &mine, sizeof mine, all);
    uint64_t sum = 0;
    for (int r = 0; status == PTB_OK && r < world->size; r++)
        sum += all[r];
    // One host keeps its own fingerprint, so that it can be found by it.
    snprintf(c->fingerprint, sizeof c->fingerprint, "%016llx", (unsigned long long)sum);
    free(all);
    return status;
}

static ptb_status measure_loop(ptb_world *world, conditions *c)
{
    c->clock = ptb_clock_measure();
    return ptb_world_agree(world, ptb_runner_overhead(world, &c->overhead_ns));
}

// Rank 0, which stores the end, and who starts and looks after the ranks: between repetitions it is alone.
static void describe_processes(const ptb_run_origin *origin, ptb_text *out)
{
    ptb_process_append(out);
    if (out->length && *origin->launcher_process)
        ptb_text_printf(out, "\n%s", origin->launcher_process);
}

static void describe_origin(const ptb_plan *plan, const ptb_run_origin *origin, conditions *c)
{
    ptb_text_append(&c->command, "ptbench");
    for (int i = 1; i < origin->argc; i++) {
        ptb_text_append(&c->command, " ");
        ptb_redact_words(origin->argv[i], &c->command);
    }
    ptb_redact_words(origin->launcher, &c->launcher);
    describe_processes(origin, &c->processes);
    ptb_plan_options_json(plan, origin->argc, origin->argv, origin->first, &c->options);
    ptb_redact_environment(environ, &c->environment);
    ptb_build_json(&c->build);
    if (plan->run.revision && *plan->run.revision)
        snprintf(c->revision, sizeof c->revision, "%s", plan->run.revision);
    else if (!ptb_revision_read(".", c->revision, sizeof c->revision))
        c->revision[0] = '\0';
}

// A run has one set of hosts: what is missing of it cannot be measured elsewhere and be stored as its own.
static ptb_status check_same_place(ptb_store *store, const char *uuid, const ptb_world *world,
                                   const conditions *c)
{
    static const char sql[] = "SELECT r.fingerprint, p.ranks, p.hosts,"
                              " (SELECT group_concat(json_extract(h.value, '$.hostname'), ', ')"
                              "  FROM json_each(r.hosts) AS h)"
                              " FROM run AS r JOIN repetition AS p ON p.run_id = r.id"
                              " WHERE r.uuid = ?1 ORDER BY p.ordinal LIMIT 1";
    const char *const args[] = {uuid};
    ptb_table *stored = NULL;
    if (ptb_store_spill_path(store))
        return PTB_OK; // there is no database to compare with
    PTB_TRY(ptb_store_query(store, sql, args, 1, &stored));
    bool same = !stored->rows || (strcmp(ptb_table_cell(stored, 0, 0), c->fingerprint) == 0 &&
                                  (int)ptb_table_number(stored, 0, 1) == world->size &&
                                  (int)ptb_table_number(stored, 0, 2) == world->hosts);
    if (!same)
        ptb_error("run %.8s was measured with %s ranks on %s (fingerprint %s); this is %d ranks on %d host%s "
                  "(fingerprint %s). What is missing of it can only be measured there; for another machine "
                  "or number of ranks start a new run",
                  uuid, ptb_table_cell(stored, 0, 1), ptb_table_cell(stored, 0, 3),
                  ptb_table_cell(stored, 0, 0), world->size, world->hosts, world->hosts == 1 ? "" : "s",
                  c->fingerprint);
    ptb_table_free(stored);
    return same ? PTB_OK : PTB_UNSUPPORTED;
}

static ptb_status open_on_root(const ptb_plan *plan, const ptb_run_origin *origin, const ptb_world *world,
                               const conditions *c, ptb_session_store *out)
{
    const char *path = ptb_command_database(plan->run.db);
    PTB_TRY(ptb_store_open(path, PTB_STORE_WRITE, &out->store));
    out->database = strdup(path);
    PTB_TRY(check_same_place(out->store, origin->uuid, world, c));
    const double now_s = ptb_clock_utc_s();
    const ptb_run_record run = {
        .uuid = origin->uuid,
        .started_utc_s = now_s,
        .command = ptb_text_string(&c->command),
        .selection = plan->selection,
        .label = plan->run.label && *plan->run.label ? plan->run.label : NULL,
        .version = PTB_VERSION,
        .git_revision = *c->revision ? c->revision : NULL,
        .build = ptb_text_string(&c->build),
        .options = ptb_text_string(&c->options),
        .environment = ptb_text_string(&c->environment),
        .hosts = ptb_text_string(&c->hosts),
        .fingerprint = c->fingerprint,
        .processes = ptb_text_string(&c->processes),
        .simulated = false,
        .clock_resolution_ns = c->clock.resolution_ns,
        .clock_overhead_ns = c->clock.overhead_ns,
        .loop_overhead_ns = c->overhead_ns,
    };
    PTB_TRY(ptb_store_begin_run(out->store, &run, &out->run));
    const ptb_repetition_record repetition = {
        .index = out->repetition_index,
        .started_utc_s = now_s,
        .ranks = world->size,
        .hosts = world->hosts,
        .launcher = ptb_text_string(&c->launcher),
        .placement = ptb_text_string(&c->placement),
    };
    return ptb_store_begin_repetition(out->store, out->run, &repetition, &out->repetition);
}

ptb_status ptb_session_store_open(const ptb_plan *plan, const ptb_run_origin *origin, ptb_world *world,
                                  const ptb_topology *topology, ptb_session_store *out)
{
    conditions c;
    memset(&c, 0, sizeof c);
    ptb_status status = gather_places(world, topology, &c);
    if (status == PTB_OK)
        status = combine_fingerprints(world, topology, &c);
    if (status == PTB_OK)
        status = measure_loop(world, &c);
    if (status == PTB_OK && world->rank == 0) {
        describe_origin(plan, origin, &c);
        status = open_on_root(plan, origin, world, &c, out);
    }
    release(&c);
    return ptb_world_agree(world, status);
}

// The keys one after the other, each with its NUL.
static ptb_status read_keys(const ptb_session_store *store, const char *database,
                            const ptb_run_origin *origin, ptb_text *blob, size_t *count)
{
    char **keys = NULL;
    ptb_store *reader = NULL;
    if (!store->store)
        PTB_TRY(ptb_store_open(database, PTB_STORE_READ, &reader));
    ptb_status status = ptb_store_done_keys(reader ? reader : store->store, origin->uuid,
                                            store->repetition_index, &keys, count);
    if (reader)
        ptb_store_close(reader);
    PTB_TRY(status);
    for (size_t i = 0; i < *count; i++) {
        ptb_text_append_bytes(blob, keys[i], strlen(keys[i]) + 1);
        free(keys[i]);
    }
    free(keys);
    return PTB_OK;
}

static ptb_status cut_keys(const char *blob, size_t count, char ***out)
{
    char **keys = calloc(count + 1, sizeof *keys);
    for (size_t i = 0; keys && i < count; i++) {
        keys[i] = strdup(blob);
        if (!keys[i])
            return PTB_NO_MEMORY; // the run ends; nothing is lost but this
        blob += strlen(blob) + 1;
    }
    if (!keys)
        return PTB_NO_MEMORY;
    *out = keys;
    return PTB_OK;
}

ptb_status ptb_session_done_keys(const ptb_session_store *store, const ptb_plan *plan,
                                 const ptb_run_origin *origin, ptb_world *world, char ***keys, size_t *count)
{
    ptb_text blob = PTB_TEXT_INIT;
    size_t sizes[2] = {0, 0};
    ptb_status status = world->rank == 0
                            ? read_keys(store, ptb_command_database(plan->run.db), origin, &blob, &sizes[0])
                            : PTB_OK;
    sizes[1] = blob.length;
    status = ptb_world_agree(world, status);
    if (status == PTB_OK)
        status = ptb_world_broadcast(world, 0, sizes, sizeof sizes);
    char *bytes = status == PTB_OK ? calloc(1, sizes[1] + 1) : NULL;
    if (status == PTB_OK)
        status = ptb_world_agree(world, bytes ? PTB_OK : PTB_NO_MEMORY);
    if (status == PTB_OK) {
        if (blob.length)
            memcpy(bytes, blob.data, blob.length);
        if (sizes[1])
            status = ptb_world_broadcast(world, 0, bytes, sizes[1]);
    }
    if (status == PTB_OK)
        status = ptb_world_agree(world, cut_keys(bytes, sizes[0], keys));
    if (status == PTB_OK)
        *count = sizes[0];
    free(bytes);
    ptb_text_release(&blob);
    return status;
}

void ptb_session_store_close(ptb_session_store *store)
{
    if (store->store)
        ptb_store_close(store->store);
    free(store->database);
    memset(store, 0, sizeof *store);
}
