// Reads the counters of links around a case and puts them beside what the algorithm implies.
#include "bench/counters.h"

#include "core/direct_links.h"
#include "core/log.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { RAILS_MAX = 32, RAIL_METRICS_MAX = 24 };
// Counters go up in units: below so many of them for each link a ratio would be about rounding.
static const double units_for_a_ratio = 50;

struct ptb_counters {
    ptb_world *world;
    ptb_link_reader *reader;
    char gpu[64]; // whose links are open
    ptb_links before, after, moved;
};

typedef struct {
    char name[32];
    double bytes; // sent, in the whole case
} link_bytes;

// One rank's part.
typedef struct {
    ptb_traffic implied;
    ptb_link_capacity capacity;
    bool has_nics; // this rank reads those of its host
    unsigned nvlinks;
    double nvlink_bytes, nvlink_unit;
    link_bytes least, most; // of the NVLinks
    unsigned rails;
    double rail_unit;
    bool is_rdma[RAILS_MAX];
    link_bytes rail[RAILS_MAX];
    int host_number;
    char host[64], gpu[64], why[256];
} part;

ptb_status ptb_counters_new(ptb_world *world, ptb_counters **counters)
{
    ptb_counters *c = calloc(1, sizeof *c);
    if (!c) {
        ptb_error("no memory for the counters of links");
        return PTB_NO_MEMORY;
    }
    c->world = world;
    *counters = c;
    return PTB_OK;
}

void ptb_counters_free(ptb_counters *counters)
{
    if (counters)
        ptb_links_close(counters->reader);
    free(counters);
}

static bool reads_nics(const ptb_world *world)
{
    return world->hosts > 1 && world->local_rank == 0;
}

ptb_status ptb_counters_begin(ptb_counters *c, const char *gpu)
{
    if (!c->reader || strcmp(c->gpu, gpu) != 0) {
        ptb_links_close(c->reader);
        c->reader = NULL;
        PTB_TRY(ptb_links_open(gpu, reads_nics(c->world), &c->reader));
        snprintf(c->gpu, sizeof c->gpu, "%s", gpu);
    }
    ptb_links_read(c->reader, &c->before);
    return PTB_OK;
}

void ptb_counters_end(ptb_counters *c)
{
    ptb_links_read(c->reader, &c->after);
    ptb_links_difference(&c->before, &c->after, &c->moved);
}

static bool is_nvlink(const ptb_link *link)
{
    return strcmp(link->kind, "NVLink") == 0;
}

static link_bytes name_bytes(const ptb_link *link)
{
    link_bytes named = {.bytes = (double)link->sent_bytes};
    snprintf(named.name, sizeof named.name, "%.31s", link->name);
    return named;
}

static void fill_part(const ptb_counters *c, const ptb_traffic *implied, part *p)
{
    memset(p, 0, sizeof *p);
    p->implied = *implied;
    p->has_nics = reads_nics(c->world);
    p->host_number = c->world->host;
    snprintf(p->gpu, sizeof p->gpu, "%s", c->gpu);
    ptb_links_capacity(c->reader, &p->capacity);
    snprintf(p->why, sizeof p->why, "%.255s", ptb_links_why(c->reader));
    if (gethostname(p->host, sizeof p->host - 1) != 0)
        snprintf(p->host, sizeof p->host, "host %d", c->world->host);
    for (size_t i = 0; i < c->moved.count; i++) {
        const ptb_link *link = &c->moved.items[i];
        link_bytes sent = name_bytes(link);
        if (!is_nvlink(link) && p->rails < RAILS_MAX) {
            p->rail_unit = fmax(p->rail_unit, (double)link->unit_bytes);
            p->is_rdma[p->rails] = strcmp(link->kind, "InfiniBand") == 0 || strcmp(link->kind, "RoCE") == 0;
            p->rail[p->rails++] = sent;
        }
        if (!is_nvlink(link))
            continue;
        p->nvlink_unit = (double)link->unit_bytes;
        p->nvlink_bytes += sent.bytes;
        p->least = p->nvlinks == 0 || sent.bytes < p->least.bytes ? sent : p->least;
        p->most = p->nvlinks == 0 || sent.bytes > p->most.bytes ? sent : p->most;
        p->nvlinks++;
    }
}

