// Choosing the MPI library's algorithm at run time. In Open MPI the component coll/tuned reads its variables
// coll_tuned_X_algorithm once for each new communicator (4.1: coll_tuned_module.c, tuned_module_enable), so a
// communicator duplicated while a variable is set keeps that choice, and others are not touched. It looks
// only if coll_tuned_use_dynamic_rules was on when the library started (world_mpi.c turns it on; with no
// algorithm forced, the decisions are the same as without).
//
// Some algorithms hand over to another one for shapes they do not handle; `handovers` lists these, so that
// nothing runs under a name that is not its own.
#include "collectives/comm_mpi.h"
#include "collectives/world_mpi.h"
#include "core/log.h"
#include "core/text.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_ALGORITHMS = 24 };

static void variable_name(ptb_mpi_call call, const char *suffix, char name[128])
{
    snprintf(name, 128, "coll_tuned_%s_algorithm%s", ptb_mpi_call_tuned_word(call), suffix);
}

// The value of an algorithm's name for a call; 0 ("ignore") when the call does not have it.
static int value_of(ptb_mpi_call call, const char *algorithm)
{
    char name[128], text[40];
    int value;
    if (!ptb_mpi_call_tuned_word(call))
        return 0;
    variable_name(call, "", name);
    for (int i = 0; ptb_mpi_var_item(name, i, &value, text); i++)
        if (value != 0 && strcmp(text, algorithm) == 0)
            return value;
    return 0;
}

// Appends the names of a call's algorithms that are not in the list yet.
static void add_names(ptb_mpi_call call, char names[][40], size_t *count)
{
    char name[128], text[40];
    int value;
    if (!ptb_mpi_call_tuned_word(call))
        return;
    variable_name(call, "", name);
    for (int i = 0; ptb_mpi_var_item(name, i, &value, text) && *count < MAX_ALGORITHMS; i++) {
        bool known = value == 0 || strcmp(text, "default") == 0;
        for (size_t k = 0; k < *count && !known; k++)
            known = strcmp(names[k], text) == 0;
        if (!known)
            memcpy(names[(*count)++], text, 40);
    }
}

// ---- names for listings

// The equal-block call of each collective; v-variants have fewer names, and not all can be chosen.
static const ptb_mpi_call plain_call[PTB_COLL_COUNT] = {
    [PTB_ALL_REDUCE] = PTB_MPI_ALL_REDUCE,
    [PTB_ALL_GATHER] = PTB_MPI_ALL_GATHER,
    [PTB_REDUCE_SCATTER] = PTB_MPI_REDUCE_SCATTER_BLOCK,
    [PTB_BROADCAST] = PTB_MPI_BROADCAST,
    [PTB_REDUCE] = PTB_MPI_REDUCE,
    [PTB_ALL_TO_ALL] = PTB_MPI_ALL_TO_ALL,
    [PTB_ALL_TO_ALL_V] = PTB_MPI_ALL_TO_ALL_V,
    [PTB_GATHER] = PTB_MPI_GATHER,
    [PTB_SCATTER] = PTB_MPI_SCATTER,
    [PTB_BARRIER] = PTB_MPI_BARRIER,
};

// Read once a process: the library's answer cannot change, and callers keep the pointers.
static struct {
    char text[PTB_COLL_COUNT][MAX_ALGORITHMS][40];
    const char *names[PTB_COLL_COUNT][MAX_ALGORITHMS + 1];
} listing;
static pthread_once_t listing_once = PTHREAD_ONCE_INIT;

static void read_listing(void)
{
    int provided;
    ptb_mpi_environment(); // the library reads its settings now, if it has not yet
    if (MPI_T_init_thread(MPI_THREAD_SINGLE, &provided) != MPI_SUCCESS)
        return;
    for (int kind = 0; kind < PTB_COLL_COUNT; kind++) {
        size_t count = 0;
        add_names(plain_call[kind], listing.text[kind], &count);
        if (kind == PTB_REDUCE_SCATTER) // uneven blocks have names of their own
            add_names(PTB_MPI_REDUCE_SCATTER, listing.text[kind], &count);
        for (size_t i = 0; i < count; i++)
            listing.names[kind][i] = listing.text[kind][i];
    }
    MPI_T_finalize();
}

