// What a device has handed out: each allocation with its size and category, and the byte counts of its
// ptb_device. The back-ends of core/device.h keep one each.
#ifndef PTB_CORE_LEDGER_H
#define PTB_CORE_LEDGER_H

#include "core/device.h"

#include <pthread.h>

typedef struct {
    void *memory;
    size_t bytes;
    ptb_memory category;
} ptb_allocation;

typedef struct {
    pthread_mutex_t lock; // of all below and the byte counts
    ptb_device *device;
    ptb_allocation *list;
    size_t count, capacity;
} ptb_ledger;

void ptb_ledger_init(ptb_ledger *ledger, ptb_device *device);
// Forgets what is left in it, which its owner has freed.
void ptb_ledger_release(ptb_ledger *ledger);
// NO_MEMORY, logged, when the list cannot grow.
ptb_status ptb_ledger_add(ptb_ledger *ledger, const ptb_allocation *allocation);
// Takes an allocation out and returns it. Memory that is not in the ledger is a defect and ends the process.
ptb_allocation ptb_ledger_take(ptb_ledger *ledger, void *memory);

#endif
