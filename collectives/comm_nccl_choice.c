// Which algorithm, protocol and channels: what is asked of NCCL through the environment that it reads when a
// communicator is made (NCCL_ALGO, NCCL_PROTO), and what it says that it ran.
#include "collectives/comm_nccl.h"

#include "core/log.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// Which collectives have which algorithm, from NCCL's src/device/generate.py; LL and LL128 exist for ring and
// tree only. A new algorithm of NCCL is a new word here.
#define RING_WORDS "ring", "ring/ll", "ring/ll128", "ring/simple"
#define TREE_WORDS "tree", "tree/ll", "tree/ll128", "tree/simple"
// `symmetric` stands for the kernels on symmetric windows (src/device/symmetric/generate.py), among which
// NCCL chooses itself.
static const char *const all_reduce_names[] = {"symmetric", RING_WORDS,       TREE_WORDS,      "nvls",
                                               "nvls_tree", "collnet_direct", "collnet_chain", NULL};
static const char *const gather_names[] = {"symmetric", RING_WORDS, "nvls", "collnet_direct", "pat", NULL};
static const char *const rooted_names[] = {RING_WORDS, NULL};
static const char *const no_names[] = {NULL};

const char *const *ptb_nccl_algorithms(ptb_coll_kind kind)
{
    switch (kind) {
    case PTB_ALL_REDUCE:
        return all_reduce_names;
    case PTB_BARRIER: // an all-reduce of one element, which lies in no window
        return all_reduce_names + 1;
    case PTB_ALL_GATHER:
    case PTB_REDUCE_SCATTER:
        return gather_names;
    case PTB_BROADCAST:
    case PTB_REDUCE:
        return rooted_names;
    default: // made of sends and receives
        return no_names;
    }
}

bool ptb_nccl_has_algorithm(ptb_coll_kind kind, const char *name)
{
    for (const char *const *at = ptb_nccl_algorithms(kind); *at; at++)
        if (strcmp(*at, name) == 0)
            return true;
    return false;
}

int ptb_nccl_algorithm_version(ptb_coll_kind kind, const char *name)
{
    bool gathers = kind == PTB_ALL_GATHER || kind == PTB_REDUCE_SCATTER;
    if (gathers && strcmp(name, "collnet_direct") == 0)
        return 22000;
    // 2.23 has it, but lets NCCL_ALGO choose for all collectives alike, and all-reduce, our barrier, has no
    // PAT.
    if (gathers && strcmp(name, "pat") == 0)
        return 22400;
    return strcmp(name, "symmetric") == 0 ? PTB_NCCL_WINDOWS : PTB_NCCL_OLDEST;
}

ptb_status ptb_nccl_choose(const ptb_world *world, const ptb_comm_config *config, ptb_nccl_choice *choice)
{
    const char *name = config->algorithm;
    *choice = (ptb_nccl_choice){.name = "default", .channels = config->channels};
    if (!name || !*name || strcmp(name, "auto") == 0 || strcmp(name, "default") == 0)
        return PTB_OK;
    if (!ptb_nccl_has_algorithm(PTB_ALL_REDUCE, name) && !ptb_nccl_has_algorithm(PTB_ALL_GATHER, name)) {
        const char *names[32] = {"default"};
        size_t count = 1;
        for (const char *const *at = all_reduce_names; *at; at++)
            names[count++] = *at;
        names[count++] = "pat";
        char near[256];
        ptb_text_nearest(name, names, count, near, sizeof near);
        if (world->rank == 0)
            ptb_error("NCCL has no algorithm '%s'; did you mean %s?", name, near);
        return PTB_USAGE;
    }
    const char *slash = strchr(name, '/');
    snprintf(choice->name, sizeof choice->name, "%s", name);
    choice->is_symmetric = strcmp(name, "symmetric") == 0;
    if (choice->is_symmetric)
        return PTB_OK;
    snprintf(choice->algorithm, sizeof choice->algorithm, "%.*s",
             (int)(slash ? slash - name : (long)strlen(name)), name);
    snprintf(choice->protocol, sizeof choice->protocol, "%s", slash ? slash + 1 : "");
    return PTB_OK;
}

