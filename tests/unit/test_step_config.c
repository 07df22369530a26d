// The configuration of steps: presets and what overrides them, effective batches, and that every option which
// changes what is measured changes the case's key.
#include "core/log.h"
#include "strategies/crowd.h"
#include "strategies/step_config.h"
#include "strategies/step_division.h"
#include "strategies/step_used.h"
#include "strategies/transformer/presets.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const ptb_bench *bench(void)
{
    return (const ptb_bench *)ptb_registry_find(PTB_KIND_BENCH, "step");
}

static ptb_opt_set set_of(ptb_step_config *config)
{
    return (ptb_opt_set){bench()->opts, bench()->opt_count, config, "step"};
}

static void assign(ptb_step_config *config, const char *name, const char *value)
{
    ptb_opt_set set = set_of(config);
    assert_int_equal(ptb_opts_assign(&set, name, value, name), PTB_OK);
}

// Settings in which every option means something.
static void make_base(ptb_step_config *config, bool sgd)
{
    ptb_opt_set set = set_of(config);
    ptb_opts_defaults(&set);
    assign(config, "lr-schedule", "cosine");
    assign(config, "lr-steps", "100");
    assign(config, "recompute", "full");
    assign(config, "precision", "f16");
    assign(config, "context", "ring_all_to_all");
    if (sgd)
        assign(config, "optimizer", "sgd");
}

static void key_of(const ptb_step_config *config, char key[PTB_KEY_BYTES])
{
    ptb_step_point point = {.strategy = config->strategy,
                            .tensor = true,
                            .experts = true,
                            .balance = true,
                            .comm = "host",
                            .algorithm = "auto",
                            .precision = config->precision,
                            .context = true,
                            .batch = 8,
                            .data = "generator",
                            .seed = 1,
                            .ranks = 2};
    ptb_case c = {0};
    ptb_step_params(config, &point, &c.params);
    ptb_case_key("step", &c, key);
}

static void release(ptb_step_config *config)
{
    ptb_opt_set set = set_of(config);
    ptb_opts_release(&set);
}

// A value that is neither the default nor the base's.
static const char *another(const ptb_opt *opt)
{
    static const char *const words[][2] = {
        {"lr-schedule", "constant"}, {"recompute", "selective"}, {"precision", "bf16"},
        {"optimizer", "sgd"},        {"loss-scale", "7"},        {"transport", "shm"},
        {"model", "gpt2-124m"},      {"kernels", "other"},       {"device", "other"}};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (strcmp(words[i][0], opt->name) == 0)
            return words[i][1];
    switch (opt->type) {
    case PTB_OPT_BOOL:
        return strcmp(opt->def, "yes") == 0 ? "no" : "yes";
    case PTB_OPT_CHOICE:
        return opt->choices[1];
    case PTB_OPT_SIZE:
        return "12345";
    case PTB_OPT_INT:
        return "7";
    default:
        return "0.625000001";
    }
}

// What a case gets from elsewhere than the configuration.
static bool is_of_the_point(const char *name)
{
    static const char *const names[] = {"strategy", "comm", "algo", "batch", "data", "mesh"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strcmp(names[i], name) == 0)
            return true;
    return false;
}

// A strategy that the option is for.
static const char *strategy_with(const char *option)
{
    static const char *const words[][2] = {{"prefetch", "fsdp"},
                                           {"in-flight", "zero2"},
                                           {"reshard", "hsdp"},
                                           {"local-steps", "local-sgd"},
                                           {"staleness", "async"}};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (strcmp(words[i][0], option) == 0)
            return words[i][1];
    return "ddp";
}

