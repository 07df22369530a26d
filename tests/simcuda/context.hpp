// Switching between stacks within a thread: by hand on x86-64 (about 2 ns; the system's swapcontext makes a
// system call each time), by ucontext elsewhere. Signal masks and floating-point modes are not switched: all
// contexts of a thread share them.
#ifndef PTB_SIMCUDA_CONTEXT_HPP
#define PTB_SIMCUDA_CONTEXT_HPP

#include "tests/simcuda/sanitize.hpp"

#include <stddef.h>
#include <stdint.h>

// The address sanitizer asks to be told of each switch: which stack is the running one.
#ifdef __SANITIZE_ADDRESS__
struct sim_stack {
    const void *bottom;
    size_t bytes;
    void *frames; // of a context that does not run: what the sanitizer keeps for it
};
#define SIM_STACK sim_stack stack;
#define SIM_STACK_LEAVE(from, to)                                                                            \
    __sanitizer_start_switch_fiber(&(from)->stack.frames, (to)->stack.bottom, (to)->stack.bytes)
#define SIM_STACK_ENTER(of) __sanitizer_finish_switch_fiber((of)->stack.frames, NULL, NULL)
#else
#define SIM_STACK
#define SIM_STACK_LEAVE(from, to) ((void)0)
#define SIM_STACK_ENTER(of)       ((void)(of))
#endif

#if defined __x86_64__

struct sim_context {
    void *stack_pointer;
    SIM_STACK
};

// Saves what the System V ABI lets a callee keep, and the stack pointer, in *from; goes on where *to was
// saved.
extern "C" void sim_switch_stacks(void **from, void *to);

static inline void sim_context_switch(sim_context *from, const sim_context *to)
{
    SIM_STACK_LEAVE(from, to);
    sim_switch_stacks(&from->stack_pointer, to->stack_pointer);
    SIM_STACK_ENTER(from);
}

// Brings what a switch to this context will read into the cache.
static inline void sim_context_prefetch(const sim_context *context)
{
    __builtin_prefetch(context->stack_pointer);
    __builtin_prefetch((char *)context->stack_pointer + 64);
    __builtin_prefetch((char *)context->stack_pointer + 128);
}
#else
#include <ucontext.h>

struct sim_context {
    ucontext_t context;
    SIM_STACK
};

static inline void sim_context_switch(sim_context *from, const sim_context *to)
{
    SIM_STACK_LEAVE(from, to);
    swapcontext(&from->context, &to->context);
    SIM_STACK_ENTER(from);
}

static inline void sim_context_prefetch(const sim_context *) {}
#endif

// The context of the calling thread on its own stack, to be switched from.
void sim_context_here(sim_context *context);
// A context that begins with entry(argument), at the top of `bytes` of stack; entry calls sim_context_begun
// first and never returns.
void sim_context_make(sim_context *context, void *stack, size_t bytes, void (*entry)(void *), void *argument);
static inline void sim_context_begun(const sim_context *context)
{
    SIM_STACK_ENTER(context);
}

#endif
