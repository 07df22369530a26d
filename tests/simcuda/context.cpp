// The switch between stacks (context.hpp).
#include "tests/simcuda/context.hpp"

#ifdef __SANITIZE_ADDRESS__
#include <pthread.h>
#include <stdlib.h>

void sim_context_here(sim_context *context)
{
    static __thread sim_stack mine;
    if (!mine.bytes) {
        pthread_attr_t attributes;
        void *bottom;
        if (pthread_getattr_np(pthread_self(), &attributes) ||
            pthread_attr_getstack(&attributes, &bottom, &mine.bytes))
            abort();
        mine.bottom = bottom;
        pthread_attr_destroy(&attributes);
    }
    context->stack = mine;
}
#else
void sim_context_here(sim_context *) {}
#endif

static void set_stack(sim_context *context, void *stack, size_t bytes)
{
#ifdef __SANITIZE_ADDRESS__
    sim_allow(stack, bytes); // whatever an abandoned context has left there
    context->stack = {stack, bytes, NULL};
#else
    (void)context, (void)stack, (void)bytes;
#endif
}

#if defined __x86_64__

asm(".text\n"
    ".globl sim_switch_stacks\n"
    ".type sim_switch_stacks, @function\n"
    "sim_switch_stacks:\n"
    "    pushq %rbp\n"
    "    pushq %rbx\n"
    "    pushq %r12\n"
    "    pushq %r13\n"
    "    pushq %r14\n"
    "    pushq %r15\n"
    "    movq %rsp, (%rdi)\n"
    "    movq %rsi, %rsp\n"
    "    popq %r15\n"
    "    popq %r14\n"
    "    popq %r13\n"
    "    popq %r12\n"
    "    popq %rbx\n"
    "    popq %rbp\n"
    "    popq %rcx\n"
    "    jmp *%rcx\n" // not ret: the processor would predict the caller of another stack
    ".size sim_switch_stacks, .-sim_switch_stacks\n"
    // First switch to a context: entry in rbx, its argument in r12.
    ".type sim_begin_context, @function\n"
    "sim_begin_context:\n"
    "    movq %r12, %rdi\n"
    "    callq *%rbx\n"
    "    ud2\n"
    ".size sim_begin_context, .-sim_begin_context\n");

extern "C" void sim_begin_context(void);

void sim_context_make(sim_context *context, void *stack, size_t bytes, void (*entry)(void *), void *argument)
{
    uintptr_t *top = (uintptr_t *)(((uintptr_t)stack + bytes) & ~(uintptr_t)15);
    *--top = 0; // keeps the stack 16-byte aligned before the call
    *--top = 0;
    *--top = (uintptr_t)sim_begin_context;
    *--top = 0;                   // rbp
    *--top = (uintptr_t)entry;    // rbx
    *--top = (uintptr_t)argument; // r12
    *--top = 0;
    *--top = 0;
    *--top = 0;
    set_stack(context, stack, bytes);
    context->stack_pointer = top;
}
#else

static void begin(unsigned entry_high, unsigned entry_low, unsigned high, unsigned low)
{
    void (*entry)(void *) = (void (*)(void *))((uintptr_t)entry_high << 32 | entry_low);
    entry((void *)((uintptr_t)high << 32 | low));
}

void sim_context_make(sim_context *context, void *stack, size_t bytes, void (*entry)(void *), void *argument)
{
    getcontext(&context->context);
    set_stack(context, stack, bytes);
    context->context.uc_stack.ss_sp = stack;
    context->context.uc_stack.ss_size = bytes;
    context->context.uc_link = NULL;
    const uint64_t e = (uintptr_t)entry, a = (uintptr_t)argument;
    makecontext(&context->context, (void (*)(void))begin, 4, (unsigned)(e >> 32), (unsigned)e,
                (unsigned)(a >> 32), (unsigned)a);
}
#endif
