// All-to-all: part p of each rank's vector goes to rank p. In place only where all parts are equal.
#include "collectives/coll_bench.h"

static void shape(size_t count, int n, int rank, int root, ptb_coll_shape *shape)
{
    (void)root;
    *shape = (ptb_coll_shape){.send_count = count,
                              .recv_count = (size_t)n * ptb_block(count, n, rank).count,
                              .in_place_count = count};
}

static bool expect(size_t count, int n, int rank, int root, size_t i, ptb_expect *expect)
{
    (void)root;
    if (i >= (size_t)n)
        return false;
    ptb_range part = ptb_block(count, n, rank);
    *expect = (ptb_expect){.kind = PTB_EXPECT_COPY,
                           .first = i * part.count,
                           .count = part.count,
                           .source_rank = (int)i,
                           .source_index = part.first};
    return true;
}

static const ptb_collective collective = {
    .plugin = {"all_to_all", "each rank sends an equal part to every rank"},
    .kind = PTB_ALL_TO_ALL,
    .has_data = true,
    .in_place = true,
    .in_place_changes_input = true,
    .shape = shape,
    .bus_factor = ptb_coll_factor_part,
    .size_bytes = ptb_coll_size_bytes,
    .expect = expect,
};

PTB_COLL_BENCH("all_to_all", "each rank sends an equal part to every rank", PTB_COLL_OPTS_DATA,
               PTB_COLL_OPT_PLACE, PTB_COLL_OPT_ALGO, PTB_COLL_OPT_SEGMENT, PTB_COLL_OPTS_COMMON);
