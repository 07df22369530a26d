// The world of the processes of an MPI job. Control traffic only: measured traffic has communicators of its
// own (comm_mpi.c). Errors are returned by the library (MPI_ERRORS_RETURN), not fatal.
#include "collectives/world_mpi.h"

#include "collectives/flag_barrier.h"
#include "collectives/launcher.h"
#include "collectives/world.h"
#include "core/clock.h"
#include "core/device.h"
#include "core/log.h"
#include "core/roll.h"
#include "core/topology.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

enum { BLOCK_ELEMENTS = 1 << 30, MASK_CPUS = 4096 };

typedef struct world_mpi {
    ptb_world world;
    MPI_Comm comm, host;     // all ranks; the ranks on this host
    struct world_mpi *whole; // the world that this one was split from, at last: closing that ends the library
    bool vars;               // of the whole: the library's tool interface is started
    bool threads;
    ptb_account *account;   // of the control traffic; NULL without a roll
    ptb_flag_barrier flags; // page NULL: ranks on several hosts, or a single one
} world_mpi;

static world_mpi *of(ptb_world *world)
{
    return (world_mpi *)world;
}

// ---- errors and types

ptb_status ptb_mpi_failed(int code, const char *call)
{
    char text[MPI_MAX_ERROR_STRING];
    int length = 0, class = MPI_ERR_OTHER;
    if (MPI_Error_string(code, text, &length) != MPI_SUCCESS)
        snprintf(text, sizeof text, "code %d", code);
    MPI_Error_class(code, &class);
    ptb_error("%s failed: %s", call, text);
#ifdef MPI_ERR_PROC_ABORTED
    if (class == MPI_ERR_PROC_ABORTED)
        return PTB_LOST;
#endif
#ifdef MPIX_ERR_PROC_FAILED
    if (class == MPIX_ERR_PROC_FAILED)
        return PTB_LOST;
#endif
    return class == MPI_ERR_NO_MEM ? PTB_NO_MEMORY : PTB_SYSTEM;
}

ptb_status ptb_mpi_type_many(size_t count, MPI_Datatype element, MPI_Datatype *type)
{
    size_t blocks = count / BLOCK_ELEMENTS, rest = count % BLOCK_ELEMENTS;
    MPI_Datatype made = MPI_DATATYPE_NULL, block = MPI_DATATYPE_NULL, many = MPI_DATATYPE_NULL;
    MPI_Aint low, extent;
    int code;
    if (blocks == 0) {
        code = MPI_Type_contiguous((int)rest, element, &made);
    } else if ((code = MPI_Type_contiguous(BLOCK_ELEMENTS, element, &block)) == MPI_SUCCESS &&
               (code = MPI_Type_contiguous((int)blocks, block, &many)) == MPI_SUCCESS &&
               (code = MPI_Type_get_extent(many, &low, &extent)) == MPI_SUCCESS) {
        int lengths[2] = {1, (int)rest};
        MPI_Aint places[2] = {0, extent};
        MPI_Datatype parts[2] = {many, element};
        code = MPI_Type_create_struct(2, lengths, places, parts, &made);
    }
    if (block != MPI_DATATYPE_NULL)
        MPI_Type_free(&block);
    if (many != MPI_DATATYPE_NULL)
        MPI_Type_free(&many);
    if (code == MPI_SUCCESS)
        code = MPI_Type_commit(&made);
    PTB_TRY(ptb_mpi_check(code, "making a datatype"));
    *type = made;
    return PTB_OK;
}

// ---- operations

// Kinds of control traffic, as the roll tells of them.
enum { BARRIER, START, BROADCAST, GATHER, ALL_GATHER, AGREEMENT, SPLIT };

static void describe_control(const ptb_roll_what *what, char text[PTB_ROLL_TEXT])
{
    static const char *const names[] = {
        [BARRIER] = "a barrier",         [START] = "the start of an iteration", [BROADCAST] = "a broadcast",
        [GATHER] = "a gathering",        [ALL_GATHER] = "an exchange",          [AGREEMENT] = "an agreement",
        [SPLIT] = "a split of the ranks"};
    if (what->amount)
        snprintf(text, PTB_ROLL_TEXT, "%s of %llu bytes", names[what->kind],
                 (unsigned long long)what->amount);
    else
        snprintf(text, PTB_ROLL_TEXT, "%s", names[what->kind]);
}

