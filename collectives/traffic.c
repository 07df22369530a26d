// The bytes that algorithms send.
#include "collectives/traffic.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

// Ranks on the fullest and on the emptiest host.
typedef struct {
    int ranks, hosts, most, least;
} layout;

static int ranks_on(const ptb_world *group, int host)
{
    int count = 0;
    for (int r = 0; r < group->size; r++)
        count += group->host_of[r] == host;
    return count;
}

static layout layout_of(const ptb_world *group)
{
    layout l = {.ranks = group->size, .hosts = group->hosts, .most = 0, .least = group->size};
    for (int h = 0; h < group->hosts; h++) {
        int count = ranks_on(group, h);
        l.most = count > l.most ? count : l.most;
        l.least = count < l.least ? count : l.least;
    }
    return l;
}

// `edges` links between ranks, `far` of them between hosts, each carry `bytes`; every rank has an even share.
static void share_edges(const layout *l, double edges, double far, double bytes, ptb_traffic *t)
{
    t->near_bytes = (edges - far) * bytes / l->ranks;
    t->far_bytes = far * bytes / l->ranks;
}

// Edges of a ring in rank order that leave a host: all, and of the host with most.
static int far_edges(const ptb_world *group, int *of_one_host)
{
    int all = 0;
    *of_one_host = 0;
    for (int h = 0; h < group->hosts; h++) {
        int out = 0;
        for (int r = 0; r < group->size; r++)
            out += group->host_of[r] == h && group->host_of[(r + 1) % group->size] != h;
        all += out;
        *of_one_host = out > *of_one_host ? out : *of_one_host;
    }
    return all;
}

static void ring(const ptb_traffic_call *call, const layout *l, ptb_traffic *t)
{
    bool is_rooted = call->kind == PTB_BROADCAST || call->kind == PTB_REDUCE;
    double n = l->ranks, part = is_rooted ? 1 : call->kind == PTB_ALL_REDUCE ? 2 * (n - 1) / n : (n - 1) / n;
    double edge = part * call->bytes;
    int of_one_host = l->hosts > 1;
    int far = call->in_rank_order ? far_edges(call->group, &of_one_host) : l->hosts > 1 ? l->hosts : 0;
    // The rings of several channels leave a host at a GPU each, so on average one edge of a host's GPUs is
    // far.
    bool is_spread = l->hosts > 1 && !call->in_rank_order;
    t->gpu_most = is_spread ? edge * (l->most - 1) / l->most : l->most > 1 ? edge : 0;
    t->host_most = edge * of_one_host;
    t->slot_most = l->hosts > 1 ? t->host_most / (call->in_rank_order ? of_one_host : l->least) : 0;
    t->near = !call->in_rank_order ? l->hosts > 1 ? PTB_NEAR_CHAINS : PTB_NEAR_RINGS
              : is_rooted          ? PTB_NEAR_OTHER // one edge is left out
                                   : PTB_NEAR_NEXT;
    t->near_part = edge;
    t->near_over = l->ranks;
    if (is_rooted && l->hosts > 1) {
        t->near_bytes = t->far_bytes = NAN;
        snprintf(t->how, sizeof t->how, "whether the edge that a rooted ring leaves out is between hosts");
        return;
    }
    share_edges(l, is_rooted ? n - 1 : n, far, edge, t);
    snprintf(t->how, sizeof t->how, "ring: %s over each of %d edges, %d between hosts",
             is_rooted                      ? "S"
             : call->kind == PTB_ALL_REDUCE ? "2(n-1)/n S"
                                            : "(n-1)/n S",
             l->ranks - (is_rooted ? 1 : 0), far);
}

// Bytes that the busiest host sends (and receives) in a double binary tree over hosts, of which each tree has
// half of S: in one it is inside (up, and down to two), in the other a leaf (up). With three hosts it has one
// child where it is inside; with two, one tree's root is the other one's leaf.
static double tree_host_most(int hosts, double s)
{
    return hosts == 1 ? 0 : hosts == 2 ? s : hosts == 3 ? 1.5 * s : 2 * s;
}