// ---- on rank 0

typedef struct {
    const part *parts;
    int ranks;
    double iterations;
    ptb_metrics *metrics;
    ptb_params *facts;
} summary;

#define OF_CASE "an iteration; counters over the whole case, warm-up included"

// wire, implied: bytes of the whole case; unit: how coarsely they are counted, all links together.
static void add_ratio(const summary *s, const char *what, double wire, double implied, double unit)
{
    char name[32];
    snprintf(name, sizeof name, "%s_bytes", what);
    ptb_metrics_add(s->metrics, name, wire / s->iterations, "bytes", PTB_NEUTRAL,
                    "sent by all together, " OF_CASE);
    if (isnan(implied))
        return;
    snprintf(name, sizeof name, "%s_implied", what);
    ptb_metrics_add(s->metrics, name, implied / s->iterations, "bytes", PTB_NEUTRAL,
                    "sent by all together, an iteration, by the algorithm that ran (fact implied)");
    if (implied <= 0 || implied < units_for_a_ratio * unit)
        return;
    snprintf(name, sizeof name, "%s_ratio", what);
    ptb_metrics_add(s->metrics, name, wire / implied, "", PTB_NEUTRAL,
                    "bytes by the counters / bytes that the algorithm implies");
}

static void add_extremes(const summary *s, const char *what, double least, double most)
{
    char name[32];
    snprintf(name, sizeof name, "%s_least", what);
    ptb_metrics_add(s->metrics, name, least / s->iterations, "bytes", PTB_NEUTRAL,
                    "sent by the link that sent least, " OF_CASE);
    snprintf(name, sizeof name, "%s_most", what);
    ptb_metrics_add(s->metrics, name, most / s->iterations, "bytes", PTB_NEUTRAL,
                    "sent by the link that sent most, " OF_CASE);
}

// Whether a rank, or its host, is to send anything; the links of others say nothing about how it was spread.
static bool sends_near(const part *p)
{
    return !(p->implied.near_bytes <= 0);
}

static bool host_sends_far(const summary *s, const part *host)
{
    for (int r = 0; r < s->ranks; r++)
        if (s->parts[r].host_number == host->host_number && !(s->parts[r].implied.far_bytes <= 0))
            return true;
    return false;
}

// Whether an earlier rank has the same GPU (--share-gpu): its links are counted once.
static bool has_earlier_owner(const summary *s, int rank)
{
    const part *p = &s->parts[rank];
    for (int r = 0; r < rank; r++)
        if (s->parts[r].host_number == p->host_number && strcmp(s->parts[r].gpu, p->gpu) == 0)
            return true;
    return false;
}

static void add_nvlinks(const summary *s)
{
    double wire = 0, implied = 0, unit = 0;
    const part *least = NULL, *most = NULL;
    unsigned links = 0, sending = 0;
    for (int r = 0; r < s->ranks; r++) {
        const part *p = &s->parts[r];
        implied += p->implied.near_bytes;
        if (!p->nvlinks || has_earlier_owner(s, r))
            continue;
        wire += p->nvlink_bytes;
        unit += p->nvlink_unit * p->nvlinks;
        links += p->nvlinks;
        if (!sends_near(p))
            continue;
        sending += p->nvlinks;
        least = !least || p->least.bytes < least->least.bytes ? p : least;
        most = !most || p->most.bytes > most->most.bytes ? p : most;
    }
    if (links)
        add_ratio(s, "nvlink", wire, implied * s->iterations, unit);
    if (!sending)
        return;
    add_extremes(s, "nvlink", least->least.bytes, most->most.bytes);
    if (most->most.bytes > least->least.bytes)
        ptb_params_set(s->facts, "nvlinks", "%u; least: rank %d %s, most: rank %d %s", sending,
                       (int)(least - s->parts), least->least.name, (int)(most - s->parts), most->most.name);
    else
        ptb_params_set(s->facts, "nvlinks", "%u; all the same", sending);
}

