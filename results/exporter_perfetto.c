// Chrome's trace event format, which Perfetto and chrome://tracing open: the stored spans, one process a
// rank, one thread a lane. Times are microseconds since the first span. Runs have clocks of their own, so one
// run at a time. Source of the format: "Trace Event Format" (Duval, Google, 2016), complete ("X") and
// metadata ("M") events.
#include "results/export.h"

#include "core/log.h"

#include <stdlib.h>
#include <string.h>

static const char *lane_name(int stream, char text[24])
{
    static const char *const names[] = {"main", "compute", "communication"};
    static const struct {
        int first, width;
        const char *name;
    } wide[] = {{PTB_NCCL_LANE_KERNEL, PTB_NCCL_LANE_WIDTH, "NCCL kernel"},
                {PTB_NCCL_LANE_SEND, PTB_NCCL_LANE_WIDTH, "NCCL proxy sends"},
                {PTB_NCCL_LANE_RECV, PTB_NCCL_LANE_WIDTH, "NCCL proxy receives"}};
    if (stream >= 0 && stream < (int)(sizeof names / sizeof *names))
        return names[stream];
    if (stream == PTB_NCCL_LANE_CALLS || stream == PTB_NCCL_LANE_NETWORK)
        return stream == PTB_NCCL_LANE_CALLS ? "NCCL calls" : "NCCL network";
    snprintf(text, 24, "lane %d", stream);
    for (size_t i = 0; i < sizeof wide / sizeof *wide; i++)
        if (stream >= wide[i].first && stream < wide[i].first + wide[i].width)
            snprintf(text, 24, "%s %d", wide[i].name, stream - wide[i].first);
    return text;
}

// Microseconds with three decimals, without a locale's comma.
static void microseconds(ptb_text *text, const char *name, int64_t ns)
{
    uint64_t size = ns < 0 ? 0 - (uint64_t)ns : (uint64_t)ns;
    ptb_text_printf(text, ", \"%s\": %s%llu.%03llu", name, ns < 0 ? "-" : "",
                    (unsigned long long)(size / 1000), (unsigned long long)(size % 1000));
}

static const char *kind_word(uint8_t kind)
{
    return kind < PTB_SPAN_KIND_COUNT ? ptb_span_kind_name(kind) : "unknown";
}

static void event(ptb_text *text, const ptb_span *s, int64_t origin_ns, const char *key)
{
    ptb_text_append(text, ",\n{\"ph\": \"X\", \"name\": ");
    ptb_text_append_json(text, s->name);
    ptb_text_append(text, ", \"cat\": ");
    ptb_text_append_json(text, kind_word(s->kind));
    ptb_text_printf(text, ", \"pid\": %d, \"tid\": %d", s->rank, s->stream);
    microseconds(text, "ts", (int64_t)((uint64_t)s->begin_ns - (uint64_t)origin_ns));
    microseconds(text, "dur", (int64_t)((uint64_t)s->end_ns - (uint64_t)s->begin_ns));
    ptb_text_append(text, ", \"args\": {\"case\": ");
    ptb_text_append_json(text, key);
    ptb_text_append(text, ", \"phase\": ");
    ptb_text_append_json(text, s->phase < PTB_PHASE_COUNT ? ptb_phase_name(s->phase) : "unknown");
    ptb_text_printf(
        text, ", \"unit\": %d, \"microbatch\": %d, \"axis\": %d, \"bytes\": %llu, \"iteration\": %llu}}",
        s->unit, s->microbatch, s->axis, (unsigned long long)s->bytes, (unsigned long long)s->correlation);
}

static void name_event(ptb_text *text, const char *what, int pid, int tid, const char *name)
{
    ptb_text_printf(text,
                    "%s{\"ph\": \"M\", \"name\": \"%s\", \"pid\": %d, \"tid\": %d, \"args\": {\"name\": ",
                    text->length ? ",\n" : "", what, pid, tid);
    ptb_text_append_json(text, name);
    ptb_text_append(text, "}}");
}

// The names of the process of a rank and of the lanes it uses.
static void name_lanes(ptb_text *text, const ptb_span *spans, size_t count, int rank, bool simulated)
{
    char name[40];
    snprintf(name, sizeof name, "rank %d%s", rank, simulated ? " [SIMULATED DEVICE]" : "");
    name_event(text, "process_name", rank, 0, name);
    for (size_t i = 0; i < count; i++) {
        bool is_known = false;
        for (size_t j = 0; j < i && !is_known; j++)
            is_known = spans[j].stream == spans[i].stream;
        if (!is_known)
            name_event(text, "thread_name", rank, spans[i].stream, lane_name(spans[i].stream, name));
    }
}

