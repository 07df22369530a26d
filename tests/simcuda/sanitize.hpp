// What the simulated device tells the address sanitizer, and nothing in a build without it: which bytes of
// memory that the device manages itself may be accessed.
#ifndef PTB_SIMCUDA_SANITIZE_HPP
#define PTB_SIMCUDA_SANITIZE_HPP

#include <stddef.h>

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

static inline void sim_forbid(const volatile void *memory, size_t bytes)
{
#ifdef __SANITIZE_ADDRESS__
    __asan_poison_memory_region(memory, bytes);
#else
    (void)memory, (void)bytes;
#endif
}

static inline void sim_allow(const volatile void *memory, size_t bytes)
{
#ifdef __SANITIZE_ADDRESS__
    __asan_unpoison_memory_region(memory, bytes);
#else
    (void)memory, (void)bytes;
#endif
}

#endif
