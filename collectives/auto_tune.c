// Measuring the table of `auto`: for each collective and size all algorithms in turn, interleaved, so that a
// disturbance hits all of them; the median of the slowest rank's samples counts.
#include "collectives/auto.h"
#include "core/clock.h"
#include "core/log.h"
#include "core/stats.h"

#include <stdlib.h>
#include <string.h>

enum {
    ALGORITHMS_MAX = 16,
    SAMPLES_MIN = 3,
    SAMPLES_MAX = 15,
    BATCH_MAX = 32,
    GROWTH = 4,   // time of a cell against the one before, where bandwidth counts
    HOPELESS = 3, // so many times slower than the best where bandwidth counts: not tried at larger sizes
};
static const uint64_t memory_max = (uint64_t)512 << 20, bandwidth_from = 2 << 20;
static const double batch_us = 100; // shorter calls are timed several at a time

typedef struct {
    ptb_team *team;
    ptb_auto *table;
    unsigned char *send, *recv;
    uint64_t most_bytes; // largest vector
    double slice_us;     // for one collective at one size
    double collective_s; // for one collective; sizes that would take it beyond twice that are left out
} tuning;

// The same times on all ranks, so that all decide alike.
static ptb_status sample(const tuning *t, const ptb_algorithm *algorithm, const ptb_coll *call, int batch,
                         double *us)
{
    PTB_TRY(ptb_world_start(t->team->world));
    int64_t begin = ptb_clock_ns();
    for (int i = 0; i < batch; i++)
        PTB_TRY(ptb_algorithm_run(algorithm, t->team, call));
    *us = (double)(ptb_clock_ns() - begin) / 1e3 / batch;
    return PTB_OK;
}

static ptb_coll call_of(const tuning *t, ptb_coll_kind kind, uint64_t bytes)
{
    return (ptb_coll){.kind = kind,
                      .send = t->send,
                      .recv = t->recv,
                      .count = bytes / ptb_dtype_size(PTB_F32),
                      .dtype = PTB_F32,
                      .op = PTB_SUM};
}

// Fills one cell and takes hopeless algorithms off the list.
static ptb_status tune_cell(const tuning *t, ptb_coll_kind kind, int size_class, const ptb_algorithm **list,
                            int *listed)
{
    uint64_t bytes = ptb_auto_class_bytes(size_class);
    ptb_coll call = call_of(t, kind, bytes);
    double times[ALGORITHMS_MAX][SAMPLES_MAX] = {{0}}, first[ALGORITHMS_MAX], sum = 0;
    int batch[ALGORITHMS_MAX], n = *listed;
    for (int a = 0; a < n; a++)
        for (int warm = 0; warm < 2; warm++)
            PTB_TRY(sample(t, list[a], &call, 1, &first[a]));
    PTB_TRY(ptb_world_reduce_max(t->team->world, first, (size_t)n));
    for (int a = 0; a < n; a++) {
        double wanted = batch_us / (first[a] > 0.1 ? first[a] : 0.1);
        batch[a] = wanted < 1 ? 1 : wanted > BATCH_MAX ? BATCH_MAX : (int)wanted;
        sum += first[a] * batch[a];
    }
    double affordable = t->slice_us / (sum > 1 ? sum : 1);
    int samples = affordable < SAMPLES_MIN   ? SAMPLES_MIN
                  : affordable > SAMPLES_MAX ? SAMPLES_MAX
                                             : (int)affordable;
    for (int s = 0; s < samples; s++)
        for (int a = 0; a < n; a++)
            PTB_TRY(sample(t, list[a], &call, batch[a], &times[a][s]));
    PTB_TRY(ptb_world_reduce_max(t->team->world, &times[0][0], (size_t)n * SAMPLES_MAX));
    double best = 0;
    for (int a = 0; a < n; a++) {
        ptb_stats_sort(times[a], (size_t)samples);
        first[a] = ptb_stats_quantile(times[a], (size_t)samples, 0.5);
        if (a == 0 || first[a] < best) {
            best = first[a];
            t->table->best[kind][size_class] = list[a];
            t->table->best_us[kind][size_class] = best;
        }
    }
    *listed = 0;
    for (int a = 0; a < n; a++)
        if (bytes < bandwidth_from || first[a] <= HOPELESS * best)
            list[(*listed)++] = list[a];
    return PTB_OK;
}

