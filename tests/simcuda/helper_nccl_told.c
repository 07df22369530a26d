// What NCCL tells a profiler plug-in of what it runs, whichever version it is: `helper_nccl_told SCENARIO`,
// started by test_nccl_told.sh, which sets the version and its faults in PTB_SIM.
#include "tests/simcuda/nccl_fixture.h"

static long option(const char *name, long otherwise)
{
    const char *all = getenv("PTB_SIM"), *at = all ? strstr(all, name) : NULL;
    return at ? strtol(at + strlen(name) + 1, NULL, 0) : otherwise;
}

// Of the NCCL that is simulated: 22304 is 2.23.4.
static long nccl_version(void)
{
    return option("nccl_version", NCCL_VERSION_CODE);
}

static void run_choice(seat *s, const char *algorithm, int channels, const char *ran, const char *protocol,
                       const char *replaced)
{
    ptb_comm_config config = {.algorithm = algorithm, .channels = channels, .timeout_s = PATIENCE_S};
    ptb_comm *comm;
    if (open_comm(s, &config, &comm) != PTB_OK)
        return;
    EXPECT(s, run_all_reduce(s, comm, COUNT) == PTB_OK, "%s", algorithm);
    check_sum(s, s->world->size, COUNT);
    check_fact(s, comm, "algorithm", ran);
    check_fact(s, comm, "protocol", protocol);
    check_fact(s, comm, "replaced", replaced);
    check_fact(s, comm, "call", "ncclAllReduce");
    if (channels) {
        char text[24]; // up to 2.26 NCCL tells how many an operation may use
        snprintf(text, sizeof text, "%s%d", nccl_version() < 22700 ? "at most " : "", channels);
        check_fact(s, comm, "channels", text);
    }
    ptb_comm_close(comm);
    EXPECT(s, !getenv("NCCL_ALGO") && !getenv("NCCL_PROTO"), "the environment was not put back");
}

static void scenario_choices(seat *s)
{
    run_choice(s, "default", 0, s->world->size > 2 ? "tree" : "ring", "ll128", NULL);
    run_choice(s, "ring", 0, "ring", "ll128", NULL);
    run_choice(s, "ring/simple", 7, "ring/simple", "simple", NULL);
    run_choice(s, "tree/ll", 3, "tree/ll", "ll", NULL);
    run_choice(s, "nvls", 0, "nvls", "simple", NULL);
    run_choice(s, "nvls_tree", 0, "nvls", "simple", "asked nvls_tree, ran nvls/simple");
    run_choice(s, "collnet_chain", 0, "ring", "ll128", "asked collnet_chain, ran ring/ll128");
    ptb_comm *comm;
    ptb_comm_config config = {.algorithm = "rign"};
    EXPECT(s, ptb_comm_open("nccl", s->world, &config, &comm) == PTB_USAGE, "an unknown algorithm");
}

// Several communicators, of which each knows what it ran itself, in a group too.
static void scenario_several(seat *s)
{
    ptb_comm_config tree = {.algorithm = "tree/ll", .timeout_s = PATIENCE_S},
                    ring = {.algorithm = "ring/simple", .channels = 3, .timeout_s = PATIENCE_S};
    ptb_comm *first, *second;
    if (open_comm(s, &tree, &first) != PTB_OK || open_comm(s, &ring, &second) != PTB_OK)
        return;
    ptb_coll call = all_reduce(s, COUNT);
    EXPECT(s, second->ops->group_begin(second) == PTB_OK, "group");
    EXPECT(s, ptb_comm_collective(second, &call, s->stream) == PTB_OK, "in a group");
    EXPECT(s, second->ops->group_end(second, s->stream) == PTB_OK, "group");
    EXPECT(s, run_all_reduce(s, first, COUNT) == PTB_OK, "the first");
    check_fact(s, first, "algorithm", "tree/ll");
    check_fact(s, second, "algorithm", "ring/simple");
    check_fact(s, second, "channels", nccl_version() < 22700 ? "at most 3" : "3");
    ptb_comm_close(first);
    // Another takes the place of the one that has gone.
    if (open_comm(s, &tree, &first) == PTB_OK) {
        EXPECT(s, run_all_reduce(s, first, COUNT) == PTB_OK, "the third");
        check_fact(s, first, "algorithm", "tree/ll");
        ptb_comm_close(first);
    }
    ptb_comm_close(second);
}

// Messages have channels of their own, which NCCL tells from 2.27 on.
static void scenario_exchange(seat *s)
{
    ptb_comm_config config = {.timeout_s = PATIENCE_S};
    ptb_comm *comm;
    ptb_params facts = {.count = 0};
    const int rank = s->world->rank, n = s->world->size;
    if (open_comm(s, &config, &comm) != PTB_OK)
        return;
    EXPECT(s, comm->ops->group_begin(comm) == PTB_OK, "group");
    EXPECT(s, comm->ops->send(comm, s->data[0], 8, PTB_F32, (rank + 1) % n, s->stream) == PTB_OK, "send");
    EXPECT(s, comm->ops->recv(comm, s->data[1], 8, PTB_F32, (rank + n - 1) % n, s->stream) == PTB_OK, "recv");
    EXPECT(s, comm->ops->group_end(comm, s->stream) == PTB_OK, "group");
    EXPECT(s, ptb_stream_sync(s->stream) == PTB_OK, "sync");
    comm->ops->describe(comm, NULL, &facts);
    const char *is = ptb_params_get(&facts, "channels");
    EXPECT(s, nccl_version() < 22700 ? !is : is && strcmp(is, "1 a message") == 0, "%s", is ? is : "none");
    ptb_comm_close(comm);
}