static void test_keys(void **state)
{
    (void)state;
    char base[PTB_KEY_BYTES], key[PTB_KEY_BYTES];
    size_t changed = 0;
    for (size_t i = 0; i < bench()->opt_count; i++) {
        const ptb_opt *opt = &bench()->opts[i];
        if (is_of_the_point(opt->name))
            continue;
        ptb_step_config config = {0};
        make_base(&config, strcmp(opt->name, "momentum") == 0);
        assign(&config, "strategy", strategy_with(opt->name));
        key_of(&config, base);
        assign(&config, opt->name, another(opt));
        key_of(&config, key);
        if (strcmp(key, base) == 0)
            print_error("--%s does not change the key %s\n", opt->name, key);
        assert_string_not_equal(key, base);
        changed++;
        release(&config);
    }
    assert_true(changed > 45);
}

// Everything given at once still fits, each value in full.
static void test_room(void **state)
{
    (void)state;
    ptb_step_config config = {0};
    make_base(&config, false);
    for (size_t i = 0; i < bench()->opt_count; i++) {
        const ptb_opt *opt = &bench()->opts[i];
        bool kept = strcmp(opt->name, "lr-schedule") == 0 || strcmp(opt->name, "precision") == 0 ||
                    strcmp(opt->name, "loss-scale") == 0 || strcmp(opt->name, "optimizer") == 0;
        if (!kept && !is_of_the_point(opt->name))
            assign(&config, opt->name, another(opt));
    }
    char key[PTB_KEY_BYTES];
    key_of(&config, key);
    assert_non_null(strstr(key, "/ranks=2"));
    assert_non_null(strstr(key, "/dropout=0.625000001/"));
    release(&config);
}

static void test_preset(void **state)
{
    (void)state;
    ptb_step_config config = {0};
    ptb_opt_set set = set_of(&config);
    ptb_opts_defaults(&set);
    ptb_model_shape shape;
    assign(&config, "model", "mixtral-8x7b");
    assert_int_equal(ptb_model_options_shape(&config.model, &shape), PTB_OK);
    assert_memory_equal(&shape, &ptb_preset_find("mixtral-8x7b")->shape, sizeof shape);
    assign(&config, "layers", "2");
    assign(&config, "norm", "layernorm");
    assign(&config, "tied", "yes");
    assign(&config, "dropout", "0.25");
    assign(&config, "experts", "4");
    assert_int_equal(ptb_model_options_shape(&config.model, &shape), PTB_OK);
    assert_int_equal(shape.layers, 2);
    assert_int_equal(shape.norm, PTB_LAYER_NORM);
    assert_true(shape.tied && shape.dropout == 0.25);
    assert_int_equal(shape.experts, 4);
    assert_int_equal(shape.hidden, 4096);
    assert_int_equal(shape.top_k, 2);
    assign(&config, "experts", "0"); // a dense model: nothing of the mixture is left
    assert_int_equal(ptb_model_options_shape(&config.model, &shape), PTB_OK);
    assert_true(shape.top_k == 0 && shape.expert_hidden == 0 && shape.shared_experts == 0);
    assign(&config, "model", "gpt2");
    assert_int_equal(ptb_model_options_shape(&config.model, &shape), PTB_USAGE);
    release(&config);
}

// A GPT-2 with a shorter sequence has all its positions, and so all its parameters.
static void test_positions(void **state)
{
    (void)state;
    ptb_step_config config = {0};
    ptb_opt_set set = set_of(&config);
    ptb_opts_defaults(&set);
    assign(&config, "model", "gpt2-124m");
    assign(&config, "sequence", "64");
    ptb_model_shape shape;
    ptb_layout layout;
    assert_int_equal(ptb_model_options_shape(&config.model, &shape), PTB_OK);
    assert_int_equal(ptb_layout_init(&layout, &shape, NULL), PTB_OK);
    assert_int_equal(layout.parameters, 124439808);
    assert_int_equal(layout.shape.sequence, 64);
    ptb_layout_release(&layout);
    release(&config);
}

