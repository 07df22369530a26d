// Strategies that cut state over ranks: with 2, 3, 4 and 8 ranks as threads they give losses, gradients and
// parameters of one rank, with blocks of every kind; what they allocate and send is what closed forms say; a
// planted fault shows. On the device that PTB_TEST_DEVICE names (host unless it is set); on GPUs fewer
// runs, mostly of 3 ranks: what depends on their number is the same code there.
#include "strategies/data/segment.h"
#include "tests/unit/data_fixture.h"
#include "tests/unit/data_faulty.h"

static const char *const sharded[] = {"zero1", "zero2", "fsdp"};
enum { SHARDED = sizeof sharded / sizeof *sharded };
static const double tolerance = 1e-5;

static void test_ranks(void **state)
{
    (void)state;
    static const int ranks[] = {1, 2, 3, 4, 8};
    for (int model = 0; model < DATA_MODELS; model++) {
        data_settings s = {.strategy = "ddp", .model = (data_model)model, .ranks = 1, .batch = 24};
        data_run *one = data_train_all(s);
        assert_true(one->losses[0][DATA_STEPS - 1] < one->losses[0][0]);
        for (size_t k = 0; k < SHARDED; k++)
            for (size_t r = 0; r < sizeof ranks / sizeof *ranks; r++) {
                if (!test_on_host() && ranks[r] != 3 && (ranks[r] != 8 || (int)k != model))
                    continue;
                s.strategy = sharded[k];
                s.ranks = ranks[r];
                s.options.depth = 1;
                data_check_equal(s, one, tolerance);
            }
        s.strategy = "ddp";
        s.ranks = 3;
        data_check_equal(s, one, tolerance);
        data_free(one);
    }
}

// Overlap and prefetching change when things happen, not what: no bit differs.
static void test_overlap(void **state)
{
    (void)state;
    for (size_t k = 0; k < SHARDED; k++) {
        data_settings s = {.strategy = sharded[k], .ranks = 3, .micro_batches = 2, .without_overlap = true};
        data_run *without = data_train_all(s);
        s.without_overlap = false;
        static const ptb_data_options options[] = {{.depth = 0},
                                                   {.depth = 1},
                                                   {.depth = 2},
                                                   {.depth = 9},
                                                   {.depth = 1, .in_flight = 3},
                                                   {.depth = 1, .keep = true}};
        for (size_t i = 0; i < sizeof options / sizeof *options; i++) {
            s.options = options[i];
            data_run *with = data_train_all(s);
            data_assert_same(with, without);
            data_free(with);
        }
        data_free(without);
    }
}

// Microbatches, copies of shards, recomputation, momentum, and a norm that clips.
static void test_settings(void **state)
{
    (void)state;
    const data_settings settings[] = {
        {.micro_batches = 3, .ranks = 4, .model = DATA_MOE},
        {.micro_batches = 3, .ranks = 4, .replicate = 2, .options = {.depth = 1}},
        {.micro_batches = 2, .ranks = 2, .model = DATA_LLAMA, .options = {.depth = 2}},
        {.ranks = 6, .replicate = 3, .model = DATA_LLAMA, .options = {.depth = 1}},
        {.ranks = 2, .replicate = 2, .model = DATA_MOE},
        {.ranks = 3, .micro_batches = 2, .recompute = PTB_RECOMPUTE_FULL, .options = {.depth = 1}},
        {.ranks = 3, .momentum = 0.5, .clip = 0.2},
    };
    for (size_t i = 0; i < sizeof settings / sizeof *settings; i++) {
        data_settings s = settings[i], plain = {.strategy = "ddp", .ranks = 1};
        plain.model = s.model;
        plain.clip = s.clip;
        plain.momentum = s.momentum;
        data_run *one = data_train_all(plain);
        for (size_t k = 0; k < SHARDED; k++) {
            if (!test_on_host() && k != 2 && k != i % 2)
                continue;
            s.strategy = sharded[k];
            data_check_norms(s, one, tolerance);
        }
        data_free(one);
    }
}

