// Switching between stacks within a thread: by hand on x86-64 (about 2 ns; the system's swapcontext makes a
// system call each time), by ucontext elsewhere. Signal masks and floating-point modes are not switched: all
// contexts of a thread share them.
#ifndef PTB_SIMCUDA_CONTEXT_HPP
#define PTB_SIMCUDA_CONTEXT_HPP

#include <stddef.h>
#include <stdint.h>

#if defined __x86_64__

struct sim_context {
    void *stack_pointer;
};

// Saves what the System V ABI lets a callee keep, and the stack pointer, in *from; goes on where *to was
// saved.
extern "C" void sim_switch_stacks(void **from, void *to);

static inline void sim_context_switch(sim_context *from, const sim_context *to)
{
    sim_switch_stacks(&from->stack_pointer, to->stack_pointer);
}
#else
#include <ucontext.h>

struct sim_context {
    ucontext_t context;
};

static inline void sim_context_switch(sim_context *from, const sim_context *to)
{
    swapcontext(&from->context, &to->context);
}
#endif

// A context that begins with entry(argument), which never returns, at the top of `bytes` of stack.
void sim_context_make(sim_context *context, void *stack, size_t bytes, void (*entry)(void *), void *argument);

#endif