static void test_batch(void **state)
{
    (void)state;
    ptb_step_config config = {.micro_batches = 1};
    int64_t batch = -1;
    char reason[PTB_REASON_BYTES] = "";
    assert_int_equal(ptb_step_batch(&config, 1, &batch, reason), PTB_OK);
    assert_int_equal(batch, 8);
    assert_int_equal(ptb_step_batch(&config, 3, &batch, reason), PTB_OK);
    assert_int_equal(batch, 9);
    config.micro_batches = 5;
    assert_int_equal(ptb_step_batch(&config, 3, &batch, reason), PTB_OK);
    assert_int_equal(batch, 15);
    config.batch = 30;
    assert_int_equal(ptb_step_batch(&config, 3, &batch, reason), PTB_OK);
    assert_int_equal(batch, 30);
    config.batch = 31;
    assert_int_equal(ptb_step_batch(&config, 3, &batch, reason), PTB_USAGE);
    assert_int_equal(batch, 30); // outputs are set on success alone
    assert_non_null(strstr(reason, "31 = 15 x 2 + 1; use 30 or 45"));
}

// The facts of a case where so many ranks share so many processors; valid until the next call.
static const ptb_params *crowd_facts(int ranks, int cpus, int threads)
{
    static ptb_params facts;
    const ptb_world world = {.sharing_ranks = ranks, .shared_cpus = cpus};
    facts.count = 0;
    ptb_crowd_facts(&world, threads, "that takes long", &facts);
    return &facts;
}

static const char *warning_of(int ranks, int cpus, int threads)
{
    return ptb_params_get(crowd_facts(ranks, cpus, threads), "warning");
}

static const char *waiting_of(const char *policy, const char *spins)
{
    unsetenv("OMP_WAIT_POLICY");
    unsetenv("GOMP_SPINCOUNT");
    if (policy)
        setenv("OMP_WAIT_POLICY", policy, 1);
    if (spins)
        setenv("GOMP_SPINCOUNT", spins, 1);
    assert_null(ptb_params_get(crowd_facts(1, 1, 1), "openmp_wait")); // nobody waits
    return ptb_params_get(crowd_facts(1, 2, 2), "openmp_wait");
}

static void test_crowd(void **state)
{
    (void)state;
    setenv("OMP_WAIT_POLICY", "passive", 1);
    assert_null(warning_of(2, 2, 1)); // each has a processor of its own
    assert_null(warning_of(1, 8, 8)); // and where each is bound to as many as it has threads
    assert_null(warning_of(8, 16, 2));
    assert_string_equal(warning_of(2, 2, 2), "2 ranks (threads 2) share 2 processors: that takes long");
    assert_string_equal(warning_of(4, 2, 1), "4 ranks (threads 1) share 2 processors: that takes long");
    assert_string_equal(warning_of(1, 1, 2), "a rank (threads 2) has 1 processor: that takes long");
    assert_string_equal(waiting_of("passive", NULL), "sleep at once");
    assert_string_equal(waiting_of("PASSIVE", NULL), "sleep at once");
    assert_string_equal(waiting_of(NULL, "0"), "sleep at once");
    assert_string_equal(waiting_of("passive", "20"), "spin, then sleep");
    assert_string_equal(waiting_of("active", NULL), "spin, then sleep");
    assert_string_equal(waiting_of(NULL, NULL), "spin, then sleep");
    assert_string_equal(warning_of(128, 64, 16),
                        "128 ranks (threads 16) share 64 processors: OpenMP's threads "
                        "spin; set OMP_WAIT_POLICY=passive");
    assert_string_equal(warning_of(4, 2, 1), "4 ranks (threads 1) share 2 processors: that takes long");
}

static ptb_status check_used_by(ptb_step_config *config, const char *const *strategies, size_t count)
{
    ptb_model_shape shape;
    const ptb_opt_set options = set_of(config);
    ptb_step_names names = {&options, strategies, (const char *const *)&config->precision, count, 1};
    PTB_TRY(ptb_model_options_shape(&config->model, &shape));
    return ptb_step_check_used(config, &shape, &names);
}

static ptb_status check_used(ptb_step_config *config)
{
    return check_used_by(config, (const char *const *)&config->strategy, 1);
}

