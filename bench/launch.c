// The process that starts mpirun. mpirun runs in a process group of its own, so that Ctrl-C reaches only this
// process, which passes it on as SIGUSR1 (Open MPI forwards that to the ranks): the ranks agree to stop and
// everything finished is stored.
#include "bench/launch.h"

#include "bench/command.h"
#include "bench/job_status.h"
#include "bench/relay.h"
#include "collectives/world.h"
#include "core/clock.h"
#include "core/device.h"
#include "core/log.h"
#include "core/process.h"
#include "core/topology.h"
#include "results/store.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

// After a rank is known to be gone, mpirun gets so long to end the others; after a second Ctrl-C, so long to
// end itself; after everything is measured and stored, so long to end the job.
static const double lost_grace_s = 15, kill_grace_s = 5, ended_grace_s = 60;

// A rank that waits for others to start says so after the same limit; it began a little later.
static const double start_grace_s = 15;

typedef struct {
    const ptb_plan *plan;
    const ptb_run_origin *origin;
    char **arguments; // of mpirun, with this program and its own
    ptb_job_status job;
    pid_t child; // mpirun, leader of its group
    int errors;  // what mpirun writes to standard error
    int output;  // and to standard output: it does not mind when that cannot be written, and we do
    int signals; // signalfd
    int interrupts;
    int64_t again_at_ns; // when the interrupt is passed on once more
    int64_t kill_at_ns;  // 0: not yet
    int64_t late_at_ns;  // when ranks that have not started are late; 0: never
    bool is_late;
    ptb_relay relay;
} launch;

// ---- starting

// Runs in the child between fork and exec.
static void become_mpirun(const launch *l, int errors, int output)
{
    sigset_t none;
    int nothing = open("/dev/null", O_RDONLY);
    setpgid(0, 0);
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    if (nothing >= 0)
        dup2(nothing, STDIN_FILENO);
    dup2(errors, STDERR_FILENO);
    dup2(output, STDOUT_FILENO);
    signal(SIGPIPE, SIG_DFL);
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    execv(l->arguments[0], l->arguments);
    dprintf(STDERR_FILENO, "ptbench: error: %s cannot be run: %s\n", l->arguments[0], strerror(errno));
    _exit(127);
}

static void set_number(const char *name, int value)
{
    char text[16];
    snprintf(text, sizeof text, "%d", value);
    setenv(name, text, 1);
}

// The environment is inherited by mpirun and the ranks on this host; -x carries it to others.
static void set_environment(const launch *l, int repetition)
{
    struct winsize size;
    setenv(PTB_ENV_UUID, l->origin->uuid, 1);
    set_number(PTB_ENV_REPETITION, repetition);
    setenv(PTB_ENV_STATUS, l->job.path, 1);
    ptb_text process = PTB_TEXT_INIT;
    ptb_process_append(&process);
    setenv(PTB_ENV_PROCESS, ptb_text_string(&process), 1);
    ptb_text_release(&process);
    if (l->origin->resume)
        setenv(PTB_ENV_RESUME, "1", 1);
    if (isatty(STDERR_FILENO))
        set_number(PTB_ENV_COLUMNS,
                   ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 80);
}

static ptb_status start(launch *l)
{
    int errors[2], output[2];
    fflush(NULL);
    if (pipe2(errors, O_CLOEXEC) != 0) {
        ptb_error("a pipe for mpirun cannot be made: %s", strerror(errno));
        return PTB_SYSTEM;
    }
    if (pipe2(output, O_CLOEXEC) != 0) {
        ptb_error("a pipe for mpirun cannot be made: %s", strerror(errno));
        close(errors[0]);
        close(errors[1]);
        return PTB_SYSTEM;
    }
    l->child = fork();
    if (l->child == 0)
        become_mpirun(l, errors[1], output[1]);
    close(errors[1]);
    close(output[1]);
    if (l->child < 0) {
        ptb_error("mpirun cannot be started: %s", strerror(errno));
        close(errors[0]);
        close(output[0]);
        return PTB_SYSTEM;
    }
    setpgid(l->child, l->child); // in both processes, whichever comes first
    l->errors = errors[0];
    l->output = output[0];
    return PTB_OK;
}

// ---- looking after it