// Kernels that NCCL does not tell of (symmetric ones), copy engines, and an algorithm that 2.23 tells the
// number of.
static void scenario_untold(seat *s)
{
    ptb_comm_config config = {.algorithm = "ring", .timeout_s = PATIENCE_S};
    ptb_comm *comm;
    const long kernel = option("nccl_kernel", 0);
    const char *algorithm = "algorithm 9", *replaced = "asked ring, ran algorithm 9/ll128";
    if (open_comm(s, &config, &comm) != PTB_OK)
        return;
    EXPECT(s, run_all_reduce(s, comm, COUNT) == PTB_OK, "untold");
    if (kernel == 2 && nccl_version() >= 22900) {
        algorithm = "copy_engine";
        replaced = "asked ring, ran copy_engine";
        check_fact(s, comm, "channels", NULL);
    } else if (kernel) {
        algorithm = nccl_version() >= 22800
                        ? "ring (not confirmed: NCCL told of no kernel, as for symmetric ones)"
                        : "ring (not confirmed: NCCL's profiler plug-in told nothing)";
        replaced = NULL;
    }
    check_fact(s, comm, "algorithm", algorithm);
    check_fact(s, comm, "replaced", replaced);
    ptb_coll call = {
        .kind = PTB_BROADCAST, .send = s->data[0], .recv = s->data[1], .count = COUNT, .dtype = PTB_F32};
    ptb_params facts = {.count = 0};
    EXPECT(s, ptb_comm_collective(comm, &call, s->stream) == PTB_OK, "broadcast");
    EXPECT(s, ptb_stream_sync(s->stream) == PTB_OK, "sync");
    comm->ops->describe(comm, &call, &facts);
    if (kernel == 1 && nccl_version() >= 23000)
        EXPECT(s, strstr(ptb_params_get(&facts, "algorithm"), "NCCL_ALLGATHERV_ENABLE=0"), "%s",
               ptb_params_get(&facts, "algorithm"));
    ptb_comm_close(comm);
}

static void scenario_unconfirmed(seat *s)
{
    ptb_comm_config config = {.algorithm = "ring", .timeout_s = PATIENCE_S};
    ptb_comm *comm;
    if (open_comm(s, &config, &comm) != PTB_OK)
        return;
    EXPECT(s, run_all_reduce(s, comm, COUNT) == PTB_OK, "without a profiler");
    check_fact(s, comm, "algorithm",
               nccl_version() < 22300 ? "ring (not confirmed: NCCL before 2.23 cannot tell what it ran)"
                                      : "ring (not confirmed: NCCL_PROFILER_PLUGIN names another plug-in)");
    ptb_comm_close(comm);
}

// ---- the inside

typedef struct {
    int calls, kernels, ops, steps, network;
} span_counts;

// Of steps the bytes are told from 2.27 on, before those of their operation.
static void check_bytes(seat *s, const ptb_span *span, bool is_step)
{
    const uint64_t bytes = is_step == (nccl_version() >= 22700) ? COUNT * sizeof(float) : 0;
    EXPECT(s, span->bytes == bytes, "%s: %llu bytes", span->name, (unsigned long long)span->bytes);
}

static void check_span(seat *s, const ptb_span *span, span_counts *seen)
{
    EXPECT(s, span->kind == PTB_SPAN_INSIDE && span->rank == s->world->rank, "kind %d", span->kind);
    if (span->stream == PTB_NCCL_LANE_CALLS || span->stream == PTB_NCCL_LANE_KERNEL)
        EXPECT(s, strcmp(span->name, "AllReduce ring/ll128") == 0, "%s", span->name);
    seen->calls += span->stream == PTB_NCCL_LANE_CALLS;
    seen->kernels += span->stream == PTB_NCCL_LANE_KERNEL;
    seen->network += span->stream == PTB_NCCL_LANE_NETWORK;
    if (span->stream != PTB_NCCL_LANE_SEND && span->stream != PTB_NCCL_LANE_RECV)
        return;
    const int n = s->world->size;
    char op[48];
    bool is_step = strncmp(span->name, "step", 4) == 0, is_send = span->stream == PTB_NCCL_LANE_SEND;
    snprintf(op, sizeof op, "%s %d, 1 steps", is_send ? "send to" : "receive from",
             (s->world->rank + (is_send ? 1 : n - 1)) % n);
    EXPECT(s, is_step || strcmp(span->name, op) == 0, "%s, not %s", span->name, op);
    check_bytes(s, span, is_step);
    seen->steps += is_step;
    seen->ops += !is_step;
}

