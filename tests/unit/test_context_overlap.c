// Blocks travel around the ring while others are computed. On the host, whose streams take calls: compute of
// every step waits until the transfer that belongs beside it is complete. Were the transfer enqueued behind
// compute, neither would ever go on.
#include "tests/unit/context_fixture.h"

#include <unistd.h>

enum { SPANS = 64 };

static struct {
    _Atomic int transfers; // complete
    int calls;             // of attention and its gradient, enqueued
    int size;
    ptb_trace *trace;
} spy[RANKS_MAX];
static _Thread_local int spy_rank;
static ptb_comm_ops spied_ops; // the same for all ranks
static const ptb_comm_ops *real_ops;
static const ptb_kernels *real_kernels;

typedef struct {
    int rank, transfers;
} spy_call;

static ptb_status count_transfer(void *arg)
{
    spy[((spy_call *)arg)->rank].transfers++;
    return PTB_OK;
}

static ptb_status wait_for_transfers(void *arg)
{
    const spy_call *c = arg;
    for (int i = 0; i < 20000; i++) {
        if (spy[c->rank].transfers >= c->transfers)
            return PTB_OK;
        usleep(1000);
    }
    print_error("rank %d: compute waited in vain for transfer %d\n", c->rank, c->transfers);
    return PTB_LOST;
}

static ptb_status spied_group_end(ptb_comm *comm, ptb_stream *stream)
{
    PTB_TRY(real_ops->group_end(comm, stream));
    spy_call call = {.rank = comm->rank};
    return ptb_stream_call(stream, count_transfer, &call, sizeof call);
}

// Steps of two calls, but three in the first one.
static int step_of(int call)
{
    return call < 3 ? 0 : (call - 1) / 2;
}

// Forward: block s + 1 arrives beside step s. Backward: it and the gradients of block s.
static ptb_status spied_attention(ptb_stream *stream, const ptb_attention *args)
{
    int step = step_of(spy[spy_rank].calls++), last = spy[spy_rank].size - 1;
    spy_call call = {.rank = spy_rank, .transfers = step < last ? step + 1 : last};
    PTB_TRY(ptb_stream_call(stream, wait_for_transfers, &call, sizeof call));
    return real_kernels->attention(stream, args);
}

static ptb_status spied_gradient(ptb_stream *stream, const ptb_attention_gradient *args)
{
    int size = spy[spy_rank].size, forward_calls = 2 * size + 1, last = size - 1;
    int step = step_of(spy[spy_rank].calls++ - forward_calls);
    spy_call call = {.rank = spy_rank, .transfers = last + (step < last ? 2 * step + 1 : 2 * last)};
    PTB_TRY(ptb_stream_call(stream, wait_for_transfers, &call, sizeof call));
    return real_kernels->attention_gradient(stream, args);
}

static void spy_on(rank *r)
{
    spy_rank = r->world->rank;
    r->timeline.trace = spy[spy_rank].trace;
    r->span = (ptb_span){.rank = spy_rank, .stream = 1, .kind = PTB_SPAN_COMPUTE, .unit = 3, .name = "block"};
    spy[spy_rank].size = r->world->size;
    r->kernels.attention = spied_attention;
    r->kernels.attention_gradient = spied_gradient;
    r->comm->ops = &spied_ops;
}

static int by_time(const void *a, const void *b)
{
    const ptb_span *x = a, *y = b;
    return (x->begin_ns > y->begin_ns) - (x->begin_ns < y->begin_ns);
}

// Spans of one kind and phase in order of time; their number.
static size_t pick(const ptb_trace *trace, ptb_span_kind kind, ptb_phase phase, const char *name,
                   ptb_span *out)
{
    size_t count, dropped, picked = 0;
    const ptb_span *spans = ptb_trace_spans(trace, &count, &dropped);
    assert_int_equal(dropped, 0);
    for (size_t i = 0; i < count; i++)
        if (spans[i].kind == kind && spans[i].phase == phase && strcmp(spans[i].name, name) == 0)
            out[picked++] = spans[i];
    qsort(out, picked, sizeof *out, by_time);
    return picked;
}

// Each transfer has a span that says what it belongs to and begins before the compute beside it ends; that
// compute is one span a step, interrupted while it waits for the next block.
static void check_spans(const ptb_trace *trace, const setting *s)
{
    ptb_span compute[SPANS], blocks[SPANS], gradients[SPANS];
    size_t n = (size_t)s->ranks,
           block = (size_t)(s->batch * s->sequence / s->ranks * 2 * s->kv_heads * s->head_width);
    assert_int_equal(pick(trace, PTB_SPAN_COMPUTE, PTB_PHASE_FORWARD, "block", compute), n);
    assert_int_equal(pick(trace, PTB_SPAN_COMM, PTB_PHASE_FORWARD, "ring.block", blocks), n - 1);
    for (size_t i = 0; i + 1 < n; i++) {
        assert_true(blocks[i].begin_ns <= compute[i].end_ns);
        assert_true(blocks[i].axis == PTB_AXIS_CP && blocks[i].unit == 3 && blocks[i].bytes == 4 * block);
    }
    assert_int_equal(pick(trace, PTB_SPAN_COMM, PTB_PHASE_BACKWARD, "ring.block", blocks), n - 1);
    assert_int_equal(pick(trace, PTB_SPAN_COMM, PTB_PHASE_BACKWARD, "ring.gradient", gradients), n);
    for (size_t i = 0; i < n; i++)
        assert_true(gradients[i].axis == PTB_AXIS_CP && gradients[i].bytes == 4 * block);
}

static void test_overlap(void **state)
{
    (void)state;
    if (!test_on_host())
        return;
    real_kernels = test_kernels();
    real_ops = (const ptb_comm_ops *)ptb_registry_find(PTB_KIND_COMM, "local");
    spied_ops = *real_ops;
    spied_ops.group_end = spied_group_end;
    setting s = {CASE("ring", 3, 0, 36, 2, 4, 4), .spy = spy_on};
    trial t;
    for (int r = 0; r < s.ranks; r++)
        assert_int_equal(ptb_trace_new(SPANS, r, &spy[r].trace), PTB_OK);
    trial_init(&t, s);
    assert_int_equal(ptb_world_run_local(s.ranks, NULL, rank_main, &t), PTB_OK);
    assert_true(error_of(&t) < 3e-6);
    for (int r = 0; r < s.ranks; r++) {
        assert_int_equal(spy[r].transfers, (s.ranks - 1) + (s.ranks - 1) + s.ranks);
        assert_int_equal(spy[r].calls, 2 * (2 * s.ranks + 1)); // every rank the same
        check_spans(spy[r].trace, &s);
        ptb_trace_free(spy[r].trace);
    }
    trial_release(&t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_overlap)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
