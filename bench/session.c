// The ranks of a job work through the plan together. Rank 0 stores and reports; decisions are agreed on, so
// that all ranks stay in step whatever happens on one of them.
#include "bench/session.h"

#include "bench/case_text.h"
#include "bench/command.h"
#include "bench/export_file.h"
#include "bench/forecast.h"
#include "bench/job_status.h"
#include "bench/keys.h"
#include "bench/progress.h"
#include "bench/record.h"
#include "bench/session_store.h"
#include "collectives/auto.h"
#include "collectives/launcher.h"
#include "collectives/world.h"
#include "core/log.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SPAN_ROOM = 1 << 18, RANK_COUNTS_MAX = 64 };

typedef struct {
    ptb_status status;
    char reason[PTB_REASON_BYTES]; // of a refusal, on rank 0
} outcome;

typedef struct {
    const ptb_plan *plan;
    const ptb_run_origin *origin;
    ptb_world *world;
    ptb_watch *watch;
    ptb_topology topology;
    ptb_offer offer;
    ptb_session_store store;
    ptb_progress progress; // drawn on rank 0
    bool counting;         // only count cases and add their estimates up
    // Of each part and rank count when they were counted, in order: what was refused is not tried again.
    outcome *opened;
    size_t open_count, open_at;
    ptb_listener listener; // to a part beside its cases
    size_t cases;
    double planned_s;
    ptb_forecast forecast; // of which what
    ptb_keys done;         // that need not be measured any more, on all ranks
    size_t kept;           // of the keys above, those that an earlier session of this run has stored
    size_t measured, wrong, failed, skipped; // cases of this session
    bool has_warned_of_faults;
    bool links_told;  // what of the links cannot be counted
    ptb_status worst; // of cases that are wrong or failed: the run goes on, the exit code remembers
} session;

static bool is_root(const session *s)
{
    return s->world->rank == 0;
}

static void note_worst(session *s, ptb_status status)
{
    if (s->worst == PTB_OK || (status == PTB_WRONG && s->worst != PTB_STORE))
        s->worst = status;
}

// ---- what rank 0 says

static const char *plural(size_t count)
{
    return count == 1 ? "" : "s";
}

static void warn_of_faults(session *s, const ptb_case *c, const ptb_case_result *result, const char *key)
{
    if (!ptb_runner_faults_spoil(c, result) || s->has_warned_of_faults)
        return;
    s->has_warned_of_faults = true;
    ptb_progress_clear(&s->progress);
    ptb_warn(
        "%s: %.0f page faults in each operation: memory is allocated inside the timed call (Open MPI's "
        "collectives do so for large messages) and its first touch is a large part of the time. `ptbench "
        "doctor` says how to measure without. This is said once a run and stored with each case",
        key, result->faults);
}

static void report_case(session *s, const ptb_case *c, const ptb_case_result *result, const char *key)
{
    char outcome[PTB_REASON_BYTES + 64];
    bool is_bad = result->state == PTB_CASE_WRONG || result->state == PTB_CASE_FAILED;
    ptb_case_outcome(result, outcome, sizeof outcome);
    ptb_progress_end(&s->progress, outcome, is_bad,
                     result->state == PTB_CASE_OK || result->state == PTB_CASE_WRONG, result->elapsed_s);
    if (is_bad)
        ptb_error("%s %s: %s", key, result->state == PTB_CASE_WRONG ? "gave a wrong result" : "failed",
                  result->reason);
    warn_of_faults(s, c, result, key);
}

static void count_result(session *s, const ptb_case_result *result)
{
    s->measured += result->state == PTB_CASE_OK || result->state == PTB_CASE_WRONG;
    s->wrong += result->state == PTB_CASE_WRONG;
    s->failed += result->state == PTB_CASE_FAILED;
    s->skipped += result->state == PTB_CASE_SKIPPED;
    if (result->state == PTB_CASE_WRONG)
        note_worst(s, PTB_WRONG);
    if (result->state == PTB_CASE_FAILED)
        note_worst(s, result->status);
}

// ---- cases

