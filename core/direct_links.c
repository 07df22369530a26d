// See direct_links.h. A part of the GPUs is a set of bits, GPU i being bit i.
#include "core/direct_links.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum {
    GPUS = PTB_DIRECT_GPUS_MAX,
    PARTS = 1 << GPUS,
    EDGES = GPUS * (GPUS - 1) / 2,
    ROUNDS_MAX = 1000, // of the linear program; a few dozen are usual
};
static const double tiny = 1e-9;

// ---- which GPUs are joined

bool ptb_has_direct_links(const ptb_link_capacity *c)
{
    return c->peer_count > 0 || c->lost_links > 0;
}

static unsigned links_to(const ptb_link_capacity *from, uint64_t address)
{
    for (unsigned i = 0; i < from->peer_count; i++)
        if (from->peers[i].address == address)
            return from->peers[i].links;
    return 0;
}

static bool is_readable(const ptb_link_capacity *c, char *why)
{
    if (c->is_switched || c->switch_links)
        snprintf(why, PTB_TRAFFIC_TEXT, "unknown: some NVLinks lead to a switch, others to GPUs");
    else if (c->lost_links)
        snprintf(why, PTB_TRAFFIC_TEXT, "unknown: where %u of %u NVLinks lead is not told by NVML",
                 c->lost_links, c->nvlinks);
    else
        return true;
    return false;
}

bool ptb_direct_links_of(const ptb_link_capacity *const *capacities, const int *ranks, int count,
                         ptb_direct_links *d, char why[PTB_TRAFFIC_TEXT])
{
    if (count > GPUS) {
        snprintf(why, PTB_TRAFFIC_TEXT, "unknown: more than %d GPUs with NVLinks without a switch", GPUS);
        return false;
    }
    *d = (ptb_direct_links){.count = count};
    for (int i = 0; i < count; i++) {
        d->rank[i] = ranks[i];
        if (!is_readable(capacities[i], why))
            return false;
        for (int j = 0; j < count; j++) {
            if (i != j && capacities[i]->address == capacities[j]->address) {
                snprintf(why, PTB_TRAFFIC_TEXT, "unknown: ranks share a GPU");
                return false;
            }
            unsigned there = links_to(capacities[i], capacities[j]->address);
            unsigned back = links_to(capacities[j], capacities[i]->address);
            d->links[i][j] = i == j ? 0 : there < back ? there : back;
        }
    }
    return true;
}

// ---- rings and chains

// Price of each edge, or how often a ring passes it; both ways are one edge.
typedef double edge_values[EDGES];

static int edge_of(int i, int j)
{
    int low = i < j ? i : j, high = i < j ? j : i;
    return high * (high - 1) / 2 + low;
}

// The lightest way through all GPUs, back to the first one where is_ring. INFINITY: there is none.
static double find_lightest(const ptb_direct_links *d, bool is_ring, const edge_values price,
                            edge_values passes)
{
    static const int nowhere = -1;
    double weight[PARTS][GPUS]; // of the lightest way through a part that ends at a GPU of it
    int before[PARTS][GPUS];
    int all = (1 << d->count) - 1, last = nowhere;
    for (int part = 1; part <= all; part++)
        for (int end = 0; end < d->count; end++) {
            int rest = part & ~(1 << end);
            weight[part][end] = rest == 0 && (end == 0 || !is_ring) ? 0 : INFINITY;
            before[part][end] = nowhere;
            for (int g = 0; g < d->count && part >> end & 1; g++) {
                if (!(rest >> g & 1) || !d->links[g][end])
                    continue;
                double w = weight[rest][g] + price[edge_of(g, end)];
                if (w < weight[part][end]) {
                    weight[part][end] = w;
                    before[part][end] = g;
                }
            }
        }
    double lightest = INFINITY;
    for (int end = is_ring; end < d->count; end++) {
        double w = weight[all][end];
        if (is_ring)
            w = d->links[end][0] ? w + price[edge_of(end, 0)] : INFINITY;
        if (w < lightest) {
            lightest = w;
            last = end;
        }
    }
    memset(passes, 0, sizeof(edge_values));
    if (last == nowhere)
        return INFINITY;
    if (is_ring)
        passes[edge_of(last, 0)] += 1;
    for (int part = all; before[part][last] != nowhere;) {
        int g = before[part][last];
        passes[edge_of(g, last)] += 1;
        part &= ~(1 << last);
        last = g;
    }
    return lightest;
}

// The basis of the simplex method: for each edge a ring (gain 1), or what is left of an edge (gain 0).
typedef struct {
    int edges;
    double inverse[EDGES][EDGES], gain[EDGES], level[EDGES];
} basis;

