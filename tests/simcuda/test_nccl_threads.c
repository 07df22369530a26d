// Conformance of the communicator nccl between threads of one process, each with a GPU of its own.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "collectives/world.h"
#include "tests/conformance/conformance.h"

enum { RANKS = 4 };

static ptb_status sweep_body(ptb_world *world, void *arg)
{
    tally *seen = arg;
    ptb_device *device;
    bench_seat seat;
    PTB_TRY(ptb_device_open_local("cuda", world, true, &device));
    ptb_status status = seat_init(&seat, world, device, &seen[world->rank]);
    if (status == PTB_OK)
        status = sweep_backend(&seat, "nccl", RANKS);
    seat_release(&seat);
    ptb_device_close(device);
    return status;
}

static void test_threads(void **state)
{
    (void)state;
    for (int n = 1; n <= RANKS; n++) {
        tally *seen = calloc(RANKS, sizeof *seen);
        assert_int_equal(ptb_world_run_local(n, NULL, sweep_body, seen), PTB_OK);
        for (int r = 0; r < n; r++) {
            if (seen[r].wrong)
                fail_msg("%ld wrong; first: %s", seen[r].wrong, seen[r].first_wrong);
            assert_true(seen[r].checked > 500);
        }
        free(seen);
    }
}

int main(void)
{
    setenv("PTB_SIM", "devices=8", 0);
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_threads)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
