// The peak that the busiest link allows.
#include "core/traffic.h"

#include "core/direct_links.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>

void ptb_traffic_unknown(ptb_traffic *traffic, const char *format, ...)
{
    va_list args;
    traffic->near_bytes = traffic->far_bytes = NAN;
    traffic->gpu_most = traffic->host_most = traffic->slot_most = NAN;
    va_start(args, format);
    vsnprintf(traffic->how, sizeof traffic->how, format, args);
    va_end(args);
}

// The link that needs the longest so far.
typedef struct {
    double s;
    bool is_bound; // it may need longer
    char how[PTB_TRAFFIC_TEXT];
} longest;

static void consider(longest *l, const ptb_traffic *t, const char *who, double bytes, double gb_s,
                     const char *link)
{
    double s = bytes / (gb_s * 1e9);
    if (s <= l->s)
        return;
    l->s = s;
    snprintf(l->how, sizeof l->how, "a %s moves %.4g S over %.70s", who, bytes / t->bytes, link);
}

// Between GPUs of a host: by NVLink where there is one, else by PCIe. False: not known, with the reason.
static bool consider_near(longest *l, const ptb_traffic *t, const ptb_link_capacity *c, char *why)
{
    char link[64];
    if (!t->on_gpu && t->copy_gb_s > 0) {
        consider(l, t, "rank", t->gpu_most, t->copy_gb_s, "a core's copies of that size, measured here");
        return true;
    }
    if (!t->on_gpu) {
        snprintf(why, PTB_TRAFFIC_TEXT, "unknown: the rate of copies within a host is not measured here");
        return false;
    }
    if (c->nvlinks && !c->is_switched) {
        snprintf(why, PTB_TRAFFIC_TEXT, "unknown: NVLinks that lead to no switch and to no GPU");
        return false;
    }
    if (c->nvlinks && c->nvlink_gb_s <= 0) {
        snprintf(why, PTB_TRAFFIC_TEXT, "unknown: the rate of NVLink %s is not known", c->nvlink_version);
        return false;
    }
    if (!c->nvlinks && c->pcie_gb_s <= 0) {
        snprintf(why, PTB_TRAFFIC_TEXT, "unknown: neither NVLinks nor the PCIe slots of the GPUs are known");
        return false;
    }
    if (c->nvlinks) {
        snprintf(link, sizeof link, "%u NVLinks %s x %g GB/s", c->nvlinks, c->nvlink_version, c->nvlink_gb_s);
        consider(l, t, "GPU", t->gpu_most, c->nvlinks * c->nvlink_gb_s, link);
    } else {
        snprintf(link, sizeof link, "PCIe %u x%u of %.3g GB/s, no NVLink", c->pcie_generation, c->pcie_width,
                 c->pcie_gb_s);
        consider(l, t, "GPU", t->gpu_most, c->pcie_gb_s, link);
    }
    return true;
}

// The host that needs longest.
static bool consider_direct(longest *l, const ptb_traffic *t, const ptb_link_capacity *c,
                            const ptb_direct_links *direct, int directs, char *why)
{
    for (int i = 0; i < directs; i++) {
        ptb_direct_time time;
        if (!ptb_direct_links_time(&direct[i], t, c, &time, why))
            return false;
        l->is_bound |= time.is_bound;
        if (time.s <= l->s)
            continue;
        l->s = time.s;
        snprintf(l->how, sizeof l->how, "%s", time.how);
    }
    return true;
}

static bool consider_far(longest *l, const ptb_traffic *t, const ptb_link_capacity *c, char *why)
{
    char link[64];
    unsigned rails = t->near_rails_only ? c->near_rails : c->rails;
    double gbits_s = t->near_rails_only ? c->near_gbits_s : c->rail_gbits_s;
    if (t->on_gpu && !t->near_rails_only && (unsigned)t->gpus * c->near_rails < rails && c->near_rails > 0) {
        rails = (unsigned)t->gpus * c->near_rails; // fewer GPUs than there are ports for
        gbits_s = t->gpus * c->near_gbits_s;
    }
    if (rails == 0 || gbits_s <= 0) {
        snprintf(why, PTB_TRAFFIC_TEXT, "unknown: %s",
                 rails ? "the rate of a network card is not known" : "no network card was found");
        return false;
    }
    if (!t->on_gpu && rails > 1) {
        snprintf(why, PTB_TRAFFIC_TEXT, "unknown: which of %u network ports are used is not known", rails);
        return false;
    }
    l->is_bound |= t->has_port_each && rails < (unsigned)t->gpus;
    if (rails == 1 || c->has_equal_rails)
        snprintf(link, sizeof link, "%u rail%s x %g Gb/s", rails, rails == 1 ? "" : "s", gbits_s / rails);
    else
        snprintf(link, sizeof link, "%u rails of %g Gb/s together", rails, gbits_s);
    consider(l, t, "host", t->host_most, gbits_s / 8, link);
    return true;
}