static void write_all(const ptb_text *text)
{
    const char *at = ptb_text_string(text);
    for (size_t left = text->length; left > 0;) {
        ssize_t wrote = write(STDERR_FILENO, at, left);
        if (wrote < 0 && errno != EINTR)
            return;
        at += wrote > 0 ? wrote : 0;
        left -= wrote > 0 ? (size_t)wrote : 0;
    }
}

// False at the end of the stream.
static bool pass_errors_on(launch *l)
{
    char bytes[4096];
    ssize_t count = read(l->errors, bytes, sizeof bytes);
    if (count < 0 && errno == EINTR)
        return true;
    ptb_text out = PTB_TEXT_INIT;
    if (count > 0)
        ptb_relay_feed(&l->relay, bytes, (size_t)count, &out);
    else
        ptb_relay_end(&l->relay, &out);
    write_all(&out);
    ptb_text_release(&out);
    return count > 0;
}

// False at the end of the stream. What goes wrong is told when the program closes its output.
static bool pass_output_on(const launch *l)
{
    char bytes[4096];
    ssize_t count = read(l->output, bytes, sizeof bytes);
    if (count > 0) {
        fwrite(bytes, 1, (size_t)count, stdout);
        fflush(stdout);
    }
    return count > 0 || (count < 0 && errno == EINTR);
}

static void kill_later(launch *l, double seconds)
{
    int64_t at_ns = ptb_clock_ns() + (int64_t)(seconds * 1e9);
    if (!l->kill_at_ns || at_ns < l->kill_at_ns)
        l->kill_at_ns = at_ns;
}

static void take_signal(launch *l)
{
    struct signalfd_siginfo info;
    if (read(l->signals, &info, sizeof info) != sizeof info || info.ssi_signo == SIGCHLD)
        return;
    if (++l->interrupts == 1) {
        ptb_info("stopping: the case in flight is dropped, finished ones are kept; once more to kill");
        return;
    }
    ptb_warn("killing all ranks");
    kill(-l->child, SIGTERM);
    kill_later(l, kill_grace_s);
}

// Again and again, since mpirun drops what it gets before all ranks are there; the ranks do not mind.
static void pass_interrupt_on(launch *l)
{
    int64_t now_ns = ptb_clock_ns();
    if (l->interrupts != 1 || now_ns < l->again_at_ns)
        return;
    kill(l->child, SIGUSR1);
    l->again_at_ns = now_ns + 1000000000;
}

// mpirun itself may hang before it has started a rank, or after all have failed. Ranks that run are watched
// by themselves, and may be on hosts that only mpirun knows of.
static void look_for_late_start(launch *l)
{
    int code;
    if (l->is_late || !l->late_at_ns || ptb_clock_ns() < l->late_at_ns ||
        ptb_job_status_read(&l->job, &code) != PTB_JOB_NOT_STARTED || ptb_process_has_children(l->child))
        return;
    l->is_late = true;
    ptb_error(
        "mpirun has not brought the ranks up within %.0f s and is ended; what it said is above. Usual "
        "causes: no room in TMPDIR or /tmp, a low limit on open files (ulimit -n), a host that does not "
        "answer. `ptbench doctor` looks for more; --timeout changes the limit",
        ptb_plan_start_limit_s(l->plan) + start_grace_s);
    kill(-l->child, SIGTERM);
    kill_later(l, kill_grace_s);
}

// Until mpirun has ended. Returns its wait status.
static int look_after(launch *l)
{
    int status = 0, code;
    bool reading = true, writing = true;
    for (;;) {
        struct pollfd events[] = {{.fd = l->signals, .events = POLLIN},
                                  {.fd = reading ? l->errors : -1, .events = POLLIN},
                                  {.fd = writing ? l->output : -1, .events = POLLIN}};
        poll(events, 3, 200);
        if (events[0].revents)
            take_signal(l);
        pass_interrupt_on(l);
        if (reading && events[1].revents)
            reading = pass_errors_on(l);
        if (writing && events[2].revents)
            writing = pass_output_on(l);
        look_for_late_start(l);
        if (l->relay.lost_rank >= 0)
            kill_later(l, lost_grace_s);
        if (ptb_job_status_read(&l->job, &code) == PTB_JOB_ENDED)
            kill_later(l, ended_grace_s);
        if (l->kill_at_ns && ptb_clock_ns() >= l->kill_at_ns)
            kill(-l->child, SIGKILL);
        if (waitpid(l->child, &status, WNOHANG) == l->child)
            break;
    }
    // What was still in the pipes; a rank that outlives mpirun for a moment may hold them open.
    struct pollfd rest = {.fd = l->errors, .events = POLLIN}, written = {.fd = l->output, .events = POLLIN};
    while (reading && poll(&rest, 1, 500) == 1)
        reading = pass_errors_on(l);
    while (writing && poll(&written, 1, 500) == 1)
        writing = pass_output_on(l);
    ptb_text out = PTB_TEXT_INIT;
    ptb_relay_end(&l->relay, &out);
    write_all(&out);
    ptb_text_release(&out);
    close(l->errors);
    close(l->output);
    return status;
}