static ptb_status tune_collective(const tuning *t, ptb_coll_kind kind)
{
    const ptb_algorithm *list[ALGORITHMS_MAX];
    int listed = 0;
    ptb_coll call = call_of(t, kind, 4);
    for (size_t i = 0; i < ptb_registry_count(PTB_KIND_ALGORITHM) && listed < ALGORITHMS_MAX; i++) {
        const ptb_algorithm *a = (const ptb_algorithm *)(const void *)ptb_registry_at(PTB_KIND_ALGORITHM, i);
        if (ptb_algorithm_supports(a, t->team, &call, false, NULL))
            list[listed++] = a;
    }
    int last = -1;
    int64_t begin = ptb_clock_ns();
    double spent_s = 0, cell_s = 0;
    for (int c = 0; c < PTB_AUTO_CLASSES && listed; c++) {
        bool measure = ptb_auto_class_bytes(c) <= t->most_bytes &&
                       spent_s + GROWTH * cell_s <= 2 * t->collective_s && (kind != PTB_BARRIER || c == 0);
        if (measure) {
            PTB_TRY(tune_cell(t, kind, c, list, &listed));
            last = c;
            double now_s = (double)(ptb_clock_ns() - begin) * 1e-9;
            PTB_TRY(ptb_world_reduce_max(t->team->world, &now_s, 1));
            cell_s = ptb_auto_class_bytes(c) < bandwidth_from ? 0 : now_s - spent_s;
            spent_s = now_s;
        } else if (last >= 0 && ptb_auto_class_bytes(last) >= bandwidth_from) {
            t->table->best[kind][c] = t->table->best[kind][last]; // without a time of its own
        }
    }
    return PTB_OK;
}

static ptb_status tune_all(tuning *t)
{
    // all_to_all receives up to an element more for each member
    size_t bytes = t->most_bytes + (size_t)t->team->size * 8;
    PTB_TRY(ptb_team_alloc(t->team, bytes, (void **)&t->send));
    PTB_TRY(ptb_team_alloc(t->team, bytes, (void **)&t->recv));
    for (int k = 0; k < PTB_COLL_COUNT; k++)
        if (k != PTB_ALL_TO_ALL_V)
            PTB_TRY(tune_collective(t, (ptb_coll_kind)k));
    // Its counts differ from rank to rank, so it has no size that all know: what all_to_all does for long
    // vectors.
    for (int c = 0; c < PTB_AUTO_CLASSES; c++)
        t->table->best[PTB_ALL_TO_ALL_V][c] = t->table->best[PTB_ALL_TO_ALL][ptb_auto_class(1 << 20)];
    return PTB_OK;
}

ptb_status ptb_auto_tune(ptb_world *world, double budget_s, ptb_auto *table)
{
    if (world->size == 1)
        return PTB_OK;
    if (world->rank == 0)
        ptb_info("measuring the algorithms of `host` with %d ranks once on this machine, about %.0f s",
                 world->size, budget_s);
    ptb_sent sent = {0, 0};
    ptb_comm_config config = {.timeout_s = 120};
    tuning t = {.table = table};
    PTB_TRY(ptb_team_open(world, &config, false, &sent, &t.team));
    memset(table, 0, sizeof *table);
    double on_host = world->local_size;
    PTB_TRY(ptb_world_reduce_max(world, &on_host, 1));
    t.most_bytes = memory_max / 2 / (uint64_t)on_host;
    t.collective_s = budget_s / PTB_COLL_COUNT;
    t.slice_us = t.collective_s * 1e6 / PTB_AUTO_CLASSES;
    ptb_status status = tune_all(&t);
    ptb_team_close(t.team);
    table->measured = status == PTB_OK;
    if (status == PTB_OK && world->rank == 0)
        ptb_auto_store(world, table);
    return status;
}