// The parameters that the runner adds to those of the benchmark, and the key.
static void complete_case(const ptb_part *part, const ptb_world *active, ptb_case *c, char key[PTB_KEY_BYTES])
{
    if (!ptb_params_get(&c->params, "ranks"))
        ptb_params_set(&c->params, "ranks", "%d", active->size);
    if (strcmp(part->measure.mode, "auto") != 0)
        ptb_params_set(&c->params, "mode", "%s", part->measure.mode);
    if (strcmp(part->measure.time, "max") != 0)
        ptb_params_set(&c->params, "time", "%s", part->measure.time);
    ptb_case_key(part->bench->plugin.name, c, key);
}

static void show_case(session *s, const ptb_part *part, const ptb_case *c, double estimate_s)
{
    ptb_text label = PTB_TEXT_INIT;
    ptb_case_label(part, c, &label);
    ptb_progress_begin(&s->progress, ptb_text_string(&label), estimate_s);
    ptb_text_release(&label);
}

static ptb_status run_case(session *s, const ptb_part *part, ptb_runner *runner, const ptb_runner_env *env,
                           ptb_bench_run *run, const ptb_case *c, const char *key)
{
    double timeout_s = part->measure.timeout_s > 0 ? fmax(part->measure.timeout_s, 20 * c->estimate_s) : 0;
    ptb_case_result *result = malloc(sizeof *result); // too large for a stack of a tested thread
    PTB_TRY(ptb_world_agree(env->world, result ? PTB_OK : PTB_NO_MEMORY));
    if (is_root(s))
        show_case(s, part, c, ptb_forecast_s(&s->forecast, key));
    ptb_watch_begin(s->watch, key, timeout_s);
    ptb_status status = ptb_runner_case(runner, run, c, result);
    if (status == PTB_OK) {
        count_result(s, result);
        if (is_root(s))
            report_case(s, c, result, key);
        // A database that others write may keep rank 0 for a while.
        ptb_watch_begin(s->watch, "storing a case", timeout_s > 0 ? fmax(timeout_s, 15) : 0);
        status = ptb_record_case(env->world, s->store.store, s->store.repetition, part->bench->plugin.name,
                                 key, c, result, part->measure.trace ? env->trace : NULL);
    }
    free(result);
    if (status != PTB_LOST)
        ptb_runner_end(runner, run, c);
    return status;
}

static ptb_status count_case(session *s, const ptb_part *part, const ptb_case *c, const char *key)
{
    double estimate_s = ptb_runner_estimate_s(&part->measure, part->bench, c);
    s->cases++;
    s->planned_s += estimate_s;
    if (is_root(s) && s->plan->run.dry_run)
        ptb_case_print_planned(c, key, estimate_s);
    return ptb_forecast_add(&s->forecast, key, estimate_s);
}

// All cases of an opened benchmark.
static ptb_status run_cases(session *s, const ptb_part *part, const ptb_runner_env *env, ptb_runner *runner,
                            ptb_bench_run *run)
{
    for (;;) {
        ptb_case c;
        char key[PTB_KEY_BYTES];
        bool more = false;
        memset(&c, 0, sizeof c);
        PTB_TRY(part->bench->next(run, &c, &more));
        if (!more)
            return PTB_OK;
        complete_case(part, env->world, &c, key);
        ptb_runner_check_mode(&part->measure, part->bench, &c);
        if (ptb_keys_have(&s->done, key))
            continue;
        PTB_TRY(s->counting ? count_case(s, part, &c, key) : run_case(s, part, runner, env, run, &c, key));
        ptb_listen_end(&s->listener); // a case's errors are its own
        ptb_listen_begin(&s->listener);
        PTB_TRY(ptb_keys_add(&s->done, key));
    }
}

// Opens the part's benchmark on the ranks of `active` and goes through its cases.
static void beat(void *watch)
{
    ptb_watch_beat(watch);
}