static void find_prices(const basis *b, edge_values price)
{
    for (int e = 0; e < b->edges; e++) {
        price[e] = 0;
        for (int k = 0; k < b->edges; k++)
            price[e] += b->gain[k] * b->inverse[k][e];
    }
}

// Takes a column into the basis. False: it does not get in (the program is unbounded, which it is not).
static bool enter(basis *b, const edge_values column, double gain)
{
    double direction[EDGES];
    int leaving = -1;
    for (int k = 0; k < b->edges; k++) {
        direction[k] = 0;
        for (int e = 0; e < b->edges; e++)
            direction[k] += b->inverse[k][e] * column[e];
        if (direction[k] > tiny &&
            (leaving < 0 || b->level[k] / direction[k] < b->level[leaving] / direction[leaving]))
            leaving = k;
    }
    if (leaving < 0)
        return false;
    double level = b->level[leaving] / direction[leaving];
    for (int e = 0; e < b->edges; e++)
        b->inverse[leaving][e] /= direction[leaving];
    for (int k = 0; k < b->edges; k++) {
        if (k == leaving)
            continue;
        b->level[k] -= direction[k] * level;
        for (int e = 0; e < b->edges; e++)
            b->inverse[k][e] -= direction[k] * b->inverse[leaving][e];
    }
    b->level[leaving] = level;
    b->gain[leaving] = gain;
    return true;
}

// An edge whose price has become negative is better left unused in part; -1: there is none.
static int find_overpriced(const edge_values price, int edges)
{
    for (int e = 0; e < edges; e++)
        if (price[e] < -tiny)
            return e;
    return -1;
}

// Rings or chains, each taken both ways.
static double pack(const ptb_direct_links *d, bool is_ring)
{
    basis b = {.edges = d->count * (d->count - 1) / 2};
    edge_values price = {0}, column;
    for (int i = 0; i < d->count; i++)
        for (int j = 0; j < i; j++) {
            int e = edge_of(i, j);
            b.inverse[e][e] = 1;
            // A trace more on each edge than it has, so that no two levels end at once and no basis comes
            // again.
            b.level[e] = d->links[i][j] + 1e-7 * (e + 1);
        }
    for (int round = 0; round < ROUNDS_MAX; round++) {
        find_prices(&b, price);
        int overpriced = find_overpriced(price, b.edges);
        if (overpriced >= 0) {
            memset(column, 0, sizeof column);
            column[overpriced] = 1;
        } else if (find_lightest(d, is_ring, price, column) >= 1 - tiny) {
            double sum = 0; // by the prices, which hold without the traces too
            for (int i = 0; i < d->count; i++)
                for (int j = 0; j < i; j++)
                    sum += price[edge_of(i, j)] * d->links[i][j];
            return 2 * sum;
        }
        if (!enter(&b, column, overpriced < 0))
            break;
    }
    return 0;
}

double ptb_direct_links_rings(const ptb_direct_links *d)
{
    return d->count > 1 ? pack(d, true) : 0;
}

double ptb_direct_links_chains(const ptb_direct_links *d)
{
    return d->count > 1 ? pack(d, false) : 0;
}

// ---- time

// Bytes from GPU i to GPU j that the traffic names; rings and chains name none.
static double demand(const ptb_direct_links *d, const ptb_traffic *t, int i, int j)
{
    int from = d->rank[i], to = d->rank[j];
    switch (t->near) {
    case PTB_NEAR_EACH:
        return t->near_part;
    case PTB_NEAR_NEXT:
        return from < t->near_over && to == (from + 1) % t->near_over ? t->near_part : 0;
    case PTB_NEAR_ONE:
        return from == t->near_from && to == t->near_to ? t->near_part : 0;
    case PTB_NEAR_ROOT:
        return (t->near_to < 0 ? from == t->near_from : to == t->near_to) ? t->near_part : 0;
    default:
        return 0;
    }
}

typedef struct {
    const ptb_direct_links *d;
    const ptb_traffic *t;
    const ptb_link_capacity *c;
} question;

// Over the links that join the two in each case. False: some have none.
static bool time_of_pairs(const question *q, ptb_direct_time *time)
{
    for (int i = 0; i < q->d->count; i++)
        for (int j = 0; j < q->d->count; j++) {
            double bytes = i == j ? 0 : demand(q->d, q->t, i, j);
            unsigned links = q->d->links[i][j];
            if (bytes <= 0)
                continue;
            if (!links)
                return false;
            double s = bytes / (links * q->c->nvlink_gb_s * 1e9);
            if (s <= time->s)
                continue;
            time->s = s;
            snprintf(time->how, sizeof time->how,
                     "%.4g S between two GPUs over %u direct NVLink%s %s x %g GB/s", bytes / q->t->bytes,
                     links, links == 1 ? "" : "s", q->c->nvlink_version, q->c->nvlink_gb_s);
        }
    return true;
}

