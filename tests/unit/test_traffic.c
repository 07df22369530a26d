// What algorithms send over links, against sums over a graph of edges, and the peaks that follow, against
// figures worked out by hand.
#include "collectives/traffic.h"
#include "core/direct_links.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

enum { RANKS_MAX = 16 };
static const double size = 1 << 20;

// DGX H100: 18 NVLinks to switches, a slot of PCIe 5, a 400 Gb/s port for each of 8 GPUs.
static const ptb_link_capacity dgx = {.nvlinks = 18,
                                      .nvlink_gb_s = 25,
                                      .nvlink_version = "4.0",
                                      .is_switched = true,
                                      .pcie_generation = 5,
                                      .pcie_width = 16,
                                      .pcie_gb_s = 63,
                                      .near_rails = 1,
                                      .near_gbits_s = 400,
                                      .rails = 8,
                                      .rail_gbits_s = 3200,
                                      .has_equal_rails = true};

typedef struct {
    ptb_traffic of[RANKS_MAX];
    double near, far;
} outcome;

// The world of one rank: `each` ranks on each of `hosts` hosts; round robin over them, or host by host.
static ptb_world make_world(int rank, int each, int hosts, bool is_round_robin, int host_of[RANKS_MAX])
{
    int n = each * hosts;
    for (int r = 0; r < n; r++)
        host_of[r] = is_round_robin ? r % hosts : r / each;
    return (ptb_world){.rank = rank,
                       .size = n,
                       .hosts = hosts,
                       .host = host_of[rank],
                       .local_size = each,
                       .host_of = host_of};
}

static outcome all_ranks(ptb_coll_kind kind, const char *algorithm, int each, int hosts, bool is_round_robin,
                         bool in_rank_order)
{
    outcome o = {.near = 0};
    for (int r = 0; r < each * hosts; r++) {
        int host_of[RANKS_MAX];
        ptb_world world = make_world(r, each, hosts, is_round_robin, host_of);
        const ptb_traffic_call call = {.group = &world,
                                       .algorithm = algorithm,
                                       .kind = kind,
                                       .root = 1 % world.size,
                                       .bytes = size,
                                       .in_rank_order = in_rank_order};
        o.of[r] = (ptb_traffic){.on_gpu = true};
        ptb_traffic_of_call(&call, &o.of[r]);
        o.near += o.of[r].near_bytes;
        o.far += o.of[r].far_bytes;
    }
    return o;
}

static void assert_near(double value, double wanted)
{
    if (!(fabs(value - wanted) <= 1e-9 * (fabs(wanted) + 1)))
        fail_msg("%.12g instead of %.12g", value, wanted);
}

static void assert_peak(const outcome *o, double factor, const ptb_link_capacity *capacity, double wanted,
                        const char *how)
{
    char said[PTB_TRAFFIC_TEXT];
    ptb_traffic t = o->of[0];
    t.counted = factor * size;
    double peak = ptb_traffic_peak(&t, capacity, NULL, 0, said);
    assert_string_equal(said, how);
    if (isnan(wanted))
        assert_true(isnan(peak));
    else
        assert_near(peak, wanted);
}

