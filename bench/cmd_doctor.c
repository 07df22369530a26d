// `ptbench doctor`: what of this machine spoils or prevents measurements, and what to do. To add a check, add
// a function and a row of `checks`, or a check to a part of the machine (core/machine.h).
#include "bench/build_info.h"
#include "bench/command.h"
#include "bench/launch.h"
#include "collectives/world.h"
#include "core/log.h"
#include "core/machine.h"
#include "core/topology.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statvfs.h>
#include <sys/vfs.h>
#include <sys/wait.h>
#include <unistd.h>

typedef struct {
    char *db;
} doctor_config;

static const ptb_opt opts[] = {
    {.name = "db",
     .type = PTB_OPT_STRING,
     .offset = offsetof(doctor_config, db),
     .metavar = "FILE",
     .help = "Results database whose folder is looked at. Default: PTBENCH_DB, else ptbench.db in the "
             "current folder"},
};

typedef struct {
    ptb_topology topology;
    const char *database;
    char mpirun[PATH_MAX], mpi_version[128];
    ptb_text said; // what a check found, and what to do
} doctor;

#define SAY(d, ...) ptb_text_printf(&(d)->said, __VA_ARGS__)

static ptb_health check_mpirun(doctor *d)
{
    if (!ptb_launch_find_mpirun(d->mpirun, sizeof d->mpirun)) {
        d->mpirun[0] = '\0';
        SAY(d, "there is no mpirun on PATH. Debian, Ubuntu: apt-get install openmpi-bin; RHEL, Fedora: dnf "
               "install openmpi, "
               "then module load mpi");
        return PTB_HEALTH_BROKEN;
    }
    ptb_launch_mpirun_version(d->mpirun, d->mpi_version, sizeof d->mpi_version);
    SAY(d, "%s, %s", d->mpirun, *d->mpi_version ? d->mpi_version : "of an unknown version");
    return strncmp(d->mpi_version, "Open MPI", 8) == 0 ? PTB_HEALTH_FINE : PTB_HEALTH_BROKEN;
}

// Runs a program without a shell, which would read its path, and returns its wait status, -1 when it cannot
// be started. `last` gets the last line that it writes.
static int run_program(char *const *arguments, char *last, size_t size)
{
    int ends[2];
    char line[512];
    if (pipe2(ends, O_CLOEXEC) != 0)
        return -1;
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
        dup2(ends[1], STDOUT_FILENO);
        dup2(ends[1], STDERR_FILENO);
        execv(arguments[0], arguments);
        dprintf(STDERR_FILENO, "%s cannot be run: %s\n", arguments[0], strerror(errno));
        _exit(127);
    }
    close(ends[1]);
    FILE *output = fdopen(ends[0], "r");
    while (child > 0 && output && fgets(line, sizeof line, output))
        if (line[0] != '\n')
            snprintf(last, size, "%s", line);
    last[strcspn(last, "\n")] = '\0';
    if (output)
        fclose(output);
    else
        close(ends[0]);
    int status = -1;
    while (child > 0 && waitpid(child, &status, 0) < 0 && errno == EINTR)
        ;
    return status;
}

// Two ranks of this very program that plan one case: start-up, shared memory and the way back all have to
// work.
static ptb_health check_launch(doctor *d)
{
    char program[PATH_MAX], last[512] = "";
    if (!*d->mpirun || ptb_launch_program(program, sizeof program) != PTB_OK) {
        SAY(d, "not tried: there is no mpirun");
        return PTB_HEALTH_BROKEN;
    }
    char *const arguments[] = {program, "run", "barrier", "--np", "2", "--dry-run", NULL};
    int code = run_program(arguments, last, sizeof last);
    if (code == 0) {
        SAY(d, "2 ranks start and find each other");
        return PTB_HEALTH_FINE;
    }
    SAY(d, "2 ranks do not start: %s. See what `mpirun -n 2 hostname` says", *last ? last : "no message");
    return PTB_HEALTH_BROKEN;
}

