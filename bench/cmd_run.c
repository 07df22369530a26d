// `ptbench run`: outside a launcher it starts itself under mpirun, inside one it is a rank.
#include "bench/command.h"
#include "bench/job_status.h"
#include "bench/launch.h"
#include "bench/resume.h"
#include "bench/session.h"
#include "bench/waiting.h"
#include "collectives/launcher.h"
#include "core/log.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <unistd.h>

// A version-4 UUID (RFC 4122, section 4.4).
static ptb_status make_uuid(char uuid[37])
{
    unsigned char b[16];
    if (getrandom(b, sizeof b, 0) != sizeof b) {
        ptb_error("no random numbers for the run's name: %s", strerror(errno));
        return PTB_SYSTEM;
    }
    b[6] = (unsigned char)((b[6] & 0x0f) | 0x40);
    b[8] = (unsigned char)((b[8] & 0x3f) | 0x80);
    snprintf(uuid, 37, "%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x", b[0], b[1],
             b[2], b[3], b[4], b[5], b[6], b[7], b[8], b[9], b[10], b[11], b[12], b[13], b[14], b[15]);
    return PTB_OK;
}

// What the launching process left in the environment; taken out of it, since it would make equal environments
// differ.
typedef struct {
    char uuid[37], launcher[512], job_status[96], process[512];
    int64_t repetition, columns;
    bool launched_by_us, resume, terminal;
} inherited;

static void take(const char *name, char *out, size_t size)
{
    const char *value = getenv(name);
    snprintf(out, size, "%s", value ? value : "");
    unsetenv(name);
}

static void take_inherited(inherited *from)
{
    char number[32];
    memset(from, 0, sizeof *from);
    take(PTB_ENV_UUID, from->uuid, sizeof from->uuid);
    take(PTB_ENV_LAUNCHER, from->launcher, sizeof from->launcher);
    take(PTB_ENV_PROCESS, from->process, sizeof from->process);
    take(PTB_ENV_STATUS, from->job_status, sizeof from->job_status);
    take(PTB_ENV_REPETITION, number, sizeof number);
    ptb_text_parse_int(number, &from->repetition);
    take(PTB_ENV_COLUMNS, number, sizeof number);
    from->terminal = ptb_text_parse_int(number, &from->columns);
    take(PTB_ENV_RESUME, number, sizeof number);
    from->resume = *number;
    from->launched_by_us = *from->uuid;
}

static ptb_status run_as_rank(const ptb_plan *plan, ptb_run_origin *origin, const ptb_launcher *launcher,
                              const inherited *from, bool crowded)
{
    char joined[64];
    if (!from->launched_by_us && plan->run.repeat > 1) {
        if (launcher->rank <= 0)
            ptb_error("--repeat needs ptbench to start the ranks itself, since each repetition is a fresh "
                      "set of processes; "
                      "under %s, start it several times",
                      launcher->name);
        return PTB_USAGE;
    }
    if (!from->launched_by_us && plan->run.np && launcher->size && plan->run.np != launcher->size &&
        launcher->rank <= 0)
        ptb_warn("--np %lld is ignored: %s has started %d ranks", (long long)plan->run.np, launcher->name,
                 launcher->size);
    // When the process that looks after this rank dies, the rank must not stay behind.
    if (from->launched_by_us)
        prctl(PR_SET_PDEATHSIG, SIGKILL);
    origin->repetition = (int)from->repetition;
    origin->terminal = from->terminal;
    origin->columns = (int)from->columns;
    snprintf(joined, sizeof joined, "%s%s", launcher->name, crowded ? ", oversubscribed" : "");
    origin->launcher = *from->launcher ? from->launcher : joined;
    origin->launcher_process = from->process;
    origin->job_status = launcher->rank == 0 ? from->job_status : "";
    return ptb_session_run(plan, origin);
}

