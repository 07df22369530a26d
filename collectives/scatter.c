// Scatter: each rank gets its part of the root's vector.
#include "collectives/coll_bench.h"

static void shape(size_t count, int n, int rank, int root, ptb_coll_shape *shape)
{
    ptb_range part = ptb_block(count, n, rank);
    bool is_root = rank == root;
    *shape = (ptb_coll_shape){.send_count = is_root ? count : 0,
                              .recv_count = part.count,
                              .in_place_count = is_root ? count : part.count,
                              .in_place_recv = is_root ? part.first : 0};
}

static bool expect(size_t count, int n, int rank, int root, size_t i, ptb_expect *expect)
{
    ptb_range part = ptb_block(count, n, rank);
    *expect = (ptb_expect){
        .kind = PTB_EXPECT_COPY, .count = part.count, .source_rank = root, .source_index = part.first};
    return i == 0;
}

static const ptb_collective collective = {
    .plugin = {"scatter", "each rank's part of the root's vector"},
    .kind = PTB_SCATTER,
    .rooted = true,
    .has_data = true,
    .in_place = true,
    .shape = shape,
    .bus_factor = ptb_coll_factor_part,
    .size_bytes = ptb_coll_size_bytes,
    .expect = expect,
};

PTB_COLL_BENCH("scatter", "each rank's part of the root's vector", PTB_COLL_OPT_ROOT, PTB_COLL_OPTS_DATA,
               PTB_COLL_OPT_PLACE, PTB_COLL_OPT_ALGO, PTB_COLL_OPT_SEGMENT, PTB_COLL_OPTS_COMMON);