bool ptb_nccl_is_forced(const ptb_nccl_choice *choice)
{
    return choice->algorithm[0] || choice->protocol[0] || choice->channels;
}

// ---- the environment

// The environment belongs to the process: threads that make communicators with the same choice share it, the
// others wait until these are done.
static struct {
    pthread_mutex_t mutex;
    pthread_cond_t left;
    int users;
    char choice[40];                    // of the users
    char *old_algorithm, *old_protocol; // as they were; NULL: not set
} environment = {.mutex = PTHREAD_MUTEX_INITIALIZER, .left = PTHREAD_COND_INITIALIZER};

// "allreduce:tree;allgather:..." from NCCL 2.24 on, so that collectives without this algorithm keep theirs; a
// plain word before.
static void compose(const char *word, const char *name, int version, char out[160])
{
    static const struct {
        ptb_coll_kind kind;
        const char *function;
    } functions[] = {{PTB_ALL_REDUCE, "allreduce"},
                     {PTB_ALL_GATHER, "allgather"},
                     {PTB_REDUCE_SCATTER, "reducescatter"},
                     {PTB_BROADCAST, "broadcast"},
                     {PTB_REDUCE, "reduce"}};
    char plain[24];
    size_t n = 0;
    for (; *word && n + 1 < sizeof plain; word++) // "collnet_direct" is NCCL's "CollNetDirect"
        if (*word != '_')
            plain[n++] = *word;
    plain[n] = 0;
    if (version < 22400) {
        snprintf(out, 160, "%s", plain);
        return;
    }
    size_t at = 0;
    out[0] = 0;
    for (size_t i = 0; i < sizeof functions / sizeof *functions; i++)
        if (ptb_nccl_has_algorithm(functions[i].kind, name) && at < 160)
            at +=
                (size_t)snprintf(out + at, 160 - at, "%s%s:%s", at ? ";" : "", functions[i].function, plain);
}

static char *swap(const char *name, const char *value)
{
    const char *old = getenv(name);
    char *copy = old ? strdup(old) : NULL;
    setenv(name, value, 1);
    return copy;
}

static void put_back(const char *name, char *old)
{
    if (old)
        setenv(name, old, 1);
    else
        unsetenv(name);
    free(old);
}

void ptb_nccl_environment_enter(const ptb_nccl_choice *choice, int version)
{
    char value[160];
    pthread_mutex_lock(&environment.mutex);
    while (environment.users > 0 && strcmp(environment.choice, choice->name) != 0)
        pthread_cond_wait(&environment.left, &environment.mutex);
    if (environment.users++ == 0) {
        snprintf(environment.choice, sizeof environment.choice, "%s", choice->name);
        if (choice->algorithm[0]) {
            compose(choice->algorithm, choice->name, version, value);
            environment.old_algorithm = swap("NCCL_ALGO", value);
        }
        if (choice->protocol[0]) {
            compose(choice->protocol, choice->name, version, value);
            environment.old_protocol = swap("NCCL_PROTO", value);
        }
    }
    pthread_mutex_unlock(&environment.mutex);
}

void ptb_nccl_environment_leave(const ptb_nccl_choice *choice)
{
    pthread_mutex_lock(&environment.mutex);
    if (--environment.users == 0) {
        if (choice->algorithm[0])
            put_back("NCCL_ALGO", environment.old_algorithm);
        if (choice->protocol[0])
            put_back("NCCL_PROTO", environment.old_protocol);
        environment.old_algorithm = environment.old_protocol = NULL;
        pthread_cond_broadcast(&environment.left);
    }
    pthread_mutex_unlock(&environment.mutex);
}

ptb_status ptb_nccl_gpu_direct(ptb_gpu_direct wanted)
{
    // NCCL keeps what it read first for the whole process, so this must be remembered for as long.
    static atomic_int in_effect = -1;
    static const char *const words[] = {"the default", "off", "on"};
    int first = -1;
    if (atomic_compare_exchange_strong(&in_effect, &first, (int)wanted)) {
        if (wanted != PTB_GPU_DIRECT_DEFAULT)
            setenv("NCCL_NET_GDR_LEVEL", wanted == PTB_GPU_DIRECT_ON ? "SYS" : "LOC", 1);
        return PTB_OK;
    }
    if (first == (int)wanted)
        return PTB_OK;
    ptb_error(
        "GPUDirect RDMA is %s in this process already, and NCCL reads NCCL_NET_GDR_LEVEL once a process: "
        "measure %s in a run of its own",
        words[first], words[wanted]);
    return PTB_UNSUPPORTED;
}

