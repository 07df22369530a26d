// Peaks over NVLinks without a switch, on machines whose rings are known or can be counted by hand, and rings
// against all that there are.
#include "core/direct_links.h"

#include "core/random.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

static const double size = 1 << 20;

// A100's NVLinks and slot.
static const ptb_link_capacity a100 = {
    .nvlinks = 12, .nvlink_gb_s = 25, .nvlink_version = "3.0", .pcie_gb_s = 31.5};

static void join(ptb_direct_links *d, int i, int j, unsigned links)
{
    d->links[i][j] = d->links[j][i] = links;
}

static ptb_direct_links make(int count)
{
    ptb_direct_links d = {.count = count};
    for (int i = 0; i < count; i++)
        d.rank[i] = i;
    return d;
}

// Four GPUs: so many links from 0 to 1 and 2 to 3, from 0 to 2 and 1 to 3, from 0 to 3 and 1 to 2.
static ptb_direct_links four(unsigned a, unsigned b, unsigned c)
{
    ptb_direct_links d = make(4);
    join(&d, 0, 1, a);
    join(&d, 2, 3, a);
    join(&d, 0, 2, b);
    join(&d, 1, 3, b);
    join(&d, 0, 3, c);
    join(&d, 1, 2, c);
    return d;
}

// DGX-1 with V100, as nvidia-smi topo -m shows it.
static ptb_direct_links dgx1(void)
{
    static const int pairs[][3] = {{0, 1, 1}, {0, 2, 1}, {0, 3, 2}, {0, 4, 2}, {1, 2, 2}, {1, 3, 1},
                                   {1, 5, 2}, {2, 3, 2}, {2, 6, 1}, {3, 7, 1}, {4, 5, 1}, {4, 6, 1},
                                   {4, 7, 2}, {5, 6, 2}, {5, 7, 1}, {6, 7, 2}};
    ptb_direct_links d = make(8);
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++)
        join(&d, pairs[i][0], pairs[i][1], (unsigned)pairs[i][2]);
    return d;
}

static void assert_near(double value, double wanted)
{
    if (!(fabs(value - wanted) <= 1e-6 * (fabs(wanted) + 1)))
        fail_msg("%.12g instead of %.12g", value, wanted);
}

static void test_rings(void **state)
{
    (void)state;
    ptb_direct_links d = four(4, 4, 4); // HGX A100 with four
    assert_near(ptb_direct_links_rings(&d), 12);
    assert_near(ptb_direct_links_chains(&d), 16); // of four GPUs' 12 links each, 3 at once for a chain
    d = four(4, 1, 1);                            // each ring takes two of the pairs with one
    assert_near(ptb_direct_links_rings(&d), 4);
    assert_near(ptb_direct_links_chains(&d), 8); // each chain takes one of them
    d = four(2, 1, 1);                           // DGX Station
    assert_near(ptb_direct_links_rings(&d), 4);
    d = four(3, 2, 2); // 3.5 rings each way
    assert_near(ptb_direct_links_rings(&d), 7);
    d = four(12, 0, 0); // bridges of two
    assert_near(ptb_direct_links_rings(&d), 0);
    assert_near(ptb_direct_links_chains(&d), 0);
    d = make(2);
    join(&d, 0, 1, 3);
    assert_near(ptb_direct_links_rings(&d), 3);
    assert_near(ptb_direct_links_chains(&d), 6);
    d = make(4); // a square
    for (int i = 0; i < 4; i++)
        join(&d, i, (i + 1) % 4, 2);
    assert_near(ptb_direct_links_rings(&d), 4);
    d = make(3); // a chain of three
    join(&d, 0, 1, 2);
    join(&d, 1, 2, 1);
    assert_near(ptb_direct_links_rings(&d), 0);
    assert_near(ptb_direct_links_chains(&d), 2);
    d = dgx1(); // all six links of each GPU
    assert_near(ptb_direct_links_rings(&d), 6);
    d = make(8);
    for (int i = 0; i < 8; i++)
        for (int j = 0; j < i; j++)
            join(&d, i, j, 2);
    assert_near(ptb_direct_links_rings(&d), 14);
    assert_near(ptb_direct_links_chains(&d), 16);
    d = make(1);
    assert_near(ptb_direct_links_rings(&d), 0);
}

// With four GPUs there are three rings, AB, AC and BC of the three kinds of pairs: the most is half of all
// links, or less where one kind is short of the two others.
static void test_rings_of_four(void **state)
{
    (void)state;
    for (unsigned a = 1; a <= 6; a++)
        for (unsigned b = 0; b <= 6; b++)
            for (unsigned c = 0; c <= 6; c++) {
                ptb_direct_links d = four(a, b, c);
                double most = fmin((a + b + c) / 2.0, fmin(a + b, fmin(a + c, b + c)));
                assert_near(ptb_direct_links_rings(&d), 2 * most);
            }
}