static void tree(const ptb_traffic_call *call, const layout *l, ptb_traffic *t)
{
    double s = call->bytes;
    if (call->kind != PTB_ALL_REDUCE) {
        ptb_traffic_unknown(t, "what a tree sends for %s", ptb_coll_name(call->kind));
        return;
    }
    share_edges(l, l->ranks - 1, l->hosts - 1, 2 * s, t);
    // Channels have chains that begin at different GPUs.
    t->gpu_most = 2 * s * (l->most - 1) / l->most;
    t->near = PTB_NEAR_CHAINS;
    t->near_part = 2 * s;
    t->host_most = tree_host_most(l->hosts, s);
    t->slot_most = t->host_most / l->least;
    snprintf(t->how, sizeof t->how, "tree: S up and S down over each of %d edges, %d between hosts",
             l->ranks - 1, l->hosts - 1);
}

// Within a host of g GPUs: what each sends to the switch, and what the one that moves most moves.
static void nvls_near(const ptb_traffic_call *call, double g, ptb_traffic *t)
{
    double s = call->bytes;
    t->near_bytes = call->kind == PTB_ALL_REDUCE ? (g + 1) / g * s : call->kind == PTB_ALL_GATHER ? s / g : s;
    t->gpu_most = call->kind == PTB_ALL_REDUCE ? t->near_bytes : s; // an all-gather receives S
}

static bool nvls_is_known(const ptb_traffic_call *call, const layout *l, ptb_traffic *t)
{
    bool is_tree = strcmp(call->algorithm, "nvls_tree") == 0;
    bool has_kind = call->kind == PTB_ALL_REDUCE ||
                    (!is_tree && (call->kind == PTB_ALL_GATHER || call->kind == PTB_REDUCE_SCATTER));
    if (has_kind && l->least > 1 && l->least == l->most && (!is_tree || l->hosts > 1))
        return true;
    if (!has_kind)
        ptb_traffic_unknown(t, "what %s sends for %s", call->algorithm, ptb_coll_name(call->kind));
    else
        ptb_traffic_unknown(t, "what %s sends among %d to %d ranks a host on %d", call->algorithm, l->least,
                            l->most, l->hosts);
    return false;
}

static void nvls_between(const ptb_traffic_call *call, const layout *l, ptb_traffic *t)
{
    bool is_tree = strcmp(call->algorithm, "nvls_tree") == 0;
    double s = call->bytes, hosts = l->hosts;
    t->has_port_each = true;
    t->far_bytes = is_tree ? 2 * s * (hosts - 1) / l->ranks : s / l->most;
    t->host_most = is_tree ? tree_host_most(l->hosts, s) : s;
    snprintf(t->how, sizeof t->how, "%s: each GPU sends (g+1)/g S to the switch; %s between hosts",
             call->algorithm, is_tree ? "S up and S down a tree" : "S from each of them");
    if (call->kind != PTB_ALL_REDUCE) {
        // Whether the network gives a host its own part back is not known: at least the others' come or go.
        t->host_most = s * (hosts - 1) / hosts;
        t->is_bound = true;
        t->near_bytes = t->far_bytes = NAN;
        snprintf(t->how, sizeof t->how, "what %s sends between hosts for %s", call->algorithm,
                 ptb_coll_name(call->kind));
    }
    t->slot_most = t->host_most / l->most;
}

static void nvls(const ptb_traffic_call *call, const layout *l, ptb_traffic *t)
{
    if (!nvls_is_known(call, l, t))
        return;
    nvls_near(call, l->most, t);
    t->near = PTB_NEAR_SWITCH;
    t->far_bytes = t->host_most = t->slot_most = 0;
    snprintf(t->how, sizeof t->how, "nvls: each GPU sends %s to the switch",
             call->kind == PTB_ALL_REDUCE   ? "(n+1)/n S"
             : call->kind == PTB_ALL_GATHER ? "S/n"
                                            : "S");
    if (l->hosts > 1)
        nvls_between(call, l, t);
}