// ---- what ran

static const char *why_unknown(const ptb_comm_nccl *c, const ptb_coll *call, const ptb_nccl_ran *ran)
{
    if (c->version < PTB_NCCL_TELLS)
        return "NCCL before 2.23 cannot tell what it ran";
    if (!c->profiler_is_ours)
        return "NCCL_PROFILER_PLUGIN names another plug-in";
    if (c->version < PTB_NCCL_TELLS_CALLS && ptb_nccl_on_windows(c, call))
        return "NCCL 2.27 tells nothing of kernels on windows";
    if (!ran || ran->calls == 0)
        return "NCCL's profiler plug-in told nothing";
    if (c->version >= 23000 && strcmp(ran->function, "Broadcast") == 0)
        return "NCCL tells of it with NCCL_ALLGATHERV_ENABLE=0";
    return "NCCL told of no kernel, as for symmetric ones";
}

void ptb_nccl_describe_channels(const ptb_nccl_ran *ran, ptb_params *facts)
{
    if (ran->channels == 0)
        return;
    if (ran->collectives == 0)
        ptb_params_set(facts, "channels", "%d a message", ran->channels);
    else
        ptb_params_set(facts, "channels", "%s%d", ran->channels_are_most ? "at most " : "", ran->channels);
}

static bool is_set(const char *name)
{
    const char *value = getenv(name);
    return value && *value && strcmp(value, "0") != 0;
}

// NCCL tells a profiler of every kernel but those on symmetric windows (ncclSymmetricTaskScheduler takes the
// operation out of the plan that ncclProfilerStartTaskEvents goes through), from 2.28 on with the call. It
// tells of the others while the call lasts: only the thread that serves proxies could be later, in a graph,
// with CUDA_LAUNCH_BLOCKING, or beside graphs, and between GPUs of one host that reach each other there are
// proxies only for copies by CUDA (NCCL_P2P_USE_CUDA_MEMCPY). Copy engines, of which 2.28 does not tell, it
// uses for an all-gather where NCCL_CTA_POLICY says so. So what is left is a symmetric kernel. (Read
// in the sources up to 2.30; the library 2.32.3 has symmetric kernels for profilers, and may tell of them.)
static bool can_only_be_symmetric(const ptb_comm_nccl *c, const ptb_coll *call, const ptb_nccl_ran *ran)
{
    bool is_untold = ran->calls > 0 && ran->collectives == 0 && ran->messages == 0;
    bool has_kernels =
        is_untold && (strcmp(ran->function, "AllReduce") == 0 || strcmp(ran->function, "AllGather") == 0 ||
                      strcmp(ran->function, "ReduceScatter") == 0);
    bool may_be_late = is_set("CUDA_LAUNCH_BLOCKING") || is_set("NCCL_P2P_USE_CUDA_MEMCPY");
    bool may_copy = c->version < 22900 && call->kind == PTB_ALL_GATHER && is_set("NCCL_CTA_POLICY");
    return has_kernels && !ran->is_captured && c->version >= PTB_NCCL_TELLS_CALLS && c->profiler_is_ours &&
           c->comm.size > 1 && c->comm.world->hosts == 1 && !may_be_late && !may_copy &&
           ptb_nccl_on_windows(c, call);
}

bool ptb_nccl_ran_symmetric(const ptb_comm_nccl *c, const ptb_coll *call, const ptb_nccl_seen *seen)
{
    if (!seen)
        return false;
    if (seen->kernel.kind != PTB_NCCL_KERNEL_UNKNOWN)
        return seen->kernel.kind == PTB_NCCL_KERNEL_SYMMETRIC;
    return can_only_be_symmetric(c, call, &seen->ran);
}

