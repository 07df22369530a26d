// See waiting.h: sched_getaffinity(2), /proc/PID/environ and /proc/PID/stat (proc(5)), execve(2).
#include "bench/waiting.h"

#include "bench/launch.h"
#include "core/log.h"
#include "core/topology.h"
#include "strategies/crowd.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

extern char **environ;

enum { MOST_PROGRAMS_BETWEEN = 16 }; // scripts and the like that start one another, from launcher to rank
// The second start knows that it is one, should something between take the policy out of the environment.
#define AGAIN "PTBENCH_AGAIN"
static char passive[] = "OMP_WAIT_POLICY=passive", again[] = AGAIN "=1";

static int64_t smaller(int cpus, int quota)
{
    return quota > 0 && quota < cpus ? quota : cpus;
}

bool ptb_waiting_is_crowded(const ptb_waiting_place *p)
{
    int64_t ranks = p->local_ranks > 1 ? p->local_ranks : 1;
    return p->threads > smaller(p->own_cpus, p->quota) ||
           ranks * p->threads > smaller(p->host_cpus, p->quota);
}

// Whether a process was started with the variable in its environment; not where that is hidden from us.
static bool has_variable(int pid, const char *name)
{
    char path[64], *entry = NULL;
    size_t room = 0, length = strlen(name);
    bool found = false;
    snprintf(path, sizeof path, "/proc/%d/environ", pid);
    FILE *file = fopen(path, "re");
    while (file && !found && getdelim(&entry, &room, '\0', file) > 0)
        found = strncmp(entry, name, length) == 0 && entry[length] == '=';
    free(entry);
    if (file)
        fclose(file);
    return found;
}

// 0: unknown. "PID (name) STATE PARENT ..."; the name may hold anything.
static int parent_of(int pid)
{
    char path[64], text[512];
    int parent = 0;
    snprintf(path, sizeof path, "/proc/%d/stat", pid);
    FILE *file = fopen(path, "re");
    size_t got = file ? fread(text, 1, sizeof text - 1, file) : 0;
    text[got] = '\0';
    const char *end = strrchr(text, ')');
    if (file)
        fclose(file);
    return end && sscanf(end, ") %*c %d", &parent) == 1 ? parent : 0;
}

// What a launcher starts inherits its mask, unless it binds the ranks; and they may start through scripts.
int ptb_waiting_launcher_cpus(const char *mark)
{
    int pid = (int)getppid();
    for (int i = 0; i < MOST_PROGRAMS_BETWEEN && pid > 0; i++) {
        if (!has_variable(pid, mark))
            return ptb_topology_allowed_cpus_of(pid);
        pid = parent_of(pid);
    }
    return 0;
}

char **ptb_waiting_remember(void)
{
    size_t count = 0;
    while (environ[count])
        count++;
    char **copy = calloc(count + 3, sizeof *copy); // two more variables, and the end
    if (copy)
        memcpy(copy, environ, count * sizeof *copy);
    return copy;
}

static void start_again(char **argv, char **environment)
{
    char program[PATH_MAX];
    size_t count = 0;
    if (!environment || ptb_launch_program(program, sizeof program) != PTB_OK)
        return;
    while (environment[count])
        count++;
    environment[count] = passive;
    environment[count + 1] = again;
    fflush(NULL);
    execve(program, argv, environment);
    ptb_warn("%s cannot be started again: %s", program, strerror(errno));
}

bool ptb_waiting_settle(const ptb_launcher *launcher, int threads, char **argv, char **remembered)
{
    int cpus = ptb_waiting_launcher_cpus(launcher->mark), online = (int)sysconf(_SC_NPROCESSORS_ONLN);
    const ptb_waiting_place place = {.threads = threads,
                                     .local_ranks = launcher->local_size,
                                     .own_cpus = ptb_topology_allowed_cpus(),
                                     .host_cpus = cpus > 0 ? cpus : online,
                                     .quota = ptb_topology_cgroup_cpus()};
    bool is_first = !getenv(AGAIN);
    unsetenv(AGAIN); // it would make equal environments differ
    if (!ptb_waiting_is_crowded(&place))
        return false;
    setenv("OMPI_MCA_mpi_yield_when_idle", "1", 0);
    if (is_first && threads > 1 && !getenv("OMP_WAIT_POLICY") && !getenv("GOMP_SPINCOUNT"))
        start_again(argv, remembered);
    if (threads > 1 && ptb_crowd_spins() && launcher->rank <= 0)
        ptb_warn(
            "ranks of %d threads have fewer processors than threads here, and OpenMP's threads spin where "
            "they wait, at the cost of others' turns: a step may take a hundred times as long. Unset "
            "GOMP_SPINCOUNT and set OMP_WAIT_POLICY=passive, or start fewer ranks or threads",
            threads);
    return true;
}