static ptb_status run_active(session *s, const ptb_part *part, ptb_world *active)
{
    int counts[RANK_COUNTS_MAX];
    bool sweeps = ptb_measure_ranks(&part->measure, s->world->size, counts, RANK_COUNTS_MAX) > 1;
    ptb_trace *trace = NULL;
    ptb_runner *runner = NULL;
    ptb_bench_run *run = NULL;
    ptb_status status = PTB_OK;
    ptb_watch_begin(s->watch, part->name, ptb_measure_start_limit_s(&part->measure));
    if (part->measure.trace && !s->counting)
        status = ptb_trace_new(SPAN_ROOM, active->rank, &trace);
    status = ptb_world_agree(active, status);
    ptb_runner_env env = {.world = active,
                          .watch = s->watch,
                          .trace = trace,
                          .stop = ptb_watch_stop(s->watch),
                          .links_told = &s->links_told,
                          .tick = is_root(s) ? ptb_progress_tick : NULL,
                          .tick_arg = &s->progress};
    const ptb_bench_env bench_env = {.world = active,
                                     .trace = trace,
                                     .seed = (uint64_t)part->measure.seed,
                                     .share_gpu = s->plan->run.share_gpu,
                                     .sweeps = sweeps,
                                     .dry_run = s->counting,
                                     .timeout_s = ptb_measure_peer_limit_s(&part->measure),
                                     .alive = beat,
                                     .watcher = s->watch};
    if (status == PTB_OK && !s->counting)
        status = ptb_runner_new(&env, &part->measure, part->bench, &runner);
    if (status == PTB_OK)
        status = ptb_world_agree(active, part->bench->open(&bench_env, part->config, &run));
    if (status == PTB_OK)
        status = run_cases(s, part, &env, runner, run);
    if (run && status != PTB_LOST) // with a rank gone the job is about to be ended; closing could wait for it
        part->bench->close(run);
    ptb_runner_free(runner);
    ptb_trace_free(trace);
    return status;
}

// Rank 0 stores that a part or one of its rank counts did not run.
static ptb_status skip_part(session *s, const ptb_part *part, int ranks, const char *state,
                            const char *reason)
{
    ptb_params params = {.count = 0};
    char key[PTB_KEY_BYTES];
    ptb_params_set(&params, "part", "%s", part->name);
    ptb_params_set(&params, "ranks", "%d", ranks);
    snprintf(key, sizeof key, "%s/part=%s/ranks=%d", part->bench->plugin.name, part->name, ranks);
    if (ptb_keys_have(&s->done, key))
        return PTB_OK;
    ptb_status status = ptb_keys_add(&s->done, key);
    if (s->counting) {
        s->cases++;
        if (is_root(s) && s->plan->run.dry_run)
            printf("%8.2f s  %s  %s: %s\n", 0.0, key, state, reason);
    } else {
        s->skipped += strcmp(state, "skipped") == 0;
        s->failed += strcmp(state, "failed") == 0;
        if (is_root(s)) {
            char outcome[PTB_REASON_BYTES + 16];
            snprintf(outcome, sizeof outcome, "%s: %s", state, reason);
            ptb_progress_begin(&s->progress, key, 0);
            ptb_progress_end(&s->progress, outcome, false, false, 0);
            if (status == PTB_OK)
                status = ptb_record_unrun(s->store.store, s->store.repetition, part->bench->plugin.name, key,
                                          &params, s->world->size, s->world->hosts, state, reason);
        }
    }
    return ptb_world_agree(s->world, status);
}

// A stop asked for while ranks slept or between cases.
static ptb_status agree_to_go_on(session *s, ptb_status status)
{
    const atomic_bool *stop = ptb_watch_stop(s->watch);
    if (status == PTB_OK && atomic_load(stop))
        status = PTB_INTERRUPTED;
    return ptb_world_agree(s->world, status);
}

static bool is_refusal(ptb_status status)
{
    return status == PTB_UNSUPPORTED || status == PTB_NO_MEMORY || status == PTB_SYSTEM;
}

// What a part that could not be started is recorded as; the other parts go on.
static ptb_status refuse_part(session *s, const ptb_part *part, int ranks, const outcome *o)
{
    bool cannot = o->status == PTB_UNSUPPORTED;
    if (!s->counting && !cannot)
        note_worst(s, o->status);
    return skip_part(s, part, ranks, cannot ? "skipped" : "failed", o->reason);
}