const char *const *ptb_mpi_algorithms(ptb_coll_kind kind)
{
    pthread_once(&listing_once, read_listing);
    return listing.names[kind];
}

// ---- forcing

// The component of Open MPI's coll framework that serves this communicator: coll/self for one rank, else the
// one with the highest priority of those that are open and stand for themselves.
static void find_component(const ptb_world *world, char component[40])
{
    static const char *const apart[] = {"self",        "inter", "sync",   "cuda",
                                        "accelerator", "basic", "libnbc", "monitoring"};
    int best = -1, priority;
    snprintf(component, 40, world->size == 1 ? "self" : "unknown");
    for (int i = 0, count = world->size == 1 ? 0 : ptb_mpi_vars_count(); i < count; i++) {
        char name[128], word[64];
        int end = 0;
        if (!ptb_mpi_var_name(i, name) || sscanf(name, "coll_%63[a-z0-9]_priority%n", word, &end) != 1 ||
            end == 0 || name[end] != 0 || !ptb_mpi_var_read_int(name, &priority) || priority <= best)
            continue;
        bool counts = true;
        for (size_t k = 0; k < sizeof apart / sizeof *apart; k++)
            counts &= strcmp(word, apart[k]) != 0;
        if (!counts)
            continue;
        best = priority;
        snprintf(component, 40, "%.39s", word);
    }
}

// What the user's environment forces on each call.
static void find_environment(ptb_mpi_tuning *tuning)
{
    for (int call = 0; call < PTB_MPI_CALL_COUNT; call++) {
        char name[128], text[40];
        int now, value;
        if (!ptb_mpi_call_tuned_word(call))
            continue;
        variable_name(call, "", name);
        if (!tuning->listens || !ptb_mpi_var_read_int(name, &now) || now == 0)
            continue;
        for (int i = 0; ptb_mpi_var_item(name, i, &value, text); i++)
            if (value == now)
                memcpy(tuning->found[call], text, sizeof text);
    }
}

typedef struct {
    int algorithm, segment;
} saved;

static bool force_call(ptb_mpi_call call, int value, uint64_t segment_bytes, saved *old)
{
    char name[128], segment[128];
    variable_name(call, "", name);
    variable_name(call, "_segmentsize", segment);
    if (!ptb_mpi_var_read_int(name, &old->algorithm) || !ptb_mpi_var_write_int(name, value))
        return false;
    if (ptb_mpi_var_read_int(segment, &old->segment))
        ptb_mpi_var_write_int(segment, (int)segment_bytes);
    return true;
}

static void restore_call(ptb_mpi_call call, const saved *old)
{
    char name[128], segment[128];
    variable_name(call, "", name);
    variable_name(call, "_segmentsize", segment);
    ptb_mpi_var_write_int(name, old->algorithm);
    ptb_mpi_var_write_int(segment, old->segment);
}

static ptb_status refuse(const ptb_world *world, const char *algorithm)
{
    char names[MAX_ALGORITHMS][40], near[256];
    const char *list[MAX_ALGORITHMS];
    size_t count = 0;
    for (int call = 0; call < PTB_MPI_CALL_COUNT; call++)
        add_names(call, names, &count);
    for (size_t i = 0; i < count; i++)
        list[i] = names[i];
    if (world->rank == 0 && count == 0)
        ptb_error("algorithm %s: this MPI library lets none be chosen at run time; use 'default'", algorithm);
    if (world->rank == 0 && count > 0) {
        ptb_text_nearest(algorithm, list, count, near, sizeof near);
        ptb_error("the MPI library has no algorithm '%s'; did you mean %s?", algorithm, near);
    }
    return count == 0 ? PTB_UNSUPPORTED : PTB_USAGE;
}

