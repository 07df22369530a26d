// The watch thread. It sleeps in sigtimedwait, so signals need no handler and no global.
#include "bench/watch.h"

#include "core/clock.h"
#include "core/log.h"
#include "core/roll.h"

#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
    LOOK_EVERY_NS = 250000000,
    ABORT_S = 3, // for communicators to be aborted, and again for their ranks to end the job
};

struct ptb_watch {
    pthread_t thread;
    pthread_mutex_t lock; // guards what, world
    char what[512];
    ptb_world *world;
    atomic_bool stop, leave;
    atomic_llong beat_ns, timeout_ns; // timeout 0: not watched
};

static void watched_signals(sigset_t *set)
{
    sigemptyset(set);
    sigaddset(set, SIGINT);
    sigaddset(set, SIGTERM);
    sigaddset(set, SIGUSR1);
}

static void end_job(ptb_world *world)
{
    if (world)
        ptb_world_abort(world, ptb_status_exit_code(PTB_LOST));
    _exit(ptb_status_exit_code(PTB_LOST));
}

static void look_for_hang(ptb_watch *watch)
{
    long long timeout_ns = atomic_load(&watch->timeout_ns);
    long long idle_ns = ptb_clock_ns() - atomic_load(&watch->beat_ns);
    if (!timeout_ns || idle_ns < timeout_ns)
        return;
    pthread_mutex_lock(&watch->lock); // to the end, so that the world stays open
    ptb_roll *roll = watch->world ? watch->world->roll : NULL;
    ptb_text said = PTB_TEXT_INIT;
    if (!ptb_roll_explain(roll, &said))
        ptb_text_append(&said, "a rank has died, was stopped or waits for another one");
    ptb_error(
        "no progress for %.0f s in %s; %s. The job is ended, finished cases are kept. dmesg on the hosts of "
        "these ranks may say why (killed processes; Xid messages of GPUs); --timeout changes the limit",
        (double)idle_ns / 1e9, watch->what, ptb_text_string(&said));
    ptb_text_release(&said);
    // A rank whose communicator is aborted gets on, stores what it has and ends the job itself.
    if (ptb_roll_abort(roll, ABORT_S))
        sleep(ABORT_S);
    end_job(watch->world);
}

static void end_at_once(ptb_watch *watch)
{
    pthread_mutex_lock(&watch->lock);
    ptb_world *world = watch->world;
    pthread_mutex_unlock(&watch->lock);
    end_job(world);
}

static void *watch_main(void *arg)
{
    ptb_watch *watch = arg;
    const struct timespec period = {0, LOOK_EVERY_NS};
    sigset_t signals;
    watched_signals(&signals);
    while (!atomic_load(&watch->leave)) {
        int number = sigtimedwait(&signals, NULL, &period);
        // SIGUSR1 is how the launcher passes an interrupt on and may come twice; a second other signal means
        // "now".
        if (number > 0 && number != SIGUSR1 && atomic_load(&watch->stop))
            end_at_once(watch);
        if (number > 0)
            atomic_store(&watch->stop, true);
        look_for_hang(watch);
    }
    return NULL;
}

ptb_status ptb_watch_new(ptb_watch **out)
{
    ptb_watch *watch = calloc(1, sizeof *watch);
    sigset_t signals;
    watched_signals(&signals);
    if (!watch) {
        ptb_error("no memory for the watch thread");
        return PTB_NO_MEMORY;
    }
    pthread_sigmask(SIG_BLOCK, &signals, NULL);
    pthread_mutex_init(&watch->lock, NULL);
    int code = pthread_create(&watch->thread, NULL, watch_main, watch);
    if (code != 0) {
        ptb_error("the watch thread could not be started: %s", strerror(code));
        pthread_mutex_destroy(&watch->lock);
        free(watch);
        return PTB_SYSTEM;
    }
    *out = watch;
    return PTB_OK;
}

void ptb_watch_free(ptb_watch *watch)
{
    if (!watch)
        return;
    atomic_store(&watch->leave, true);
    pthread_kill(watch->thread, SIGUSR1);
    pthread_join(watch->thread, NULL);
    pthread_mutex_destroy(&watch->lock);
    free(watch);
}

void ptb_watch_set_world(ptb_watch *watch, ptb_world *world)
{
    if (!watch)
        return;
    pthread_mutex_lock(&watch->lock);
    watch->world = world;
    pthread_mutex_unlock(&watch->lock);
}

void ptb_watch_begin(ptb_watch *watch, const char *what, double timeout_s)
{
    if (!watch)
        return;
    pthread_mutex_lock(&watch->lock);
    snprintf(watch->what, sizeof watch->what, "%s", what);
    pthread_mutex_unlock(&watch->lock);
    ptb_watch_beat(watch);
    atomic_store(&watch->timeout_ns, (long long)(timeout_s * 1e9));
}

void ptb_watch_pause(ptb_watch *watch)
{
    if (watch)
        atomic_store(&watch->timeout_ns, 0);
}

void ptb_watch_beat(ptb_watch *watch)
{
    if (watch)
        atomic_store_explicit(&watch->beat_ns, ptb_clock_ns(), memory_order_relaxed);
}

const atomic_bool *ptb_watch_stop(const ptb_watch *watch)
{
    return watch ? &watch->stop : NULL;
}