static ptb_health check_cores(doctor *d)
{
    const ptb_topology *t = &d->topology;
    int quota = ptb_topology_cgroup_cpus();
    if (quota && quota < t->allowed_cpus) {
        SAY(d,
            "%d processors may be used (%s), but the control group grants only %d of their time; ranks "
            "beyond that are "
            "stopped now and then. Raise the quota (cpu.max) or run with --np %d",
            t->allowed_cpus, t->binding, quota, quota);
        return PTB_HEALTH_WARNING;
    }
    if (t->allowed_cpus < t->threads) {
        SAY(d, "%d of %d processors may be used (%s): affinity mask or cpuset of this shell", t->allowed_cpus,
            t->threads, t->binding);
        return PTB_HEALTH_WARNING;
    }
    SAY(d, "%s: %d cores, %d hardware threads, %d NUMA nodes%s; all may be used", t->cpu_model, t->cores,
        t->threads, t->numa_nodes, t->virtual_machine ? ", virtual machine" : "");
    return PTB_HEALTH_FINE;
}

static ptb_health check_binding(doctor *d)
{
    SAY(d, "ranks are bound to a core each up to --np %d, and not bound beyond", ptb_launch_cores());
    return PTB_HEALTH_FINE;
}

static ptb_health check_huge_pages(doctor *d)
{
    const ptb_topology *t = &d->topology;
    if (strcmp(t->thp, "never") == 0 || strcmp(t->thp, "unknown") == 0 || !*t->thp) {
        SAY(d,
            "transparent huge pages: %s; large buffers then cost a fault every 4 KiB. As root: echo madvise "
            "> "
            "/sys/kernel/mm/transparent_hugepage/enabled",
            *t->thp ? t->thp : "unknown");
        return PTB_HEALTH_WARNING;
    }
    bool shared = strcmp(t->shmem_thp, "never") != 0 && strcmp(t->shmem_thp, "deny") != 0;
    if (!shared) {
        SAY(d,
            "transparent huge pages: %s, but %s for shared memory; shared buffers use 4 KiB pages. As root: "
            "echo advise > "
            "/sys/kernel/mm/transparent_hugepage/shmem_enabled",
            t->thp, t->shmem_thp);
        return PTB_HEALTH_WARNING;
    }
    SAY(d, "transparent huge pages: %s, for shared memory: %s", t->thp, t->shmem_thp);
    return PTB_HEALTH_FINE;
}

static ptb_health check_shared_memory(doctor *d)
{
    struct statvfs info;
    if (statvfs("/dev/shm", &info) != 0) {
        SAY(d, "/dev/shm: %s; ranks of one host meet there. Mount a tmpfs on it", strerror(errno));
        return PTB_HEALTH_BROKEN;
    }
    double free_mib = (double)info.f_bavail * (double)info.f_frsize / 1048576;
    SAY(d, "/dev/shm has %.0f MiB free%s", free_mib,
        free_mib < 1024 ? "; large messages need twice their size for each rank. Containers: --shm-size=4g"
                        : "");
    return free_mib < 1024 ? PTB_HEALTH_WARNING : PTB_HEALTH_FINE;
}

static ptb_health check_governor(doctor *d)
{
    const char *governor = d->topology.governor;
    bool known = *governor && strcmp(governor, "unknown") != 0;
    if (!known) {
        SAY(d, "the frequency governor cannot be seen (usual in virtual machines)");
        return PTB_HEALTH_FINE;
    }
    bool good = strcmp(governor, "performance") == 0;
    SAY(d, "frequency governor: %s%s", governor,
        good ? "" : "; clocks vary with load. As root: cpupower frequency-set -g performance");
    return good ? PTB_HEALTH_FINE : PTB_HEALTH_WARNING;
}

// The file system types that matter here (linux/magic.h and the sources of each).
static const char *network_file_system(long type)
{
    switch ((unsigned long)type) {
    case 0x6969:
        return "NFS";
    case 0x0bd00bd0:
        return "Lustre";
    case 0xff534d42:
    case 0xfe534d42:
        return "SMB";
    case 0x47504653:
        return "GPFS";
    case 0x19830326:
        return "BeeGFS";
    case 0x00c36400:
        return "Ceph";
    default:
        return NULL;
    }
}