// AdamW's first steps divide rounding by rounding where gradients are almost zero; losses show little of it.
static void test_types(void **state)
{
    (void)state;
    const data_settings settings[] = {
        {.type = PTB_F32, .adamw = true},
        {.type = PTB_BF16, .adamw = true},
        {.type = PTB_BF16, .adamw = true, .reduce_type = PTB_BF16, .micro_batches = 3, .replicate = 2},
        {.type = PTB_F16, .adamw = true, .loss_scale = 16777216},
    };
    for (size_t i = 0; i < sizeof settings / sizeof *settings; i++) {
        data_settings s = settings[i];
        s.ranks = 4;
        s.options.depth = 1;
        s.strategy = "ddp";
        data_run *ddp = data_train_all(s);
        for (size_t k = 0; k < SHARDED; k++) {
            s.strategy = sharded[k];
            data_run *many = data_train_all(s);
            double losses = data_losses(many, ddp), wanted = s.reduce_type == PTB_BF16 ? 5e-3 : 2e-3;
            assert_true(losses < (s.type == PTB_F32 ? 1e-5 : wanted));
            assert_int_equal(many->update.skipped, ddp->update.skipped);
            assert_true((s.type == PTB_F16) == (many->update.skipped > 0));
            data_free(many);
        }
        data_free(ddp);
    }
}

// What a rank sends in a step, in closed form; letters of FACTS.md: N elements, d ranks, w bytes.
static double units_volume(const data_run *run, int64_t micro_batches, size_t slots, double width)
{
    const ptb_layout *l = &run->layout;
    size_t blocks = l->units - 2;
    double m = (double)micro_batches;
    // Embedding and head: once a microbatch where they take turns, once a step where they do not.
    double elements = (double)(l->unit[0].count + l->unit[blocks + 1].count) * (l->shape.tied ? 1 : m);
    for (size_t b = 0; b < blocks; b++) {
        double backward = b + slots < blocks ? m : 0, again = b >= slots ? m - 1 : 0;
        elements += (1 + backward + again) * (double)l->unit[b + 1].count;
    }
    return elements * width;
}

static void test_volume(void **state)
{
    (void)state;
    for (size_t k = 0; k < SHARDED; k++)
        for (int64_t m = 1; m <= 2; m++) {
            data_settings s = {.strategy = sharded[k],
                               .model = m == 1   ? DATA_MOE
                                        : k == 1 ? DATA_LLAMA
                                                 : DATA_GPT2,
                               .ranks = 6,
                               .replicate = 2,
                               .micro_batches = m,
                               .type = PTB_BF16,
                               .options = {.depth = 1}};
            data_run *run = data_train_all(s);
            double n = (double)run->layout.count, d = 3, steps = DATA_STEPS, gathered = 2 * n;
            if (k == 2)
                gathered = units_volume(run, m, 2, 2);
            double scattered = 4 * n * (double)(k == 0 ? 1 : m);
            const ptb_lane_moved *shard = &run->moved[PTB_LANE_DENSE_SHARD];
            const ptb_lane_moved *copies = &run->moved[PTB_LANE_REPLICATE];
            assert_true((double)shard->bytes[PTB_ALL_GATHER] == gathered * steps);
            assert_true((double)shard->bytes[PTB_REDUCE_SCATTER] == scattered * steps);
            double sent = (gathered + scattered) * steps * (d - 1) / d;
            assert_true(fabs(shard->volume_bytes / sent - 1) < 1e-9);
            // All copies of a rank's parts: within what blocks that do not divide are longer or shorter.
            double parts = 4 * n / d * steps;
            assert_true(fabs((double)copies->bytes[PTB_ALL_REDUCE] / parts - 1) < 0.01);
            assert_int_equal(run->moved[PTB_LANE_DENSE].calls, 0);
            data_free(run);
        }
}