static void set_replaced(const ptb_nccl_choice *asked, const char *ran, ptb_params *facts)
{
    ptb_params_set(facts, "replaced", "asked %s, ran %s", asked->name, ran);
    ptb_params_set(facts, "warning", "NCCL replaced the algorithm without a word: asked %s, ran %s",
                   asked->name, ran);
}

static void set_from_kernel(const ptb_nccl_kernel *kernel, ptb_params *facts)
{
    ptb_params_set(facts, "algorithm_from", "kernel name (%s): %s", kernel->from, kernel->name);
}

static void describe_symmetric(const ptb_comm_nccl *c, const ptb_nccl_seen *seen, ptb_params *facts)
{
    ptb_params_set(facts, "algorithm", "symmetric");
    if (seen->kernel.kind == PTB_NCCL_KERNEL_SYMMETRIC)
        set_from_kernel(&seen->kernel, facts);
    else
        ptb_params_set(facts, "algorithm_from",
                       "concluded: on windows, and NCCL told of the call, not of a kernel");
    if (c->choice.algorithm[0] || c->choice.protocol[0])
        set_replaced(&c->choice, "symmetric", facts);
}

// NCCL told nothing. The name of a kernel that is no symmetric one says no more than that.
static void describe_untold(const ptb_comm_nccl *c, const ptb_coll *call, const ptb_nccl_seen *seen,
                            ptb_params *facts)
{
    bool is_other = seen && seen->kernel.kind == PTB_NCCL_KERNEL_OTHER;
    if (!is_other || !(c->choice.is_symmetric || ptb_nccl_on_windows(c, call))) {
        ptb_params_set(facts, "algorithm", "%s (not confirmed: %s)", c->choice.name,
                       why_unknown(c, call, seen ? &seen->ran : NULL));
        return;
    }
    ptb_params_set(facts, "algorithm", "other (not symmetric, by its kernel's name)");
    set_from_kernel(&seen->kernel, facts);
    if (c->choice.is_symmetric)
        set_replaced(&c->choice, "another, by its kernel's name", facts);
}

void ptb_nccl_describe_run(const ptb_comm_nccl *c, const ptb_coll *call, const ptb_nccl_seen *seen,
                           ptb_params *facts)
{
    const ptb_nccl_choice *asked = &c->choice;
    const ptb_nccl_ran *ran = seen ? &seen->ran : NULL;
    if (c->comm.size == 1) {
        ptb_params_set(facts, "algorithm", "none (one rank: a copy)");
        return;
    }
    if (ptb_nccl_ran_symmetric(c, call, seen)) {
        describe_symmetric(c, seen, facts);
        return;
    }
    if (!ran || (ran->collectives == 0 && ran->messages == 0)) {
        describe_untold(c, call, seen, facts);
        return;
    }
    ptb_nccl_describe_channels(ran, facts);
    if (ran->collectives == 0) {
        ptb_params_set(facts, "algorithm", "none (sends and receives)");
        return;
    }
    bool other = asked->is_symmetric ||
                 (asked->algorithm[0] && (strcmp(asked->algorithm, ran->algorithm) != 0 || ran->mixed));
    bool other_protocol = asked->protocol[0] && (strcmp(asked->protocol, ran->protocol) != 0 || ran->mixed);
    if (other || other_protocol || !asked->algorithm[0])
        ptb_params_set(facts, "algorithm", "%s%s", ran->algorithm, ran->mixed ? " and others" : "");
    else
        ptb_params_set(facts, "algorithm", "%s", asked->name);
    if (ran->protocol[0])
        ptb_params_set(facts, "protocol", "%s", ran->protocol);
    if (other || other_protocol) {
        char words[sizeof ran->algorithm + sizeof ran->protocol + 1];
        snprintf(words, sizeof words, "%s%s%s", ran->algorithm, ran->protocol[0] ? "/" : "", ran->protocol);
        set_replaced(asked, words, facts);
    }
    if (asked->channels && ran->channels && ran->channels != asked->channels)
        ptb_params_set(facts, "channels_replaced", "asked %d, ran %d", asked->channels, ran->channels);
}