static ptb_status force_and_dup(const ptb_world *world, MPI_Comm from, MPI_Comm *comm, ptb_mpi_tuning *tuning)
{
    saved old[PTB_MPI_CALL_COUNT];
    bool any = false;
    for (int call = 0; call < PTB_MPI_CALL_COUNT; call++) {
        int value = value_of(call, tuning->algorithm);
        any |= value != 0;
        tuning->forced[call] = value != 0 && force_call(call, value, tuning->segment_bytes, &old[call]);
    }
    ptb_status status =
        any ? ptb_mpi_check(MPI_Comm_dup(from, comm), "MPI_Comm_dup") : refuse(world, tuning->algorithm);
    for (int call = 0; call < PTB_MPI_CALL_COUNT; call++)
        if (tuning->forced[call])
            restore_call(call, &old[call]);
    return status;
}

ptb_status ptb_mpi_tuned_dup(ptb_world *world, MPI_Comm from, const ptb_comm_config *config, MPI_Comm *comm,
                             ptb_mpi_tuning *tuning)
{
    const char *algorithm = config->algorithm;
    bool chosen =
        algorithm && *algorithm && strcmp(algorithm, "auto") != 0 && strcmp(algorithm, "default") != 0;
    *tuning = (ptb_mpi_tuning){.component = "unknown", .segment_bytes = config->segment_bytes};
    snprintf(tuning->algorithm, sizeof tuning->algorithm, "%s", chosen ? algorithm : "default");
    if (config->segment_bytes > INT_MAX) {
        ptb_error("the MPI library takes segments up to %d bytes", INT_MAX);
        return PTB_USAGE;
    }
    if (ptb_world_mpi_vars(world)) {
        int on = 0;
        tuning->listens = ptb_mpi_var_read_int("coll_tuned_use_dynamic_rules", &on) && on;
        find_component(world, tuning->component);
        find_environment(tuning);
    }
    return chosen ? force_and_dup(world, from, comm, tuning)
                  : ptb_mpi_check(MPI_Comm_dup(from, comm), "MPI_Comm_dup");
}

// ---- what a forced algorithm does not do itself

typedef enum {
    FEWER_THAN_RANKS, // count < n
    FEWER_THAN_POWER, // count < largest power of two <= n
    NOT_A_POWER,      // n is not a power of two
    ODD_RANKS,
    NOT_TWO_RANKS,
    FEW_SEGMENTS, // less than a segment for each rank
    SMALL_HALVES, // half the vector is smaller than a segment
    IN_PLACE,
} shape;

// Open MPI 4.1 and 5.0, ompi/mca/coll/base/coll_base_X.c. instead NULL: the call fails.
static const struct {
    ptb_mpi_call call;
    const char *algorithm; // NULL: any
    shape shape;
    const char *instead;
} handovers[] = {
    {PTB_MPI_ALL_REDUCE, "ring", FEWER_THAN_RANKS, "recursive_doubling"},
    {PTB_MPI_ALL_REDUCE, "segmented_ring", FEW_SEGMENTS, "ring"},
    {PTB_MPI_ALL_REDUCE, "rabenseifner", FEWER_THAN_POWER, "basic_linear"},
    {PTB_MPI_ALL_GATHER, "recursive_doubling", NOT_A_POWER, "bruck"},
    {PTB_MPI_ALL_GATHER, "neighbor", ODD_RANKS, "ring"},
    {PTB_MPI_ALL_GATHER, "two_proc", NOT_TWO_RANKS, NULL},
    {PTB_MPI_ALL_TO_ALL, NULL, IN_PLACE, "its one in-place algorithm"},
    {PTB_MPI_ALL_TO_ALL, "two_proc", NOT_TWO_RANKS, NULL},
    {PTB_MPI_ALL_TO_ALL_V, NULL, IN_PLACE, "its one in-place algorithm"},
    {PTB_MPI_BROADCAST, "split_binary_tree", SMALL_HALVES, "chain"},
    {PTB_MPI_BROADCAST, "scatter_allgather", FEWER_THAN_RANKS, "basic_linear"},
    {PTB_MPI_BROADCAST, "scatter_allgather_ring", FEWER_THAN_RANKS, "basic_linear"},
    {PTB_MPI_REDUCE, "rabenseifner", FEWER_THAN_POWER, "linear"},
    {PTB_MPI_BARRIER, "two_proc", NOT_TWO_RANKS, NULL},
};