// ---- what came of it

static ptb_status status_of_code(int code)
{
    static const ptb_status statuses[] = {PTB_OK,         PTB_WRONG, PTB_USAGE, PTB_UNSUPPORTED,
                                          PTB_NO_VERDICT, PTB_LOST,  PTB_STORE};
    return code >= 0 && code < (int)(sizeof statuses / sizeof *statuses) ? statuses[code] : PTB_LOST;
}

static bool starts_elsewhere(const ptb_run_options *run)
{
    return (run->hosts && *run->hosts) || (run->hostfile && *run->hostfile);
}

// Rank 0 may not have had the time: a run that is still "running" gets its end. False: the database knows
// nothing of this run.
static bool end_stored_run(const launch *l, const char *path, const char *state, const char *reason)
{
    ptb_store *store = NULL;
    ptb_table *table = NULL;
    bool is_stored = false, is_running = false;
    int64_t run = 0;
    if (access(path, R_OK | W_OK) != 0 || ptb_store_open(path, PTB_STORE_READ, &store) != PTB_OK)
        return false;
    const char *const args[] = {l->origin->uuid};
    if (ptb_store_query(store, "SELECT id, state = 'running' FROM run WHERE uuid = ?1", args, 1, &table) ==
        PTB_OK) {
        is_stored = table->rows == 1;
        run = is_stored ? (int64_t)ptb_table_number(table, 0, 0) : 0;
        is_running = is_stored && ptb_table_number(table, 0, 1) != 0;
        ptb_table_free(table);
    }
    ptb_store_close(store);
    if (is_running && ptb_store_open(path, PTB_STORE_WRITE, &store) == PTB_OK) {
        ptb_store_finish_run(store, run, state, reason);
        ptb_store_close(store);
    }
    return is_stored;
}

// Silent where there is no database, or none that can be read: the ranks have said so, or had not come so
// far.
static bool mark_run(const launch *l, const char *state, const char *reason)
{
    ptb_log_set_level((ptb_log_level)-1);
    bool is_stored = end_stored_run(l, ptb_command_database(l->plan->run.db), state, reason);
    ptb_log_set_level(PTB_LOG_INFO);
    return is_stored;
}

static void say_how_to_resume(const launch *l)
{
    const char *db = l->plan->run.db;
    ptb_info("finished cases are in %s. To run only what is missing: ptbench run --resume %.8s%s%s",
             ptb_command_database(db), l->origin->uuid, db && *db ? " --db " : "", db && *db ? db : "");
}

// The signal that ended a rank where mpirun does not say which: its exit code is then that of a shell. Else
// 0.
static int signal_of_some_rank(int wait_status)
{
    int code = WIFEXITED(wait_status) ? WEXITSTATUS(wait_status) : 0;
    return code > 128 && code - 128 < NSIG ? code - 128 : 0;
}

