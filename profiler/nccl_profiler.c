// The plug-in itself (nccl_profiler.h): what NCCL calls. Spans are kept by nccl_events.c.
#include "profiler/nccl_profiler.h"

#include "core/log.h"
#include "profiler/nccl_events.h"
#include "profiler/nccl_profiler_abi.h"

#include <ctype.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

// Offsets by the published headers, on a 64-bit system.
#define AT(field, offset) _Static_assert(offsetof(ptb_nccl_event, field) == (offset), #field)
AT(type, 0);
AT(parent, 8);
AT(rank, 16);
AT(group_api.depth, 28);
AT(coll_api.count, 32);
AT(coll_api.stream, 56);
AT(p2p_api.stream, 48);
AT(kernel_launch.stream, 24);
AT(coll.sequence, 24);
AT(coll.function, 32);
AT(coll.send, 40);
AT(coll.recv, 48);
AT(coll.count, 56);
AT(coll.root, 64);
AT(coll.datatype, 72);
AT(coll.channels, 80);
AT(coll.warps, 81);
AT(coll.algorithm, 88);
AT(coll.protocol, 96);
AT(coll.group, 104);
AT(p2p.function, 24);
AT(p2p.buffer, 32);
AT(p2p.datatype, 40);
AT(p2p.count, 48);
AT(p2p.peer, 56);
AT(p2p.channels, 60);
AT(p2p.group, 64);
AT(proxy_op.pid, 24);
AT(proxy_op.channel, 28);
AT(proxy_op.peer, 32);
AT(proxy_op.steps, 36);
AT(proxy_op.chunk_bytes, 40);
AT(proxy_op.is_send, 44);
AT(proxy_step.step, 24);
AT(kernel_ch.channel, 24);
AT(kernel_ch.gpu_ns, 32);
AT(net_plugin.id, 24);
AT(net_plugin.data, 32);
AT(ce_coll.stream, 104);
#undef AT
_Static_assert(sizeof(ptb_nccl_state_args) == 8, "state arguments");
_Static_assert(sizeof(ptb_nccl_profiler_plugin) == 48, "six pointers");

struct ptb_nccl_watched {
    char name[64];
    int rank;
    bool recording; // between begin and end
    ptb_nccl_ran ran;
    ptb_nccl_watched *next;
};

// NCCL hands a plug-in nothing that could hold this.
static struct {
    pthread_mutex_t mutex; // of all but the mask
    ptb_nccl_watched *first;
    _Atomic(int *) mask; // NCCL's own, of all communicators; NULL until it told
    int recording;       // communicators between begin and end
    bool spans;          // between start and stop
} plugin = {.mutex = PTHREAD_MUTEX_INITIALIZER};

enum {
    MASK_RAN = PTB_NCCL_COLL | PTB_NCCL_P2P,
    MASK_SPANS = MASK_RAN | PTB_NCCL_PROXY_OP | PTB_NCCL_PROXY_STEP | PTB_NCCL_KERNEL_CH |
                 PTB_NCCL_NET_PLUGIN | PTB_NCCL_CE_COLL,
};

static void set_mask(void)
{
    int *mask = atomic_load(&plugin.mask);
    if (mask)
        __atomic_store_n(mask, plugin.spans ? MASK_SPANS : plugin.recording ? MASK_RAN : 0, __ATOMIC_RELAXED);
}

static void lower(char *out, size_t size, const char *text)
{
    size_t i = 0;
    for (; text && text[i] && i + 1 < size; i++)
        out[i] = (char)tolower((unsigned char)text[i]);
    out[i] = 0;
}

// ---- what NCCL calls

static int plugin_init(void **context, uint64_t comm_id, int *activation_mask, const char *comm_name,
                       int nodes, int ranks, int rank, void (*log)(void))
{
    (void)comm_id, (void)nodes, (void)ranks, (void)log;
    ptb_nccl_watched *w = calloc(1, sizeof *w);
    if (!w)
        return 2; // ncclSystemError: NCCL goes on without the plug-in
    snprintf(w->name, sizeof w->name, "%s", comm_name ? comm_name : "");
    w->rank = rank;
    pthread_mutex_lock(&plugin.mutex);
    w->next = plugin.first;
    plugin.first = w;
    atomic_store(&plugin.mask, activation_mask);
    set_mask();
    pthread_mutex_unlock(&plugin.mutex);
    *context = w;
    return 0;
}

static int plugin_finalize(void *context)
{
    pthread_mutex_lock(&plugin.mutex);
    for (ptb_nccl_watched **at = &plugin.first; *at; at = &(*at)->next)
        if (*at == context) {
            ptb_nccl_watched *gone = *at;
            plugin.recording -= gone->recording;
            *at = gone->next;
            free(gone);
            break;
        }
    set_mask();
    pthread_mutex_unlock(&plugin.mutex);
    return 0;
}

