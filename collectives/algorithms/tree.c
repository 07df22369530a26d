// Tree: two binary trees over the members, each for one half of the vector, built so that a member that is an
// inner node of one is a leaf of the other; every member then sends and receives about as much as every
// other, and segments follow each other down the pipeline (Sanders, Speck and Traeff, "Two-tree algorithms
// for full bandwidth broadcast, reduction and scan", Parallel Computing 35, 2009). As there, the root
// (all-reduce: member 0) stands above both trees of the other n-1 members.
//
// Tree 1 is the in-order binary tree over places 1 .. n-1: even places are inner nodes, odd ones leaves. Tree
// 2 is its mirror image (an even number of places) or is shifted by one (an odd number).
#include "collectives/algorithm.h"

enum { TREES = 2, DELAY_MAX = 64, WINDOW = 8 };

typedef struct {
    int parent, children[2], child_count; // ranks; parent -1: none
    ptb_range range;                      // of the vector
    size_t parts;
    void *partial; // reduce: WINDOW segments of scratch
    // Operations of recent segments: the last fold or receive, and the send to the parent.
    int folded[DELAY_MAX + 1], sent[DELAY_MAX + 1];
} tree;

typedef struct {
    ptb_team *team;
    const ptb_coll *call;
    size_t size, segment; // bytes of an element, elements of a segment
    int root;
    size_t delay; // segments that the way down lies behind the way up
    bool up, down;
    tree trees[TREES];
} job;

static int floor_log2(int m)
{
    return 31 - __builtin_clz((unsigned)m);
}

// The root of the in-order tree over places low .. low+m-1.
static int root_of(int low, int m)
{
    return low - 1 + (1 << floor_log2(m));
}

// Parent (0: none) and children of place q among 1 .. m.
static int place_links(int q, int m, int *parent, int children[2])
{
    int low = 1, count = 0;
    *parent = 0;
    for (;;) {
        int root = root_of(low, m), left = root - low, right = m - left - 1;
        if (q == root) {
            if (left)
                children[count++] = root_of(low, left);
            if (right)
                children[count++] = root_of(root + 1, right);
            return count;
        }
        *parent = root;
        if (q < root) {
            m = left;
        } else {
            low = root + 1;
            m = right;
        }
    }
}

// Place of member i (1 .. m, counted from the root) in a tree, and the other way about.
static int to_place(int i, int m, int which)
{
    return which == 0 ? i : m % 2 == 0 ? m + 1 - i : i % m + 1;
}

static int from_place(int q, int m, int which)
{
    return which == 0 ? q : m % 2 == 0 ? m + 1 - q : (q + m - 2) % m + 1;
}

static void link_tree(const job *j, int which, tree *t)
{
    int n = j->team->size, m = n - 1, i = (j->team->rank + n - j->root) % n;
    if (i == 0) {
        t->parent = -1;
        t->child_count = 1;
        t->children[0] = (j->root + from_place(root_of(1, m), m, which)) % n;
        return;
    }
    int parent, places[2];
    t->child_count = place_links(to_place(i, m, which), m, &parent, places);
    t->parent = parent ? (j->root + from_place(parent, m, which)) % n : j->root;
    for (int c = 0; c < t->child_count; c++)
        t->children[c] = (j->root + from_place(places[c], m, which)) % n;
}

static ptb_range segment_of(const job *j, const tree *t, size_t k)
{
    size_t first = k * j->segment, left = t->range.count - first;
    return (ptb_range){t->range.first + first, left < j->segment ? left : j->segment};
}

// Segment k on its way to the root: fold what the children send, pass it on.
static void way_up(const job *j, tree *t, size_t k)
{
    ptb_range s = segment_of(j, t, k);
    size_t bytes = s.count * j->size, slot = k % (j->delay + 1);
    const void *have = ptb_at_const(j->call->send, s.first, j->size);
    bool is_root = t->parent < 0;
    void *to = !t->partial || is_root ? ptb_at(j->call->recv, s.first, j->size)
                                      : ptb_at(t->partial, k % WINDOW * j->segment, j->size);
    // A segment of the window may be written again when it has been sent.
    int ready = t->partial && k >= WINDOW ? t->sent[(k - WINDOW) % (j->delay + 1)] : PTB_WIRE_NONE;
    for (int c = 0; c < t->child_count; c++) {
        ready = ptb_wire_recv_reduce(j->team, t->children[c], to, have, bytes, ready,
                                     is_root && c == t->child_count - 1);
        have = to;
    }
    t->folded[slot] = ready;
    if (!is_root)
        t->sent[slot] =
            ptb_wire_send(j->team, t->parent, have, bytes, t->child_count ? ready : PTB_WIRE_NONE);
}