// Dense ddp in f32 with AdamW: a setting that leaves its key as it is would be ignored, so it is refused;
// where strategy, model and optimizer look at it, it is taken.
static void test_used(void **state)
{
    (void)state;
    size_t refused = 0;
    ptb_log_set_level((ptb_log_level)-1);
    for (size_t i = 0; i < bench()->opt_count; i++) {
        const ptb_opt *opt = &bench()->opts[i];
        ptb_step_config config = {0};
        ptb_opt_set set = set_of(&config);
        ptb_step_point point = {.strategy = "ddp", .comm = "host", .algorithm = "auto", .precision = "f32"};
        ptb_case with = {0}, without = {0};
        if (is_of_the_point(opt->name) || strcmp(opt->name, "precision") == 0)
            continue;
        ptb_opts_defaults(&set);
        ptb_step_params(&config, &point, &without.params);
        assert_int_equal(check_used(&config), PTB_OK);
        assign(&config, opt->name, another(opt));
        ptb_step_params(&config, &point, &with.params);
        char keys[2][PTB_KEY_BYTES];
        ptb_case_key("step", &with, keys[0]);
        ptb_case_key("step", &without, keys[1]);
        if (strcmp(keys[0], keys[1]) == 0 && strcmp(opt->def ? opt->def : "", another(opt)) != 0) {
            if (check_used(&config) == PTB_OK)
                print_error("--%s changes nothing and is not refused\n", opt->name);
            assert_int_equal(check_used(&config), PTB_USAGE);
            refused++;
        }
        release(&config);
    }
    ptb_log_set_level(PTB_LOG_INFO);
    assert_true(refused > 15);
}

// Where every axis and choice is there, every setting is taken.
static void test_used_all(void **state)
{
    (void)state;
    static const char *const others[] = {"lr-schedule", "optimizer", "context",
                                         "model",       "positions", "precision"};
    for (size_t i = 0; i < bench()->opt_count; i++) {
        const ptb_opt *opt = &bench()->opts[i];
        ptb_step_config config = {0};
        bool other = is_of_the_point(opt->name); // or one that the others' meaning hangs on
        for (size_t k = 0; k < sizeof others / sizeof *others; k++)
            other = other || strcmp(others[k], opt->name) == 0;
        if (other)
            continue;
        make_base(&config, strcmp(opt->name, "momentum") == 0);
        assign(&config, "mesh", "tp=2,cp=2,ep=2");
        assign(&config, "experts", "4");
        assign(&config, "balance", "0.5");
        assign(&config, "positions", "rotary");
        assign(&config, "strategy", strategy_with(opt->name));
        assign(&config, opt->name, another(opt));
        if (check_used(&config) != PTB_OK)
            print_error("--%s is refused\n", opt->name);
        assert_int_equal(check_used(&config), PTB_OK);
        release(&config);
    }
}

// What some strategies, or a combination with other options, do not look at is refused where nothing in the
// run does.
static void test_used_by_strategies(void **state)
{
    (void)state;
    static const struct {
        const char *strategies[2], *options; // "NAME=VALUE NAME=VALUE"
        bool taken;
    } cases[] = {
        {{"zero2"}, "bucket=1M", false},
        {{"fsdp"}, "bucket=1M", false},
        {{"hsdp", "zero2"}, "bucket=1M", false},
        {{"fsdp", "zero1"}, "bucket=1M", true},
        {{"ddp"}, "bucket=1M", true},
        {{"tp"}, "bucket=1M", true},
        {{"local-sgd"}, "bucket=1M", true},
        {{"async"}, "bucket=1M", true},
        {{"local-sgd"}, "reduce-type=bf16", false},
        {{"local-sgd", "fsdp"}, "reduce-type=bf16", true},
        {{"fsdp"}, "prefetch=3 in-flight=5 overlap=no", false},
        {{"fsdp"}, "prefetch=3 in-flight=5", true},
        {{"fsdp"}, "prefetch=3 overlap=no", true}, // it says how many blocks are in flight
        {{"ddp"}, "experts=4 expert-hidden=32 feed-forward=48", false},
        {{"ddp"}, "experts=4 expert-hidden=32 feed-forward=48 dense-layers=1", true},
        {{"ddp"}, "experts=4 feed-forward=48", true},
        {{"ddp"}, "feed-forward=48", true},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        ptb_step_config config = {0};
        const ptb_opt_set set = set_of(&config);
        ptb_opts_defaults(&set);
        char options[128], *rest = options, *pair;
        snprintf(options, sizeof options, "%s", cases[i].options);
        while ((pair = strsep(&rest, " "))) {
            const char *name = strsep(&pair, "=");
            assign(&config, name, pair);
        }
        ptb_log_set_level((ptb_log_level)-1);
        ptb_status status = check_used_by(&config, cases[i].strategies, cases[i].strategies[1] ? 2 : 1);
        ptb_log_set_level(PTB_LOG_INFO);
        if (status != (cases[i].taken ? PTB_OK : PTB_USAGE))
            print_error("%s %s: %s\n", cases[i].strategies[0], cases[i].options, ptb_status_name(status));
        assert_int_equal(status, cases[i].taken ? PTB_OK : PTB_USAGE);
        release(&config);
    }
}

