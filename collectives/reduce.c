// Reduce: the root gets the reduction of all ranks' vectors.
#include "collectives/coll_bench.h"

static void shape(size_t count, int n, int rank, int root, ptb_coll_shape *shape)
{
    (void)n;
    *shape = (ptb_coll_shape){
        .send_count = count, .recv_count = rank == root ? count : 0, .in_place_count = count};
}

static bool expect(size_t count, int n, int rank, int root, size_t i, ptb_expect *expect)
{
    (void)n;
    *expect = (ptb_expect){.kind = PTB_EXPECT_REDUCED, .count = count};
    return i == 0 && rank == root;
}

static const ptb_collective collective = {
    .plugin = {"reduce", "reduction of all vectors, on the root"},
    .kind = PTB_REDUCE,
    .reduces = true,
    .rooted = true,
    .has_data = true,
    .in_place = true,
    .in_place_changes_input = true,
    .shape = shape,
    .bus_factor = ptb_coll_factor_one,
    .size_bytes = ptb_coll_size_bytes,
    .expect = expect,
};

PTB_COLL_BENCH("reduce", "reduction of all vectors, on the root", PTB_COLL_OPT_OP, PTB_COLL_OPT_ROOT,
               PTB_COLL_OPTS_DATA, PTB_COLL_OPT_PLACE, PTB_COLL_OPT_ALGO, PTB_COLL_OPT_SEGMENT,
               PTB_COLL_OPTS_COMMON);
