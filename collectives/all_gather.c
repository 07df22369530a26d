// All-gather: every rank gets the parts of all ranks, in order.
#include "collectives/coll_bench.h"

static void shape(size_t count, int n, int rank, int root, ptb_coll_shape *shape)
{
    (void)root;
    ptb_range part = ptb_block(count, n, rank);
    *shape = (ptb_coll_shape){
        .send_count = part.count, .recv_count = count, .in_place_count = count, .in_place_send = part.first};
}

static bool expect(size_t count, int n, int rank, int root, size_t i, ptb_expect *expect)
{
    (void)rank, (void)root;
    if (i >= (size_t)n)
        return false;
    ptb_range part = ptb_block(count, n, (int)i);
    *expect = (ptb_expect){
        .kind = PTB_EXPECT_COPY, .first = part.first, .count = part.count, .source_rank = (int)i};
    return true;
}

static const ptb_collective collective = {
    .plugin = {"all_gather", "parts of all ranks, on every rank"},
    .kind = PTB_ALL_GATHER,
    .has_data = true,
    .in_place = true,
    .shape = shape,
    .bus_factor = ptb_coll_factor_part,
    .size_bytes = ptb_coll_size_bytes,
    .expect = expect,
};

PTB_COLL_BENCH("all_gather", "parts of all ranks, on every rank", PTB_COLL_OPTS_DATA, PTB_COLL_OPT_PLACE,
               PTB_COLL_OPT_ALGO, PTB_COLL_OPT_SEGMENT, PTB_COLL_OPTS_COMMON);
