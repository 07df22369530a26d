// Barrier: no rank leaves before the last has entered. It has no data and so no bandwidth; its time is the
// result.
#include "collectives/coll_bench.h"

static void shape(size_t count, int n, int rank, int root, ptb_coll_shape *shape)
{
    (void)count, (void)n, (void)rank, (void)root;
    *shape = (ptb_coll_shape){0};
}

static bool expect(size_t count, int n, int rank, int root, size_t i, ptb_expect *expect)
{
    (void)count, (void)n, (void)rank, (void)root, (void)i, (void)expect;
    return false;
}

static const ptb_collective collective = {
    .plugin = {"barrier", "no rank leaves before the last has entered"},
    .kind = PTB_BARRIER,
    .shape = shape,
    .bus_factor = ptb_coll_factor_one,
    .size_bytes = ptb_coll_size_bytes,
    .expect = expect,
};

PTB_COLL_BENCH("barrier", "time until all ranks have met", PTB_COLL_OPT_ALGO, PTB_COLL_OPTS_COMMON);
