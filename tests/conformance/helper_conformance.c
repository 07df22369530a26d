// The conformance sweep over MPI processes: conformance BACKEND[,BACKEND...], in the memory of the device
// that PTB_TEST_DEVICE names (host unless set). One start of N processes sweeps the worlds of ranks 0 .. n-1
// for all n up to N. Prints what was checked and skipped; exit 1 when anything was wrong.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "collectives/world.h"
#include "core/clock.h"
#include "bench_path.h"
#include "conformance.h"

// The sweep of all named back-ends, then their benchmarks' own verification on odd and non-dividing counts.
static ptb_status sweep_world(ptb_world *world, ptb_device *device, const char *const *names, size_t count,
                              int ranks_max, tally *seen)
{
    bench_seat seat;
    ptb_status status = seat_init(&seat, world, device, seen);
    for (size_t i = 0; i < count && status == PTB_OK; i++)
        status = sweep_backend(&seat, names[i], ranks_max);
    seat_release(&seat);
    return status;
}

// `host` by named algorithms, since its own choice would first measure this machine.
static ptb_status verify_benchmarks(ptb_world *world, const char *name, tally *seen)
{
    const char *algos = strcmp(name, "host") == 0 ? "ring,direct" : "default";
    const char *const settings[] = {"comm",     name,   "count", "0,1,7,7919", "type",
                                    "f32,bf16", "algo", algos,   NULL};
    const char *const barrier[] = {"comm", name, "algo", algos, NULL};
    const char *const sendrecv[] = {"comm", name, "count", "0,1,7,7919", "type", "f32,bf16", NULL};
    for (size_t i = 0; i < ptb_registry_count(PTB_KIND_BENCH); i++) {
        const ptb_bench *bench = (const ptb_bench *)(const void *)ptb_registry_at(PTB_KIND_BENCH, i);
        if (bench->iterate != ptb_coll_bench_iterate)
            continue;
        bench_result result;
        PTB_TRY(bench_run(world, bench->plugin.name,
                          strcmp(bench->plugin.name, "barrier") == 0    ? barrier
                          : strcmp(bench->plugin.name, "sendrecv") == 0 ? sendrecv
                                                                        : settings,
                          &result));
        seen->checked += result.cases;
        if (result.wrong && seen->wrong == 0)
            snprintf(seen->first_wrong, sizeof seen->first_wrong, "%.200s: %.255s", result.first_key,
                     result.first_wrong.detail);
        seen->wrong += result.wrong;
    }
    return PTB_OK;
}

static ptb_status report(ptb_world *world, int n, double seconds, const tally *seen, long *wrong)
{
    tally *all = calloc((size_t)world->size, sizeof *all);
    ptb_status status = ptb_world_gather(world, 0, seen, sizeof *seen, all);
    if (status == PTB_OK && world->rank == 0) {
        printf("%d ranks: %ld calls checked, %ld skipped, in %.1f s\n", n, seen->checked, seen->skipped,
               seconds);
        for (int i = 0; i < seen->skip_reasons; i++)
            printf("    %ld skipped: %s\n", seen->skip_count[i], seen->skip_reason[i]);
        for (int r = 0; r < n; r++)
            if (all[r].wrong) {
                printf("    WRONG on rank %d: %ld; first: %s\n", r, all[r].wrong, all[r].first_wrong);
                *wrong += all[r].wrong;
            }
        fflush(stdout);
    }
    free(all);
    return status;
}

static ptb_status sweep_size(ptb_world *world, ptb_device *device, int n, const char *list, long *wrong)
{
    char *storage;
    const char *names[8];
    size_t count = ptb_text_split(list, ',', &storage, names, 8);
    tally *seen = calloc(1, sizeof *seen);
    ptb_world *part = NULL;
    int64_t begin = ptb_clock_ns();
    ptb_status status = ptb_world_split(world, world->rank < n ? 0 : -1, world->rank, &part);
    if (status == PTB_OK && part) {
        status = sweep_world(part, device, names, count, world->size, seen);
        for (size_t i = 0; i < count && status == PTB_OK; i++)
            status = verify_benchmarks(part, names[i], seen);
    }
    if (status != PTB_OK) {
        fprintf(stderr, "rank %d of %d: %s\n", world->rank, n, ptb_status_name(status));
        ptb_world_abort(world, 3);
    }
    ptb_world_close(part);
    PTB_TRY(ptb_world_sleep(world));
    status = report(world, n, (double)(ptb_clock_ns() - begin) / 1e9, seen, wrong);
    free(seen);
    free(storage);
    return status;
}

int main(int argc, char **argv)
{
    ptb_world *world;
    ptb_device *device;
    if (argc < 2 || ptb_world_open_mpi(false, &world) != PTB_OK)
        return 3;
    const char *name = getenv("PTB_TEST_DEVICE");
    if (ptb_device_open_local(name ? name : "host", world, true, &device) != PTB_OK)
        return 3;
    long wrong = 0;
    ptb_status status = PTB_OK;
    for (int n = 1; n <= world->size && status == PTB_OK; n++)
        if (is_swept(n) || n == world->size)
            status = sweep_size(world, device, n, argv[1], &wrong);
    bool root = world->rank == 0;
    ptb_device_close(device);
    ptb_world_close(world);
    if (status != PTB_OK)
        return 3;
    if (root)
        printf("%s\n", wrong ? "WRONG" : "all right");
    return wrong ? 1 : 0;
}