// No part of the GPUs is left by more rings than it has links, and half the links of all is the most.
static void test_random_links(void **state)
{
    (void)state;
    for (uint64_t seed = 0; seed < 200; seed++) {
        int count = 3 + (int)(ptb_random_u64(1, 0, seed) % 6);
        ptb_direct_links d = make(count);
        double least = INFINITY;
        for (int i = 0; i < count; i++)
            for (int j = 0; j < i; j++)
                join(&d, i, j, (unsigned)(ptb_random_u64(2, seed, (uint64_t)(8 * i + j)) % 4));
        for (int part = 1; part < (1 << count) - 1; part++) {
            double links = 0;
            for (int i = 0; i < count; i++)
                for (int j = 0; j < count; j++)
                    links += part >> i & 1 && !(part >> j & 1) ? d.links[i][j] : 0;
            least = fmin(least, links);
        }
        double rings = ptb_direct_links_rings(&d), chains = ptb_direct_links_chains(&d);
        assert_true(rings >= 0 && rings <= least + 1e-9);
        assert_true(chains >= rings - 1e-9 && chains <= 2 * least + 1e-9);
    }
}

static void assert_time(const ptb_direct_links *d, ptb_traffic t, double gb_s, bool is_bound, const char *how)
{
    ptb_direct_time time;
    char why[PTB_TRAFFIC_TEXT];
    t.bytes = size;
    t.on_gpu = true;
    assert_true(ptb_direct_links_time(d, &t, &a100, &time, why));
    assert_string_equal(time.how, how);
    assert_near(size / time.s * 1e-9, gb_s);
    assert_int_equal(time.is_bound, is_bound);
}

static void test_times(void **state)
{
    (void)state;
    ptb_direct_links d = four(4, 1, 1);
    const ptb_traffic ring = {.near = PTB_NEAR_RINGS, .near_part = 1.5 * size, .gpu_most = 1.5 * size};
    const ptb_traffic chain = {.near = PTB_NEAR_CHAINS, .near_part = 2 * size, .gpu_most = 1.5 * size};
    const ptb_traffic each = {.near = PTB_NEAR_EACH, .near_part = size / 4};
    ptb_traffic one = {.near = PTB_NEAR_ONE, .near_part = size, .near_from = 0, .near_to = 1};
    assert_time(&d, ring, 100 / 1.5, false, "1.5 S over 4 rings of direct NVLinks 3.0, each 25 GB/s");
    assert_time(&d, chain, 100, false, "2 S over 8 chains of direct NVLinks 3.0, each 25 GB/s");
    assert_time(&d, each, 100, false, "0.25 S between two GPUs over 1 direct NVLink 3.0 x 25 GB/s");
    assert_time(&d, one, 100, false, "1 S between two GPUs over 4 direct NVLinks 3.0 x 25 GB/s");
    one.near_to = 3;
    assert_time(&d, one, 25, false, "1 S between two GPUs over 1 direct NVLink 3.0 x 25 GB/s");
    assert_time(&d, (ptb_traffic){.near = PTB_NEAR_NEXT, .near_part = size, .near_over = 2}, 100, false,
                "1 S between two GPUs over 4 direct NVLinks 3.0 x 25 GB/s");
    assert_time(&d, (ptb_traffic){.near = PTB_NEAR_NEXT, .near_part = size, .near_over = 4}, 25, false,
                "1 S between two GPUs over 1 direct NVLink 3.0 x 25 GB/s");
    assert_time(&d, (ptb_traffic){.near = PTB_NEAR_ROOT, .near_part = size / 4, .near_from = -1}, 100, false,
                "0.25 S between two GPUs over 1 direct NVLink 3.0 x 25 GB/s");
    assert_time(&d, (ptb_traffic){.gpu_most = size}, 181.5, true,
                "a GPU moves 1 S over 6 NVLinks x 25 and a slot of 31.5 GB/s");
    // Bridges: what goes from one pair to the other goes over slots.
    d = four(12, 0, 0);
    assert_time(&d, ring, 63 / 1.5, true, "1.5 S from 2 to 2 GPUs over 0 NVLinks x 25, 2 slots x 31.5 GB/s");
    assert_time(&d, chain, 63, true, "1 S from 2 to 2 GPUs over 0 NVLinks x 25, 2 slots x 31.5 GB/s");
    assert_time(&d, each, 63, true, "1 S from 2 to 2 GPUs over 0 NVLinks x 25, 2 slots x 31.5 GB/s");
    assert_time(&d, one, 63, true, "1 S from 2 to 2 GPUs over 0 NVLinks x 25, 2 slots x 31.5 GB/s");
    one.near_to = 1;
    assert_time(&d, one, 300, false, "1 S between two GPUs over 12 direct NVLinks 3.0 x 25 GB/s");
    // One GPU has no links: it has its slot.
    d = make(3);
    join(&d, 0, 1, 12);
    assert_time(&d, ring, 21, true, "1.5 S from 2 to 1 GPUs over 0 NVLinks x 25, 1 slots x 31.5 GB/s");
}

