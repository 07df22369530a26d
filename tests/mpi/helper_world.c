// helper_world all|open|wait: what test_world.sh starts under mpirun. `all` checks every operation; `open`
// only opens and prints; in `wait` rank 0 waits in the start barrier for the others, which do not come.
#include "collectives/world.h"
#include "core/clock.h"
#include "tests/mpi/world_checks.h"

#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

// Entry and exit times of many barriers: the earliest exit must not be before the latest entry.
static ptb_status check_order(ptb_world *w, bool start)
{
    enum { ROUNDS = 50 };
    for (int i = 0; i < ROUNDS; i++) {
        if (i % w->size == w->rank)
            nanosleep(&(struct timespec){.tv_nsec = 200000}, NULL);
        double entered = (double)ptb_clock_ns();
        PTB_TRY(start ? ptb_world_start(w) : ptb_world_sleep(w));
        double extremes[2] = {entered, -(double)ptb_clock_ns()};
        PTB_TRY(ptb_world_reduce_max(w, extremes, 2));
        WORLD_CHECK(-extremes[1] >= extremes[0]);
    }
    return PTB_OK;
}

static ptb_status wait_for_dead(ptb_world *w)
{
    if (w->rank == 1)
        raise(SIGKILL);
    if (w->rank > 1)
        pause();
    return ptb_world_start(w);
}

int main(int argc, char **argv)
{
    const char *what = argc > 1 ? argv[1] : "all";
    ptb_world *world = NULL;
    ptb_status status = ptb_world_open_mpi(false, &world);
    if (status != PTB_OK)
        return 10 + ptb_status_exit_code(status);
    if (strcmp(what, "open") == 0) {
        printf("rank %d of %d, host %d of %d, oversubscribed %d\n", world->rank, world->size, world->host,
               world->hosts, world->oversubscribed);
    } else if (strcmp(what, "wait") == 0) {
        status = wait_for_dead(world);
        fprintf(stderr, "rank %d: start returned %s\n", world->rank, ptb_status_name(status));
        _exit(status == PTB_LOST ? 0 : 1); // the library cannot be ended any more
    } else {
        status = world_check_all(world, 200, 1);
        if (status == PTB_OK)
            status = check_order(world, true);
        if (status == PTB_OK)
            status = check_order(world, false);
        if (status != PTB_OK)
            ptb_world_abort(world, 20 + ptb_status_exit_code(status));
        if (world->rank == 0)
            printf("world of %d: good\n", world->size);
    }
    ptb_world_close(world);
    return ptb_status_exit_code(status);
}