static ptb_health check_database(doctor *d)
{
    char folder[PATH_MAX];
    snprintf(folder, sizeof folder, "%s", d->database);
    char *slash = strrchr(folder, '/');
    if (!slash)
        snprintf(folder, sizeof folder, ".");
    else
        slash[slash == folder] = '\0';
    if (access(folder, W_OK | X_OK) != 0) {
        SAY(d, "folder %s of %s cannot be written: %s; name another with --db or PTBENCH_DB", folder,
            d->database, strerror(errno));
        return PTB_HEALTH_BROKEN;
    }
    if (access(d->database, F_OK) == 0 && access(d->database, W_OK) != 0) {
        SAY(d, "%s cannot be written: %s", d->database, strerror(errno));
        return PTB_HEALTH_BROKEN;
    }
    struct statfs info;
    const char *network = statfs(folder, &info) == 0 ? network_file_system((long)info.f_type) : NULL;
    if (network) {
        SAY(d,
            "%s is on %s, where SQLite's locks and shared memory are not reliable; put it on a local disk "
            "(--db /tmp/...)",
            d->database, network);
        return PTB_HEALTH_WARNING;
    }
    SAY(d, "%s can be written, on a local file system", d->database);
    return PTB_HEALTH_FINE;
}

static ptb_health check_gnuplot(doctor *d)
{
    FILE *pipe = popen("gnuplot --version 2>/dev/null", "re");
    char line[128] = "";
    if (pipe && !fgets(line, sizeof line, pipe))
        line[0] = '\0';
    int code = pipe ? pclose(pipe) : -1;
    line[strcspn(line, "\n")] = '\0';
    if (code == 0 && *line) {
        SAY(d, "%s", line);
        return PTB_HEALTH_FINE;
    }
    SAY(d, "there is no gnuplot; `ptbench report` needs it. Debian, Ubuntu: apt-get install gnuplot-nox; "
           "RHEL: dnf install "
           "gnuplot");
    return PTB_HEALTH_WARNING;
}

// Settings that change what is measured without anybody thinking of them.
static ptb_health check_environment(doctor *d)
{
    static const struct {
        const char *name, *why;
    } traps[] = {
        {"OPENBLAS_CORETYPE", "forces OpenBLAS to the kernels of another processor and may halve its speed"},
        {"MKL_DEBUG_CPU_TYPE", "forces MKL to the kernels of another processor"},
        {"ONEDNN_MAX_CPU_ISA", "keeps oneDNN from this processor's best instructions"},
        {"DNNL_MAX_CPU_ISA", "keeps oneDNN from this processor's best instructions"},
        {"DNNL_VERBOSE", "makes oneDNN print within timed code"},
        {"ONEDNN_VERBOSE", "makes oneDNN print within timed code"},
        {"LD_PRELOAD", "puts another library between the program and the system"},
        {"OMPI_MCA_coll_tuned_use_dynamic_rules", "changes the MPI library's choice of algorithms"},
        {"OMPI_MCA_btl", "restricts the MPI library's transports"},
        {"OMPI_MCA_pml", "restricts the MPI library's transports"},
        {"MALLOC_CHECK_", "slows every allocation down"},
    };
    ptb_text found = PTB_TEXT_INIT;
    for (size_t i = 0; i < sizeof traps / sizeof *traps; i++) {
        const char *value = getenv(traps[i].name);
        if (value && *value)
            ptb_text_printf(&found, "%s%s=%s %s", found.length ? "; " : "", traps[i].name, value,
                            traps[i].why);
    }
    bool any = found.length > 0;
    SAY(d, "%s%s", any ? ptb_text_string(&found) : "no variable that is known to spoil measurements is set",
        any ? ". Unset unless meant" : "");
    ptb_text_release(&found);
    return any ? PTB_HEALTH_WARNING : PTB_HEALTH_FINE;
}