// Bytes of the ports of that name, one on each host.
static void add_rail(const summary *s, const char *name)
{
    char metric[32];
    double wire = 0;
    for (int r = 0; r < s->ranks; r++)
        for (unsigned i = 0; i < s->parts[r].rails; i++)
            if (strcmp(s->parts[r].rail[i].name, name) == 0)
                wire += s->parts[r].rail[i].bytes;
    snprintf(metric, sizeof metric, "rail_%.26s", name);
    for (size_t i = 0; i < s->metrics->count; i++)
        if (strcmp(s->metrics->items[i].name, metric) == 0)
            return;
    if (s->metrics->count < PTB_METRICS_MAX)
        ptb_metrics_add(s->metrics, metric, wire / s->iterations, "bytes", PTB_NEUTRAL,
                        "sent by the ports of this name on all hosts, " OF_CASE);
}

// The ports of all hosts that send: how many, and which sent least and most.
typedef struct {
    unsigned count;
    double low, high;
    char least[72], most[72];
} port_extremes;

static void find_extremes(const summary *s, bool of_rdma, port_extremes *e)
{
    *e = (port_extremes){.low = INFINITY, .high = -1};
    for (int r = 0; r < s->ranks; r++) {
        const part *p = &s->parts[r];
        for (unsigned i = 0; i < p->rails && host_sends_far(s, p); i++) {
            if (p->is_rdma[i] != of_rdma)
                continue; // the card that one logs in over is no rail
            e->count++;
            if (p->rail[i].bytes < e->low)
                snprintf(e->least, sizeof e->least, "%.32s %.31s", p->host, p->rail[i].name);
            if (p->rail[i].bytes > e->high)
                snprintf(e->most, sizeof e->most, "%.32s %.31s", p->host, p->rail[i].name);
            e->low = fmin(e->low, p->rail[i].bytes);
            e->high = fmax(e->high, p->rail[i].bytes);
        }
    }
}

static void add_rails(const summary *s)
{
    double wire = 0, implied = 0, unit = 0;
    bool has_rdma = false, has_ports = false;
    port_extremes e;
    for (int r = 0; r < s->ranks; r++) {
        const part *p = &s->parts[r];
        implied += p->implied.far_bytes;
        for (unsigned i = 0; i < p->rails; i++) {
            has_ports = true;
            has_rdma |= p->is_rdma[i];
            wire += p->rail[i].bytes;
            unit += p->rail_unit;
        }
    }
    if (!has_ports)
        return;
    add_ratio(s, "rail", wire, implied * s->iterations, unit);
    find_extremes(s, has_rdma, &e);
    if (e.count) {
        add_extremes(s, "rail", e.low, e.high);
        if (e.high > e.low)
            ptb_params_set(s->facts, "rails", "%u; least: %.40s, most: %.40s", e.count, e.least, e.most);
        else
            ptb_params_set(s->facts, "rails", "%u; all the same", e.count);
    }
    for (unsigned i = 0; i < s->parts[0].rails && i < RAIL_METRICS_MAX; i++)
        add_rail(s, s->parts[0].rail[i].name);
}

static bool is_together(const part *a, const part *b)
{
    return a->host_number == b->host_number && a->implied.group == b->implied.group;
}

// The ranks of rank r's group on its host.
static bool find_direct_of(const summary *s, int r, ptb_direct_links *direct, char *why)
{
    const ptb_link_capacity *capacities[PTB_DIRECT_GPUS_MAX + 1]; // one more tells that there are too many
    int ranks[PTB_DIRECT_GPUS_MAX + 1], count = 0, rank = 0, of_first = 0;
    for (int i = 0; i < s->ranks; i++) {
        if (is_together(&s->parts[i], &s->parts[r]) && count <= PTB_DIRECT_GPUS_MAX) {
            capacities[count] = &s->parts[i].capacity;
            ranks[count++] = rank;
        }
        rank += s->parts[i].implied.group == s->parts[r].implied.group;
        of_first += s->parts[i].implied.group == s->parts[0].implied.group;
    }
    if (rank != of_first) { // what rank 0 implies is not what they send
        snprintf(why, PTB_TRAFFIC_TEXT, "unknown: the groups have different numbers of ranks");
        return false;
    }
    return ptb_direct_links_of(capacities, ranks, count, direct, why);
}

