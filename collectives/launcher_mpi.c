// Whether the MPI library can join the job that a launcher started. Open MPI 4 ends the process inside
// MPI_Init, with an exit code that means a wrong result here, when srun started it and it cannot speak to
// Slurm; so this is found out before.
#include "collectives/world_mpi.h"

#include "core/log.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

// Whether the library has a component for Slurm's (or Cray's) PMI-1 or PMI-2: each has variables of its own.
static bool has_pmi(void)
{
    static const char *const prefixes[] = {"pmix_s1_", "pmix_s2_", "pmix_cray_"};
    int provided, count = 0;
    if (MPI_T_init_thread(MPI_THREAD_SINGLE, &provided) != MPI_SUCCESS ||
        MPI_T_cvar_get_num(&count) != MPI_SUCCESS)
        return true; // unknown: let it try
    for (int i = 0; i < count; i++) {
        char name[128];
        int length = sizeof name, no_text = 0, level, bind, scope;
        MPI_Datatype type;
        MPI_T_enum items;
        if (MPI_T_cvar_get_info(i, name, &length, &level, &type, &items, NULL, &no_text, &bind, &scope) !=
            MPI_SUCCESS)
            continue;
        for (size_t p = 0; p < sizeof prefixes / sizeof *prefixes; p++)
            if (strncmp(name, prefixes[p], strlen(prefixes[p])) == 0)
                return true;
    }
    return false;
}

// In a process of its own, since Open MPI 4 cannot be started any more once its variables were looked at.
static bool ask_for_pmi(void)
{
    pid_t child = fork();
    if (child < 0)
        return true;
    if (child == 0) {
        int nothing = open("/dev/null", O_WRONLY);
        dup2(nothing, STDOUT_FILENO);
        dup2(nothing, STDERR_FILENO);
        _exit(has_pmi() ? 0 : 1);
    }
    int status = 0;
    while (waitpid(child, &status, 0) < 0 && errno == EINTR)
        ;
    return !(WIFEXITED(status) && WEXITSTATUS(status) == 1);
}

ptb_status ptb_mpi_check_launcher(const ptb_launcher *launcher)
{
    bool pmi = strcmp(launcher->name, "PMI") == 0 && getenv("SLURM_STEPID");
    if (!pmi && strcmp(launcher->name, "Slurm") != 0)
        return PTB_OK;
    char library[MPI_MAX_LIBRARY_VERSION_STRING];
    int length = 0;
    MPI_Get_library_version(library, &length);
    library[strcspn(library, ",\n")] = 0;
    if (strncmp(library, "Open MPI v4", 11) != 0 || ask_for_pmi())
        return PTB_OK;
    if (launcher->rank <= 0)
        ptb_error(
            "srun started %d processes without PMIx, and the MPI library (%s) was built without Slurm's "
            "other interfaces: it cannot connect them. Start it with `srun --mpi=pmix` (`srun --mpi=list` "
            "shows what this Slurm has), or in a shell of salloc or sbatch as `ptbench run` without srun",
            launcher->size, library);
    return PTB_UNSUPPORTED;
}
