// Gathers what every rank measured and stores the case in one transaction.
#include "bench/record.h"

#include "core/log.h"

#include <stdlib.h>
#include <string.h>

// Enough for the spans of some hundred training steps; more are counted as dropped.
enum { MAX_STORED_SPANS = 1 << 16 };

// Everything of one rank that has a fixed size.
typedef struct {
    ptb_verdict verdict;
    uint64_t span_count, spans_dropped;
} rank_head;

// The gathered parts, on rank 0.
typedef struct {
    rank_head *heads;
    double *samples; // [ranks][count]
    ptb_span *spans; // [ranks][stride]
    size_t span_stride;
} gathered;

static void release(gathered *all)
{
    free(all->heads);
    free(all->samples);
    free(all->spans);
}

static ptb_status allocate(ptb_world *world, const ptb_case_result *result, gathered *all)
{
    size_t ranks = (size_t)world->size;
    if (world->rank == 0) {
        all->heads = malloc(ranks * sizeof *all->heads);
        all->samples = malloc((ranks * result->count + 1) * sizeof *all->samples);
        all->spans = malloc((ranks * all->span_stride + 1) * sizeof *all->spans);
    }
    bool failed = world->rank == 0 && (!all->heads || !all->samples || !all->spans);
    if (failed)
        ptb_error("no memory to gather %zu samples from each of %zu ranks", result->count, ranks);
    return ptb_world_agree(world, failed ? PTB_NO_MEMORY : PTB_OK);
}

static ptb_status gather_spans(ptb_world *world, const ptb_span *mine, size_t count, gathered *all)
{
    if (!all->span_stride)
        return PTB_OK;
    ptb_span *padded = calloc(all->span_stride, sizeof *padded);
    ptb_status status = ptb_world_agree(world, padded ? PTB_OK : PTB_NO_MEMORY);
    if (status == PTB_OK) {
        if (count)
            memcpy(padded, mine, count * sizeof *padded);
        status = ptb_world_gather(world, 0, padded, all->span_stride * sizeof *padded, all->spans);
    }
    free(padded);
    return status;
}

static ptb_status gather_all(ptb_world *world, const ptb_case_result *result, const ptb_trace *trace,
                             gathered *all)
{
    size_t count = 0, dropped = 0;
    const ptb_span *spans = trace && result->count ? ptb_trace_spans(trace, &count, &dropped) : NULL;
    if (count > MAX_STORED_SPANS) {
        dropped += count - MAX_STORED_SPANS;
        count = MAX_STORED_SPANS;
    }
    double most = (double)count;
    PTB_TRY(ptb_world_reduce_max(world, &most, 1));
    all->span_stride = (size_t)most;
    PTB_TRY(allocate(world, result, all));
    rank_head head;
    memset(&head, 0, sizeof head);
    head.verdict = result->verdict;
    head.span_count = count;
    head.spans_dropped = dropped;
    PTB_TRY(ptb_world_gather(world, 0, &head, sizeof head, all->heads));
    if (result->count)
        PTB_TRY(ptb_world_gather(world, 0, result->mine_ns, result->count * sizeof(double), all->samples));
    return gather_spans(world, spans, count, all);
}

static const char *state_name(ptb_case_state state)
{
    static const char *const names[] = {"ok", "wrong", "skipped", "failed"};
    return names[state];
}

static ptb_status store_gathered(ptb_store *store, int64_t repetition, const gathered *all, int size,
                                 ptb_case_record *record)
{
    ptb_rank_record *ranks = calloc((size_t)size, sizeof *ranks);
    if (!ranks) {
        ptb_error("no memory for the records of %d ranks", size);
        return PTB_NO_MEMORY;
    }
    for (size_t r = 0; r < (size_t)size; r++) {
        const rank_head *head = &all->heads[r];
        ranks[r] = (ptb_rank_record){
            .samples_ns = all->samples + r * record->combined_count,
            .count = record->combined_count,
            .checked = head->verdict.checked,
            .wrong = head->verdict.wrong,
            .detail = *head->verdict.detail ? head->verdict.detail : NULL,
            .spans = head->span_count ? all->spans + r * all->span_stride : NULL,
            .span_count = head->span_count,
            .spans_dropped = head->spans_dropped,
        };
    }
    record->rank = ranks;
    ptb_status status = ptb_store_add_case(store, repetition, record);
    free(ranks);
    return status;
}

// A simulated device says so in its description (core/device.h), which every benchmark on a device states.
bool ptb_record_is_simulated(const ptb_params *facts)
{
    const char *device = ptb_params_get(facts, "device");
    return device && strstr(device, "simulated");
}

ptb_status ptb_record_case(ptb_world *world, ptb_store *store, int64_t repetition, const char *bench,
                           const char *key, const ptb_case *c, const ptb_case_result *result,
                           const ptb_trace *trace)
{
    gathered all = {NULL, NULL, NULL, 0};
    ptb_status status = gather_all(world, result, trace, &all);
    if (status == PTB_OK && world->rank == 0) {
        ptb_case_record record = {
            .bench = bench,
            .key = key,
            .params = &c->params,
            .facts = &result->facts,
            .bytes = c->bytes,
            .ranks = world->size,
            .hosts = world->hosts,
            .simulated = ptb_record_is_simulated(&result->facts),
            .state = state_name(result->state),
            .reason = *result->reason ? result->reason : NULL,
            .mode = result->mode,
            .combine = result->combine,
            .stopped = result->stopped,
            .batch = result->batch,
            .warmup = result->warmup,
            .started_utc_s = result->started_utc_s,
            .elapsed_s = result->elapsed_s,
            .time_ns = result->time_ns,
            .combined_ns = result->combined_ns,
            .combined_count = result->count,
            .metrics = &result->metrics,
            .series = result->series,
            .series_count = result->series_count,
        };
        status = store_gathered(store, repetition, &all, world->size, &record);
    }
    release(&all);
    return ptb_world_agree(world, status);
}

ptb_status ptb_record_unrun(ptb_store *store, int64_t repetition, const char *bench, const char *key,
                            const ptb_params *params, int ranks, int hosts, const char *state,
                            const char *reason)
{
    const ptb_params no_facts = {.count = 0};
    const ptb_metrics no_metrics = {.count = 0};
    ptb_rank_record *empty = calloc((size_t)ranks, sizeof *empty);
    if (!empty) {
        ptb_error("no memory for the records of %d ranks", ranks);
        return PTB_NO_MEMORY;
    }
    const ptb_case_record record = {
        .bench = bench,
        .key = key,
        .params = params,
        .facts = &no_facts,
        .ranks = ranks,
        .hosts = hosts,
        .state = state,
        .reason = reason,
        .mode = "",
        .combine = "",
        .stopped = "",
        .started_utc_s = ptb_clock_utc_s(),
        .rank = empty,
        .metrics = &no_metrics,
    };
    ptb_status status = ptb_store_add_case(store, repetition, &record);
    free(empty);
    return status;
}
