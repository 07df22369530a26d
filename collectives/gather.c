// Gather: the root gets the parts of all ranks, in order.
#include "collectives/coll_bench.h"

static void shape(size_t count, int n, int rank, int root, ptb_coll_shape *shape)
{
    ptb_range part = ptb_block(count, n, rank);
    bool is_root = rank == root;
    *shape = (ptb_coll_shape){.send_count = part.count,
                              .recv_count = is_root ? count : 0,
                              .in_place_count = is_root ? count : part.count,
                              .in_place_send = is_root ? part.first : 0};
}

static bool expect(size_t count, int n, int rank, int root, size_t i, ptb_expect *expect)
{
    if (rank != root || i >= (size_t)n)
        return false;
    ptb_range part = ptb_block(count, n, (int)i);
    *expect = (ptb_expect){
        .kind = PTB_EXPECT_COPY, .first = part.first, .count = part.count, .source_rank = (int)i};
    return true;
}

static const ptb_collective collective = {
    .plugin = {"gather", "parts of all ranks, on the root"},
    .kind = PTB_GATHER,
    .rooted = true,
    .has_data = true,
    .in_place = true,
    .shape = shape,
    .bus_factor = ptb_coll_factor_part,
    .size_bytes = ptb_coll_size_bytes,
    .expect = expect,
};

PTB_COLL_BENCH("gather", "parts of all ranks, on the root", PTB_COLL_OPT_ROOT, PTB_COLL_OPTS_DATA,
               PTB_COLL_OPT_PLACE, PTB_COLL_OPT_ALGO, PTB_COLL_OPT_SEGMENT, PTB_COLL_OPTS_COMMON);
