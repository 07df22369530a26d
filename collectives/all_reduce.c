// All-reduce: every rank gets the reduction of all ranks' vectors.
#include "collectives/coll_bench.h"

static double bus_factor(int n)
{
    return 2.0 * (n - 1) / n;
}

static void shape(size_t count, int n, int rank, int root, ptb_coll_shape *shape)
{
    (void)n, (void)rank, (void)root;
    *shape = (ptb_coll_shape){.send_count = count, .recv_count = count, .in_place_count = count};
}

static bool expect(size_t count, int n, int rank, int root, size_t i, ptb_expect *expect)
{
    (void)n, (void)rank, (void)root;
    *expect = (ptb_expect){.kind = PTB_EXPECT_REDUCED, .count = count};
    return i == 0;
}

static const ptb_collective collective = {
    .plugin = {"all_reduce", "reduction of all vectors, on every rank"},
    .kind = PTB_ALL_REDUCE,
    .reduces = true,
    .has_data = true,
    .in_place = true,
    .in_place_changes_input = true,
    .shape = shape,
    .bus_factor = bus_factor,
    .size_bytes = ptb_coll_size_bytes,
    .expect = expect,
};

PTB_COLL_BENCH("all_reduce", "reduction of all vectors, on every rank", PTB_COLL_OPT_OP, PTB_COLL_OPTS_DATA,
               PTB_COLL_OPT_PLACE, PTB_COLL_OPT_ALGO, PTB_COLL_OPT_SEGMENT, PTB_COLL_OPTS_COMMON);
