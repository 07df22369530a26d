// Switching between stacks within a thread: by hand on x86-64 (about 2 ns; the system's swapcontext makes a
// system call each time), by ucontext elsewhere. Signal masks and floating-point modes are not switched: all
// contexts of a thread share them.
#ifndef PTB_SIMCUDA_CONTEXT_HPP
#define PTB_SIMCUDA_CONTEXT_HPP

#include "tests/simcuda/sanitize.hpp"

#include <stddef.h>
#include <stdint.h>

// The address sanitizer asks to be told of each switch: which stack is the running one.
struct sim_stack {
    const void *bottom;
    size_t bytes;
    void *frames; // of a context that does not run: what the sanitizer keeps for it
};

static inline void sim_stack_leave(sim_stack *from, const sim_stack *to)
{
#ifdef __SANITIZE_ADDRESS__
    __sanitizer_start_switch_fiber(&from->frames, to->bottom, to->bytes);
#else
    (void)from, (void)to;
#endif
}

static inline void sim_stack_enter(const sim_stack *of)
{
#ifdef __SANITIZE_ADDRESS__
    __sanitizer_finish_switch_fiber(of->frames, NULL, NULL);
#else
    (void)of;
#endif
}

#if defined __x86_64__

struct sim_context {
    void *stack_pointer;
    sim_stack stack;
};

// Saves what the System V ABI lets a callee keep, and the stack pointer, in *from; goes on where *to was
// saved.
extern "C" void sim_switch_stacks(void **from, void *to);

static inline void sim_context_switch(sim_context *from, const sim_context *to)
{
    sim_stack_leave(&from->stack, &to->stack);
    sim_switch_stacks(&from->stack_pointer, to->stack_pointer);
    sim_stack_enter(&from->stack);
}
#else
#include <ucontext.h>

struct sim_context {
    ucontext_t context;
    sim_stack stack;
};

static inline void sim_context_switch(sim_context *from, const sim_context *to)
{
    sim_stack_leave(&from->stack, &to->stack);
    swapcontext(&from->context, &to->context);
    sim_stack_enter(&from->stack);
}
#endif

// The context of the calling thread on its own stack, to be switched from.
void sim_context_here(sim_context *context);
// A context that begins with entry(argument), at the top of `bytes` of stack; entry calls sim_context_begun
// first and never returns.
void sim_context_make(sim_context *context, void *stack, size_t bytes, void (*entry)(void *), void *argument);
static inline void sim_context_begun(const sim_context *context)
{
    sim_stack_enter(&context->stack);
}

#endif