static void test_one_host(void **state)
{
    (void)state;
    outcome o = all_ranks(PTB_ALL_REDUCE, "ring", 8, 1, false, false);
    assert_near(o.near, 14 * size);
    assert_near(o.far, 0);
    assert_peak(&o, 1.75, &dgx, 450, "a GPU moves 1.75 S over 18 NVLinks 4.0 x 25 GB/s");
    o = all_ranks(PTB_ALL_REDUCE, "tree", 8, 1, false, false);
    assert_near(o.near, 14 * size);
    assert_peak(&o, 1.75, &dgx, 450, "a GPU moves 1.75 S over 18 NVLinks 4.0 x 25 GB/s");
    o = all_ranks(PTB_ALL_REDUCE, "nvls", 8, 1, false, false);
    assert_near(o.near, 9 * size);
    assert_peak(&o, 1.75, &dgx, 700, "a GPU moves 1.125 S over 18 NVLinks 4.0 x 25 GB/s");
    o = all_ranks(PTB_ALL_GATHER, "nvls", 8, 1, false, false);
    assert_near(o.near, size);
    assert_peak(&o, 0.875, &dgx, 393.75, "a GPU moves 1 S over 18 NVLinks 4.0 x 25 GB/s");
    // Which symmetric kernel runs is not told, so only what the GPU that moves most moves at least.
    o = all_ranks(PTB_ALL_REDUCE, "symmetric", 8, 1, false, false);
    assert_true(isnan(o.near) && o.far == 0);
    assert_peak(&o, 1.75, &dgx, 700, "at most: a GPU moves 1.125 S over 18 NVLinks 4.0 x 25 GB/s");
    o = all_ranks(PTB_ALL_REDUCE, "symmetric", 2, 1, false, false);
    assert_peak(&o, 1, &dgx, 450, "at most: a GPU moves 1 S over 18 NVLinks 4.0 x 25 GB/s");
    o = all_ranks(PTB_REDUCE_SCATTER, "symmetric", 8, 1, false, false);
    assert_peak(&o, 0.875, &dgx, 450, "at most: a GPU moves 0.875 S over 18 NVLinks 4.0 x 25 GB/s");
    o = all_ranks(PTB_ALL_GATHER, "ring", 8, 1, false, false);
    assert_near(o.near, 7 * size);
    assert_peak(&o, 0.875, &dgx, 450, "a GPU moves 0.875 S over 18 NVLinks 4.0 x 25 GB/s");
    o = all_ranks(PTB_BROADCAST, "ring", 8, 1, false, false);
    assert_near(o.near, 7 * size);
    assert_peak(&o, 1, &dgx, 450, "a GPU moves 1 S over 18 NVLinks 4.0 x 25 GB/s");
    o = all_ranks(PTB_ALL_TO_ALL, "direct", 8, 1, false, false);
    assert_near(o.near, 7 * size);
    assert_peak(&o, 0.875, &dgx, 450, "a GPU moves 0.875 S over 18 NVLinks 4.0 x 25 GB/s");
    o = all_ranks(PTB_GATHER, "direct", 8, 1, false, false);
    assert_near(o.near, 0.875 * size);
    o = all_ranks(PTB_SCATTER, "direct", 8, 1, false, false);
    assert_near(o.near, 0.875 * size);
    assert_near(o.of[1].near_bytes, 0.875 * size); // the root
}

static void test_two_hosts(void **state)
{
    (void)state;
    double edge = 2 * 15.0 / 16 * size;
    outcome o = all_ranks(PTB_ALL_REDUCE, "ring", 8, 2, false, false);
    assert_near(o.near, 14 * edge);
    assert_near(o.far, 2 * edge);
    assert_peak(&o, 1.875, &dgx, 400, "a host moves 1.875 S over 8 rails x 400 Gb/s");
    // NCCL orders ranks by host; a ring in rank order does what the ranks' places say.
    o = all_ranks(PTB_ALL_REDUCE, "ring", 8, 2, true, false);
    assert_near(o.far, 2 * edge);
    o = all_ranks(PTB_ALL_REDUCE, "ring", 8, 2, true, true);
    assert_near(o.far, 16 * edge);
    assert_near(o.near, 0);
    assert_peak(&o, 1.875, &dgx, 50, "a host moves 15 S over 8 rails x 400 Gb/s");
    o = all_ranks(PTB_ALL_REDUCE, "tree", 8, 2, false, false);
    assert_near(o.near, 28 * size);
    assert_near(o.far, 2 * size);
    assert_peak(&o, 1.875, &dgx, 1.875 / (1.75 / 450), "a GPU moves 1.75 S over 18 NVLinks 4.0 x 25 GB/s");
    o = all_ranks(PTB_ALL_TO_ALL, "direct", 8, 2, false, false);
    assert_near(o.near, 16 * 7 / 16.0 * size);
    assert_near(o.far, 8 * size);
    assert_peak(&o, 15.0 / 16, &dgx, 93.75, "a host moves 4 S over 8 rails x 400 Gb/s");
    o = all_ranks(PTB_GATHER, "direct", 2, 2, true, false); // the root is rank 1, beside rank 3
    assert_near(o.near, size / 4);
    assert_near(o.far, size / 2);
    o = all_ranks(PTB_BROADCAST, "ring", 8, 2, false, false);
    assert_true(isnan(o.far));
    assert_peak(&o, 1, &dgx, 400, "a host moves 1 S over 8 rails x 400 Gb/s");
    o = all_ranks(PTB_ALL_REDUCE, "ring", 2, 2, false, false); // two GPUs have two ports beside them
    assert_peak(&o, 1.5, &dgx, 100, "a host moves 1.5 S over 2 rails x 400 Gb/s");
    o = all_ranks(PTB_ALL_REDUCE, "ring", 1, 4, false, false); // one GPU a host: all over the network
    assert_near(o.near, 0);
    assert_near(o.far, 6 * size);
}

