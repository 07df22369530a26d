// The world of threads: every operation, more ranks than cores, pretended hosts, and ranks that leave early.
#include "collectives/world.h"
#include "tests/mpi/world_checks.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

static ptb_status check_all(ptb_world *w, void *arg)
{
    int hosts = *(int *)arg;
    WORLD_CHECK(strcmp(w->ops->name, "local") == 0);
    WORLD_CHECK(w->hosts == hosts);
    return world_check_all(w, 100, w->size > 1 ? 2 : 1);
}

static void one_host(void **state)
{
    (void)state;
    int hosts = 1;
    for (int n = 1; n <= 8; n++)
        assert_int_equal(ptb_world_run_local(n, NULL, check_all, &hosts), PTB_OK);
}

static void pretended_hosts(void **state)
{
    (void)state;
    const int two[] = {9, 9, 4, 4, 4}, mixed[] = {1, 0, 1, 2, 0, 1, 2, 2};
    int hosts = 2;
    assert_int_equal(ptb_world_run_local(5, two, check_all, &hosts), PTB_OK);
    hosts = 3;
    assert_int_equal(ptb_world_run_local(8, mixed, check_all, &hosts), PTB_OK);
}

static ptb_status own_status(ptb_world *w, void *arg)
{
    return ((const ptb_status *)arg)[w->rank];
}

static void worst_status(void **state)
{
    (void)state;
    ptb_status statuses[] = {PTB_OK, PTB_STORE, PTB_WRONG};
    assert_int_equal(ptb_world_run_local(3, NULL, own_status, statuses), PTB_STORE);
    assert_int_equal(ptb_world_run_local(1, NULL, own_status, statuses), PTB_OK);
}

// Rank 1 returns at once; the others are released from whatever they wait in.
static ptb_status leave_early(ptb_world *w, void *arg)
{
    (void)arg;
    if (w->rank == 1)
        return PTB_OK;
    ptb_world *pair = NULL;
    int value = 0;
    ptb_status status =
        w->rank == 0 ? ptb_world_broadcast(w, 0, &value, sizeof value) : ptb_world_split(w, 0, 0, &pair);
    return status == PTB_LOST ? PTB_OK : PTB_WRONG;
}

static void early_leaver(void **state)
{
    (void)state;
    assert_int_equal(ptb_world_run_local(3, NULL, leave_early, NULL), PTB_OK);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_host),
        cmocka_unit_test(pretended_hosts),
        cmocka_unit_test(worst_status),
        cmocka_unit_test(early_leaver),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
