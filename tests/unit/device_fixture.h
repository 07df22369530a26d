// What tests that run on several devices share: the device that PTB_TEST_DEVICE names (host unless it is
// set), its kernels, the communicator of ranks that are threads, and whether its ledger holds what was
// predicted.
#ifndef PTB_TESTS_UNIT_DEVICE_FIXTURE_H
#define PTB_TESTS_UNIT_DEVICE_FIXTURE_H

#include "core/device.h"
#include "strategies/backends.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static inline const char *test_device(void)
{
    const char *name = getenv("PTB_TEST_DEVICE");
    return name && *name ? name : "host";
}

static inline bool test_on_host(void)
{
    return strcmp(test_device(), "host") == 0;
}

static inline const ptb_kernels *test_kernels(void)
{
    return (const ptb_kernels *)ptb_registry_find(PTB_KIND_KERNELS, test_device());
}

// Ranks are threads here: on the host that is the affair of `local`.
static inline const char *test_comm(void)
{
    const char *name = "local";
    if (!test_on_host())
        (void)ptb_backends_comm(test_device(), &name);
    return name;
}

// The compute type of a run that may not have been given any.
static inline ptb_dtype test_type(ptb_dtype asked)
{
    return asked == (ptb_dtype)0 ? PTB_F32 : asked;
}

// Whether `now` bytes are `predicted` more than `before` (NULL: than nothing) in every category. Ranks are
// threads, and cmocka's assertions are for its own: here problems become results.
static inline bool test_ledger_is(int rank, const uint64_t now[PTB_MEMORY_COUNT],
                                  const uint64_t before[PTB_MEMORY_COUNT],
                                  const uint64_t predicted[PTB_MEMORY_COUNT])
{
    for (int i = 0; i < PTB_MEMORY_COUNT; i++) {
        uint64_t bytes = now[i] - (before ? before[i] : 0);
        if (bytes == predicted[i])
            continue;
        print_error("rank %d, %s: %llu bytes, %llu predicted\n", rank, ptb_memory_name((ptb_memory)i),
                    (unsigned long long)bytes, (unsigned long long)predicted[i]);
        return false;
    }
    return true;
}

#endif
