// Which rank gets which device: the check that no two ranks of a host have the same GPU, on a device that
// claims to be one.
#include "collectives/world.h"
#include "core/device.h"

#include <stdlib.h>
#include <stdio.h>

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

// A machine of two GPUs, as each process sees it.
static void fake_close(ptb_device *device)
{
    free(device);
}

static uint64_t fake_available(ptb_device *device)
{
    (void)device;
    return 1200;
}

static const ptb_device_ops fake_ops;

static ptb_status fake_open(int index, ptb_device **device)
{
    ptb_device *d = calloc(1, sizeof *d);
    if (!d)
        return PTB_NO_MEMORY;
    d->ops = &fake_ops;
    d->sharers = 1;
    snprintf(d->identity, sizeof d->identity, "GPU-%d", index % 2);
    snprintf(d->description, sizeof d->description, "a GPU of the test, %s", d->identity);
    *device = d;
    return PTB_OK;
}

static const ptb_device_ops fake_ops = {
    .plugin = {"two_gpus", "a machine of two GPUs"},
    .open = fake_open,
    .close = fake_close,
    .available = fake_available,
};
PTB_REGISTER(PTB_KIND_DEVICE, fake_ops);

typedef struct {
    const char *name;
    bool share;
    ptb_status status;
    int sharers;
    uint64_t available;
    char identity[64];
} rank_result;
typedef struct {
    const char *name;
    bool share;
    rank_result ranks[8];
} trial;

static ptb_status open_on_rank(ptb_world *world, void *arg)
{
    trial *t = arg;
    rank_result *r = &t->ranks[world->rank];
    ptb_device *device = NULL;
    r->status = ptb_device_open_local(t->name, world, t->share, &device);
    if (r->status != PTB_OK)
        return PTB_OK;
    r->sharers = device->sharers;
    r->available = ptb_device_available(device);
    snprintf(r->identity, sizeof r->identity, "%s", device->identity);
    ptb_device_close(device);
    return PTB_OK;
}

static trial run(const char *name, int ranks, const int *host_of, bool share)
{
    trial t = {.name = name, .share = share};
    assert_int_equal(ptb_world_run_local(ranks, host_of, open_on_rank, &t), PTB_OK);
    return t;
}

static void test_one_rank_a_gpu(void **state)
{
    (void)state;
    trial t = run("two_gpus", 4, (const int[]){0, 0, 1, 1}, false);
    for (int r = 0; r < 4; r++) {
        char wanted[16];
        snprintf(wanted, sizeof wanted, "GPU-%d", r % 2);
        assert_int_equal(t.ranks[r].status, PTB_OK);
        assert_string_equal(t.ranks[r].identity, wanted);
        assert_int_equal(t.ranks[r].sharers, 1);
        assert_int_equal(t.ranks[r].available, 1200);
    }
}

// Ranks 1 and 3 meet on the second host's GPU; every rank learns of it.
static void test_refused(void **state)
{
    (void)state;
    trial t = run("two_gpus", 4, (const int[]){0, 1, 1, 1}, false);
    for (int r = 0; r < 4; r++)
        assert_int_equal(t.ranks[r].status, PTB_UNSUPPORTED);
}

static void test_shared(void **state)
{
    (void)state;
    trial t = run("two_gpus", 5, (const int[]){0, 0, 0, 1, 1}, true);
    static const int sharers[] = {2, 1, 2, 1, 1};
    for (int r = 0; r < 5; r++) {
        assert_int_equal(t.ranks[r].status, PTB_OK);
        assert_int_equal(t.ranks[r].sharers, sharers[r]);
        assert_int_equal(t.ranks[r].available, 1200 / sharers[r]);
    }
}

// Processors are shared as a matter of course, and so is memory.
static void test_host(void **state)
{
    (void)state;
    trial t = run("host", 3, (const int[]){0, 0, 1}, false);
    static const int sharers[] = {2, 2, 1};
    for (int r = 0; r < 3; r++) {
        assert_int_equal(t.ranks[r].status, PTB_OK);
        assert_int_equal(t.ranks[r].sharers, sharers[r]);
    }
}

static void test_unknown(void **state)
{
    (void)state;
    trial t = run("three_gpus", 2, NULL, false);
    assert_int_equal(t.ranks[0].status, PTB_USAGE);
    assert_int_equal(t.ranks[1].status, PTB_USAGE);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_one_rank_a_gpu), cmocka_unit_test(test_refused), cmocka_unit_test(test_shared),
        cmocka_unit_test(test_host),           cmocka_unit_test(test_unknown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