static ptb_status report_loss(launch *l, int wait_status)
{
    char reason[256];
    const ptb_relay *relay = &l->relay;
    if (l->is_late)
        snprintf(reason, sizeof reason, "the ranks did not start");
    else if (relay->lost_rank >= 0 && relay->lost_signal)
        snprintf(reason, sizeof reason, "rank %d%s%s was ended by signal %d (%s)", relay->lost_rank,
                 *relay->lost_host ? " on " : "", relay->lost_host, relay->lost_signal,
                 strsignal(relay->lost_signal));
    else if (relay->lost_rank >= 0)
        snprintf(reason, sizeof reason, "rank %d%s%s ended early", relay->lost_rank,
                 *relay->lost_host ? " on " : "", relay->lost_host);
    else if (signal_of_some_rank(wait_status))
        snprintf(reason, sizeof reason, "a rank was ended by signal %d (%s)",
                 signal_of_some_rank(wait_status), strsignal(signal_of_some_rank(wait_status)));
    else if (WIFSIGNALED(wait_status))
        snprintf(reason, sizeof reason, "mpirun was ended by signal %d (%s)", WTERMSIG(wait_status),
                 strsignal(WTERMSIG(wait_status)));
    else
        snprintf(reason, sizeof reason, "the ranks ended early with exit code %d", WEXITSTATUS(wait_status));
    bool interrupted = l->interrupts > 0;
    if (!interrupted && !l->is_late)
        ptb_error("%s; the other ranks were stopped", reason);
    if (l->plan->run.dry_run)
        ;
    else if (mark_run(l, interrupted ? "interrupted" : "failed", interrupted ? "stopped on request" : reason))
        say_how_to_resume(l);
    else
        ptb_info("nothing of this run is in %s on this host", ptb_command_database(l->plan->run.db));
    return interrupted ? PTB_INTERRUPTED : PTB_LOST;
}

static ptb_status judge(launch *l, int wait_status)
{
    int code = 0;
    ptb_job_state state = ptb_job_status_read(&l->job, &code);
    bool exited = WIFEXITED(wait_status);
    if (state == PTB_JOB_ENDED) {
        ptb_status status = status_of_code(code);
        // Results are stored by then; but a program that breaks while it ends is broken.
        if (status == PTB_OK && !(exited && WEXITSTATUS(wait_status) == 0) && !l->interrupts) {
            ptb_error("the ranks were done, but then ended badly (%s %d); the results are stored",
                      exited ? "exit code" : "signal",
                      exited ? WEXITSTATUS(wait_status) : WTERMSIG(wait_status));
            return PTB_INTERNAL;
        }
        return status == PTB_LOST && l->interrupts ? PTB_INTERRUPTED : status;
    }
    bool elsewhere = starts_elsewhere(&l->plan->run);
    // Rank 0 of another host cannot write the file. mpirun passes its exit code on; it has codes of its own,
    // but then no rank has said anything.
    if (state == PTB_JOB_NOT_STARTED && elsewhere && exited && WEXITSTATUS(wait_status) <= 6 &&
        l->relay.lost_rank < 0 && (l->relay.ranks_spoke || WEXITSTATUS(wait_status) == 0))
        return status_of_code(WEXITSTATUS(wait_status));
    // A rank may be killed before it has started; one that waited in vain for it has said so, and ended with
    // the code of a hang.
    bool hung = exited && l->relay.ranks_spoke && WEXITSTATUS(wait_status) == ptb_status_exit_code(PTB_LOST);
    bool lost = hung || l->is_late || l->relay.lost_rank >= 0 || signal_of_some_rank(wait_status);
    if (state == PTB_JOB_NOT_STARTED && exited && !lost && !l->interrupts) {
        ptb_error("mpirun ended with exit code %d before the ranks had started; its message is above. "
                  "`ptbench doctor` "
                  "looks for the cause",
                  WEXITSTATUS(wait_status));
        return PTB_UNSUPPORTED;
    }
    return report_loss(l, wait_status);
}

// ---- a run

int ptb_launch_cores(void)
{
    ptb_topology topology;
    int cpus = ptb_topology_allowed_cpus(), quota = ptb_topology_cgroup_cpus();
    // Hardware threads of one core share what is measured: one rank a core.
    if (ptb_topology_read(&topology) == PTB_OK && topology.threads > topology.cores && topology.cores > 0)
        cpus = cpus * topology.cores / topology.threads;
    if (quota > 0 && quota < cpus)
        cpus = quota;
    return cpus > 0 ? cpus : 1;
}

ptb_status ptb_launch_program(char *out, size_t out_size)
{
    const char *given = getenv("PTBENCH_PROGRAM");
    if (given && *given) {
        snprintf(out, out_size, "%s", given);
        return PTB_OK;
    }
    ssize_t length = readlink("/proc/self/exe", out, out_size - 1);
    if (length <= 0) {
        ptb_error("/proc/self/exe cannot be read: %s", strerror(errno));
        return PTB_SYSTEM;
    }
    out[length] = '\0';
    return PTB_OK;
}