// Whichever kernel runs, the GPU that moves most moves at least this.
static void symmetric(const ptb_traffic_call *call, const layout *l, ptb_traffic *t)
{
    double s = call->bytes, n = l->ranks;
    bool is_reduction = call->kind == PTB_ALL_REDUCE;
    if (l->hosts > 1 || (!is_reduction && call->kind != PTB_ALL_GATHER && call->kind != PTB_REDUCE_SCATTER)) {
        ptb_traffic_unknown(t, "what symmetric kernels send for %s on %d hosts", ptb_coll_name(call->kind),
                            l->hosts);
        return;
    }
    t->near = PTB_NEAR_EACH; // without a switch; with one it may be less
    t->near_part = (is_reduction ? 2 : 1) * s / n;
    t->gpu_most = is_reduction ? fmin(2 * (n - 1), n + 1) / n * s : (n - 1) / n * s;
    t->host_most = t->slot_most = 0;
    t->is_bound = true;
    t->near_bytes = NAN;
    t->far_bytes = 0;
    snprintf(t->how, sizeof t->how, "what NCCL's symmetric kernels send, from GPU to GPU or by the switch");
}

// A message from each rank to each other, or between each and the root.
static void direct(const ptb_traffic_call *call, const layout *l, ptb_traffic *t)
{
    const ptb_world *g = call->group;
    double n = l->ranks, block = call->bytes / n;
    int at_root = ranks_on(g, g->host_of[call->root]);
    bool beside_root = g->host_of[call->root] == g->host, is_root = g->rank == call->root;
    snprintf(t->how, sizeof t->how, "messages: S/n from each rank to %s",
             call->kind == PTB_ALL_TO_ALL ? "each other"
             : call->kind == PTB_GATHER   ? "the root"
                                          : "each by the root");
    t->near = PTB_NEAR_ROOT;
    t->near_part = block;
    t->near_from = call->kind == PTB_SCATTER ? call->root : -1;
    t->near_to = call->kind == PTB_SCATTER ? -1 : call->root;
    switch (call->kind) {
    case PTB_ALL_TO_ALL:
        t->near = PTB_NEAR_EACH;
        t->near_bytes = (g->local_size - 1) * block;
        t->far_bytes = (n - g->local_size) * block;
        t->gpu_most = (l->most - 1) * block;
        t->host_most = 0;
        for (int h = 0; h < l->hosts; h++) {
            double here = ranks_on(g, h);
            t->host_most = fmax(t->host_most, here * (n - here) * block);
        }
        t->slot_most = (n - l->least) * block;
        return;
    case PTB_GATHER:
    case PTB_SCATTER:
        t->near_bytes = is_root || !beside_root ? 0 : block;
        t->far_bytes = beside_root ? 0 : block;
        if (call->kind == PTB_SCATTER) {
            t->near_bytes = is_root ? (at_root - 1) * block : 0;
            t->far_bytes = is_root ? (n - at_root) * block : 0;
        }
        t->gpu_most = (at_root - 1) * block;
        t->host_most = t->slot_most = (n - at_root) * block;
        return;
    default:
        ptb_traffic_unknown(t, "how %s goes as messages", ptb_coll_name(call->kind));
    }
}

