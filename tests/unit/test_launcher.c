// Launchers seen through fabricated environments, and the variables that choose a transport.
#include "bench/launch.h"
#include "bench/waiting.h"
#include "collectives/launcher.h"
#include "core/log.h"
#include "core/topology.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

typedef struct {
    const char *environment; // "A=1 B=2"
    bool launched;
    const char *name;
    int size, rank, local_rank;
} launch;

static void set_environment(const char *text)
{
    char copy[512];
    clearenv();
    strcpy(copy, text);
    for (char *word = strtok(copy, " "); word; word = strtok(NULL, " ")) {
        char *value = strchr(word, '=');
        *value = 0;
        setenv(word, value + 1, 1);
    }
}

static void detection(void **state)
{
    (void)state;
    static const launch cases[] = {
        {"HOME=/", false, "", 0, -1, -1},
        {"OMPI_COMM_WORLD_SIZE=4 OMPI_COMM_WORLD_RANK=3 OMPI_COMM_WORLD_LOCAL_RANK=1", true, "Open MPI", 4, 3,
         1},
        {"OMPI_COMM_WORLD_SIZE=1 OMPI_COMM_WORLD_RANK=0", true, "Open MPI", 1, 0, -1},
        // mpirun inside a Slurm job: the step is the one that carries mpirun's daemons, one a node.
        {"OMPI_COMM_WORLD_SIZE=8 OMPI_COMM_WORLD_RANK=5 PMIX_RANK=5 SLURM_STEP_ID=0 SLURM_PROCID=1 "
         "SLURM_STEP_NUM_TASKS=2 SLURM_LOCALID=0",
         true, "Open MPI", 8, 5, -1},
        {"PMI_SIZE=2 PMI_RANK=1 MPI_LOCALRANKID=1", true, "PMI", 2, 1, 1},
        {"PMI_RANK=1 SLURM_STEP_ID=3 SLURM_STEP_NUM_TASKS=6 SLURM_PROCID=1 SLURM_LOCALID=0", true, "PMI", 6,
         1, 0},
        {"PMIX_RANK=2", true, "PMIx", 0, 2, -1},
        {"PMIX_RANK=2 SLURM_STEP_ID=0 SLURM_STEP_NUM_TASKS=16 SLURM_PROCID=2 SLURM_LOCALID=2", true, "PMIx",
         16, 2, 2},
        // srun without an MPI interface.
        {"SLURM_JOB_ID=1 SLURM_STEP_ID=0 SLURM_PROCID=1 SLURM_LOCALID=0 SLURM_NTASKS=2 "
         "SLURM_STEP_NUM_TASKS=2",
         true, "Slurm", 2, 1, 0},
        {"SLURM_JOB_ID=1 SLURM_STEPID=0 SLURM_PROCID=1 SLURM_NTASKS=2", true, "Slurm", 2, 1, -1},
        // Shells: of sbatch, of salloc (with an interactive step), and of `srun --pty`.
        {"SLURM_JOB_ID=1 SLURM_PROCID=0 SLURM_LOCALID=0 SLURM_NTASKS=8", false, "", 0, -1, -1},
        {"SLURM_JOB_ID=1 SLURM_STEP_ID=4294967290 SLURM_PROCID=0 SLURM_NTASKS=8", false, "", 0, -1, -1},
        {"SLURM_JOB_ID=1 SLURM_STEP_ID=0 SLURM_PROCID=0 SLURM_LOCALID=0 SLURM_STEP_NUM_TASKS=1 "
         "SLURM_NTASKS=8",
         false, "", 0, -1, -1},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        ptb_launcher l;
        set_environment(cases[i].environment);
        assert_int_equal(ptb_launcher_detect(&l), PTB_OK);
        assert_int_equal(l.launched, cases[i].launched);
        assert_string_equal(l.name, cases[i].name);
        assert_int_equal(l.size, cases[i].size);
        assert_int_equal(l.rank, cases[i].rank);
        assert_int_equal(l.local_rank, cases[i].local_rank);
    }
}

static void nonsense(void **state)
{
    (void)state;
    ptb_launcher l = {.name = "untouched"};
    ptb_log_set_level(PTB_LOG_ERROR);
    set_environment("OMPI_COMM_WORLD_SIZE=many OMPI_COMM_WORLD_RANK=0");
    assert_int_equal(ptb_launcher_detect(&l), PTB_USAGE);
    set_environment("PMI_SIZE=2 PMI_RANK=-1");
    assert_int_equal(ptb_launcher_detect(&l), PTB_USAGE);
    assert_string_equal(l.name, "untouched");
}

static void transports(void **state)
{
    (void)state;
    set_environment("A=1");
    assert_int_equal(ptb_transport_apply(NULL), PTB_OK);
    assert_int_equal(ptb_transport_apply(""), PTB_OK);
    assert_null(getenv("OMPI_MCA_pml"));
    assert_int_equal(ptb_transport_apply("tcp"), PTB_OK);
    assert_string_equal(getenv("OMPI_MCA_pml"), "ob1");
    assert_string_equal(getenv("OMPI_MCA_btl"), "tcp,self");
    assert_int_equal(ptb_transport_apply("shm"), PTB_OK);
    assert_string_equal(getenv("OMPI_MCA_btl"), "vader,self");
    assert_int_equal(ptb_transport_apply("ucx"), PTB_OK);
    assert_string_equal(getenv("OMPI_MCA_pml"), "ucx");
    assert_string_equal(getenv("OMPI_MCA_opal_common_ucx_tls"), "any");
    set_environment("OMPI_MCA_opal_common_ucx_tls=rc,sm"); // a user's choice among UCX's transports stays
    assert_int_equal(ptb_transport_apply("ucx"), PTB_OK);
    assert_string_equal(getenv("OMPI_MCA_opal_common_ucx_tls"), "rc,sm");
    assert_int_equal(ptb_transport_apply("shm+mpi"), PTB_OK); // of the communicator host
    assert_int_equal(ptb_transport_apply("mpi"), PTB_OK);
    assert_int_equal(ptb_transport_apply("pigeon"), PTB_USAGE);
}