static const char *const shape_text[] = {
    [FEWER_THAN_RANKS] = "fewer elements than ranks",
    [FEWER_THAN_POWER] = "fewer elements than the largest power of two of ranks",
    [NOT_A_POWER] = "a number of ranks that is not a power of two",
    [ODD_RANKS] = "an odd number of ranks",
    [NOT_TWO_RANKS] = "other than two ranks",
    [FEW_SEGMENTS] = "less than one segment for each rank (set a smaller segment size)",
    [SMALL_HALVES] = "vectors whose halves are smaller than a segment",
    [IN_PLACE] = "buffers in place",
};

static bool has_shape(shape s, const ptb_comm_mpi *c, size_t count, size_t size, bool in_place)
{
    size_t n = (size_t)c->comm.size, power = 1, segment = (size_t)c->tuning.segment_bytes;
    while (power * 2 <= n)
        power *= 2;
    switch (s) {
    case FEWER_THAN_RANKS:
        return count < n;
    case FEWER_THAN_POWER:
        return count < power;
    case NOT_A_POWER:
        return power != n;
    case ODD_RANKS:
        return n % 2 != 0;
    case NOT_TWO_RANKS:
        return n != 2;
    case FEW_SEGMENTS: // elements a segment: rounded to nearest; without segments the whole vector is one
        return segment < size || count < n * ((segment + size / 2) / size);
    case SMALL_HALVES:
        return count < 2 || segment > count / 2 * size;
    default:
        return in_place;
    }
}

bool ptb_mpi_tuning_supports(const ptb_comm_mpi *c, const ptb_coll *call, bool in_place, char *reason)
{
    const ptb_mpi_tuning *tuning = &c->tuning;
    ptb_mpi_plan plan = ptb_mpi_plan_for(c, call);
    if (strcmp(tuning->algorithm, "default") == 0)
        return true;
    if (strcmp(tuning->component, "tuned") != 0) {
        snprintf(reason, PTB_REASON_BYTES,
                 "%s: the MPI library's component coll/%s serves these %d ranks, and only "
                 "coll/tuned lets an algorithm be chosen",
                 tuning->algorithm, tuning->component, c->comm.size);
        return false;
    }
    if (!tuning->listens) {
        snprintf(reason, PTB_REASON_BYTES,
                 "%s: OMPI_MCA_coll_tuned_use_dynamic_rules=0 keeps the MPI library from taking an algorithm",
                 tuning->algorithm);
        return false;
    }
    if (!tuning->forced[plan.call]) {
        snprintf(reason, PTB_REASON_BYTES,
                 "%s of the MPI library has no algorithm %s that can be chosen at run time",
                 ptb_mpi_call_name(plan.call), tuning->algorithm);
        return false;
    }
    // The last piece is the shortest.
    size_t last = plan.chunks > 1 ? call->count - (plan.chunks - 1) * c->limit : call->count;
    for (size_t i = 0; i < sizeof handovers / sizeof *handovers; i++) {
        if (handovers[i].call != plan.call ||
            (handovers[i].algorithm && strcmp(handovers[i].algorithm, tuning->algorithm) != 0) ||
            !has_shape(handovers[i].shape, c, last, ptb_dtype_size(call->dtype), in_place))
            continue;
        if (handovers[i].instead)
            snprintf(reason, PTB_REASON_BYTES, "Open MPI's %s of %s does not handle %s: it runs %s instead",
                     tuning->algorithm, ptb_mpi_call_name(plan.call), shape_text[handovers[i].shape],
                     handovers[i].instead);
        else
            snprintf(reason, PTB_REASON_BYTES, "Open MPI's %s of %s does not handle %s", tuning->algorithm,
                     ptb_mpi_call_name(plan.call), shape_text[handovers[i].shape]);
        return false;
    }
    return true;
}