static void test_unknown_times(void **state)
{
    (void)state;
    ptb_direct_links d = four(12, 0, 0);
    ptb_traffic t = {.near = PTB_NEAR_SWITCH, .near_part = size, .bytes = size};
    ptb_link_capacity c = a100;
    ptb_direct_time time;
    char why[PTB_TRAFFIC_TEXT];
    assert_false(ptb_direct_links_time(&d, &t, &c, &time, why));
    assert_string_equal(why, "unknown: it goes through an NVSwitch, which these GPUs do not have");
    t.near = PTB_NEAR_RINGS;
    c.pcie_gb_s = 0;
    assert_false(ptb_direct_links_time(&d, &t, &c, &time, why));
    assert_string_equal(why, "unknown: NVLinks do not join all GPUs, and PCIe is not known");
    c.nvlink_gb_s = 0;
    assert_false(ptb_direct_links_time(&d, &t, &c, &time, why));
    assert_string_equal(why, "unknown: the rate of NVLink 3.0 is not known");
}

// ---- from what NVML tells

static ptb_link_capacity gpu(uint64_t address, ptb_link_peer first, ptb_link_peer second)
{
    ptb_link_capacity c = a100;
    c.address = address;
    c.peers[0] = first;
    c.peers[1] = second;
    c.peer_count = (first.links > 0) + (second.links > 0);
    return c;
}

static bool find(const ptb_link_capacity *gpus, int count, ptb_direct_links *d, char *why)
{
    const ptb_link_capacity *list[PTB_DIRECT_GPUS_MAX + 1];
    int ranks[PTB_DIRECT_GPUS_MAX + 1];
    for (int i = 0; i < count; i++) {
        list[i] = &gpus[i];
        ranks[i] = 2 * i;
    }
    return ptb_direct_links_of(list, ranks, count, d, why);
}

static void test_peers(void **state)
{
    (void)state;
    ptb_direct_links d;
    char why[PTB_TRAFFIC_TEXT];
    ptb_link_capacity gpus[PTB_DIRECT_GPUS_MAX + 1] = {gpu(7, (ptb_link_peer){8, 4}, (ptb_link_peer){9, 2}),
                                                       gpu(8, (ptb_link_peer){5, 6}, (ptb_link_peer){7, 3}),
                                                       gpu(9, (ptb_link_peer){7, 2}, (ptb_link_peer){0, 0})};
    assert_true(ptb_has_direct_links(&gpus[0]));
    assert_true(find(gpus, 3, &d, why));
    assert_int_equal(d.count, 3);
    assert_int_equal(d.rank[2], 4);
    assert_int_equal(d.links[0][1], 3); // at one of the ends a link is down
    assert_int_equal(d.links[1][0], 3);
    assert_int_equal(d.links[0][2], 2);
    assert_int_equal(d.links[1][2], 0);
    assert_int_equal(d.links[1][1], 0);
    gpus[2].address = 8;
    assert_false(find(gpus, 3, &d, why));
    assert_string_equal(why, "unknown: ranks share a GPU");
    gpus[2].address = 9;
    gpus[2].lost_links = 5;
    assert_false(find(gpus, 3, &d, why));
    assert_string_equal(why, "unknown: where 5 of 12 NVLinks lead is not told by NVML");
    gpus[2].switch_links = 1;
    assert_false(find(gpus, 3, &d, why));
    assert_string_equal(why, "unknown: some NVLinks lead to a switch, others to GPUs");
    assert_false(find(gpus, PTB_DIRECT_GPUS_MAX + 1, &d, why));
    assert_string_equal(why, "unknown: more than 8 GPUs with NVLinks without a switch");
    const ptb_link_capacity none = {.nvlinks = 18, .is_switched = true, .switch_links = 18};
    assert_false(ptb_has_direct_links(&none));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rings),         cmocka_unit_test(test_rings_of_four),
        cmocka_unit_test(test_random_links),  cmocka_unit_test(test_times),
        cmocka_unit_test(test_unknown_times), cmocka_unit_test(test_peers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