// Whether word `wanted` is in the command line for this many ranks and threads on 2 cores.
static bool command_has(int ranks, int threads, const char *wanted)
{
    const ptb_run_options run = {.bind = "auto"};
    char path[4096], how[256], **words;
    bool found = false;
    assert_true(ptb_launch_find_mpirun(path, sizeof path));
    assert_int_equal(ptb_launch_arguments(&run, path, ranks, threads, 2, &words, how, sizeof how), PTB_OK);
    for (size_t i = 0; words[i]; i++)
        found = found || strcmp(words[i], wanted) == 0;
    ptb_launch_free_arguments(words);
    return found;
}

// Where ranks and their threads are more than the cores, those that wait make room.
static void crowds(void **state)
{
    (void)state;
    char path[4096];
    assert_true(ptb_launch_find_mpirun(path, sizeof path));
    *strrchr(path, '/') = '\0';
    char environment[4200];
    snprintf(environment, sizeof environment, "PATH=%s", path);
    set_environment(environment);
    assert_false(command_has(2, 1, "mpi_yield_when_idle"));
    assert_true(command_has(4, 1, "mpi_yield_when_idle"));
    assert_true(command_has(2, 2, "mpi_yield_when_idle"));
}

static bool crowded(int threads, int local_ranks, int own_cpus, int host_cpus, int quota)
{
    const ptb_waiting_place place = {threads, local_ranks, own_cpus, host_cpus, quota};
    return ptb_waiting_is_crowded(&place);
}

static void waiting(void **state)
{
    (void)state;
    assert_false(crowded(1, 2, 2, 2, 0));
    assert_false(crowded(2, 1, 2, 2, 0));
    assert_true(crowded(2, 4, 2, 2, 0));
    assert_true(crowded(1, 4, 2, 2, 0));
    assert_false(crowded(8, 8, 8, 64, 0));  // each bound to processors of its own
    assert_true(crowded(8, 16, 32, 64, 0)); // to one socket or the other
    assert_true(crowded(2, 2, 1, 64, 0));   // to one core
    assert_true(crowded(4, 1, 8, 8, 2));
    assert_true(crowded(2, 2, 8, 8, 2));
    assert_false(crowded(2, 1, 8, 8, 2));
    assert_false(crowded(4, 0, 4, 64, 0)); // how many ranks there are is not known
    // The nearest process above that was not started as a rank.
    set_environment("A=1");
    assert_int_equal(ptb_waiting_launcher_cpus("PTB_NOBODY_HAS_THIS"),
                     ptb_topology_allowed_cpus_of(getppid()));
}

static void local_sizes(void **state)
{
    (void)state;
    static const struct {
        const char *environment;
        int local_size;
        const char *mark;
    } cases[] = {
        {"OMPI_COMM_WORLD_SIZE=4 OMPI_COMM_WORLD_RANK=3", 0, "OMPI_COMM_WORLD_RANK"},
        {"OMPI_COMM_WORLD_SIZE=4 OMPI_COMM_WORLD_LOCAL_SIZE=2 OMPI_COMM_WORLD_RANK=3 SLURM_STEP_ID=0 "
         "SLURM_STEP_TASKS_PER_NODE=1(x2)",
         2, "OMPI_COMM_WORLD_RANK"},
        {"PMIX_RANK=2 SLURM_STEP_ID=0 SLURM_STEP_NUM_TASKS=16 SLURM_STEP_TASKS_PER_NODE=8(x2)", 8,
         "PMIX_RANK"},
        {"PMIX_RANK=2 SLURM_STEP_ID=0 SLURM_STEP_NUM_TASKS=16 SLURM_STEP_TASKS_PER_NODE=16", 16, "PMIX_RANK"},
        {"PMIX_RANK=2 SLURM_STEP_ID=0 SLURM_STEP_NUM_TASKS=7 SLURM_STEP_TASKS_PER_NODE=3(x2),1", 0,
         "PMIX_RANK"},
        {"PMIX_RANK=2 SLURM_STEP_ID=0 SLURM_STEP_NUM_TASKS=7 SLURM_STEP_TASKS_PER_NODE=4,3", 0, "PMIX_RANK"},
        {"PMIX_RANK=2 SLURM_STEP_TASKS_PER_NODE=8(x2)", 0, "PMIX_RANK"}, // a shell's
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        ptb_launcher l;
        set_environment(cases[i].environment);
        assert_int_equal(ptb_launcher_detect(&l), PTB_OK);
        assert_int_equal(l.local_size, cases[i].local_size);
        assert_string_equal(l.mark, cases[i].mark);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(crowds), // first: it needs PATH, which the others clear
        cmocka_unit_test(waiting),  cmocka_unit_test(detection),  cmocka_unit_test(local_sizes),
        cmocka_unit_test(nonsense), cmocka_unit_test(transports),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