static bool time_of_ways(const question *q, ptb_direct_time *time)
{
    bool is_ring = q->t->near == PTB_NEAR_RINGS;
    double ways = is_ring ? ptb_direct_links_rings(q->d) : ptb_direct_links_chains(q->d);
    if (ways <= 0)
        return false;
    time->s = q->t->near_part / (ways * q->c->nvlink_gb_s * 1e9);
    snprintf(time->how, sizeof time->how, "%.4g S over %.4g %s of direct NVLinks %s, each %g GB/s",
             q->t->near_part / q->t->bytes, ways, is_ring ? "rings" : "chains", q->c->nvlink_version,
             q->c->nvlink_gb_s);
    return true;
}

static int size_of(int part)
{
    int size = 0;
    for (; part; part &= part - 1)
        size++;
    return size;
}

// What has to leave a part of the GPUs, and the links on which it can.
static double leaving(const question *q, int part, unsigned *links)
{
    double bytes = 0;
    *links = 0;
    for (int i = 0; i < q->d->count; i++)
        for (int j = 0; j < q->d->count; j++) {
            if (!(part >> i & 1) || part >> j & 1)
                continue;
            *links += q->d->links[i][j];
            bytes += demand(q->d, q->t, i, j);
        }
    // Each ring leaves each part; a chain enters or leaves it, and there are as many chains the other way.
    if (q->t->near == PTB_NEAR_RINGS || q->t->near == PTB_NEAR_CHAINS)
        return q->t->near_part / (q->t->near == PTB_NEAR_CHAINS ? 2 : 1);
    return bytes;
}

// By links and slots together, whatever way the algorithm finds.
static void time_of_parts(const question *q, ptb_direct_time *time)
{
    for (int part = 1; part < (1 << q->d->count) - 1; part++) {
        char over[80];
        unsigned links;
        double bytes = leaving(q, part, &links);
        int inside = size_of(part), outside = q->d->count - inside,
            slots = inside < outside ? inside : outside;
        double s = bytes / ((links * q->c->nvlink_gb_s + slots * q->c->pcie_gb_s) * 1e9);
        if (s <= time->s * (1 + tiny))
            continue;
        time->s = s;
        snprintf(over, sizeof over, "%u NVLinks x %g, %d slots x %.3g GB/s", links, q->c->nvlink_gb_s, slots,
                 q->c->pcie_gb_s);
        snprintf(time->how, sizeof time->how, "%.4g S from %d to %d GPUs over %.50s", bytes / q->t->bytes,
                 inside, outside, over);
    }
}

// Of which only is known what the busiest GPU moves: it may be the one with most links.
static void time_of_busiest(const question *q, ptb_direct_time *time)
{
    unsigned most = 0;
    for (int i = 0; i < q->d->count; i++) {
        unsigned links = 0;
        for (int j = 0; j < q->d->count; j++)
            links += q->d->links[i][j];
        most = links > most ? links : most;
    }
    time->s = q->t->gpu_most / ((most * q->c->nvlink_gb_s + q->c->pcie_gb_s) * 1e9);
    snprintf(time->how, sizeof time->how, "a GPU moves %.4g S over %u NVLinks x %g and a slot of %.3g GB/s",
             q->t->gpu_most / q->t->bytes, most, q->c->nvlink_gb_s, q->c->pcie_gb_s);
}

bool ptb_direct_links_time(const ptb_direct_links *d, const ptb_traffic *t, const ptb_link_capacity *least,
                           ptb_direct_time *time, char why[PTB_TRAFFIC_TEXT])
{
    const question q = {d, t, least};
    bool is_way = t->near == PTB_NEAR_RINGS || t->near == PTB_NEAR_CHAINS,
         is_told = t->near != PTB_NEAR_OTHER;
    *time = (ptb_direct_time){.s = 0};
    if (t->near == PTB_NEAR_SWITCH) {
        snprintf(why, PTB_TRAFFIC_TEXT, "unknown: it goes through an NVSwitch, which these GPUs do not have");
        return false;
    }
    if (least->nvlink_gb_s <= 0) {
        snprintf(why, PTB_TRAFFIC_TEXT, "unknown: the rate of NVLink %s is not known", least->nvlink_version);
        return false;
    }
    if (d->count < 2 || (is_told && (is_way ? time_of_ways(&q, time) : time_of_pairs(&q, time))))
        return true;
    if (least->pcie_gb_s <= 0) {
        snprintf(why, PTB_TRAFFIC_TEXT, "unknown: NVLinks do not join all GPUs, and PCIe is not known");
        return false;
    }
    *time = (ptb_direct_time){.is_bound = true};
    if (is_told)
        time_of_parts(&q, time);
    else
        time_of_busiest(&q, time);
    return true;
}