static void check_spans(seat *s, const ptb_span *spans, size_t count, int64_t begin, int64_t end)
{
    const int from_3 = nccl_version() >= 22600 ? 5 : 0;
    span_counts seen = {.calls = 0};
    for (size_t i = 0; i < count; i++) {
        const ptb_span *span = &spans[i];
        EXPECT(s, span->begin_ns >= begin && span->begin_ns <= span->end_ns, "%s begins %lld us early",
               span->name, (long long)(begin - span->begin_ns) / 1000);
        EXPECT(s, span->end_ns <= end, "%s ends %lld us late", span->name,
               (long long)(span->end_ns - end) / 1000);
        check_span(s, span, &seen);
    }
    EXPECT(s, seen.calls == 5 && seen.ops == 10 && seen.steps == 10, "%d calls, %d operations, %d steps",
           seen.calls, seen.ops, seen.steps);
    EXPECT(s, seen.kernels == from_3 && seen.network == from_3, "%d kernels, %d requests", seen.kernels,
           seen.network);
}

static void scenario_spans(seat *s)
{
    ptb_comm_config config = {.algorithm = "ring", .timeout_s = PATIENCE_S};
    ptb_comm *comm;
    ptb_trace *trace;
    size_t count, dropped, late;
    if (open_comm(s, &config, &comm) != PTB_OK || ptb_trace_new(1000, s->world->rank, &trace) != PTB_OK)
        return;
    EXPECT(s, run_all_reduce(s, comm, COUNT) == PTB_OK, "before"); // not recorded
    for (int turn = 0; turn < 2; turn++) {
        EXPECT(s, ptb_nccl_profiler_start(turn ? 3 : 1000, NULL, NULL) == PTB_OK, "start");
        int64_t begin = ptb_clock_ns();
        for (int i = 0; i < 5; i++)
            EXPECT(s, run_all_reduce(s, comm, COUNT) == PTB_OK, "recorded");
        ptb_nccl_profiler_stop();
        EXPECT(s, run_all_reduce(s, comm, COUNT) == PTB_OK, "after"); // not recorded
        for (int64_t limit = patience_ends(); sim_nccl_untold() && ptb_clock_ns() < limit;)
            usleep(1000); // the proxies end
        int64_t end = ptb_clock_ns();
        ptb_trace_clear(trace);
        ptb_nccl_profiler_spans(trace, 0, &dropped, &late);
        const ptb_span *spans = ptb_trace_spans(trace, &count, NULL);
        EXPECT(s, late == 0, "%zu late", late);
        EXPECT(s, turn ? count == 3 && dropped > 0 : dropped == 0, "%zu spans, %zu dropped", count, dropped);
        if (turn == 0)
            check_spans(s, spans, count, begin, end);
    }
    ptb_comm_close(comm);
    ptb_nccl_profiler_release();
    ptb_trace_free(trace);
}

// Proxies that end long after the stream are counted where they are not waited for, and there where they are.
static void scenario_slow_proxies(seat *s)
{
    ptb_comm_config config = {.timeout_s = PATIENCE_S};
    ptb_comm *comm;
    ptb_trace *trace;
    size_t count, dropped, late;
    if (open_comm(s, &config, &comm) != PTB_OK || ptb_trace_new(1000, s->world->rank, &trace) != PTB_OK)
        return;
    for (int waits = 0; waits < 2; waits++) {
        EXPECT(s, ptb_nccl_profiler_start(1000, NULL, NULL) == PTB_OK, "start");
        EXPECT(s, run_all_reduce(s, comm, COUNT) == PTB_OK, "recorded");
        ptb_nccl_profiler_stop();
        for (int64_t limit = patience_ends(); sim_nccl_begun() <= waits && ptb_clock_ns() < limit;)
            usleep(100);
        // The operation, a kernel, and sends and receives with a step each, one of which has a request.
        ptb_nccl_profiler_settle(waits ? PATIENCE_S * (int64_t)1000000000 : 1000000);
        ptb_trace_clear(trace);
        ptb_nccl_profiler_spans(trace, 0, &dropped, &late);
        ptb_trace_spans(trace, &count, NULL);
        // First those that have begun; then those that began after them, steps and a request.
        EXPECT(s, count == (waits ? 7 : 1) && late == 3, "turn %d: %zu spans, %zu late", waits, count, late);
        for (int64_t limit = patience_ends(); sim_nccl_untold() && ptb_clock_ns() < limit;)
            usleep(1000);
    }
    ptb_comm_close(comm);
    ptb_nccl_profiler_release();
    ptb_trace_free(trace);
}

int main(int argc, char **argv)
{
    static const scenario scenarios[] = {
        {"choices", scenario_choices},           {"several", scenario_several},
        {"exchange", scenario_exchange},         {"untold", scenario_untold},
        {"unconfirmed", scenario_unconfirmed},   {"spans", scenario_spans},
        {"slow_proxies", scenario_slow_proxies},
    };
    return run_scenarios(argc, argv, scenarios, sizeof scenarios / sizeof *scenarios);
}
