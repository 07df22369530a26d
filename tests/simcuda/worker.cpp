// A stream's worker in the device process: takes the entries of its queue in order. After an error nothing
// runs any more, and waiting ends.
#include "tests/simcuda/fibers.hpp"
#include "tests/simcuda/shared.hpp"

#include <mutex>
#include <thread>

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

namespace {
struct worker {
    uint32_t stream;
    uint64_t random;
    long delay_us, slow_us;
    uint64_t hang_at, ecc_at, launch_at; // faults
};

__thread sigjmp_buf *recovery; // where an illegal access of the running piece of work goes
__thread const char *work_name;
std::mutex one_call;

void sleep_us(uint64_t us)
{
    const struct timespec time = {(time_t)(us / 1000000), (long)(us % 1000000 * 1000)};
    nanosleep(&time, NULL);
}

void delay(worker *w)
{
    if (w->delay_us <= 0)
        return;
    w->random ^= w->random << 13; // xorshift64, Marsaglia 2003
    w->random ^= w->random >> 7;
    w->random ^= w->random << 17;
    sleep_us(w->random % (uint64_t)(w->delay_us + 1));
}

// The faults that PTB_SIM asks for.
cudaError_t planted(const worker *w, bool is_kernel)
{
    sim_shared_state *s = sim_shared();
    const uint64_t work = s->works.fetch_add(1) + 1;
    if (work == w->hang_at)
        for (;;)
            pause();
    if (work == w->ecc_at)
        return cudaErrorECCUncorrectable;
    if (!is_kernel)
        return cudaSuccess;
    if (w->slow_us > 0)
        sleep_us((uint64_t)w->slow_us);
    return s->kernels.fetch_add(1) + 1 == w->launch_at ? cudaErrorLaunchFailure : cudaSuccess;
}

cudaError_t guarded(sim_work_fn *run, void *arguments)
{
    sigjmp_buf back;
    if (sigsetjmp(back, 0)) {
        recovery = NULL;
        return cudaErrorIllegalAddress;
    }
    recovery = &back;
    const cudaError_t error = run(arguments);
    recovery = NULL;
    return error;
}

void work(worker *w, sim_entry *entry)
{
    sim_record record = {};
    if (entry->work.has_activity)
        record.activity = entry->work.activity;
    else
        record.activity.kind = SIM_QUIET;
    delay(w);
    cudaError_t error = planted(w, record.activity.kind == SIM_KERNEL);
    record.begin_ns = sim_now_ns();
    if (!error) {
        work_name = record.activity.name;
        error = guarded(entry->work.run, entry + 1);
    }
    if (error) {
        sim_set_error(error);
        return;
    }
    record.end_ns = sim_now_ns();
    record.stream = w->stream;
    record.device = sim_shared()->queue[w->stream].device;
    record.graph_node = entry->work.graph_node;
    if (record.activity.kind != SIM_QUIET)
        sim_record_put(&record);
}

void wait_for(uint32_t stream, uint64_t number)
{
    sim_queue *other = &sim_shared()->queue[stream];
    for (;;) {
        const uint32_t seen = other->progress.count.load();
        if (other->done.load() >= number || sim_shared()->error.load())
            return;
        sim_await(&other->progress, seen);
    }
}

void call_program(const sim_entry *entry)
{
    sim_shared_state *s = sim_shared();
    std::lock_guard<std::mutex> hold(one_call);
    s->call_function = entry->call.function;
    s->call_data = entry->call.data;
    const uint32_t mine = s->calls_asked.fetch_add(1) + 1;
    sim_ring(&s->call_request);
    for (;;) {
        const uint32_t seen = s->call_reply.count.load();
        if (s->calls_answered.load() == mine)
            return;
        sim_await(&s->call_reply, seen);
    }
}

void obey(worker *w, sim_entry *entry)
{
    const bool failed = sim_shared()->error.load() != cudaSuccess;
    switch (entry->kind) {
    case SIM_ENTRY_WORK:
        if (!failed)
            work(w, entry);
        break;
    case SIM_ENTRY_WAIT:
        wait_for(entry->wait.stream, entry->wait.number);
        break;
    case SIM_ENTRY_EVENT:
        sim_shared()->event_ns[entry->event.slot].store(sim_now_ns());
        break;
    case SIM_ENTRY_CALL:
        delay(w);
        if (!failed)
            call_program(entry);
        break;
    case SIM_ENTRY_FREE:
        sim_memory_unmap((uintptr_t)entry->free.memory);
        break;
    case SIM_ENTRY_SKIP:
        break;
    }
}

void run(uint32_t stream)
{
    sim_queue *q = &sim_shared()->queue[stream];
    const long seed = sim_option("seed");
    worker w = {};
    w.stream = stream;
    w.random = (uint64_t)(seed < 0 ? 1 : seed) * 0x9e3779b97f4a7c15u + stream + 1;
    w.delay_us = sim_option("delay");
    w.slow_us = sim_option("slow");
    w.hang_at = sim_fault("hang");
    w.ecc_at = sim_fault("ecc");
    w.launch_at = sim_fault("launch");
    enum { SIGNAL_STACK_BYTES = 64 << 10 };
    const stack_t signal_stack = {malloc(SIGNAL_STACK_BYTES), 0, SIGNAL_STACK_BYTES};
    sigaltstack(&signal_stack, NULL);
    char name[16];
    snprintf(name, sizeof name, "stream %u", stream);
    prctl(PR_SET_NAME, name);
    for (;;) {
        const uint32_t seen = q->work.count.load();
        const uint64_t tail = q->tail.load();
        if (tail == q->head.load()) {
            sim_await_idle(&q->work, seen);
            continue;
        }
        sim_entry *entry = (sim_entry *)(q->data + tail % SIM_QUEUE_BYTES);
        const bool counts = entry->kind != SIM_ENTRY_SKIP;
        const uint32_t bytes = entry->bytes;
        obey(&w, entry);
        q->tail.store(tail + bytes);
        if (counts)
            q->done.fetch_add(1);
        sim_ring(&q->progress);
    }
}

// An access that the device's memory does not allow, in a kernel or in other work.
void on_fault(int number, siginfo_t *info, void *)
{
    char text[256];
    const uintptr_t address = (uintptr_t)info->si_addr;
    // A vector access to an address that is not aligned comes without an address.
    const bool misaligned = number == SIGBUS || (number == SIGSEGV && info->si_code > 0x7f);
    sim_memory_describe(address, text, sizeof text);
    if (sim_kernel_name()) {
        if (number == SIGFPE || number == SIGILL)
            sim_abort_grid(cudaErrorIllegalInstruction, "illegal instruction (signal %d)", number);
        if (misaligned)
            sim_abort_grid(cudaErrorMisalignedAddress, "misaligned address of an access of 8 or 16 bytes");
        if (sim_is_stack_guard(address))
            sim_abort_grid(cudaErrorHardwareStackError, "a thread's stack is full");
        sim_abort_grid(cudaErrorIllegalAddress, "illegal access to 0x%lx: %s", (unsigned long)address, text);
    }
    fprintf(stderr, "simulated device: illegal access to 0x%lx in %s (signal %d): %s\n",
            (unsigned long)address, work_name && *work_name ? work_name : "a piece of work", number, text);
    if (recovery)
        siglongjmp(*recovery, 1);
    _exit(1);
}
} // namespace

void sim_worker_start(uint32_t stream)
{
    sim_queue *q = &sim_shared()->queue[stream];
    if (!q->begun.exchange(1))
        std::thread(run, stream).detach();
}

void sim_faults_install(void)
{
    struct sigaction action = {};
    action.sa_sigaction = on_fault;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER;
    for (int number : {SIGSEGV, SIGBUS, SIGFPE, SIGILL})
        sigaction(number, &action, NULL);
}

cudaError_t sim_work_failed(cudaError_t error, const char *format, ...)
{
    char text[512];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    fprintf(stderr, "simulated device: %s: %s\n", work_name && *work_name ? work_name : "a piece of work",
            text);
    return error;
}
