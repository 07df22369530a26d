// The mesh: what --mesh takes, who stands where, which ranks a set of axes joins; and layouts that it cuts:
// the parts of all ranks together are the whole model, with the same initial values.
#include "collectives/world.h"
#include "core/random.h"
#include "strategies/mesh.h"
#include "strategies/transformer/presets.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static void test_sizes(void **state)
{
    (void)state;
    ptb_mesh_sizes s;
    assert_int_equal(ptb_mesh_parse("", &s), PTB_OK);
    assert_int_equal(s.tp, 0);
    assert_int_equal(ptb_mesh_parse("dp=4,tp=2,replicate=2,ep=3,cp=5,pp=6", &s), PTB_OK);
    assert_true(s.tp == 2 && s.cp == 5 && s.ep == 3 && s.dp == 4 && s.replicate == 2 && s.pp == 6);
    const char *bad[] = {
        "tp",  "tp=",       "tp=0",        "tp=-1", "tp=2x",
        "t=2", "tp=2,tp=3", "tp=99999999", "=2",    "tp=1,cp=1,ep=1,pp=1,dp=1,replicate=1,tp=1"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        assert_int_equal(ptb_mesh_parse(bad[i], &s), PTB_USAGE);
}

static void test_places(void **state)
{
    (void)state;
    char reason[PTB_REASON_BYTES], text[PTB_MESH_TEXT];
    ptb_mesh_sizes sizes = {.tp = 2, .cp = 3, .dp = 4, .replicate = 2};
    ptb_mesh mesh;
    for (int rank = 0; rank < 24; rank++) {
        assert_int_equal(ptb_mesh_init(&mesh, &sizes, 24, rank, reason), PTB_OK);
        assert_int_equal(mesh.place[PTB_MESH_TP], rank % 2);
        assert_int_equal(mesh.place[PTB_MESH_CP], rank / 2 % 3);
        assert_int_equal(mesh.place[PTB_MESH_SHARD], rank / 6 % 2);
        assert_int_equal(mesh.place[PTB_MESH_REPLICATE], rank / 12);
        assert_int_equal(ptb_mesh_place(&mesh, PTB_MESH_ALL), rank);
        assert_int_equal(ptb_mesh_place(&mesh, PTB_MESH_DATA), rank / 6);
    }
    assert_int_equal(ptb_mesh_size(&mesh, PTB_MESH_DATA), 4);
    ptb_mesh_text(&mesh, text);
    assert_string_equal(text, "tp=2 cp=3 dp=4 replicate=2");
    sizes = (ptb_mesh_sizes){.tp = 2}; // the rest is data-parallel
    assert_int_equal(ptb_mesh_init(&mesh, &sizes, 6, 5, reason), PTB_OK);
    assert_int_equal(mesh.size[PTB_MESH_SHARD], 3);
    const int huge = 1 << 20; // whose product is 0 in 64 bits
    const ptb_mesh_sizes bad[] = {{.tp = 4},
                                  {.tp = 2, .dp = 2},
                                  {.replicate = 4},
                                  {.tp = 12},
                                  {.tp = huge},
                                  {.tp = huge, .cp = huge, .ep = huge, .pp = 16},
                                  {.tp = huge, .cp = huge, .ep = huge, .pp = 16, .dp = huge}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        reason[0] = '\0';
        assert_int_equal(ptb_mesh_init(&mesh, &bad[i], 6, 0, reason), PTB_USAGE);
        assert_true(reason[0]);
    }
}

// Every rank learns who is in its world of some axes.
static ptb_status check_split(ptb_world *world, void *arg)
{
    const ptb_mesh_sizes sizes = {.tp = 2, .ep = 2};
    unsigned axes = *(unsigned *)arg;
    char reason[PTB_REASON_BYTES];
    ptb_mesh mesh, other;
    ptb_world *part;
    PTB_TRY(ptb_mesh_init(&mesh, &sizes, world->size, world->rank, reason));
    PTB_TRY(ptb_mesh_split(&mesh, world, axes, &part));
    int ranks[8] = {0};
    PTB_TRY(ptb_world_all_gather(part, &world->rank, sizeof *ranks, ranks));
    bool right = part->size == ptb_mesh_size(&mesh, axes) && part->rank == ptb_mesh_place(&mesh, axes);
    for (int r = 0; r < part->size; r++) {
        PTB_TRY(ptb_mesh_init(&other, &sizes, world->size, ranks[r], reason));
        right = right && ptb_mesh_place(&other, axes) == r;
        right = right &&
                ptb_mesh_place(&other, ~axes & PTB_MESH_ALL) == ptb_mesh_place(&mesh, ~axes & PTB_MESH_ALL);
    }
    ptb_world_close(part);
    return right ? PTB_OK : PTB_WRONG;
}

static void test_splits(void **state)
{
    (void)state;
    for (unsigned axes = 0; axes <= PTB_MESH_ALL; axes++)
        assert_int_equal(ptb_world_run_local(8, NULL, check_split, &axes), PTB_OK);
}

// What several shapes and cuts leave to check: biases, gates, grouped heads, parts that are not even,
// experts.
typedef struct {
    const char *name;
    ptb_model_shape shape;
    int tp, ep;
} cut_case;
static const cut_case cases[] = {
    {"gpt",
     {.layers = 2,
      .hidden = 24,
      .heads = 6,
      .sequence = 8,
      .vocabulary = 37,
      .feed_forward = 50,
      .biases = true,
      .tied = true},
     3,
     1},
    {"llama",
     {.layers = 1,
      .hidden = 32,
      .heads = 8,
      .kv_heads = 4,
      .sequence = 8,
      .vocabulary = 33,
      .feed_forward = 45,
      .norm = PTB_RMS_NORM,
      .position = PTB_ROTARY_POSITIONS,
      .activation = PTB_SWIGLU},
     4,
     1},
    {"mixture",
     {.layers = 2,
      .hidden = 16,
      .heads = 2,
      .sequence = 8,
      .vocabulary = 16,
      .activation = PTB_SWIGLU,
      .experts = 6,
      .top_k = 2,
      .expert_hidden = 9,
      .shared_experts = 2,
      .dense_layers = 1},
     2,
     3},
};

// Counts how often each element of the whole tensor is in this part, and that its initial value is the same.
static void check_tensor(const ptb_tensor *t, uint64_t unit, const float *values, unsigned char *seen)
{
    for (size_t at = 0, run; at < ptb_tensor_count(t); at += run) {
        size_t whole;
        run = ptb_tensor_run(t, at, &whole);
        assert_true(run > 0 && at + run <= ptb_tensor_count(t));
        assert_true(whole + run <= ptb_tensor_whole_count(t));
        for (size_t i = 0; i < run; i++) {
            float wanted = t->mean;
            if (t->deviation > 0)
                wanted += t->deviation * (float)ptb_random_normal(7, unit << 8 | t->number, whole + i);
            assert_memory_equal(&values[at + i], &wanted, sizeof wanted);
            seen[whole + i]++;
        }
    }
}

static void check_role(const cut_case *c, size_t unit, ptb_tensor_role role)
{
    unsigned char *seen = NULL;
    size_t count = 0;
    bool replicated = false, expert = false;
    for (int rank = 0; rank < c->tp * c->ep; rank++) {
        ptb_layout_cut cut = {c->tp, rank % c->tp, c->ep, rank / c->tp};
        ptb_layout l;
        assert_int_equal(ptb_layout_init(&l, &c->shape, &cut), PTB_OK);
        const ptb_unit *u = &l.unit[unit];
        const ptb_tensor *t = ptb_unit_tensor(u, role);
        if (t) {
            count = ptb_tensor_whole_count(t);
            seen = seen ? seen : calloc(count, 1);
            float *values = calloc(u->count, sizeof *values);
            ptb_layout_fill(&l, 7, unit, values);
            check_tensor(t, unit, values + t->first, seen);
            free(values);
            replicated = t->replicated;
            expert = t->group == PTB_GROUP_EXPERT;
            bool last = t->first >= u->replicated_first && t->first < u->group[PTB_GROUP_EXPERT].first;
            assert_true(c->tp == 1 || replicated == last);
        }
        ptb_layout_release(&l);
    }
    int wanted = (replicated ? c->tp : 1) * (expert ? 1 : c->ep);
    for (size_t i = 0; i < count; i++)
        assert_int_equal(seen[i], wanted);
    free(seen);
}

static void test_parts(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (size_t unit = 0; unit < (size_t)cases[i].shape.layers + 2; unit++)
            for (int role = 0; role < PTB_ROLE_COUNT; role++)
                check_role(&cases[i], unit, (ptb_tensor_role)role);
}

// What is counted of the whole model does not depend on how it is cut.
static void test_whole(void **state)
{
    (void)state;
    ptb_layout whole, part;
    ptb_layout_cut cut = {2, 1, 4, 3};
    assert_int_equal(ptb_layout_init(&whole, &ptb_preset_find("deepseek-moe-16b")->shape, NULL), PTB_OK);
    assert_int_equal(ptb_layout_init(&part, &whole.shape, &cut), PTB_OK);
    assert_true(part.parameters == whole.parameters && part.active_parameters == whole.active_parameters);
    assert_true(part.count < whole.count);
    assert_int_equal(part.local.experts, whole.shape.experts / 4);
    assert_int_equal(part.first_expert, whole.shape.experts / 4 * 3);
    assert_int_equal(part.first_head, whole.shape.heads / 2);
    ptb_layout_release(&part);
    ptb_layout_release(&whole);
    const ptb_layout_cut bad[] = {{.tp = 5}, {.ep = 3}, {.tp = 32}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        assert_int_equal(ptb_layout_init(&part, &ptb_preset_find("deepseek-moe-16b")->shape, &bad[i]),
                         PTB_USAGE);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_sizes), cmocka_unit_test(test_places),
                                       cmocka_unit_test(test_splits), cmocka_unit_test(test_parts),
                                       cmocka_unit_test(test_whole)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