void ptb_traffic_of_call(const ptb_traffic_call *call, ptb_traffic *t)
{
    static const struct {
        const char *name;
        void (*of)(const ptb_traffic_call *call, const layout *l, ptb_traffic *t);
    } algorithms[] = {{"ring", ring},      {"tree", tree},           {"nvls", nvls},
                      {"nvls_tree", nvls}, {"symmetric", symmetric}, {"direct", direct}};
    const layout l = layout_of(call->group);
    t->bytes = call->bytes;
    t->gpus = l.least;
    for (size_t i = 0; i < sizeof algorithms / sizeof *algorithms; i++)
        if (strcmp(call->algorithm, algorithms[i].name) == 0) {
            algorithms[i].of(call, &l, t);
            return;
        }
    ptb_traffic_unknown(t, "what the algorithm %s sends", call->algorithm);
}

void ptb_traffic_of_messages(const ptb_world *g, int senders, int over, double bytes, ptb_traffic *t)
{
    int peer = (g->rank + 1) % over;
    bool sends = g->rank < senders, is_far = g->host_of[g->rank] != g->host_of[peer];
    int most = 0;
    t->bytes = bytes;
    t->near_bytes = sends && !is_far ? bytes : 0;
    t->far_bytes = sends && is_far ? bytes : 0;
    t->gpu_most = t->slot_most = 0;
    for (int h = 0; h < g->hosts; h++) {
        int out = 0;
        for (int r = 0; r < senders; r++) {
            int to = (r + 1) % over;
            out += g->host_of[r] == h && g->host_of[to] != h;
            if (g->host_of[r] == g->host_of[to])
                t->gpu_most = bytes;
        }
        most = out > most ? out : most;
    }
    t->near = senders == over ? PTB_NEAR_NEXT : PTB_NEAR_ONE; // from 0 to 1
    t->near_part = bytes;
    t->near_over = over;
    t->near_to = 1;
    t->gpus = layout_of(g).least;
    t->host_most = most * bytes;
    t->slot_most = most ? bytes : 0;
    t->near_rails_only = over == 2;
    snprintf(t->how, sizeof t->how, "messages: S from %d rank%s", senders, senders == 1 ? "" : "s at once");
}

void ptb_traffic_of_message(const ptb_world *w, int from, int to, double bytes, ptb_traffic *t)
{
    bool sends = w->rank == from, is_far = w->host_of[from] != w->host_of[to];
    t->bytes = bytes;
    t->near_bytes = sends && !is_far ? bytes : 0;
    t->far_bytes = sends && is_far ? bytes : 0;
    t->gpu_most = is_far ? 0 : bytes;
    t->host_most = t->slot_most = is_far ? bytes : 0;
    t->near_rails_only = true;
    t->near = PTB_NEAR_ONE;
    t->near_part = bytes;
    t->near_from = from;
    t->near_to = to;
    snprintf(t->how, sizeof t->how, "one message: S");
}

const char *ptb_traffic_algorithm(const ptb_params *facts, const ptb_world *group, ptb_coll_kind kind,
                                  ptb_traffic *t)
{
    static const char *const known[] = {"ring", "tree", "nvls", "nvls_tree", "symmetric"};
    const char *said = ptb_params_get(facts, "algorithm"), *call = ptb_params_get(facts, "call");
    if (!said) {
        ptb_traffic_unknown(t, "the communicator does not say which algorithm ran");
        return NULL;
    }
    bool is_messages = strcmp(said, "none (sends and receives)") == 0;
    bool is_pairwise = strcmp(said, "pairwise") == 0 || strcmp(said, "linear") == 0;
    if (is_messages || (is_pairwise && kind == PTB_ALL_TO_ALL))
        return "direct";
    // Broadcasts or reductions in place of one call send the same bytes on one host.
    bool is_group = call && strstr(call, "of each part") && group->hosts > 1;
    for (size_t i = 0; i < sizeof known / sizeof *known && !is_group; i++) {
        size_t length = strlen(known[i]);
        if (strncmp(said, known[i], length) == 0 && (said[length] == 0 || said[length] == '/'))
            return known[i];
    }
    ptb_traffic_unknown(t, "algorithm %.60s%s", said, is_group ? ", a call for each part" : "");
    return NULL;
}