// Edges of a double binary tree over hosts, counted one by one: parents as in the figure of NCCL's
// src/graph/trees.cc; the second tree is the first one shifted by a host, or mirrored.
static double busiest_in_tree(int hosts)
{
    double sent[RANKS_MAX] = {0}, most = 0;
    for (int second = 0; second < 2; second++)
        for (int h = 1; h < hosts; h++) {
            int bit = h & -h, parent = (h ^ bit) | (bit << 1), a = h;
            parent = parent < hosts ? parent : h ^ bit;
            if (second) {
                a = hosts % 2 ? (h + 1) % hosts : hosts - 1 - h;
                parent = hosts % 2 ? (parent + 1) % hosts : hosts - 1 - parent;
            }
            sent[a] += size / 2;
            sent[parent] += size / 2;
        }
    for (int h = 0; h < hosts; h++)
        most = fmax(most, sent[h]);
    return most;
}

static void test_tree_over_hosts(void **state)
{
    (void)state;
    for (int hosts = 2; hosts <= RANKS_MAX; hosts++) {
        outcome o = all_ranks(PTB_ALL_REDUCE, "tree", 1, hosts, false, false);
        assert_near(o.of[0].host_most, busiest_in_tree(hosts));
        assert_near(o.far, 2 * (hosts - 1) * size);
        if (2 * hosts > RANKS_MAX)
            continue;
        o = all_ranks(PTB_ALL_REDUCE, "nvls_tree", 2, hosts, false, false);
        assert_near(o.of[0].host_most, busiest_in_tree(hosts));
        assert_near(o.of[0].slot_most, busiest_in_tree(hosts) / 2);
        assert_near(o.far, 2 * (hosts - 1) * size);
        assert_near(o.near, 3 * hosts * size);
    }
}

static void test_nvls(void **state)
{
    (void)state;
    outcome o = all_ranks(PTB_ALL_REDUCE, "nvls", 8, 2, false, false);
    assert_near(o.near, 2 * 9 * size);
    assert_near(o.far, 2 * size);
    assert_string_equal(o.of[0].how,
                        "nvls: each GPU sends (g+1)/g S to the switch; S from each of them between hosts");
    assert_peak(&o, 1.875, &dgx, 1.875 / (1.125 / 450), "a GPU moves 1.125 S over 18 NVLinks 4.0 x 25 GB/s");
    ptb_link_capacity c = dgx;
    c.near_gbits_s = 200;
    c.rail_gbits_s = 1600;
    assert_peak(&o, 1.875, &c, 375, "a host moves 1 S over 8 rails x 200 Gb/s");
    c.rails = 4; // so that not each GPU is a head
    c.rail_gbits_s = 1600;
    c.near_gbits_s = 400;
    assert_peak(&o, 1.875, &c, 375, "at most: a host moves 1 S over 4 rails x 400 Gb/s");
    o = all_ranks(PTB_ALL_REDUCE, "nvls_tree", 2, 8, false, false);
    assert_near(o.near, 8 * 3 * size);
    assert_near(o.far, 14 * size);
    assert_peak(&o, 1.875, &dgx, 93.75, "a host moves 2 S over 2 rails x 400 Gb/s");
    o = all_ranks(PTB_ALL_GATHER, "nvls", 8, 2, false, false);
    assert_true(isnan(o.far));
    assert_peak(&o, 0.9375, &dgx, 0.9375 * 450, "at most: a GPU moves 1 S over 18 NVLinks 4.0 x 25 GB/s");
    o = all_ranks(PTB_REDUCE_SCATTER, "nvls", 2, 8, false, false);
    assert_peak(&o, 0.9375, &dgx, 0.9375 / (0.875 / 100),
                "at most: a host moves 0.875 S over 2 rails x 400 Gb/s");
    // What it cannot do.
    o = all_ranks(PTB_BROADCAST, "nvls", 8, 1, false, false);
    assert_peak(&o, 1, &dgx, NAN, "unknown: what nvls sends for broadcast");
    o = all_ranks(PTB_ALL_GATHER, "nvls_tree", 8, 2, false, false);
    assert_peak(&o, 0.9375, &dgx, NAN, "unknown: what nvls_tree sends for all_gather");
    o = all_ranks(PTB_ALL_GATHER, "symmetric", 4, 2, false, false);
    assert_peak(&o, 0.875, &dgx, NAN, "unknown: what symmetric kernels send for all_gather on 2 hosts");
    o = all_ranks(PTB_ALL_REDUCE, "nvls", 1, 2, false, false);
    assert_peak(&o, 1, &dgx, NAN, "unknown: what nvls sends among 1 to 1 ranks a host on 2");
}

