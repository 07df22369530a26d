// The list of a device's allocations. It is short (tensors, not objects), so a search from the end will do.
#include "core/ledger.h"

#include "core/log.h"

#include <stdio.h>
#include <stdlib.h>

void ptb_ledger_init(ptb_ledger *ledger, ptb_device *device)
{
    *ledger = (ptb_ledger){.device = device};
    pthread_mutex_init(&ledger->lock, NULL);
}

void ptb_ledger_release(ptb_ledger *ledger)
{
    pthread_mutex_destroy(&ledger->lock);
    free(ledger->list);
}

// Room for one more line; called with the lock held.
static bool reserve(ptb_ledger *ledger)
{
    if (ledger->count < ledger->capacity)
        return true;
    size_t capacity = ledger->capacity ? 2 * ledger->capacity : 64;
    ptb_allocation *list = realloc(ledger->list, capacity * sizeof *list);
    if (!list)
        return false;
    ledger->list = list;
    ledger->capacity = capacity;
    return true;
}

ptb_status ptb_ledger_add(ptb_ledger *ledger, const ptb_allocation *allocation)
{
    ptb_device *device = ledger->device;
    ptb_memory category = allocation->category;
    pthread_mutex_lock(&ledger->lock);
    bool has_room = reserve(ledger);
    if (has_room) {
        ledger->list[ledger->count++] = *allocation;
        device->used_bytes[category] += allocation->bytes;
        if (device->used_bytes[category] > device->peak_bytes[category])
            device->peak_bytes[category] = device->used_bytes[category];
    }
    pthread_mutex_unlock(&ledger->lock);
    if (has_room)
        return PTB_OK;
    ptb_error("no memory for the list of allocations");
    return PTB_NO_MEMORY;
}

ptb_allocation ptb_ledger_take(ptb_ledger *ledger, void *memory)
{
    ptb_allocation found = {NULL, 0, PTB_MEMORY_COUNT};
    pthread_mutex_lock(&ledger->lock);
    for (size_t i = ledger->count; i-- > 0;) // latest first: most are freed in reverse order
        if (ledger->list[i].memory == memory) {
            found = ledger->list[i];
            ledger->list[i] = ledger->list[--ledger->count];
            ledger->device->used_bytes[found.category] -= found.bytes;
            break;
        }
    pthread_mutex_unlock(&ledger->lock);
    if (!found.memory) {
        fprintf(stderr, "ptbench: %p was not allocated on this device\n", memory);
        abort();
    }
    return found;
}