static bool consider_slot(longest *l, const ptb_traffic *t, const ptb_link_capacity *c, char *why)
{
    char link[64];
    if (c->pcie_gb_s <= 0) {
        snprintf(why, PTB_TRAFFIC_TEXT, "unknown: the PCIe slots of the GPUs are not known");
        return false;
    }
    snprintf(link, sizeof link, "PCIe %u x%u of %.3g GB/s", c->pcie_generation, c->pcie_width, c->pcie_gb_s);
    consider(l, t, "GPU", t->slot_most, c->pcie_gb_s, link);
    return true;
}

double ptb_traffic_peak(const ptb_traffic *t, const ptb_link_capacity *c, const ptb_direct_links *direct,
                        int directs, char how[PTB_TRAFFIC_TEXT])
{
    longest l = {.is_bound = t->is_bound};
    if (*t->no_peak) {
        snprintf(how, PTB_TRAFFIC_TEXT, "unknown: %.*s", PTB_TRAFFIC_TEXT - 10, t->no_peak);
        return NAN;
    }
    if (isnan(t->gpu_most) || isnan(t->host_most) || isnan(t->slot_most)) {
        snprintf(how, PTB_TRAFFIC_TEXT, "unknown: %.*s", PTB_TRAFFIC_TEXT - 10, t->how);
        return NAN;
    }
    // What the ranks of a host move through its memory is no limit where all wait for the network.
    bool has_near = t->gpu_most > 0 && (t->on_gpu || t->host_most <= 0);
    bool is_direct = has_near && t->on_gpu && directs > 0;
    if (is_direct && !consider_direct(&l, t, c, direct, directs, how))
        return NAN;
    if (has_near && !is_direct && !consider_near(&l, t, c, how))
        return NAN;
    if (t->host_most > 0 && !consider_far(&l, t, c, how))
        return NAN;
    if (t->on_gpu && t->slot_most > 0 && !consider_slot(&l, t, c, how))
        return NAN;
    if (l.s <= 0) {
        snprintf(how, PTB_TRAFFIC_TEXT, "unknown: nothing goes over a link");
        return NAN;
    }
    snprintf(how, PTB_TRAFFIC_TEXT, "%s%.*s", l.is_bound ? "at most: " : "", PTB_TRAFFIC_TEXT - 10, l.how);
    return t->counted / l.s * 1e-9;
}

static double nvlink_gb_s(const ptb_link_capacity *c)
{
    return c->nvlinks * c->nvlink_gb_s;
}

void ptb_link_capacity_least(ptb_link_capacity *least, const ptb_link_capacity *other)
{
    if (nvlink_gb_s(other) < nvlink_gb_s(least)) {
        least->nvlinks = other->nvlinks;
        least->nvlink_gb_s = other->nvlink_gb_s;
        snprintf(least->nvlink_version, sizeof least->nvlink_version, "%s", other->nvlink_version);
    }
    least->is_switched &= other->is_switched;
    if (other->pcie_gb_s < least->pcie_gb_s) {
        least->pcie_generation = other->pcie_generation;
        least->pcie_width = other->pcie_width;
        least->pcie_gb_s = other->pcie_gb_s;
    }
    if (other->near_gbits_s < least->near_gbits_s) {
        least->near_rails = other->near_rails;
        least->near_gbits_s = other->near_gbits_s;
    }
    if (other->rail_gbits_s < least->rail_gbits_s) {
        least->rails = other->rails;
        least->rail_gbits_s = other->rail_gbits_s;
    }
    least->has_equal_rails &= other->has_equal_rails;
}