// What limits, as the machine gets smaller, and what is not known.
static void test_limits(void **state)
{
    (void)state;
    outcome ring = all_ranks(PTB_ALL_REDUCE, "ring", 4, 1, false, false);
    outcome far = all_ranks(PTB_ALL_REDUCE, "ring", 1, 2, false, false);
    ptb_link_capacity c = dgx;
    c.nvlinks = 0;
    c.pcie_generation = 4;
    c.pcie_gb_s = 31.5;
    assert_peak(&ring, 1.5, &c, 31.5, "a GPU moves 1.5 S over PCIe 4 x16 of 31.5 GB/s, no NVLink");
    assert_peak(&far, 1, &c, 31.5, "a GPU moves 1 S over PCIe 4 x16 of 31.5 GB/s");
    c.near_rails = 2;
    c.near_gbits_s = 125;
    c.rails = 2;
    c.rail_gbits_s = 125;
    c.has_equal_rails = false;
    assert_peak(&far, 1, &c, 15.625, "a host moves 1 S over 2 rails of 125 Gb/s together");
    c.pcie_gb_s = 0;
    assert_peak(&ring, 1.5, &c, NAN, "unknown: neither NVLinks nor the PCIe slots of the GPUs are known");
    c.rail_gbits_s = 0;
    assert_peak(&far, 1, &c, NAN, "unknown: the rate of a network card is not known");
    c.rails = 0;
    assert_peak(&far, 1, &c, NAN, "unknown: no network card was found");
    c = dgx;
    c.is_switched = false;
    assert_peak(&ring, 1.5, &c, NAN, "unknown: NVLinks that lead to no switch and to no GPU");
    c = dgx;
    c.nvlink_gb_s = 0;
    assert_peak(&ring, 1.5, &c, NAN, "unknown: the rate of NVLink 4.0 is not known");
    outcome other = all_ranks(PTB_ALL_REDUCE, "halving_doubling", 4, 1, false, false);
    assert_true(isnan(other.near));
    assert_peak(&other, 1.5, &dgx, NAN, "unknown: what the algorithm halving_doubling sends");
    ring.of[0].on_gpu = far.of[0].on_gpu = false;
    assert_peak(&ring, 1.5, &dgx, NAN, "unknown: the rate of copies within a host is not measured here");
    ring.of[0].copy_gb_s = 10; // each rank's part of the edges through memory
    assert_peak(&ring, 1.5, &dgx, 10, "a rank moves 1.5 S over a core's copies of that size, measured here");
    assert_peak(&far, 1, &dgx, NAN, "unknown: which of 8 network ports are used is not known");
    c.rails = 1;
    c.rail_gbits_s = 100;
    assert_peak(&far, 1, &c, 12.5, "a host moves 1 S over 1 rail x 100 Gb/s");
}

static void test_messages(void **state)
{
    (void)state;
    int host_of[RANKS_MAX];
    char how[PTB_TRAFFIC_TEXT];
    ptb_traffic t = {.on_gpu = true, .counted = size};
    ptb_world world = make_world(3, 2, 2, false, host_of);
    ptb_traffic_of_messages(&world, 4, 4, size, &t); // a ring: rank 3 to rank 0
    assert_near(t.near_bytes, 0);
    assert_near(t.far_bytes, size);
    assert_near(t.host_most, size);
    ptb_traffic_of_messages(&world, 1, 2, size, &t); // rank 0 to rank 1, and this is rank 3
    assert_near(t.near_bytes + t.far_bytes, 0);
    assert_near(ptb_traffic_peak(&t, &dgx, NULL, 0, how), 450);
    t = (ptb_traffic){.on_gpu = true, .counted = size};
    ptb_traffic_of_message(&world, 3, 1, size, &t);
    assert_near(t.far_bytes, size);
    assert_near(ptb_traffic_peak(&t, &dgx, NULL, 0, how), 50);
    assert_string_equal(how, "a host moves 1 S over 1 rail x 400 Gb/s");
}