static ptb_status append_program(launch *l)
{
    char program[PATH_MAX];
    size_t count = 0, own = (size_t)(l->origin->argc - l->origin->first);
    PTB_TRY(ptb_launch_program(program, sizeof program));
    while (l->arguments[count])
        count++;
    char **larger = realloc(l->arguments, (count + own + 3) * sizeof *larger);
    if (!larger)
        return PTB_NO_MEMORY;
    l->arguments = larger;
    l->arguments[count++] = strdup(program);
    l->arguments[count++] = strdup("run");
    for (size_t i = 0; i < own; i++)
        l->arguments[count++] = strdup(l->origin->argv[(size_t)l->origin->first + i]);
    l->arguments[count] = NULL;
    return PTB_OK;
}

// One rank for each GPU where GPUs are measured, else for each core.
static int default_ranks(const ptb_plan *plan, int cores)
{
    const char *device = ptb_plan_device(plan);
    int count = device ? ptb_device_count(device) : 0;
    return count > 0 ? count : cores;
}

static ptb_status prepare(launch *l)
{
    char mpirun[PATH_MAX], how[512];
    const ptb_run_options *run = &l->plan->run;
    if (!ptb_launch_find_mpirun(mpirun, sizeof mpirun)) {
        ptb_error("there is no mpirun on PATH. Install Open MPI: `apt-get install openmpi-bin` on Debian and "
                  "Ubuntu, "
                  "`dnf install openmpi` (then `module load mpi`) on RHEL and Fedora; or start the ranks "
                  "through srun");
        return PTB_UNSUPPORTED;
    }
    int cores = ptb_launch_cores();
    bool elsewhere = starts_elsewhere(run);
    int np = run->np ? (int)run->np : elsewhere ? 0 : default_ranks(l->plan, cores);
    int threads = ptb_plan_most_threads(l->plan);
    PTB_TRY(ptb_launch_arguments(run, mpirun, np, threads, cores, &l->arguments, how, sizeof how));
    setenv(PTB_ENV_LAUNCHER, how, 1);
    PTB_TRY(append_program(l));
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGINT);
    sigaddset(&set, SIGTERM);
    sigaddset(&set, SIGHUP);
    sigaddset(&set, SIGCHLD);
    sigprocmask(SIG_BLOCK, &set, NULL);
    l->signals = signalfd(-1, &set, SFD_CLOEXEC);
    if (l->signals < 0) {
        ptb_error("signals cannot be watched: %s", strerror(errno));
        return PTB_SYSTEM;
    }
    return ptb_job_status_new(&l->job);
}

static ptb_status run_once(launch *l, int repetition)
{
    ptb_job_status_clear(&l->job);
    set_environment(l, repetition);
    ptb_relay_init(&l->relay);
    // Only ranks of this host can be seen to have started.
    const ptb_run_options *run = &l->plan->run;
    bool is_here = !starts_elsewhere(run) && !(run->mpirun_args && *run->mpirun_args);
    double limit_s = is_here ? ptb_plan_start_limit_s(l->plan) : 0;
    l->kill_at_ns = 0;
    l->late_at_ns = limit_s > 0 ? ptb_clock_ns() + (int64_t)((limit_s + start_grace_s) * 1e9) : 0;
    ptb_status status = start(l);
    if (status == PTB_OK)
        status = judge(l, look_after(l));
    ptb_relay_release(&l->relay);
    return status;
}

ptb_status ptb_launch(const ptb_plan *plan, const ptb_run_origin *origin)
{
    launch l = {.plan = plan, .origin = origin, .signals = -1, .job = {.file = -1}};
    ptb_status status = prepare(&l);
    int64_t repeats = plan->run.dry_run ? 1 : plan->run.repeat;
    for (int64_t r = 0; r < repeats && status == PTB_OK; r++) {
        status = run_once(&l, (int)r);
        if (status == PTB_OK && l.interrupts && r + 1 < repeats) { // too late for that repetition
            mark_run(&l, "interrupted", "stopped on request");
            say_how_to_resume(&l);
            status = PTB_INTERRUPTED;
        }
    }
    ptb_job_status_release(&l.job);
    if (l.signals >= 0)
        close(l.signals);
    ptb_launch_free_arguments(l.arguments);
    return status;
}
