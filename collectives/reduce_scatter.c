// Reduce-scatter: each rank gets its part of the reduction of all ranks' vectors.
#include "collectives/coll_bench.h"

static void shape(size_t count, int n, int rank, int root, ptb_coll_shape *shape)
{
    (void)root;
    ptb_range part = ptb_block(count, n, rank);
    *shape = (ptb_coll_shape){
        .send_count = count, .recv_count = part.count, .in_place_count = count, .in_place_recv = part.first};
}

static bool expect(size_t count, int n, int rank, int root, size_t i, ptb_expect *expect)
{
    (void)root;
    ptb_range part = ptb_block(count, n, rank);
    *expect = (ptb_expect){.kind = PTB_EXPECT_REDUCED, .count = part.count, .source_index = part.first};
    return i == 0;
}

static const ptb_collective collective = {
    .plugin = {"reduce_scatter", "each rank's part of the reduction of all vectors"},
    .kind = PTB_REDUCE_SCATTER,
    .reduces = true,
    .has_data = true,
    .in_place = true,
    .in_place_changes_input = true,
    .shape = shape,
    .bus_factor = ptb_coll_factor_part,
    .size_bytes = ptb_coll_size_bytes,
    .expect = expect,
};

PTB_COLL_BENCH("reduce_scatter", "each rank's part of the reduction of all vectors", PTB_COLL_OPT_OP,
               PTB_COLL_OPTS_DATA, PTB_COLL_OPT_PLACE, PTB_COLL_OPT_ALGO, PTB_COLL_OPT_SEGMENT,
               PTB_COLL_OPTS_COMMON);