// Bytes of state a parameter: FACTS.md's forms for 16-bit gradients (16, 4 + 12/d, 2 + 14/d, 16/d) and 2 more
// for each gradient that a rank keeps, since these are f32 here; that the ledger is as predicted is seen to
// in every run.
static void test_state_bytes(void **state)
{
    (void)state;
    static const struct {
        const char *strategy;
        ptb_dtype type;
        double whole, cut;
    } forms[] = {
        {"ddp", PTB_F32, 16, 0},    {"ddp", PTB_BF16, 18, 0},  {"zero1", PTB_F32, 8, 8},
        {"zero1", PTB_BF16, 6, 12}, {"zero2", PTB_F32, 4, 12}, {"zero2", PTB_BF16, 2, 16},
        {"fsdp", PTB_F32, 0, 16},   {"fsdp", PTB_BF16, 0, 18},
    };
    for (size_t i = 0; i < sizeof forms / sizeof *forms; i++)
        for (int ranks = 2; ranks <= 8; ranks += ranks < 4 ? 1 : 4) {
            if (!test_on_host() && ranks != 3)
                continue;
            data_run *run = data_train_all((data_settings){.strategy = forms[i].strategy,
                                                           .type = forms[i].type,
                                                           .ranks = ranks,
                                                           .adamw = true,
                                                           .bucket = 1 << 16});
            double bytes = (double)(run->bytes[PTB_MEMORY_PARAMETERS] + run->bytes[PTB_MEMORY_GRADIENTS] +
                                    run->bytes[PTB_MEMORY_OPTIMIZER]) /
                           (double)run->layout.count;
            double wanted = forms[i].whole + forms[i].cut / ranks;
            assert_true(fabs(bytes / wanted - 1) < 0.05);
            data_free(run);
        }
}

// A recorded step, replayed, is the step that is enqueued anew.
static void test_graph(void **state)
{
    (void)state;
    const ptb_device_ops *ops = (const ptb_device_ops *)ptb_registry_find(PTB_KIND_DEVICE, test_device());
    if (!ops->graph_begin)
        skip(); // the host
    for (size_t k = 0; k < SHARDED; k++)
        for (int64_t m = 1; m <= 2; m++) {
            data_settings s = {
                .strategy = sharded[k], .ranks = 2, .micro_batches = m, .options = {.depth = 1}};
            data_run *enqueued = data_train_all(s);
            s.graph = true;
            data_run *replayed = data_train_all(s);
            data_assert_same(replayed, enqueued);
            for (int lane = 0; lane < PTB_LANE_COUNT; lane++)
                assert_memory_equal(replayed->moved[lane].bytes, enqueued->moved[lane].bytes,
                                    sizeof enqueued->moved[lane].bytes);
            data_free(replayed);
            data_free(enqueued);
        }
}

// The comparison would see a reduction that one rank skips, and one that is scaled.
static void test_faults(void **state)
{
    (void)state;
    if (!test_on_host())
        skip(); // faults are calls on host streams
    data_run *one = data_train_all((data_settings){.strategy = "ddp", .ranks = 1});
    for (size_t k = 0; k < SHARDED; k++)
        for (int fault = FAULT_NONE; fault <= FAULT_SCALED; fault++) {
            faulty_plant((data_fault)fault);
            data_run *many =
                data_train_all((data_settings){.strategy = sharded[k], .comm = "faulty", .ranks = 2});
            assert_true((fault == FAULT_NONE) == (data_losses(many, one) < tolerance));
            assert_true((fault == FAULT_NONE) == (data_tensors(many, one, true) < tolerance));
            assert_true((fault == FAULT_NONE) == (data_tensors(many, one, false) < tolerance));
            data_free(many);
        }
    data_free(one);
}