static ptb_health check_malloc(doctor *d)
{
    if (getenv("MALLOC_MMAP_MAX_")) {
        SAY(d, "malloc is set to keep large blocks (MALLOC_MMAP_MAX_=%s)", getenv("MALLOC_MMAP_MAX_"));
        return PTB_HEALTH_FINE;
    }
    SAY(d, "Open MPI's collectives allocate within each call; large blocks, those above 32 MiB always, glibc "
           "returns to the system every time, and each call "
           "pays for fresh pages. The mpi communicator's best at such sizes needs --mpirun-args \"-x "
           "MALLOC_MMAP_MAX_=0 -x "
           "MALLOC_TRIM_THRESHOLD_=8589934592 -x MALLOC_TOP_PAD_=268435456 -x "
           "GLIBC_TUNABLES=glibc.malloc.hugetlb=1\"");
    return PTB_HEALTH_WARNING;
}

// GPUs that this program was not built for. Those that it was built for speak for themselves.
static ptb_health check_gpu_build(doctor *d)
{
    bool has_driver = access("/dev/nvidiactl", F_OK) == 0;
    if (ptb_registry_find(PTB_KIND_DEVICE, "cuda")) {
        SAY(d, "built with GPU back-ends (PTB_GPU=%s)", ptb_build_gpu());
        return PTB_HEALTH_FINE;
    }
    SAY(d, "built without GPU back-ends%s",
        has_driver ? ", and this machine has NVIDIA GPUs; configure with -DPTB_GPU=cuda to use them" : "");
    return has_driver ? PTB_HEALTH_WARNING : PTB_HEALTH_FINE;
}

static const struct {
    const char *name;
    ptb_health (*check)(doctor *d);
} checks[] = {
    {"mpirun", check_mpirun},         {"launch", check_launch},
    {"processors", check_cores},      {"binding", check_binding},
    {"huge pages", check_huge_pages}, {"shared memory", check_shared_memory},
    {"governor", check_governor},     {"database", check_database},
    {"gnuplot", check_gnuplot},       {"environment", check_environment},
    {"malloc", check_malloc},         {"gpu build", check_gpu_build},
};

// A line; the number of things broken.
static int tell(ptb_health health, const char *name, doctor *d)
{
    static const char *const words[] = {
        [PTB_HEALTH_FINE] = "ok", [PTB_HEALTH_WARNING] = "warning", [PTB_HEALTH_BROKEN] = "broken"};
    printf("%-8s %-14s %s\n", words[health], name, ptb_text_string(&d->said));
    fflush(stdout);
    ptb_text_clear(&d->said);
    return health == PTB_HEALTH_BROKEN;
}

// What the parts of the machine say of themselves (core/machine.h).
static int check_parts(doctor *d)
{
    int broken = 0;
    for (size_t i = 0; i < ptb_registry_count(PTB_KIND_MACHINE_PART); i++) {
        const ptb_machine_part *part = (const ptb_machine_part *)ptb_registry_at(PTB_KIND_MACHINE_PART, i);
        if (part->check)
            broken += tell(part->check(&d->said), part->plugin.name, d);
    }
    return broken;
}

static ptb_status run(const ptb_command_env *env, const void *config, const char *const *words, size_t count)
{
    (void)env, (void)words, (void)count;
    doctor *d = calloc(1, sizeof *d);
    if (!d) {
        ptb_error("no memory");
        return PTB_NO_MEMORY;
    }
    d->database = ptb_command_database(((const doctor_config *)config)->db);
    ptb_status status = ptb_topology_read(&d->topology);
    int broken = 0;
    for (size_t i = 0; status == PTB_OK && i < sizeof checks / sizeof *checks; i++)
        broken += tell(checks[i].check(d), checks[i].name, d);
    if (status == PTB_OK)
        broken += check_parts(d);
    if (status == PTB_OK && broken) {
        ptb_error("%d of the checks above say broken: `ptbench run` will not work here before that is mended",
                  broken);
        status = PTB_UNSUPPORTED;
    }
    ptb_text_release(&d->said);
    free(d);
    return status;
}

static const ptb_command doctor_command = {
    .plugin = {"doctor", "look for what spoils or prevents measurements here, and say what to do"},
    .about = "Exit code 0 when `ptbench run` can work here (warnings or not), 3 when it cannot.",
    .opts = opts,
    .opt_count = sizeof opts / sizeof opts[0],
    .config_size = sizeof(doctor_config),
    .run = run,
};
PTB_REGISTER(PTB_KIND_COMMAND, doctor_command);