// NVLinks without a switch: each algorithm over what joins the GPUs (core/direct_links.h).
static void test_direct(void **state)
{
    (void)state;
    static const struct {
        ptb_coll_kind kind;
        const char *algorithm;
        int hosts;
        bool in_rank_order;
        double factor, wanted;
        const char *how;
    } cases[] = {
        {PTB_ALL_REDUCE, "ring", 1, false, 1.5, 100,
         "1.5 S over 4 rings of direct NVLinks 2.0, each 25 GB/s"},
        {PTB_BROADCAST, "ring", 1, false, 1, 100, "1 S over 4 rings of direct NVLinks 2.0, each 25 GB/s"},
        {PTB_BROADCAST, "ring", 1, true, 1, 165.75,
         "at most: a GPU moves 1 S over 6 NVLinks x 25 and a slot of 15.8 GB/s"},
        {PTB_ALL_REDUCE, "ring", 1, true, 1.5, 25,
         "1.5 S between two GPUs over 1 direct NVLink 2.0 x 25 GB/s"},
        {PTB_ALL_REDUCE, "tree", 1, false, 1.5, 150, "2 S over 8 chains of direct NVLinks 2.0, each 25 GB/s"},
        {PTB_ALL_TO_ALL, "direct", 1, false, 0.75, 75,
         "0.25 S between two GPUs over 1 direct NVLink 2.0 x 25 GB/s"},
        {PTB_GATHER, "direct", 1, false, 0.75, 75,
         "0.25 S between two GPUs over 1 direct NVLink 2.0 x 25 GB/s"},
        {PTB_SCATTER, "direct", 1, false, 0.75, 75,
         "0.25 S between two GPUs over 1 direct NVLink 2.0 x 25 GB/s"},
        {PTB_ALL_REDUCE, "nvls", 1, false, 1.5, NAN,
         "unknown: it goes through an NVSwitch, which these GPUs do not have"},
        {PTB_ALL_REDUCE, "symmetric", 1, false, 1.5, 75,
         "at most: 0.5 S between two GPUs over 1 direct NVLink 2.0 x 25 GB/s"},
        // Chains within hosts; then the network is what limits.
        {PTB_ALL_REDUCE, "ring", 2, false, 1.75, 200,
         "1.75 S over 8 chains of direct NVLinks 2.0, each 25 GB/s"},
        {PTB_ALL_TO_ALL, "direct", 2, false, 0.875, 175,
         "0.125 S between two GPUs over 1 direct NVLink 2.0 x 25 GB/s"},
    };
    ptb_direct_links links[2] = {{.count = 4, .rank = {0, 1, 2, 3}}, {.count = 4, .rank = {4, 5, 6, 7}}};
    for (int i = 0; i < 4; i++)
        for (int j = 0; j < 4; j++)
            links[0].links[i][j] = links[1].links[i][j] = i == j ? 0 : i / 2 == j / 2 ? 4 : 1;
    ptb_link_capacity c = dgx;
    c.nvlinks = 6;
    snprintf(c.nvlink_version, sizeof c.nvlink_version, "2.0");
    c.is_switched = false;
    c.pcie_gb_s = 15.75;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char how[PTB_TRAFFIC_TEXT];
        outcome o =
            all_ranks(cases[i].kind, cases[i].algorithm, 4, cases[i].hosts, false, cases[i].in_rank_order);
        o.of[0].counted = cases[i].factor * size;
        o.of[0].slot_most = 0; // of the slots, which are slower, test_limits
        c.near_gbits_s = c.rail_gbits_s = 12800;
        double peak = ptb_traffic_peak(&o.of[0], &c, links, cases[i].hosts, how);
        assert_string_equal(how, cases[i].how);
        assert_true(isnan(cases[i].wanted) ? isnan(peak) : fabs(peak - cases[i].wanted) < 1e-6);
        if (cases[i].hosts == 1)
            continue;
        c.near_gbits_s = c.rail_gbits_s = 100;
        ptb_traffic_peak(&o.of[0], &c, links, 2, how);
        assert_non_null(strstr(how, "a host moves"));
    }
    // A host whose GPUs are not joined holds up all.
    char how[PTB_TRAFFIC_TEXT];
    outcome o = all_ranks(PTB_ALL_REDUCE, "ring", 4, 2, false, false);
    for (int i = 0; i < 4; i++)
        for (int j = 0; j < 4; j++) {
            links[0].links[i][j] = i != j ? 4 : 0;
            links[1].links[i][j] = i != j && i / 2 == j / 2 ? 4 : 0;
        }
    o.of[0].counted = 1.75 * size;
    o.of[0].slot_most = 0;
    c.near_gbits_s = c.rail_gbits_s = 12800;
    assert_near(ptb_traffic_peak(&o.of[0], &c, links, 2, how), 63);
    assert_string_equal(how, "at most: 0.875 S from 2 to 2 GPUs over 0 NVLinks x 25, 2 slots x 15.8 GB/s");
}