static ptb_status note_opened(session *s, const outcome *o)
{
    outcome *larger = realloc(s->opened, (s->open_count + 1) * sizeof *larger);
    if (!larger)
        return PTB_NO_MEMORY;
    s->opened = larger;
    s->opened[s->open_count++] = *o;
    return PTB_OK;
}

// The first `ranks` ranks work, the others sleep.
static ptb_status work_or_sleep(session *s, const ptb_part *part, int ranks)
{
    if (ranks == s->world->size)
        return run_active(s, part, s->world);
    ptb_world *active = NULL;
    bool works = s->world->rank < ranks;
    PTB_TRY(ptb_world_split(s->world, works ? 0 : -1, s->world->rank, &active));
    ptb_status status = works ? run_active(s, part, active) : PTB_OK;
    ptb_world_close(active);
    if (status == PTB_LOST)
        return status;
    if (!works)
        ptb_watch_pause(s->watch);
    ptb_status slept = ptb_world_sleep(s->world);
    return status == PTB_OK ? slept : status;
}

static ptb_status run_with_ranks(session *s, const ptb_part *part, int ranks)
{
    outcome o = {.reason = ""};
    if (ranks > s->world->size) {
        snprintf(o.reason, sizeof o.reason, "needs %d ranks; this run has %d", ranks, s->world->size);
        return skip_part(s, part, ranks, "skipped", o.reason);
    }
    if (!s->counting && is_refusal(s->opened[s->open_at].status))
        return refuse_part(s, part, ranks, &s->opened[s->open_at++]);
    ptb_listen_begin(&s->listener);
    o.status = work_or_sleep(s, part, ranks);
    ptb_listen_end(&s->listener);
    if (o.status == PTB_LOST)
        return o.status;
    o.status = agree_to_go_on(s, o.status);
    if (is_refusal(o.status))
        PTB_TRY(ptb_reason_gather(s->world, o.status, s->listener.heard, o.reason));
    s->open_at += !s->counting;
    PTB_TRY(s->counting ? note_opened(s, &o) : PTB_OK);
    return is_refusal(o.status) ? refuse_part(s, part, ranks, &o) : o.status;
}

static ptb_status run_parts(session *s)
{
    for (size_t i = 0; i < s->plan->count; i++) {
        const ptb_part *part = &s->plan->parts[i];
        char reason[PTB_REASON_BYTES];
        if (!ptb_requires_hold(part->requires, &s->offer, reason)) {
            PTB_TRY(skip_part(s, part, s->world->size, "skipped", reason));
            continue;
        }
        int counts[RANK_COUNTS_MAX];
        size_t n = ptb_measure_ranks(&part->measure, s->world->size, counts, RANK_COUNTS_MAX);
        for (size_t k = 0; k < n; k++)
            PTB_TRY(run_with_ranks(s, part, counts[k]));
    }
    return PTB_OK;
}

// Goes through the plan without measuring, for the number of cases and the time they will take. Rank 0 speaks
// for all: what is wrong with the request is wrong on every rank.
static ptb_status count_cases(session *s, bool silent)
{
    size_t keep = s->done.count;
    s->counting = true;
    s->cases = s->open_count = 0;
    s->planned_s = 0;
    ptb_forecast_clear(&s->forecast);
    if (!is_root(s) || silent)
        ptb_log_set_level((ptb_log_level)-1);
    ptb_status status = run_parts(s);
    ptb_log_set_level(PTB_LOG_INFO);
    s->counting = false;
    ptb_keys_cut(&s->done, keep);
    return status;
}

// ---- the run as a whole

static ptb_status read_topology(session *s)
{
    PTB_TRY(ptb_world_agree(s->world, ptb_topology_read(&s->topology)));
    if (is_root(s))
        ptb_plan_mention_gpus(s->plan, &s->topology);
    return ptb_plan_offer(s->plan, s->world, &s->topology, &s->offer);
}