// A recorded step replays what the host decided when it was recorded.
static void test_graph(void **state)
{
    (void)state;
    ptb_step_config config = {.graph = true};
    assert_int_equal(ptb_step_check(&config, 0), PTB_OK);
    assert_int_equal(ptb_step_check(&config, 0.1), PTB_USAGE);
    config.pack = true;
    assert_int_equal(ptb_step_check(&config, 0), PTB_USAGE);
    config.graph = false;
    assert_int_equal(ptb_step_check(&config, 0.1), PTB_OK);
}

// What cannot be right with strategies that do not update with every step is told, with what to do.
static void test_possible(void **state)
{
    (void)state;
    const ptb_mesh plain = {.size = {1, 1, 1, 2, 1, 1}}, split = {.size = {1, 2, 1, 2, 1, 1}};
    const struct {
        const char *strategy;
        ptb_step_setting setting;
        int64_t staleness;
        const char *reason; // NULL: possible
    } cases[] = {
        {"async", {&plain, PTB_F32, false, true}, 2, NULL},
        {"async", {&split, PTB_BF16, false, true}, 2, NULL},
        {"async", {&plain, PTB_F16, false, true}, 0, "use bf16"},
        {"async", {&plain, PTB_F32, true, true}, 0, "leave --graph out"},
        {"async", {&plain, PTB_F32, false, false}, 1, "use --staleness 0, or zero1"},
        {"async", {&plain, PTB_F32, false, false}, 0, NULL},
        {"local-sgd", {&plain, PTB_F32, false, true}, 0, NULL},
        {"local-sgd", {&plain, PTB_F16, false, true}, 0, "use bf16"},
        {"local-sgd", {&plain, PTB_F32, true, true}, 0, "--local-steps 1"},
        {"local-sgd", {&split, PTB_F32, false, true}, 0, "use a mesh of tp and dp"},
        {"zero1", {&split, PTB_F16, true, false}, 1, NULL},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char reason[PTB_REASON_BYTES] = "";
        ptb_step_data config = {.local_steps = 8, .staleness = cases[i].staleness};
        bool is_possible = ptb_step_data_possible(&config, cases[i].strategy, &cases[i].setting, reason);
        assert_int_equal(is_possible, !cases[i].reason);
        assert_non_null(strstr(reason, cases[i].reason ? cases[i].reason : ""));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_possible),
        cmocka_unit_test(test_keys),
        cmocka_unit_test(test_room),
        cmocka_unit_test(test_preset),
        cmocka_unit_test(test_positions),
        cmocka_unit_test(test_batch),
        cmocka_unit_test(test_graph),
        cmocka_unit_test(test_crowd),
        cmocka_unit_test(test_used),
        cmocka_unit_test(test_used_all),
        cmocka_unit_test(test_used_by_strategies),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