static void note_collective(ptb_nccl_ran *ran, const ptb_nccl_event *event)
{
    char algorithm[sizeof ran->algorithm], protocol[sizeof ran->protocol];
    lower(algorithm, sizeof algorithm, event->coll.algorithm);
    lower(protocol, sizeof protocol, event->coll.protocol);
    if (ran->collectives++ == 0) {
        snprintf(ran->function, sizeof ran->function, "%s", event->coll.function ? event->coll.function : "");
        memcpy(ran->algorithm, algorithm, sizeof algorithm);
        memcpy(ran->protocol, protocol, sizeof protocol);
        ran->channels = event->coll.channels;
    } else if (strcmp(ran->algorithm, algorithm) != 0 || strcmp(ran->protocol, protocol) != 0) {
        ran->mixed = true;
    }
}

static void note_copy_engine(ptb_nccl_ran *ran, const ptb_nccl_event *event)
{
    if (ran->collectives++ == 0) {
        snprintf(ran->function, sizeof ran->function, "%s",
                 event->ce_coll.function ? event->ce_coll.function : "");
        snprintf(ran->algorithm, sizeof ran->algorithm, "copy_engine");
    } else if (strcmp(ran->algorithm, "copy_engine") != 0) {
        ran->mixed = true;
    }
}

static void note_message(ptb_nccl_ran *ran, const ptb_nccl_event *event)
{
    if (ran->collectives == 0 && ran->messages == 0)
        snprintf(ran->function, sizeof ran->function, "%s", event->p2p.function ? event->p2p.function : "");
    ran->messages++;
    if (ran->collectives == 0 && event->p2p.channels > ran->channels)
        ran->channels = event->p2p.channels;
}

static int plugin_start_event(void *context, void **handle, ptb_nccl_event *event)
{
    ptb_nccl_watched *w = context;
    *handle = NULL; // then NCCL does not tell of its end
    if (!w)
        return 0;
    if (event->type & (PTB_NCCL_COLL | PTB_NCCL_P2P | PTB_NCCL_CE_COLL)) {
        pthread_mutex_lock(&plugin.mutex);
        if (w->recording && event->type == PTB_NCCL_COLL)
            note_collective(&w->ran, event);
        else if (w->recording && event->type == PTB_NCCL_P2P)
            note_message(&w->ran, event);
        else if (w->recording)
            note_copy_engine(&w->ran, event);
        pthread_mutex_unlock(&plugin.mutex);
    }
    *handle = ptb_nccl_events_open(event, w->rank);
    return 0;
}

static int plugin_stop_event(void *handle)
{
    ptb_nccl_events_close(handle);
    return 0;
}

static int plugin_record_state(void *handle, int state, ptb_nccl_state_args *args)
{
    ptb_nccl_events_state(handle, state, args);
    return 0;
}

#define PLUGIN                                                                                               \
    {                                                                                                        \
        .name = "ptbench", .init = plugin_init, .start_event = plugin_start_event,                           \
        .stop_event = plugin_stop_event, .record_event_state = plugin_record_state,                          \
        .finalize = plugin_finalize                                                                          \
    }
// NCCL looks these names up in the program.
extern const ptb_nccl_profiler_plugin ncclProfiler_v5, ncclProfiler_v6;
__attribute__((used, visibility("default"))) const ptb_nccl_profiler_plugin ncclProfiler_v5 = PLUGIN;
__attribute__((used, visibility("default"))) const ptb_nccl_profiler_plugin ncclProfiler_v6 = PLUGIN;

// ---- what the program calls

bool ptb_nccl_profiler_request(void)
{
    pthread_mutex_lock(&plugin.mutex); // ranks that are threads come here together
    const char *wanted = getenv("NCCL_PROFILER_PLUGIN");
    bool is_ours = !wanted || strcasecmp(wanted, "STATIC_PLUGIN") == 0;
    if (!wanted)
        setenv("NCCL_PROFILER_PLUGIN", "STATIC_PLUGIN", 0);
    pthread_mutex_unlock(&plugin.mutex);
    return is_ours;
}

ptb_nccl_watched *ptb_nccl_profiler_find(const char *name)
{
    pthread_mutex_lock(&plugin.mutex);
    ptb_nccl_watched *w = plugin.first;
    while (w && strcmp(w->name, name) != 0)
        w = w->next;
    pthread_mutex_unlock(&plugin.mutex);
    return w;
}

void ptb_nccl_profiler_begin(ptb_nccl_watched *w)
{
    pthread_mutex_lock(&plugin.mutex);
    plugin.recording += !w->recording;
    w->recording = true;
    w->ran = (ptb_nccl_ran){0};
    set_mask();
    pthread_mutex_unlock(&plugin.mutex);
}

void ptb_nccl_profiler_end(ptb_nccl_watched *w, ptb_nccl_ran *ran)
{
    pthread_mutex_lock(&plugin.mutex);
    plugin.recording -= w->recording;
    w->recording = false;
    *ran = w->ran;
    set_mask();
    pthread_mutex_unlock(&plugin.mutex);
}

ptb_status ptb_nccl_profiler_start(size_t capacity)
{
    PTB_TRY(ptb_nccl_events_start(capacity));
    pthread_mutex_lock(&plugin.mutex);
    plugin.spans = true;
    set_mask();
    pthread_mutex_unlock(&plugin.mutex);
    return PTB_OK;
}

void ptb_nccl_profiler_stop(void)
{
    pthread_mutex_lock(&plugin.mutex);
    plugin.spans = false;
    set_mask();
    pthread_mutex_unlock(&plugin.mutex);
}
