// Launchers and transports as seen in the environment. To add a launcher, add a row to `launchers`.
#include "collectives/launcher.h"

#include "core/log.h"
#include "core/text.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
    const char *name;
    const char *rank;
    const char *sizes[3]; // the first that is set counts
    const char *local[2]; // so it does among these: the rank among those of this host
} launcher_row;

static const launcher_row launchers[] = {
    {"Open MPI", "OMPI_COMM_WORLD_RANK", {"OMPI_COMM_WORLD_SIZE"}, {"OMPI_COMM_WORLD_LOCAL_RANK"}},
    {"PMI", "PMI_RANK", {"PMI_SIZE", "SLURM_STEP_NUM_TASKS"}, {"MPI_LOCALRANKID", "SLURM_LOCALID"}},
    // PMIx puts only the rank into the environment; under Slurm the step knows the size.
    {"PMIx", "PMIX_RANK", {"SLURM_STEP_NUM_TASKS"}, {"SLURM_LOCALID"}},
    {"Slurm", "SLURM_PROCID", {"SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"}, {"SLURM_LOCALID"}},
};

static ptb_status read_number(const char *variable, int *value)
{
    int64_t number;
    const char *text = getenv(variable);
    if (!ptb_text_parse_int(text, &number) || number < 0 || number > INT_MAX) {
        ptb_error("the environment variable %s holds '%s', which is not a number of processes; unset it or "
                  "start the program through a working launcher",
                  variable, text);
        return PTB_USAGE;
    }
    *value = (int)number;
    return PTB_OK;
}

// Whether this process is a task of an srun. The shells of sbatch and of salloc carry the job's variables
// too: without a step, or as one of the special steps at the end of the 32-bit range (Slurm's batch and
// interactive steps, slurm.h: SLURM_BATCH_SCRIPT, SLURM_INTERACTIVE_STEP).
static bool in_slurm_step(void)
{
    const char *step = getenv("SLURM_STEP_ID");
    int64_t id;
    if (!step)
        step = getenv("SLURM_STEPID");
    return step && ptb_text_parse_int(step, &id) && id >= 0 && id < 0xfffffff0LL;
}

// Processes of a step on each of its nodes, as in "4" or "4(x2)"; 0 where they are not as many on all.
static int slurm_local_size(void)
{
    const char *text = in_slurm_step() ? getenv("SLURM_STEP_TASKS_PER_NODE") : NULL;
    char *end = NULL;
    long count = text ? strtol(text, &end, 10) : 0;
    bool is_alike = count > 0 && count <= INT_MAX && (!*end || (*end == '(' && !strchr(end, ',')));
    return is_alike ? (int)count : 0;
}

static ptb_status read_row(const launcher_row *row, ptb_launcher *out)
{
    ptb_launcher l = {
        .launched = true, .name = row->name, .size = 0, .rank = -1, .local_rank = -1, .mark = row->rank};
    bool slurm = strcmp(row->name, "Slurm") == 0, open_mpi = strcmp(row->name, "Open MPI") == 0;
    PTB_TRY(read_number(row->rank, &l.rank));
    for (int i = 0; i < 3 && row->sizes[i]; i++) {
        // A Slurm variable outside a step describes the job's allocation, not what was started.
        if (!getenv(row->sizes[i]) || (strncmp(row->sizes[i], "SLURM_", 6) == 0 && !in_slurm_step()))
            continue;
        PTB_TRY(read_number(row->sizes[i], &l.size));
        break;
    }
    for (int i = 0; i < 2 && row->local[i] && l.local_rank < 0; i++)
        if (getenv(row->local[i]) && (strncmp(row->local[i], "SLURM_", 6) != 0 || in_slurm_step()))
            PTB_TRY(read_number(row->local[i], &l.local_rank));
    if (getenv("OMPI_COMM_WORLD_LOCAL_SIZE") && open_mpi)
        PTB_TRY(read_number("OMPI_COMM_WORLD_LOCAL_SIZE", &l.local_size));
    l.one_host = l.size > 0 && l.local_size == l.size;
    if (!open_mpi) // an mpirun's daemons are Slurm's tasks
        l.local_size = slurm_local_size();
    // `srun --pty bash` also is a step of one task; whoever types in it has not launched anything yet.
    if (slurm && l.size <= 1)
        l = (ptb_launcher){.name = "", .rank = -1, .local_rank = -1};
    *out = l;
    return PTB_OK;
}

ptb_status ptb_launcher_detect(ptb_launcher *launcher)
{
    for (size_t i = 0; i < sizeof launchers / sizeof *launchers; i++) {
        const launcher_row *row = &launchers[i];
        if (!getenv(row->rank) || (strcmp(row->name, "Slurm") == 0 && !in_slurm_step()))
            continue;
        return read_row(row, launcher);
    }
    *launcher = (ptb_launcher){.name = "", .rank = -1, .local_rank = -1};
    return PTB_OK;
}

const char *const ptb_transport_names[] = {"shm", "tcp", "ucx", "mpi", "shm+mpi", NULL};

typedef struct {
    const char *transport, *variable, *value;
    bool keep; // a value that is there already is the user's refinement
} setting;

static ptb_status apply_setting(const setting *s)
{
    const char *old = getenv(s->variable);
    if (old && s->keep)
        return PTB_OK;
    if (old && strcmp(old, s->value) != 0)
        ptb_warn("--transport %s replaces %s=%s by %s", s->transport, s->variable, old, s->value);
    if (setenv(s->variable, s->value, 1) != 0) {
        ptb_error("cannot set %s in the environment: out of memory", s->variable);
        return PTB_NO_MEMORY;
    }
    return PTB_OK;
}

ptb_status ptb_transport_check(const char *transport)
{
    if (!transport || !*transport)
        return PTB_OK;
    for (size_t i = 0; ptb_transport_names[i]; i++)
        if (strcmp(ptb_transport_names[i], transport) == 0)
            return PTB_OK;
    char near[128];
    ptb_text_nearest(transport, ptb_transport_names, 5, near, sizeof near);
    ptb_error("there is no transport '%s'; did you mean %s?", transport, near);
    return PTB_USAGE;
}

ptb_status ptb_transport_apply(const char *transport)
{
    // Parameters of Open MPI 4 and 5 (5 knows vader as another name of its sm). `self` carries messages of a
    // rank to itself. UCX is refused by Open MPI where it finds no InfiniBand, unless any device will do.
    static const setting settings[] = {
        {"shm", "OMPI_MCA_pml", "ob1", false},
        {"shm", "OMPI_MCA_btl", "vader,self", false},
        {"tcp", "OMPI_MCA_pml", "ob1", false},
        {"tcp", "OMPI_MCA_btl", "tcp,self", false},
        {"ucx", "OMPI_MCA_pml", "ucx", false},
        {"ucx", "OMPI_MCA_opal_common_ucx_tls", "any", true},
        {"ucx", "OMPI_MCA_opal_common_ucx_devices", "any", true},
    };
    if (!transport || !*transport)
        return PTB_OK;
    PTB_TRY(ptb_transport_check(transport));
    // "mpi" and "shm+mpi" are `host` over whatever the library uses.
    for (size_t i = 0; i < sizeof settings / sizeof *settings; i++)
        if (strcmp(settings[i].transport, transport) == 0)
            PTB_TRY(apply_setting(&settings[i]));
    return PTB_OK;
}
