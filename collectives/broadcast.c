// Broadcast: every rank gets the root's vector.
#include "collectives/coll_bench.h"

static void shape(size_t count, int n, int rank, int root, ptb_coll_shape *shape)
{
    (void)n;
    *shape = (ptb_coll_shape){
        .send_count = rank == root ? count : 0, .recv_count = count, .in_place_count = count};
}

static bool expect(size_t count, int n, int rank, int root, size_t i, ptb_expect *expect)
{
    (void)n, (void)rank;
    *expect = (ptb_expect){.kind = PTB_EXPECT_COPY, .count = count, .source_rank = root};
    return i == 0;
}

static const ptb_collective collective = {
    .plugin = {"broadcast", "the root's vector, on every rank"},
    .kind = PTB_BROADCAST,
    .rooted = true,
    .has_data = true,
    .in_place = true,
    .shape = shape,
    .bus_factor = ptb_coll_factor_one,
    .size_bytes = ptb_coll_size_bytes,
    .expect = expect,
};

PTB_COLL_BENCH("broadcast", "the root's vector, on every rank", PTB_COLL_OPT_ROOT, PTB_COLL_OPTS_DATA,
               PTB_COLL_OPT_PLACE, PTB_COLL_OPT_ALGO, PTB_COLL_OPT_SEGMENT, PTB_COLL_OPTS_COMMON);