static bool is_last_repetition(const session *s)
{
    return s->store.repetition_index + 1 >= s->plan->run.repeat;
}

// Before anything is measured.
static ptb_status check_json(session *s)
{
    const char *path = s->plan->run.json;
    ptb_status status = is_root(s) && path && *path ? ptb_export_check(path) : PTB_OK;
    return ptb_world_agree(s->world, status);
}

static ptb_status write_json(session *s)
{
    const char *path = s->plan->run.json;
    if (!path || !*path)
        return PTB_OK;
    return ptb_export_file(s->store.store, &s->store.run, 1, "json", NULL, path);
}

static ptb_status finish_on_root(session *s, ptb_status status)
{
    ptb_store *store = s->store.store;
    const char *state = status == PTB_INTERRUPTED ? "interrupted" : status != PTB_OK ? "failed" : "complete";
    const char *reason = status == PTB_OK ? NULL : ptb_status_meaning(status);
    ptb_progress_clear(&s->progress);
    ptb_status stored = PTB_OK;
    if (status != PTB_OK || is_last_repetition(s))
        stored = ptb_store_finish_run(store, s->store.run, state, reason);
    if (stored == PTB_OK && is_last_repetition(s))
        stored = write_json(s);
    const char *spill = ptb_store_spill_path(store);
    if (spill) {
        ptb_error(
            "what could not be stored in %s is in %s; when the cause is mended: ptbench import --db %s %s",
            s->store.database, spill, s->store.database, spill);
        stored = PTB_STORE;
    }
    return stored;
}

static void summarise_on_root(const session *s, ptb_status status)
{
    const char *uuid = s->origin->uuid, *spill = ptb_store_spill_path(s->store.store);
    const char *db = spill ? spill : s->plan->run.db ? s->plan->run.db : "", *option = *db ? " --db " : "";
    if (s->plan->run.repeat > 1)
        ptb_info("repetition %d of %lld:", s->store.repetition_index + 1, (long long)s->plan->run.repeat);
    char kept[48] = "";
    if (s->kept)
        snprintf(kept, sizeof kept, ", %zu kept from before", s->kept);
    ptb_info("%zu case%s measured (%zu wrong), %zu skipped, %zu failed%s; run %.8s in %s", s->measured,
             plural(s->measured), s->wrong, s->skipped, s->failed, kept, uuid,
             spill ? spill : s->store.database);
    if (status == PTB_INTERRUPTED || status == PTB_LOST)
        ptb_info("stopped before the end. To run only what is missing: ptbench run --resume %.8s%s%s", uuid,
                 option, db);
    else
        ptb_info("to look at it: ptbench show %.8s%s%s, ptbench report %.8s%s%s", uuid, option, db, uuid,
                 option, db);
}

static ptb_status read_done(session *s)
{
    ptb_keys_release(&s->done);
    PTB_TRY(ptb_session_done_keys(&s->store, s->plan, s->origin, s->world, &s->done.items, &s->done.count));
    s->done.room = s->kept = s->done.count;
    return PTB_OK;
}

static ptb_status run_stored(session *s)
{
    s->store.repetition_index = s->origin->repetition;
    PTB_TRY(count_cases(s, false)); // first of all: a request that cannot be met leaves nothing behind
    PTB_TRY(check_json(s));
    if (is_root(s) && s->plan->run.renew_auto && !s->store.repetition_index && !s->origin->resume)
        ptb_auto_forget();
    PTB_TRY(ptb_session_store_open(s->plan, s->origin, s->world, &s->topology, &s->store));
    PTB_TRY(read_done(s));
    if (s->done.count)
        PTB_TRY(count_cases(s, true));
    ptb_progress_init(&s->progress, s->plan->run.quiet, s->origin->terminal, s->origin->columns);
    s->progress.cases = s->cases;
    s->progress.planned_s = s->planned_s;
    ptb_status status = run_parts(s);
    if (status == PTB_LOST)
        return status;
    if (status == PTB_OK)
        status = s->worst;
    ptb_watch_begin(s->watch, "storing the end of the run", ptb_plan_start_limit_s(s->plan));
    if (is_root(s)) {
        ptb_status stored = finish_on_root(s, status);
        summarise_on_root(s, status);
        if (status == PTB_OK && !s->measured && s->skipped && !s->origin->resume) {
            ptb_error("nothing was measured: every case was skipped, for the reasons above");
            status = PTB_UNSUPPORTED;
        }
        if (status == PTB_OK)
            status = stored;
    }
    return ptb_world_agree(s->world, status);
}