typedef struct {
    ptb_span *spans;
    size_t count;
} span_array;

static ptb_status load(ptb_store *store, const ptb_table *t, span_array *all, size_t *total,
                       int64_t *origin_ns)
{
    for (size_t row = 0; row < t->rows; row++) {
        int rank = (int)ptb_table_number(t, row, 1);
        span_array *mine = &all[row];
        PTB_TRY(
            ptb_store_spans(store, (int64_t)ptb_table_number(t, row, 0), rank, &mine->spans, &mine->count));
        for (size_t i = 0; i < mine->count; i++) {
            mine->spans[i].rank = rank; // whatever the span says: the row decides
            if (*total == 0 || mine->spans[i].begin_ns < *origin_ns)
                *origin_ns = mine->spans[i].begin_ns;
            ++*total;
        }
    }
    return PTB_OK;
}

static ptb_status write_events(const ptb_table *t, const span_array *all, int64_t origin_ns, FILE *out)
{
    ptb_text text = PTB_TEXT_INIT, names = PTB_TEXT_INIT;
    ptb_text_append(&text, "{\"displayTimeUnit\": \"ns\", \"traceEvents\": [\n");
    for (size_t row = 0; row < t->rows; row++)
        if (all[row].count)
            name_lanes(&names, all[row].spans, all[row].count, (int)ptb_table_number(t, row, 1),
                       ptb_table_number(t, row, 3) > 0);
    ptb_text_append(&text, ptb_text_string(&names));
    ptb_status status = PTB_OK;
    for (size_t row = 0; row < t->rows && status == PTB_OK; row++) {
        for (size_t i = 0; i < all[row].count; i++)
            event(&text, &all[row].spans[i], origin_ns, ptb_table_cell(t, row, 2));
        status = ptb_export_flush(&text, out);
    }
    ptb_text_append(&text, "\n]}\n");
    if (status == PTB_OK)
        status = ptb_export_flush(&text, out);
    ptb_text_release(&text);
    ptb_text_release(&names);
    return status;
}

static ptb_status write_perfetto(ptb_store *store, const int64_t *runs, size_t run_count,
                                 const ptb_export_options *options, FILE *out)
{
    if (run_count != 1) {
        ptb_error("a trace is of one run, as each has a clock of its own; name one run, not %zu", run_count);
        return PTB_USAGE;
    }
    char run[24], only[24];
    const char *args[] = {run, only};
    snprintf(run, sizeof run, "%lld", (long long)runs[0]);
    snprintf(only, sizeof only, "%lld", options ? (long long)options->case_id : 0);
    ptb_table *t;
    PTB_TRY(ptb_store_query(
        store,
        "SELECT c.id, k.rank, c.key, r.simulated FROM run r JOIN repetition p ON p.run_id = r.id "
        "JOIN bench_case c ON c.repetition_id = p.id JOIN case_rank k ON k.case_id = c.id WHERE p.run_id = "
        "?1 AND k.spans IS NOT NULL AND "
        "(?2 = '0' OR c.id = CAST(?2 AS INTEGER)) ORDER BY p.ordinal, c.id, k.rank",
        args, 2, &t));
    span_array *all = calloc(t->rows + 1, sizeof *all);
    size_t total = 0;
    int64_t origin_ns = 0;
    ptb_status status = all ? load(store, t, all, &total, &origin_ns) : PTB_NO_MEMORY;
    if (status == PTB_OK && total == 0) {
        ptb_error("run %s holds no spans to export%s; measure with `ptbench run --trace`", run,
                  strcmp(only, "0") ? " for this case" : "");
        status = PTB_USAGE;
    }
    if (status == PTB_OK)
        status = write_events(t, all, origin_ns, out);
    for (size_t i = 0; all && i < t->rows; i++)
        free(all[i].spans);
    free(all);
    ptb_table_free(t);
    return status;
}

static const ptb_exporter exporter_perfetto = {
    .plugin = {.name = "perfetto", .summary = "stored spans as a Chrome trace, for ui.perfetto.dev"},
    .extension = "trace.json",
    .needs_spans = true,
    .write = write_perfetto,
};
PTB_REGISTER(PTB_KIND_EXPORTER, exporter_perfetto);