// Segment k on its way from the root.
static void way_down(const job *j, tree *t, size_t k)
{
    ptb_range s = segment_of(j, t, k);
    size_t bytes = s.count * j->size, slot = k % (j->delay + 1);
    void *to = ptb_at(j->call->recv, s.first, j->size);
    const void *have = j->up || t->parent >= 0 ? to : ptb_at_const(j->call->send, s.first, j->size);
    int ready = j->up && t->parent < 0 ? t->folded[slot] : PTB_WIRE_NONE;
    if (t->parent >= 0)
        ready = ptb_wire_recv(j->team, t->parent, to, bytes, j->up ? t->sent[slot] : PTB_WIRE_NONE);
    for (int c = 0; c < t->child_count; c++)
        ptb_wire_send(j->team, t->children[c], have, bytes, ready);
}

// Both trees may use the same pair of members in the same direction, one going up and the other down. All
// members therefore write down the segments in one order, in which each operation comes after those that it
// needs, and in which the way down lies far enough behind not to hold up the way up.
static ptb_status run_job(job *j)
{
    size_t parts = 0;
    for (int i = 0; i < TREES; i++)
        parts = j->trees[i].parts > parts ? j->trees[i].parts : parts;
    ptb_wire_begin(j->team, j->call->dtype, j->call->op);
    size_t lag = j->up ? j->delay : 0;
    for (size_t t = 0; t < parts + lag; t++) {
        for (int i = 0; j->up && i < TREES; i++)
            if (t < j->trees[i].parts)
                way_up(j, &j->trees[i], t);
        for (int i = 0; j->down && t >= lag && i < TREES; i++)
            if (t - lag < j->trees[i].parts)
                way_down(j, &j->trees[i], t - lag);
    }
    return ptb_wire_run(j->team);
}

static size_t segment_elements(const ptb_team *team, const ptb_coll *call)
{
    return ptb_wire_cut(team, (call->count + 1) / 2, ptb_dtype_size(call->dtype)).elements;
}

static ptb_status run(ptb_team *team, const ptb_coll *call)
{
    bool reduces = call->kind != PTB_BROADCAST, spreads = call->kind != PTB_REDUCE;
    job j = {.team = team, .call = call, .size = ptb_dtype_size(call->dtype), .up = reduces, .down = spreads};
    j.root = call->kind == PTB_ALL_REDUCE ? 0 : call->root;
    j.segment = segment_elements(team, call);
    size_t depth = 2 * ((size_t)floor_log2(team->size) + 2);
    j.delay = spreads && reduces ? (depth < DELAY_MAX ? depth : DELAY_MAX) : WINDOW;
    size_t half = (call->count + 1) / 2;
    bool needs_partial = !spreads && team->rank != j.root;
    void *scratch = NULL;
    if (needs_partial)
        PTB_TRY(ptb_team_scratch(team, 0, TREES * WINDOW * j.segment * j.size, &scratch));
    for (int i = 0; i < TREES; i++) {
        tree *t = &j.trees[i];
        link_tree(&j, i, t);
        t->range = i ? (ptb_range){half, call->count - half} : (ptb_range){0, half};
        t->parts = (t->range.count + j.segment - 1) / j.segment;
        if (needs_partial)
            t->partial = ptb_at(scratch, (size_t)i * WINDOW * j.segment, j.size);
    }
    PTB_TRY(run_job(&j));
    if (call->kind == PTB_BROADCAST && team->rank == j.root)
        ptb_copy_local(call->recv, call->send, call->count * j.size);
    return PTB_OK;
}

static size_t segment_bytes(const ptb_team *team, const ptb_coll *call)
{
    return segment_elements(team, call) * ptb_dtype_size(call->dtype);
}

static const ptb_algorithm tree_algorithm = {
    .plugin = {.name = "tree", .summary = "two binary trees, pipelined in segments"},
    .collectives = PTB_COLL_BIT(PTB_ALL_REDUCE) | PTB_COLL_BIT(PTB_BROADCAST) | PTB_COLL_BIT(PTB_REDUCE),
    .run = run,
    .segment_bytes = segment_bytes,
};
PTB_REGISTER(PTB_KIND_ALGORITHM, tree_algorithm);