// direct [ranks]: of each host and group. 0: all GPUs have switches or no NVLinks; negative: not known, with
// the reason.
static int find_direct(const summary *s, ptb_direct_links *direct, char *why)
{
    int count = 0;
    bool has_any = false;
    for (int r = 0; r < s->ranks; r++)
        has_any |= ptb_has_direct_links(&s->parts[r].capacity);
    for (int r = 0; r < s->ranks && has_any; r++) {
        bool is_first = true;
        for (int i = 0; i < r; i++)
            is_first &= !is_together(&s->parts[i], &s->parts[r]);
        if (is_first && !find_direct_of(s, r, &direct[count++], why))
            return -1;
    }
    return count;
}

static void add_peak(const summary *s)
{
    char how[PTB_TRAFFIC_TEXT];
    ptb_link_capacity least = s->parts[0].capacity;
    for (int r = 1; r < s->ranks; r++) {
        ptb_link_capacity other = s->parts[r].capacity;
        if (!s->parts[r].has_nics) { // another rank of its host knows
            other.rails = least.rails;
            other.rail_gbits_s = least.rail_gbits_s;
            other.has_equal_rails = least.has_equal_rails;
        }
        ptb_link_capacity_least(&least, &other);
    }
    if (s->parts[0].implied.counted <= 0)
        return; // its rate is bound by more than links
    ptb_traffic implied = s->parts[0].implied;
    for (int r = 1; r < s->ranks; r++)
        implied.copy_gb_s = fmax(implied.copy_gb_s, s->parts[r].implied.copy_gb_s);
    ptb_direct_links *direct = calloc((size_t)s->ranks, sizeof *direct);
    int directs = -1;
    if (direct)
        directs = implied.on_gpu ? find_direct(s, direct, how) : 0;
    else
        snprintf(how, sizeof how, "unknown: no memory to work it out");
    double peak = directs < 0 ? NAN : ptb_traffic_peak(&implied, &least, direct, directs, how);
    free(direct);
    ptb_params_set(s->facts, "expected_how", "%s", how);
    if (!isnan(peak))
        ptb_metrics_add(
            s->metrics, "expected", peak, "GB/s", PTB_NEUTRAL,
            "rate at which the busiest link carries what the algorithm implies (fact expected_how)");
}

// Said once, for the first rank that misses something.
static void tell(const summary *s, bool *told)
{
    for (int r = 0; r < s->ranks && told && !*told; r++) {
        if (!*s->parts[r].why)
            continue;
        ptb_info(
            "not all links can be counted, so bytes on the wire are not compared there: rank %d on %s: %s", r,
            s->parts[r].host, s->parts[r].why);
        *told = true;
    }
    for (int r = 0; r < s->ranks; r++)
        if (*s->parts[r].why) {
            ptb_params_set(s->facts, "not_counted", "rank %d: %s", r, s->parts[r].why);
            return;
        }
}

ptb_status ptb_counters_derive(ptb_counters *c, const ptb_traffic *implied, uint64_t iterations, bool *told,
                               ptb_metrics *metrics, ptb_params *facts)
{
    ptb_world *world = c->world;
    part *mine = malloc(sizeof *mine);
    part *all = world->rank == 0 ? malloc((size_t)world->size * sizeof *all) : NULL;
    bool failed = !mine || (world->rank == 0 && !all);
    if (failed)
        ptb_error("no memory to compare the links of %d ranks", world->size);
    ptb_status status = ptb_world_agree(world, failed ? PTB_NO_MEMORY : PTB_OK);
    if (status == PTB_OK) {
        fill_part(c, implied, mine);
        status = ptb_world_gather(world, 0, mine, sizeof *mine, all);
    }
    if (status == PTB_OK && world->rank == 0) {
        const summary s = {all, world->size, (double)iterations, metrics, facts};
        ptb_params_set(facts, "implied", "%s%s",
                       isnan(implied->near_bytes + implied->far_bytes) ? "unknown: " : "", implied->how);
        add_nvlinks(&s);
        add_rails(&s);
        add_peak(&s);
        tell(&s, told);
    }
    free(mine);
    free(all);
    return status;
}