static void progress(void *arg)
{
    int flag;
    // Makes the library look at its queues; no message on this communicator has this tag.
    MPI_Iprobe(MPI_ANY_SOURCE, 32767, *(MPI_Comm *)arg, &flag, MPI_STATUS_IGNORE);
}

static ptb_status sleeping_barrier(world_mpi *w)
{
    MPI_Request request;
    int done = 0;
    PTB_TRY(ptb_mpi_check(MPI_Ibarrier(w->comm, &request), "MPI_Ibarrier"));
    for (long wait_ns = 20000; !done; wait_ns = wait_ns < 500000 ? 2 * wait_ns : 1000000) {
        PTB_TRY(ptb_mpi_check(MPI_Test(&request, &done, MPI_STATUS_IGNORE), "MPI_Test"));
        if (!done)
            nanosleep(&(struct timespec){.tv_nsec = wait_ns}, NULL);
    }
    return PTB_OK;
}

static ptb_status barrier(ptb_world *world, bool sleep)
{
    world_mpi *w = of(world);
    ptb_account_enter(w->account, &(ptb_roll_what){.kind = BARRIER});
    return sleep ? sleeping_barrier(w) : ptb_mpi_check(MPI_Barrier(w->comm), "MPI_Barrier");
}

static ptb_status start(ptb_world *world)
{
    world_mpi *w = of(world);
    ptb_account_enter(w->account, &(ptb_roll_what){.kind = START});
    if (w->flags.page)
        return ptb_flag_barrier_wait(&w->flags, true);
    return ptb_mpi_check(MPI_Barrier(w->comm), "MPI_Barrier");
}

static ptb_status broadcast(ptb_world *world, int root, void *data, size_t bytes)
{
    char *at = data;
    ptb_account_enter(of(world)->account, &(ptb_roll_what){.kind = BROADCAST, .amount = bytes});
    while (bytes > 0) {
        int part = bytes < BLOCK_ELEMENTS ? (int)bytes : BLOCK_ELEMENTS;
        PTB_TRY(ptb_mpi_check(MPI_Bcast(at, part, MPI_BYTE, root, of(world)->comm), "MPI_Bcast"));
        at += part;
        bytes -= (size_t)part;
    }
    return PTB_OK;
}

static ptb_status gather(ptb_world *world, int root, const void *send, size_t bytes, void *recv)
{
    MPI_Datatype type;
    ptb_account_enter(of(world)->account, &(ptb_roll_what){.kind = GATHER, .amount = bytes});
    PTB_TRY(ptb_mpi_type_many(bytes, MPI_BYTE, &type));
    int code = MPI_Gather(send, 1, type, recv, 1, type, root, of(world)->comm);
    MPI_Type_free(&type);
    return ptb_mpi_check(code, "MPI_Gather");
}

static ptb_status all_gather(ptb_world *world, const void *send, size_t bytes, void *recv)
{
    MPI_Datatype type;
    ptb_account_enter(of(world)->account, &(ptb_roll_what){.kind = ALL_GATHER, .amount = bytes});
    PTB_TRY(ptb_mpi_type_many(bytes, MPI_BYTE, &type));
    int code = MPI_Allgather(send, 1, type, recv, 1, type, of(world)->comm);
    MPI_Type_free(&type);
    return ptb_mpi_check(code, "MPI_Allgather");
}

static ptb_status reduce_max(ptb_world *world, double *values, size_t count)
{
    ptb_account_enter(of(world)->account,
                      &(ptb_roll_what){.kind = AGREEMENT, .amount = count * sizeof *values});
    while (count > 0) {
        int part = count < BLOCK_ELEMENTS ? (int)count : BLOCK_ELEMENTS;
        PTB_TRY(ptb_mpi_check(MPI_Allreduce(MPI_IN_PLACE, values, part, MPI_DOUBLE, MPI_MAX, of(world)->comm),
                              "MPI_Allreduce"));
        values += part;
        count -= (size_t)part;
    }
    return PTB_OK;
}

