// See cupti_graphs.h. CUPTI has one subscriber a process, which stays from the first watch until the end; the
// callbacks are on only while we watch.
#include "profiler/cupti_graphs.h"

#include "core/log.h"
#include "profiler/cupti_api.h"

#include <pthread.h>
#include <stdlib.h>

enum { CLONES = 8 }; // of clones, at most, that a node may be: a graph in a graph is cloned with it

// A node that was made under a work, or the clone of another node.
typedef struct {
    uint64_t node, original; // original 0: it was made
    size_t work;             // of one that was made
    size_t order;            // numbers of nodes that are gone may come again: the last one counts
} node_entry;

typedef struct {
    ptb_span span;
    uint32_t launch; // the last one that was asked for
} node_work;

struct ptb_cupti_graphs {
    pthread_mutex_t lock; // CUPTI calls on the threads that make nodes
    ptb_open_work_fn *open;
    void *context;
    CUpti_SubscriberHandle subscriber; // NULL: not yet
    node_entry *nodes;
    size_t count, room;
    bool is_sorted;
    node_work *works;
    size_t work_count, work_room;
    uint64_t last; // number of the last work
};

static const CUpti_CallbackId watched[] = {CUPTI_CBID_RESOURCE_GRAPHNODE_CREATED,
                                           CUPTI_CBID_RESOURCE_GRAPHNODE_CLONED};
enum { WATCHED = sizeof watched / sizeof *watched };

// Room for one more; where there is none the node stays unknown, which its records will say.
static bool grow(void **items, size_t count, size_t *room, size_t size)
{
    if (count < *room)
        return true;
    size_t more = *room ? 2 * *room : 1 << 10;
    void *grown = realloc(*items, more * size);
    if (!grown)
        return false;
    *items = grown;
    *room = more;
    return true;
}

static void add_node(ptb_cupti_graphs *g, node_entry entry)
{
    if (!grow((void **)&g->nodes, g->count, &g->room, sizeof *g->nodes))
        return;
    entry.order = g->count;
    g->nodes[g->count++] = entry;
    g->is_sorted = false;
}

static void node_made(ptb_cupti_graphs *g, uint64_t node)
{
    uint64_t number = 0;
    const ptb_span *span = g->open(g->context, &number);
    if (!span)
        return;
    if (number != g->last || !g->work_count) {
        if (!grow((void **)&g->works, g->work_count, &g->work_room, sizeof *g->works))
            return;
        g->works[g->work_count++] = (node_work){.span = *span};
        g->last = number;
    }
    add_node(g, (node_entry){.node = node, .work = g->work_count - 1});
}

static void CUPTIAPI node_told(void *userdata, CUpti_CallbackDomain domain, CUpti_CallbackId id,
                               const void *data)
{
    ptb_cupti_graphs *g = userdata;
    if (domain != CUPTI_CB_DOMAIN_RESOURCE)
        return;
    const CUpti_GraphData *graph = ((const CUpti_ResourceData *)data)->resourceDescriptor;
    const ptb_cupti_api *cupti = ptb_cupti_functions();
    uint64_t node = 0, original = 0;
    if (cupti->GetGraphNodeId(graph->node, &node) != CUPTI_SUCCESS)
        return;
    bool is_clone = id == CUPTI_CBID_RESOURCE_GRAPHNODE_CLONED;
    if (is_clone && cupti->GetGraphNodeId(graph->originalNode, &original) != CUPTI_SUCCESS)
        return;
    pthread_mutex_lock(&g->lock);
    if (is_clone)
        add_node(g, (node_entry){.node = node, .original = original});
    else
        node_made(g, node);
    pthread_mutex_unlock(&g->lock);
}

ptb_status ptb_cupti_graphs_new(ptb_open_work_fn *open, void *context, ptb_cupti_graphs **graphs)
{
    ptb_cupti_graphs *g = calloc(1, sizeof *g);
    if (!g) {
        ptb_error("no memory to tell nodes of graphs apart");
        return PTB_NO_MEMORY;
    }
    pthread_mutex_init(&g->lock, NULL);
    g->open = open;
    g->context = context;
    *graphs = g;
    return PTB_OK;
}

static void switch_callbacks(ptb_cupti_graphs *g, bool on)
{
    for (int i = 0; i < WATCHED; i++)
        ptb_cupti_functions()->EnableCallback(on, g->subscriber, CUPTI_CB_DOMAIN_RESOURCE, watched[i]);
}

void ptb_cupti_graphs_free(ptb_cupti_graphs *g)
{
    if (!g)
        return;
    if (g->subscriber)
        ptb_cupti_functions()->Unsubscribe(g->subscriber);
    pthread_mutex_destroy(&g->lock);
    free(g->nodes);
    free(g->works);
    free(g);
}

ptb_status ptb_cupti_graphs_watch(ptb_cupti_graphs *g, ptb_text *why)
{
    CUptiResult result = CUPTI_SUCCESS;
    if (!g->subscriber)
        result = ptb_cupti_functions()->Subscribe(&g->subscriber, node_told, g);
    if (result != CUPTI_SUCCESS) {
        g->subscriber = NULL;
        ptb_cupti_say(why, result, "cuptiSubscribe");
        return PTB_UNSUPPORTED;
    }
    g->last = 0;
    switch_callbacks(g, true);
    return PTB_OK;
}

void ptb_cupti_graphs_rest(ptb_cupti_graphs *g)
{
    if (g->subscriber)
        switch_callbacks(g, false);
}

// ---- reading

static int by_node(const void *a, const void *b)
{
    const node_entry *x = a, *y = b;
    if (x->node != y->node)
        return x->node < y->node ? -1 : 1;
    return (x->order > y->order) - (x->order < y->order);
}

// The last entry of that number.
static const node_entry *entry_of(const ptb_cupti_graphs *g, uint64_t node)
{
    size_t low = 0, high = g->count; // the first entry beyond it lies between
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (g->nodes[middle].node <= node)
            low = middle + 1;
        else
            high = middle;
    }
    return low > 0 && g->nodes[low - 1].node == node ? &g->nodes[low - 1] : NULL;
}

const ptb_span *ptb_cupti_graphs_find(ptb_cupti_graphs *g, uint64_t node, uint32_t launch, bool *is_first)
{
    pthread_mutex_lock(&g->lock);
    if (!g->is_sorted && g->count)
        qsort(g->nodes, g->count, sizeof *g->nodes, by_node);
    g->is_sorted = true;
    const node_entry *entry = entry_of(g, node);
    for (int i = 0; entry && entry->original && i < CLONES; i++)
        entry = entry_of(g, entry->original);
    node_work *work = entry && !entry->original ? &g->works[entry->work] : NULL;
    if (work) {
        *is_first = work->launch != launch;
        work->launch = launch;
    }
    pthread_mutex_unlock(&g->lock);
    return work ? &work->span : NULL;
}