// Of a run that is taken up, what is missing of each repetition.
static ptb_status print_plan(session *s)
{
    const int repeat = (int)s->plan->run.repeat;
    size_t cases = 0, kept = 0;
    double planned_s = 0;
    char total[32], more[96] = "";
    for (int r = 0; r < (s->origin->resume ? repeat : 1); r++) {
        s->store.repetition_index = r;
        if (s->origin->resume)
            PTB_TRY(read_done(s));
        PTB_TRY(count_cases(s, r > 0));
        cases += s->cases;
        kept += s->kept;
        planned_s += s->planned_s;
    }
    ptb_progress_format_s(planned_s, total, sizeof total);
    if (s->origin->resume)
        snprintf(more, sizeof more, ", missing of run %.8s, which has %zu", s->origin->uuid, kept);
    else if (repeat > 1)
        snprintf(more, sizeof more, " for each of %d repetitions", repeat);
    if (is_root(s)) {
        printf("%zu case%s, about %s%s, on %d rank%s on %d host%s\n", cases, plural(cases), total, more,
               s->world->size, plural((size_t)s->world->size), s->world->hosts,
               plural((size_t)s->world->hosts));
        fflush(stdout);
    }
    return PTB_OK;
}

// The launcher is told before any rank can end: mpirun kills the others as soon as one has ended with a code
// other than 0.
static void release(session *s, ptb_status status)
{
    ptb_keys_release(&s->done);
    free(s->opened);
    ptb_forecast_clear(&s->forecast);
    ptb_session_store_close(&s->store);
    ptb_job_status_ended(s->origin->job_status, ptb_status_exit_code(status));
    ptb_watch_set_world(s->watch, NULL);
    ptb_world_close(s->world);
    ptb_watch_free(s->watch);
}

ptb_status ptb_session_run(const ptb_plan *plan, const ptb_run_origin *origin)
{
    session *s = calloc(1, sizeof *s);
    if (!s) {
        ptb_error("no memory for the run");
        return PTB_NO_MEMORY;
    }
    s->plan = plan;
    s->origin = origin;
    ptb_launcher launcher;
    ptb_status status = ptb_watch_new(&s->watch);
    if (status == PTB_OK)
        status = ptb_launcher_detect(&launcher);
    if (status == PTB_OK)
        status = ptb_transport_apply(plan->transport);
    ptb_watch_begin(s->watch, "start-up (MPI_Init)", ptb_plan_start_limit_s(plan));
    if (status == PTB_OK)
        status = ptb_world_open_mpi(ptb_plan_needs_threads(plan, launcher.one_host), &s->world);
    if (status == PTB_OK) {
        ptb_log_set_rank(s->world->rank == 0 ? -1 : s->world->rank);
        ptb_job_status_started(origin->job_status);
        ptb_watch_set_world(s->watch, s->world);
        ptb_watch_begin(s->watch, "start-up", ptb_plan_start_limit_s(plan));
        status = read_topology(s);
    }
    if (status == PTB_OK)
        status = plan->run.dry_run ? print_plan(s) : run_stored(s);
    if (status == PTB_LOST) {
        // The others cannot be asked any more; what is stored stays.
        if (is_root(s) && s->store.store) {
            ptb_store_finish_run(s->store.store, s->store.run, "failed", "a rank died or hung");
            summarise_on_root(s, status);
            ptb_session_store_close(&s->store);
        }
        ptb_world_abort(s->world, ptb_status_exit_code(PTB_LOST));
    }
    release(s, status);
    free(s);
    return status;
}