static ptb_status open_over(MPI_Comm comm, world_mpi *whole, bool threads, ptb_world **out);

static ptb_status split(ptb_world *world, int colour, int key, ptb_world **out)
{
    MPI_Comm part;
    ptb_account_enter(of(world)->account, &(ptb_roll_what){.kind = SPLIT});
    PTB_TRY(ptb_mpi_check(MPI_Comm_split(of(world)->comm, colour < 0 ? MPI_UNDEFINED : colour, key, &part),
                          "MPI_Comm_split"));
    if (part == MPI_COMM_NULL) {
        *out = NULL;
        return PTB_OK;
    }
    return open_over(part, of(world)->whole, of(world)->threads, out);
}

static void abort_job(ptb_world *world, int exit_code)
{
    MPI_Abort(of(world)->comm, exit_code);
    _exit(exit_code); // a library that returns from MPI_Abort must not bring this rank back
}

static void release(world_mpi *w)
{
    ptb_roll_leave(w->account);
    if (w->whole == w)
        ptb_roll_close(w->world.roll);
    free((void *)w->world.roll_rank);
    if (w->flags.page)
        munmap(w->flags.page, ptb_flag_page_bytes(w->world.size));
    if (w->host != MPI_COMM_NULL)
        MPI_Comm_free(&w->host);
    if (w->whole != w)
        MPI_Comm_free(&w->comm);
    free((void *)w->world.host_of);
    free(w);
}

static void close_world(ptb_world *world)
{
    bool whole = of(world)->whole == of(world), vars = of(world)->vars;
    release(of(world));
    if (whole && vars)
        MPI_T_finalize();
    if (whole)
        MPI_Finalize();
}

static const ptb_world_ops world_mpi_ops = {
    .name = "mpi",
    .barrier = barrier,
    .start = start,
    .broadcast = broadcast,
    .gather = gather,
    .all_gather = all_gather,
    .reduce_max = reduce_max,
    .split = split,
    .abort = abort_job,
    .close = close_world,
};

MPI_Comm ptb_world_mpi_comm(const ptb_world *world)
{
    return world->ops == &world_mpi_ops ? ((const world_mpi *)world)->comm : MPI_COMM_NULL;
}

bool ptb_world_mpi_threads(const ptb_world *world)
{
    return world->ops == &world_mpi_ops && ((const world_mpi *)world)->threads;
}

bool ptb_world_mpi_vars(ptb_world *world)
{
    int provided;
    if (world->ops != &world_mpi_ops)
        return false;
    world_mpi *whole = of(world)->whole;
    if (!whole->vars)
        whole->vars = MPI_T_init_thread(MPI_THREAD_SINGLE, &provided) == MPI_SUCCESS;
    return whole->vars;
}

// ---- opening

// Which ranks share a host: each host's ranks are keyed by their first.
static ptb_status find_hosts(world_mpi *w)
{
    ptb_world *world = &w->world;
    PTB_TRY(ptb_mpi_check(
        MPI_Comm_split_type(w->comm, MPI_COMM_TYPE_SHARED, world->rank, MPI_INFO_NULL, &w->host),
        "MPI_Comm_split_type"));
    MPI_Comm_set_errhandler(w->host, MPI_ERRORS_RETURN);
    int first = world->rank;
    PTB_TRY(ptb_mpi_check(MPI_Bcast(&first, 1, MPI_INT, 0, w->host), "MPI_Bcast"));
    int *key = malloc((size_t)world->size * sizeof *key);
    if (!key) {
        ptb_error("no memory for the list of %d ranks", world->size);
        return PTB_NO_MEMORY;
    }
    ptb_status status =
        ptb_mpi_check(MPI_Allgather(&first, 1, MPI_INT, key, 1, MPI_INT, w->comm), "MPI_Allgather");
    if (status == PTB_OK)
        status = ptb_world_set_hosts(world, key);
    free(key);
    return status;
}

