// What tests that drive a trainer (strategies/trainer.h) on ranks that are threads share.
#ifndef PTB_TESTS_UNIT_TRAINER_FIXTURE_H
#define PTB_TESTS_UNIT_TRAINER_FIXTURE_H

#include "strategies/trainer.h"
#include "tests/unit/device_fixture.h"

// At most as much was allocated as was predicted, in every category, to the byte.
static inline bool trainer_ledger_holds(const ptb_trainer *t)
{
    uint64_t predicted[PTB_MEMORY_COUNT];
    ptb_trainer_memory(&t->config, predicted);
    return test_ledger_is(t->config.world->rank, t->device->peak_bytes, NULL, predicted);
}

#endif
