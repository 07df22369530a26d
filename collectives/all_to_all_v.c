// All-to-all-v: rank r sends counts[r][p] elements to rank p. The matrix is skewed as token routing is, and
// the same in every run: the vector is cut into n parts of sizes close to 1 : 2 : ... : n, and counts[r][p]
// is part (r+p) mod n. It is symmetric, so that an in-place form exists, and each rank sends and receives S
// bytes, so that S is also the largest per-rank size. Parts may be empty when count is small.
#include "collectives/coll_bench.h"

// Elements in parts 0 .. k-1 of n: floor(count x k(k+1) / (n(n+1))), in two steps so that nothing overflows.
static size_t parts_before(size_t count, int n, size_t k)
{
    size_t numerator = k * (k + 1), denominator = (size_t)n * ((size_t)n + 1);
    return count / denominator * numerator + count % denominator * numerator / denominator;
}

static size_t pair_count(size_t count, int n, int from, int to)
{
    size_t k = ((size_t)from + (size_t)to) % (size_t)n;
    return parts_before(count, n, k + 1) - parts_before(count, n, k);
}

static void counts(size_t count, int n, int rank, size_t *send_counts, size_t *send_first,
                   size_t *recv_counts, size_t *recv_first)
{
    size_t at = 0;
    for (int p = 0; p < n; p++) {
        send_counts[p] = recv_counts[p] = pair_count(count, n, rank, p);
        send_first[p] = recv_first[p] = at;
        at += send_counts[p];
    }
}

static void shape(size_t count, int n, int rank, int root, ptb_coll_shape *shape)
{
    (void)n, (void)rank, (void)root;
    *shape = (ptb_coll_shape){.send_count = count, .recv_count = count, .in_place_count = count};
}

static bool expect(size_t count, int n, int rank, int root, size_t i, ptb_expect *expect)
{
    (void)root;
    if (i >= (size_t)n)
        return false;
    *expect = (ptb_expect){
        .kind = PTB_EXPECT_COPY, .count = pair_count(count, n, (int)i, rank), .source_rank = (int)i};
    for (int p = 0; p < (int)i; p++)
        expect->first += pair_count(count, n, p, rank);
    for (int p = 0; p < rank; p++)
        expect->source_index += pair_count(count, n, (int)i, p);
    return true;
}

static const ptb_collective collective = {
    .plugin = {"all_to_all_v", "each rank sends a part of its own size to every rank"},
    .kind = PTB_ALL_TO_ALL_V,
    .has_data = true,
    .in_place = true,
    .in_place_changes_input = true,
    .shape = shape,
    .bus_factor = ptb_coll_factor_part,
    .size_bytes = ptb_coll_size_bytes,
    .expect = expect,
    .counts = counts,
};

PTB_COLL_BENCH("all_to_all_v", "each rank sends a part of its own size to every rank", PTB_COLL_OPTS_DATA,
               PTB_COLL_OPT_PLACE, PTB_COLL_OPT_ALGO, PTB_COLL_OPT_SEGMENT, PTB_COLL_OPTS_COMMON);