typedef struct {
    unsigned char cpu[MASK_CPUS / 8];
} cpu_mask;

static int mask_count(const cpu_mask *mask)
{
    int count = 0;
    for (size_t i = 0; i < sizeof mask->cpu; i++)
        count += __builtin_popcount(mask->cpu[i]);
    return count;
}

// Ranks and the processors that they have together.
typedef struct {
    int ranks, cpus;
} share;

static share smaller_share(share a, share b)
{
    return (int64_t)b.cpus * a.ranks < (int64_t)a.cpus * b.ranks ? b : a;
}

// The smallest share: of all ranks of the host, or of those that must stay inside one of them's mask (ranks
// that a launcher bound to the same core).
static share find_share(const cpu_mask *masks, int ranks, int quota)
{
    cpu_mask all = {{0}};
    for (int r = 0; r < ranks; r++)
        for (size_t i = 0; i < sizeof all.cpu; i++)
            all.cpu[i] |= masks[r].cpu[i];
    share least = {ranks, mask_count(&all)};
    if (quota > 0 && quota < least.cpus)
        least.cpus = quota;
    for (int r = 0; r < ranks; r++) {
        int inside = 0;
        for (int q = 0; q < ranks; q++) {
            bool subset = true;
            for (size_t i = 0; i < sizeof all.cpu && subset; i++)
                subset = (masks[q].cpu[i] & ~masks[r].cpu[i]) == 0;
            inside += subset;
        }
        least = smaller_share(least, (share){inside, mask_count(&masks[r])});
    }
    return least;
}

// The smallest share of all hosts.
static ptb_status agree_share(world_mpi *w, share mine)
{
    ptb_world *world = &w->world;
    share *all = malloc((size_t)world->size * sizeof *all);
    if (!all) {
        ptb_error("no memory for the shares of %d ranks", world->size);
        return PTB_NO_MEMORY;
    }
    ptb_status status =
        ptb_mpi_check(MPI_Allgather(&mine, 2, MPI_INT, all, 2, MPI_INT, w->comm), "MPI_Allgather");
    for (int r = 0; r < world->size && status == PTB_OK; r++)
        mine = smaller_share(mine, all[r]);
    world->sharing_ranks = mine.ranks;
    world->shared_cpus = mine.cpus;
    free(all);
    return status;
}

static ptb_status find_oversubscription(world_mpi *w)
{
    ptb_world *world = &w->world;
    cpu_mask mine = {{0}};
    if (sched_getaffinity(0, sizeof mine, (cpu_set_t *)&mine) != 0) {
        ptb_error("sched_getaffinity failed: %s", strerror(errno));
        return PTB_SYSTEM;
    }
    cpu_mask *masks = malloc((size_t)world->local_size * sizeof *masks);
    if (!masks) {
        ptb_error("no memory for %d affinity masks", world->local_size);
        return PTB_NO_MEMORY;
    }
    ptb_status status = ptb_mpi_check(
        MPI_Allgather(&mine, sizeof mine, MPI_BYTE, masks, sizeof mine, MPI_BYTE, w->host), "MPI_Allgather");
    if (status == PTB_OK) {
        share mine = find_share(masks, world->local_size, ptb_topology_cgroup_cpus());
        world->oversubscribed = mine.ranks > mine.cpus;
        status = agree_share(w, mine);
    }
    free(masks);
    return status;
}

// Maps the page of the start barrier; the first rank makes it, the name is gone again when all have it.
static void *map_page(world_mpi *w, const char *name, size_t bytes)
{
    int flags = w->world.local_rank == 0 ? O_RDWR | O_CREAT | O_EXCL : O_RDWR;
    int fd = shm_open(name, flags, 0600);
    if (fd < 0)
        return NULL;
    void *page = MAP_FAILED;
    // posix_fallocate: a full /dev/shm must show here and not as a bus error later.
    if (w->world.local_rank != 0 || posix_fallocate(fd, 0, (off_t)bytes) == 0)
        page = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    if (page == MAP_FAILED && w->world.local_rank == 0)
        shm_unlink(name);
    return page == MAP_FAILED ? NULL : page;
}

