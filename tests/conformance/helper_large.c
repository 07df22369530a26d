// More than 2^31 elements: large BACKEND COUNT. All-reduce, all-gather and reduce-scatter of i8, out of
// place, through the benchmarks' own path with their check of every element. Prints the facts that were
// recorded.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "collectives/world.h"
#include "bench_path.h"

static int run_one(ptb_world *world, const char *bench, const char *backend, const char *count)
{
    // a named algorithm, since the choice of `host` would first measure this machine
    const char *algo = strcmp(backend, "host") == 0 ? "direct" : "default";
    const char *const settings[] = {"comm",  backend, "count", count, "type", "i8",
                                    "place", "out",   "algo",  algo,  NULL};
    bench_result result;
    ptb_status status = bench_run(world, bench, settings, &result);
    if (status != PTB_OK) {
        fprintf(stderr, "%s %s: %s\n", backend, bench, ptb_status_name(status));
        ptb_world_abort(world, 3);
    }
    if (result.wrong)
        printf("WRONG %s: %s\n", result.first_key, result.first_wrong.detail);
    if (world->rank > 0)
        return result.wrong > 0;
    if (result.skipped)
        printf("skipped %s %s: %s\n", backend, bench, result.skip);
    printf("%s %s: %llu elements checked on rank 0;", backend, bench, (unsigned long long)result.checked);
    for (size_t i = 0; i < result.facts.count; i++)
        printf(" %s=%s", result.facts.items[i].name, result.facts.items[i].value);
    printf("\n");
    fflush(stdout);
    return result.wrong > 0 || result.cases != 1;
}

int main(int argc, char **argv)
{
    static const char *const benches[] = {"all_reduce", "all_gather", "reduce_scatter"};
    ptb_world *world;
    if (argc < 3 || ptb_world_open_mpi(false, &world) != PTB_OK)
        return 3;
    int bad = 0;
    for (size_t i = 0; i < 3; i++)
        bad += run_one(world, benches[i], argv[1], argv[2]);
    ptb_world_close(world);
    return bad ? 1 : 0;
}