// Replaces the command line by that of the stored run when --resume is given.
static ptb_status take_up(ptb_run_origin *origin, const char *word, char uuid[37], char ***owned)
{
    ptb_run_options run;
    ptb_status status = ptb_run_options_parse(origin->argc, origin->argv, origin->first, &run);
    if (status != PTB_OK) {
        ptb_info(
            "--resume takes what is measured, and how, from the stored run; beside it only options of the "
            "run itself can be given, such as --db and --hosts (`ptbench help run`, the first list)");
        return status;
    }
    char stored[37];
    status = ptb_resume_arguments(ptb_command_database(run.db), word, origin->argc, origin->argv,
                                  origin->first, stored, &origin->argc, owned);
    ptb_run_options_release(&run);
    if (status != PTB_OK)
        return status;
    snprintf(uuid, 37, "%s", stored);
    origin->argv = *owned;
    origin->first = 2;
    origin->resume = true;
    return PTB_OK;
}

static void say_what_differs(const ptb_launcher *launcher)
{
    char host[256] = "this host";
    gethostname(host, sizeof host - 1);
    ptb_error(
        "rank %d on %s cannot take up the run, which was right where it was started: the files it names "
        "must be the same on every host",
        launcher->rank, host);
}

static ptb_status run(const ptb_command_env *env, const void *config, const char *const *words, size_t count)
{
    (void)config, (void)words, (void)count;
    ptb_launcher launcher;
    inherited from;
    char uuid[37] = "";
    char **owned = NULL;
    ptb_plan *plan = NULL;
    ptb_run_origin origin = {.argc = env->argc, .argv = env->argv, .first = env->first, .uuid = uuid};
    PTB_TRY(ptb_launcher_detect(&launcher));
    char **remembered = ptb_waiting_remember();
    take_inherited(&from);
    // All ranks find the same mistakes; one of them says so. What a process that starts ranks has let pass is
    // wrong only where a rank runs.
    if (launcher.launched && launcher.rank > 0 && !from.launched_by_us)
        ptb_log_set_level((ptb_log_level)-1);
    ptb_status status = PTB_OK;
    const char *word = ptb_plan_resume_word(env->argc, env->argv, env->first);
    if (from.launched_by_us) {
        snprintf(uuid, sizeof uuid, "%s", from.uuid);
        origin.resume = from.resume;
    } else {
        status = word ? take_up(&origin, word, uuid, &owned) : make_uuid(uuid);
    }
    if (status == PTB_OK)
        status = ptb_plan_make(origin.argc, origin.argv, origin.first, &plan);
    ptb_log_set_level(PTB_LOG_INFO);
    if (status != PTB_OK && from.launched_by_us) {
        // One exit code whether the others had started or not: the request was right, this rank is lost.
        say_what_differs(&launcher);
        status = PTB_LOST;
    }
    bool crowded = status == PTB_OK && launcher.launched &&
                   ptb_waiting_settle(&launcher, ptb_plan_most_threads(plan), env->argv, remembered);
    if (status == PTB_OK)
        status = launcher.launched ? run_as_rank(plan, &origin, &launcher, &from, crowded)
                                   : ptb_launch(plan, &origin);
    ptb_plan_free(plan);
    ptb_launch_free_arguments(owned);
    free(remembered);
    return status;
}

static const ptb_command run_command = {
    .plugin = {"run", "measure: run a suite or benchmarks and store the results"},
    .usage = "[SUITE|FILE.ini|BENCH...]",
    .about = "Runs the cases of a suite or of the benchmarks named, on one rank for each core, and stores "
             "every sample. "
             "Outside a launcher it starts itself under mpirun; under mpirun or srun it joins the job. "
             "Options of the "
             "command line win over those of a suite.",
    .opts = ptb_run_opts,
    .opt_count = PTB_RUN_OPT_COUNT,
    .parses_itself = true,
    .run = run,
};
PTB_REGISTER(PTB_KIND_COMMAND, run_command);