static ptb_status make_flags(world_mpi *w)
{
    ptb_world *world = &w->world;
    if (world->hosts > 1 || world->size == 1)
        return PTB_OK;
    size_t bytes = ptb_flag_page_bytes(world->size);
    char name[64];
    snprintf(name, sizeof name, "/ptbench-%d-%llx", (int)getpid(), (unsigned long long)ptb_clock_ns());
    void *page = NULL;
    if (world->local_rank == 0)
        page = map_page(w, name, bytes); // before the name is known to others, so that it exists for them
    PTB_TRY(ptb_mpi_check(MPI_Bcast(name, sizeof name, MPI_CHAR, 0, w->host), "MPI_Bcast"));
    if (world->local_rank != 0)
        page = map_page(w, name, bytes);
    w->flags = (ptb_flag_barrier){.page = page,
                                  .rank = world->rank,
                                  .size = world->size,
                                  .oversubscribed = world->oversubscribed,
                                  .progress = progress,
                                  .progress_arg = &w->comm};
    if (page)
        ptb_flag_barrier_enter(&w->flags);
    int good = page != NULL, all = 0;
    ptb_status status =
        ptb_mpi_check(MPI_Allreduce(&good, &all, 1, MPI_INT, MPI_MIN, w->host), "MPI_Allreduce");
    if (world->local_rank == 0 && page)
        shm_unlink(name);
    if (status == PTB_OK && all) {
        // Nobody leaves before all have looked: a rank that ends right after this would be taken for one in
        // another process namespace, and its end would go unnoticed.
        int sees = ptb_flag_barrier_sees_peers(&w->flags), all_see = 0;
        PTB_TRY(ptb_mpi_check(MPI_Allreduce(&sees, &all_see, 1, MPI_INT, MPI_MIN, w->host), "MPI_Allreduce"));
        w->flags.watch = all_see;
        return PTB_OK;
    }
    if (world->local_rank == 0)
        ptb_warn("no shared memory in /dev/shm for the start barrier (%zu bytes): iterations start with "
                 "MPI_Barrier, with more skew between ranks",
                 bytes);
    if (page)
        munmap(page, bytes);
    w->flags.page = NULL;
    return status;
}

// The account of this world's control traffic. The whole world opens the roll.
static ptb_status open_account(world_mpi *w)
{
    ptb_world *world = &w->world;
    int mine = world->rank;
    uint64_t key = 0;
    if (w->whole == w) {
        PTB_TRY(ptb_roll_open(world, &world->roll));
    } else {
        world->roll = w->whole->world.roll;
        mine = w->whole->world.rank;
    }
    if (!world->roll)
        return PTB_OK;
    int *ranks = malloc((size_t)world->size * sizeof *ranks);
    PTB_TRY(ptb_world_agree(world, ranks ? PTB_OK : PTB_NO_MEMORY));
    world->roll_rank = ranks;
    PTB_TRY(ptb_world_all_gather(world, &mine, sizeof mine, ranks));
    if (world->rank == 0)
        key = ptb_roll_key(world->roll);
    PTB_TRY(ptb_world_broadcast(world, 0, &key, sizeof key));
    const ptb_account_config config = {.key = key,
                                       .name = w->whole == w ? "the job's control traffic"
                                                             : "the control traffic of these ranks",
                                       .members = ranks,
                                       .size = world->size,
                                       .rank = world->rank,
                                       .describe = describe_control};
    return ptb_world_agree(world, ptb_roll_join(world->roll, &config, &w->account));
}

