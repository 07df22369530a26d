// The plug-in's state, and what the program asks of it (nccl_profiler.h). The functions that NCCL calls are
// in nccl_profiler_versions.c; spans are kept by nccl_events.c.
#include "profiler/nccl_profiler.h"

#include "core/log.h"
#include "profiler/nccl_events.h"
#include "profiler/nccl_profiler_core.h"

#include <ctype.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

struct ptb_nccl_watched {
    char name[64];   // "" as long as it is not known
    uint64_t number; // how many came before
    bool channels_are_most;
    bool recording; // between begin and end
    ptb_nccl_ran ran;
    ptb_nccl_watched *next;
};

// NCCL hands a plug-in nothing that could hold this.
static struct {
    pthread_mutex_t mutex; // of all but the mask
    ptb_nccl_watched *first;
    uint64_t count;      // communicators that NCCL ever told of
    _Atomic(int *) mask; // NCCL's own, of all communicators; NULL until it told
    int making;          // communicators that are being made
    bool several;        // more than one at once since there was none
    int recording;       // communicators between begin and end
    bool spans;          // between start and stop
} plugin = {.mutex = PTHREAD_MUTEX_INITIALIZER};

enum {
    MASK_RAN = PTB_NCCL_COLL | PTB_NCCL_P2P | PTB_NCCL_CE_COLL,
    MASK_SPANS =
        MASK_RAN | PTB_NCCL_PROXY_OP | PTB_NCCL_PROXY_STEP | PTB_NCCL_KERNEL_CH | PTB_NCCL_NET_PLUGIN,
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

void ptb_nccl_core_init(void **context, int *activation_mask, const char *comm_name, bool channels_are_most)
{
    ptb_nccl_watched *w = calloc(1, sizeof *w);
    *context = w;
    if (!w)
        return;
    snprintf(w->name, sizeof w->name, "%s", comm_name ? comm_name : "");
    w->channels_are_most = channels_are_most;
    pthread_mutex_lock(&plugin.mutex);
    w->number = plugin.count++;
    w->next = plugin.first;
    plugin.first = w;
    atomic_store(&plugin.mask, activation_mask);
    set_mask();
    pthread_mutex_unlock(&plugin.mutex);
}

void ptb_nccl_core_finalize(void *context)
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
}

static void note_function(ptb_nccl_ran *ran, const char *function)
{
    snprintf(ran->function, sizeof ran->function, "%s", function ? function : "");
}

static void note_collective(ptb_nccl_ran *ran, const ptb_nccl_event *event, bool channels_are_most)
{
    char algorithm[sizeof ran->algorithm], protocol[sizeof ran->protocol];
    lower(algorithm, sizeof algorithm, event->coll.algorithm);
    lower(protocol, sizeof protocol, event->coll.protocol);
    if (ran->collectives++ == 0) {
        note_function(ran, event->coll.function);
        memcpy(ran->algorithm, algorithm, sizeof algorithm);
        memcpy(ran->protocol, protocol, sizeof protocol);
        ran->channels = event->coll.channels;
        ran->channels_are_most = channels_are_most;
    } else if (strcmp(ran->algorithm, algorithm) != 0 || strcmp(ran->protocol, protocol) != 0) {
        ran->mixed = true;
    }
}

static void note_copy_engine(ptb_nccl_ran *ran, const ptb_nccl_event *event)
{
    if (ran->collectives++ == 0) {
        note_function(ran, event->ce_coll.function);
        snprintf(ran->algorithm, sizeof ran->algorithm, "copy_engine");
        ran->channels = 0;
    } else if (strcmp(ran->algorithm, "copy_engine") != 0) {
        ran->mixed = true;
    }
}

static void note_message(ptb_nccl_ran *ran, const ptb_nccl_event *event)
{
    if (ran->collectives == 0 && ran->messages == 0)
        note_function(ran, event->p2p.function);
    ran->messages++;
    if (ran->collectives == 0 && event->p2p.channels > ran->channels)
        ran->channels = event->p2p.channels;
}

static void note_call(ptb_nccl_ran *ran, const ptb_nccl_event *event)
{
    ran->calls++;
    ran->is_captured |= event->coll_api.graph_captured;
    if (ran->collectives == 0 && ran->messages == 0)
        note_function(ran, event->coll_api.function);
}

static void note(ptb_nccl_watched *w, const ptb_nccl_event *event)
{
    pthread_mutex_lock(&plugin.mutex);
    if (w->recording && event->type == PTB_NCCL_COLL)
        note_collective(&w->ran, event, w->channels_are_most);
    else if (w->recording && event->type == PTB_NCCL_P2P)
        note_message(&w->ran, event);
    else if (w->recording && event->type == PTB_NCCL_CE_COLL)
        note_copy_engine(&w->ran, event);
    else if (w->recording)
        note_call(&w->ran, event);
    pthread_mutex_unlock(&plugin.mutex);
}

void ptb_nccl_core_start(void *context, void **handle, const ptb_nccl_event *event)
{
    bool is_operation = event->type & (PTB_NCCL_COLL | PTB_NCCL_P2P | PTB_NCCL_CE_COLL | PTB_NCCL_COLL_API);
    if (is_operation && context)
        note(context, event);
    *handle = ptb_nccl_events_open(event); // NULL: NCCL does not tell of its end
}

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

uint64_t ptb_nccl_profiler_making(void)
{
    pthread_mutex_lock(&plugin.mutex);
    plugin.several = plugin.making > 0;
    plugin.making++;
    uint64_t making = plugin.count;
    pthread_mutex_unlock(&plugin.mutex);
    return making;
}

ptb_nccl_watched *ptb_nccl_profiler_made(uint64_t making, const char *name)
{
    ptb_nccl_watched *found = NULL, *nameless = NULL;
    int nameless_count = 0;
    pthread_mutex_lock(&plugin.mutex);
    plugin.making--;
    for (ptb_nccl_watched *w = name ? plugin.first : NULL; w && !found; w = w->next) {
        if (strcmp(w->name, name) == 0)
            found = w;
        if (!w->name[0] && w->number >= making) {
            nameless = w;
            nameless_count++;
        }
    }
    if (!found && nameless_count == 1 && !plugin.several) {
        found = nameless;
        snprintf(found->name, sizeof found->name, "%s", name);
    }
    pthread_mutex_unlock(&plugin.mutex);
    return found;
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

ptb_status ptb_nccl_profiler_start(size_t capacity, ptb_open_work_fn *whose, void *context)
{
    PTB_TRY(ptb_nccl_events_start(capacity, whose, context));
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
