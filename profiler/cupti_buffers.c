// See cupti_buffers.h. Buffers are in one of two lists, free or full, or with CUPTI. When none is free
// another one is allocated: dropping records would make every figure of the step unknown.
#include "profiler/cupti_buffers.h"

#include "core/log.h"
#include "profiler/cupti_api.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

enum {
    BUFFER_BYTES = 4 << 20, // some 25,000 kernels
    STOCK = 6,
    ALIGNMENT = 64, // CUPTI asks for 8
    HEADER = 64,
};

// Lies in the first HEADER bytes of its memory; the records come behind it.
typedef struct buffer {
    struct buffer *next;
    size_t valid;
} buffer;

static struct {
    pthread_mutex_t lock;
    buffer *free, *full, **full_end;
    uint64_t dropped;
} stock = {.lock = PTHREAD_MUTEX_INITIALIZER};

static uint8_t *records_of(buffer *b)
{
    return (uint8_t *)b + HEADER;
}

static buffer *buffer_new(void)
{
    buffer *b = aligned_alloc(ALIGNMENT, HEADER + BUFFER_BYTES);
    if (b)
        memset(b, 0, HEADER + BUFFER_BYTES);
    return b;
}

ptb_status ptb_cupti_buffers_init(void)
{
    stock.full_end = &stock.full;
    for (int i = 0; i < STOCK; i++) {
        buffer *b = buffer_new();
        if (!b) {
            ptb_error("no memory for the profiler's %d buffers of %d bytes", STOCK, BUFFER_BYTES);
            ptb_cupti_buffers_release();
            return PTB_NO_MEMORY;
        }
        b->next = stock.free;
        stock.free = b;
    }
    return PTB_OK;
}

static void free_list(buffer **list)
{
    while (*list) {
        buffer *next = (*list)->next;
        free(*list);
        *list = next;
    }
}

// A buffer that CUPTI still holds stays with it: nobody can take it back.
void ptb_cupti_buffers_release(void)
{
    pthread_mutex_lock(&stock.lock);
    free_list(&stock.free);
    free_list(&stock.full);
    stock.full_end = &stock.full;
    pthread_mutex_unlock(&stock.lock);
}

void ptb_cupti_buffer_wanted(uint8_t **out, size_t *size, size_t *max_records)
{
    pthread_mutex_lock(&stock.lock);
    buffer *b = stock.free;
    if (b)
        stock.free = b->next;
    pthread_mutex_unlock(&stock.lock);
    if (!b)
        b = buffer_new();
    *out = b ? records_of(b) : NULL; // without one CUPTI drops records and counts them
    *size = b ? BUFFER_BYTES : 0;
    *max_records = 0; // as many as fit
}

void ptb_cupti_buffer_full(CUcontext context, uint32_t stream, uint8_t *memory, size_t size, size_t valid)
{
    (void)size;
    if (!memory)
        return;
    buffer *b = (buffer *)(memory - HEADER);
    size_t dropped = 0;
    if (ptb_cupti_functions()->ActivityGetNumDroppedRecords(context, stream, &dropped) != CUPTI_SUCCESS)
        dropped = 0;
    pthread_mutex_lock(&stock.lock);
    stock.dropped += dropped;
    b->valid = valid;
    if (valid) {
        b->next = NULL;
        *stock.full_end = b;
        stock.full_end = &b->next;
    } else {
        b->next = stock.free;
        stock.free = b;
    }
    pthread_mutex_unlock(&stock.lock);
}

ptb_status ptb_cupti_buffers_read(ptb_cupti_read_fn *read, void *context)
{
    for (buffer *b = stock.full; b; b = b->next) {
        CUpti_Activity *record = NULL;
        while (ptb_cupti_functions()->ActivityGetNextRecord(records_of(b), b->valid, &record) ==
               CUPTI_SUCCESS)
            PTB_TRY(read(context, record));
    }
    return PTB_OK;
}

uint64_t ptb_cupti_buffers_recycle(void)
{
    pthread_mutex_lock(&stock.lock);
    *stock.full_end = stock.free;
    stock.free = stock.full;
    stock.full = NULL;
    stock.full_end = &stock.full;
    uint64_t dropped = stock.dropped;
    stock.dropped = 0;
    pthread_mutex_unlock(&stock.lock);
    return dropped;
}