// Takes over `comm` also when it fails.
static ptb_status open_over(MPI_Comm comm, world_mpi *whole, bool threads, ptb_world **out)
{
    world_mpi *w = calloc(1, sizeof *w);
    if (!w) {
        ptb_error("no memory for a world");
        return PTB_NO_MEMORY;
    }
    *w = (world_mpi){.world.ops = &world_mpi_ops,
                     .comm = comm,
                     .host = MPI_COMM_NULL,
                     .whole = whole ? whole : w,
                     .threads = threads};
    MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN);
    MPI_Comm_rank(comm, &w->world.rank);
    MPI_Comm_size(comm, &w->world.size);
    ptb_status status = find_hosts(w);
    if (status == PTB_OK)
        status = find_oversubscription(w);
    if (status == PTB_OK)
        status = make_flags(w);
    if (status == PTB_OK)
        status = open_account(w);
    if (status != PTB_OK) {
        release(w);
        return status;
    }
    *out = &w->world;
    return PTB_OK;
}

void ptb_mpi_environment(void)
{
    // Lets communicators be given an algorithm (comm_mpi_tuning.c); a user's own setting stays.
    setenv("OMPI_MCA_coll_tuned_use_dynamic_rules", "1", 0);
    // Open MPI yields while it waits only where mpirun knows of the oversubscription. It does not where slots
    // were given by hand (-H host:8) or the control group allows fewer processors than the machine has.

    const char *text = getenv("OMPI_COMM_WORLD_LOCAL_SIZE");
    int local = text ? atoi(text) : 0, quota = ptb_topology_cgroup_cpus();
    long online = sysconf(_SC_NPROCESSORS_ONLN);
    if (local > online || (quota > 0 && local > quota))
        setenv("OMPI_MCA_mpi_yield_when_idle", "1", 0);
}

static ptb_status check_launch(const ptb_launcher *launcher, int size)
{
    if (launcher->size <= 1 || size > 1)
        return PTB_OK;
    char library[MPI_MAX_LIBRARY_VERSION_STRING];
    int length = 0;
    MPI_Get_library_version(library, &length);
    library[strcspn(library, ",\n")] = 0;
    if (launcher->rank <= 0)
        ptb_error(
            "%s started %d processes, but the MPI library (%s) sees each of them alone in a world of 1: "
            "%d copies would measure nothing together. Usual causes: mpirun of another MPI than the one "
            "this program is linked with, or srun without an interface the library speaks. Start it "
            "with the mpirun of %s, or with `srun --mpi=pmix`",
            launcher->name, launcher->size, library, launcher->size, library);
    return PTB_UNSUPPORTED;
}

ptb_status ptb_world_open_mpi(bool threads, ptb_world **world)
{
    ptb_launcher launcher;
    // Not MPI_THREAD_FUNNELED for one thread: Open MPI then locks in every call, 0.14 us on top of 0.29 us
    // for a short all-reduce, and programs that call MPI_Init do not pay that. The process's other threads
    // never call the library.
    int started = 0, provided = 0, size = 0, wanted = threads ? MPI_THREAD_MULTIPLE : MPI_THREAD_SINGLE;
    PTB_TRY(ptb_launcher_detect(&launcher));
    MPI_Initialized(&started);
    if (started) {
        ptb_error("the MPI library is already started: a process opens one world");
        return PTB_INTERNAL;
    }
    PTB_TRY(ptb_mpi_check_launcher(&launcher));
    ptb_mpi_environment();
    ptb_devices_choose(launcher.local_rank); // the library may start CUDA
    PTB_TRY(ptb_mpi_check(MPI_Init_thread(NULL, NULL, wanted, &provided), "MPI_Init_thread"));
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    MPI_Comm_set_errhandler(MPI_COMM_SELF, MPI_ERRORS_RETURN);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    ptb_status status = check_launch(&launcher, size);
    if (status == PTB_OK && provided < wanted) {
        ptb_error("the MPI library grants thread level %d where %d (%s) is needed; use one that was built "
                  "with thread support",
                  provided, wanted, threads ? "MPI_THREAD_MULTIPLE" : "MPI_THREAD_SINGLE");
        status = PTB_UNSUPPORTED;
    }
    if (status == PTB_OK)
        status = open_over(MPI_COMM_WORLD, NULL, threads, world);
    if (status != PTB_OK)
        MPI_Finalize();
    else
        ptb_devices_choose((*world)->local_rank); // where the launcher did not tell it
    return status;
}