static void test_algorithm(void **state)
{
    (void)state;
    static const struct {
        const char *said, *call;
        ptb_coll_kind kind;
        int hosts;
        const char *word;
    } cases[] = {{"ring/ll128", "ncclAllReduce", PTB_ALL_REDUCE, 1, "ring"},
                 {"tree", "ncclAllReduce", PTB_ALL_REDUCE, 2, "tree"},
                 {"nvls_tree/simple", "ncclAllReduce", PTB_ALL_REDUCE, 2, "nvls_tree"},
                 {"collnet_chain", "ncclAllReduce", PTB_ALL_REDUCE, 2, NULL},
                 {"ring and others", "ncclAllReduce", PTB_ALL_REDUCE, 1, NULL},
                 {"symmetric", "ncclAllReduce", PTB_ALL_REDUCE, 1, "symmetric"},
                 {"symmetric (not confirmed: ...)", "ncclAllReduce", PTB_ALL_REDUCE, 1, NULL},
                 {"ring (not confirmed: NCCL's profiler plug-in told nothing)", "", PTB_ALL_REDUCE, 1, NULL},
                 {"none (sends and receives)", "ncclAlltoAll", PTB_ALL_TO_ALL, 2, "direct"},
                 {"ring", "ncclBroadcast of each part", PTB_ALL_GATHER, 1, "ring"},
                 {"ring", "ncclBroadcast of each part", PTB_ALL_GATHER, 2, NULL},
                 {"pairwise", "MPI_Alltoall", PTB_ALL_TO_ALL, 2, "direct"},
                 {"pairwise", "", PTB_REDUCE_SCATTER, 2, NULL},
                 {"default", "MPI_Allreduce", PTB_ALL_REDUCE, 2, NULL}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const ptb_world world = {.size = 2, .hosts = cases[i].hosts};
        ptb_params facts = {.count = 0};
        ptb_traffic t = {.how = ""};
        ptb_params_set(&facts, "algorithm", "%s", cases[i].said);
        ptb_params_set(&facts, "call", "%s", cases[i].call);
        const char *word = ptb_traffic_algorithm(&facts, &world, cases[i].kind, &t);
        if (!cases[i].word) {
            assert_null(word);
            assert_true(isnan(t.near_bytes) && strstr(t.how, "algorithm "));
        } else {
            assert_string_equal(word, cases[i].word);
        }
    }
}

static void test_least(void **state)
{
    (void)state;
    ptb_link_capacity least = dgx, other = dgx;
    other.nvlinks = 17;
    other.rails = 7;
    other.rail_gbits_s = 2800;
    ptb_link_capacity_least(&least, &other);
    assert_int_equal(least.nvlinks, 17);
    assert_int_equal(least.rails, 7);
    assert_near(least.pcie_gb_s, 63);
    ptb_link_capacity_least(&least, &dgx);
    assert_int_equal(least.nvlinks, 17);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_one_host),        cmocka_unit_test(test_two_hosts),
        cmocka_unit_test(test_tree_over_hosts), cmocka_unit_test(test_nvls),
        cmocka_unit_test(test_limits),          cmocka_unit_test(test_messages),
        cmocka_unit_test(test_direct),          cmocka_unit_test(test_algorithm),
        cmocka_unit_test(test_least),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