// Averages after every step make plain SGD the synchronous one; rarer ones send less and stay near.
static void test_local_sgd(void **state)
{
    (void)state;
    for (int ranks = 1; ranks <= 8; ranks += ranks < 4 ? 1 : 4) {
        if (!test_on_host() && ranks != 3)
            continue;
        data_settings s = {.strategy = "ddp", .ranks = 1, .model = (data_model)(ranks % DATA_MODELS)};
        data_run *one = data_train_all(s);
        s.strategy = "local_sgd";
        s.ranks = ranks;
        s.options.local_steps = 1;
        data_run *each = data_train_all(s);
        assert_true(data_losses(each, one) < tolerance && data_tensors(each, one, false) < tolerance);
        s.without_overlap = true;
        data_run *after = data_train_all(s);
        assert_memory_equal(&after->hashes[0], &each->hashes[0], sizeof each->hashes[0]);
        s.options.local_steps = DATA_STEPS;
        data_run *once = data_train_all(s);
        double distance = data_losses(once, one), n = 4.0 * (double)one->layout.count * (ranks > 1);
        assert_true(distance < 0.05 && (ranks == 1 || distance > tolerance));
        assert_true((double)each->moved[PTB_LANE_DENSE].bytes[PTB_ALL_REDUCE] == n * DATA_STEPS);
        assert_true((double)once->moved[PTB_LANE_DENSE].bytes[PTB_ALL_REDUCE] == n);
        data_free(once);
        data_free(after);
        data_free(each);
        data_free(one);
    }
}

// Segments cover the index space once, from its end; none crosses groups that are reduced over different
// ranks, nor, of the kind UNITS, units.
static void test_segments(void **state)
{
    (void)state;
    ptb_layout layout;
    ptb_model_shape shape = data_shape(DATA_MOE);
    assert_int_equal(ptb_layout_init(&layout, &shape, &(ptb_layout_cut){.ep = 2}), PTB_OK);
    for (int kind = PTB_SEGMENT_BUCKETS; kind <= PTB_SEGMENT_UNITS; kind++)
        for (int place = 0; place < 6; place++) {
            ptb_data_env env = {
                .layout = &layout,
                .ranks = {[PTB_GROUP_DENSE] = {6, 6, 1, place}, [PTB_GROUP_EXPERT] = {3, 3, 1, place / 2}},
                .reduce_type = PTB_F32,
                .bucket_bytes = 2000};
            ptb_segments s;
            assert_int_equal(ptb_segments_init(&s, &env, (ptb_segment_kind)kind), PTB_OK);
            size_t end = layout.count, experts = 0, own = 0;
            for (size_t i = 0; i < s.count; i++) {
                const ptb_segment *g = &s.item[i];
                const ptb_unit *u = &layout.unit[ptb_layout_unit_at(&layout, g->first)];
                const ptb_unit *last = &layout.unit[ptb_layout_unit_at(&layout, g->first + g->count - 1)];
                bool is_expert = g->first - u->first >= u->group[PTB_GROUP_EXPERT].first;
                assert_int_equal(g->first + g->count, end);
                assert_true(kind == PTB_SEGMENT_BUCKETS ? g->count * 4 <= 2000 : u == last);
                assert_int_equal(g->group, is_expert ? PTB_GROUP_EXPERT : PTB_GROUP_DENSE);
                for (const ptb_unit *v = u; v < last; v++) // all of one kind
                    assert_int_equal(v->group[PTB_GROUP_EXPERT].count, 0);
                assert_true(g->first + g->count <= last->first + last->group[PTB_GROUP_EXPERT].first ||
                            is_expert);
                ptb_range block = ptb_block(g->count, is_expert ? 3 : 6, is_expert ? place / 2 : place);
                assert_true(g->own.first == g->first + block.first && g->own.count == block.count);
                assert_true(g->at == own || g->at > own);
                own = g->at + g->own.count;
                experts += is_expert ? g->count : 0;
                end = g->first;
            }
            assert_int_equal(end, 0);
            assert_true(own <= s.own);
            size_t wanted = 0;
            for (size_t u = 0; u < layout.units; u++)
                wanted += layout.unit[u].group[PTB_GROUP_EXPERT].count;
            assert_true(experts == wanted && wanted > 0);
            ptb_segments_release(&s);
        }
    ptb_layout_release(&layout);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ranks),    cmocka_unit_test(test_overlap), cmocka_unit_test(test_settings),
        cmocka_unit_test(test_types),    cmocka_unit_test(test_volume),  cmocka_unit_test(test_state_bytes),
        cmocka_unit_test(test_graph),    cmocka_unit_test(test_faults),  cmocka_unit_test(test_local_sgd),
        cmocka_unit_test(test_segments),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
