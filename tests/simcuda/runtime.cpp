// The program's side of the simulated CUDA runtime: the start of the device process, errors, and what goes to
// a stream.
#include "tests/simcuda/runtime.hpp"
#include "tests/simcuda/fibers.hpp"
#include "tests/simcuda/launch.hpp"

#include <map>
#include <thread>

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

namespace {
__thread cudaError_t last_error;
__thread int current_device;
std::mutex start_lock, ask_lock, shared_memory_lock;
std::atomic<pid_t> owner; // the process that the device belongs to; 0: not started
int device_file = -1;     // pidfd of the device process
std::atomic<uint64_t> calls;
std::atomic<uint32_t> correlations;
std::atomic<sim_call_hook *> call_hook;
std::atomic<sim_wait_hook *> wait_hook;
std::map<const void *, int> &allowed_shared =
    *new std::map<const void *, int>; // bytes of dynamic shared memory, by kernel

int make_file(const char *name, uint64_t bytes)
{
    const int file = memfd_create(name, MFD_CLOEXEC);
    if (file < 0 || ftruncate(file, (off_t)bytes)) {
        perror("simulated device: cannot make shared memory");
        return -1;
    }
    return file;
}

bool map_at(uintptr_t address, uint64_t bytes, int protection, int file)
{
    const int flags = file < 0 ? MAP_PRIVATE | MAP_ANONYMOUS : MAP_SHARED;
    void *at = mmap((void *)address, bytes, protection, flags | MAP_NORESERVE | MAP_FIXED_NOREPLACE, file, 0);
    if (at == (void *)address)
        return true;
    fprintf(stderr, "simulated device: cannot map %llu bytes at 0x%lx: %s\n", (unsigned long long)bytes,
            (unsigned long)address, at == MAP_FAILED ? strerror(errno) : "in use");
    return false;
}

// Functions that the device wants called: in the program, on a thread of its own.
void answer_calls(void)
{
    sim_shared_state *s = sim_shared();
    for (;;) {
        const uint32_t seen = s->call_request.count.load();
        if (s->calls_asked.load() == s->calls_answered.load()) {
            sim_await_idle(&s->call_request, seen);
            continue;
        }
        s->call_function(s->call_data);
        s->calls_answered.fetch_add(1);
        sim_ring(&s->call_reply);
    }
}

bool spawn(int shared_file, int host_file)
{
    const int self = (int)syscall(SYS_pidfd_open, getpid(), 0);
    if (self < 0) {
        perror("simulated device: pidfd_open (Linux 5.3 or later is needed)");
        return false;
    }
    char setting[64];
    snprintf(setting, sizeof setting, "PTB_SIM_DEVICE=%d,%d,%d", shared_file, host_file, self);
    std::vector<char *> environment;
    for (char **at = environ; *at; at++)
        environment.push_back(*at);
    environment.push_back(setting);
    environment.push_back(NULL);
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    for (int file : {shared_file, host_file, self}) // these stay open
        posix_spawn_file_actions_adddup2(&actions, file, file);
    char name[] = "simulated-GPU";
    char *const arguments[] = {name, NULL};
    pid_t child;
    const int error = posix_spawn(&child, "/proc/self/exe", &actions, NULL, arguments, environment.data());
    posix_spawn_file_actions_destroy(&actions);
    close(self);
    if (error) {
        fprintf(stderr, "simulated device: cannot start its process: %s\n", strerror(error));
        return false;
    }
    while (waitpid(child, NULL, 0) < 0 && errno == EINTR)
        ;
    return true;
}

bool wait_for_device(void)
{
    sim_shared_state *s = sim_shared();
    const uint64_t until = sim_now_ns() + 60000000000u;
    while (sim_now_ns() < until) {
        const uint32_t seen = s->reply.count.load();
        const int pid = s->device_pid.load();
        if (pid) {
            device_file = (int)syscall(SYS_pidfd_open, pid, 0);
            return device_file >= 0;
        }
        sim_await(&s->reply, seen);
    }
    fprintf(stderr, "simulated device: its process did not come up within 60 s\n");
    return false;
}

// At the end of the program: writes beyond an allocation are told even if it was never freed.
void finish(void)
{
    if (owner.load() != getpid())
        return;
    if (!sim_shared()->error.load())
        sim_ask(SIM_COMMAND_CHECK, 0, 0, 0, 0);
    syscall(SYS_pidfd_send_signal, device_file, SIGKILL, NULL, 0);
}

cudaError_t start(void)
{
    static_assert(sizeof(sim_shared_state) < SIM_HOST_BASE - SIM_SHARED_BASE, "shared state overlaps");
    std::lock_guard<std::mutex> hold(start_lock);
    if (owner.load())
        return cudaSuccess;
    if (sim_in_device()) {
        fprintf(stderr, "simulated device: work of the device calls the CUDA runtime\n");
        abort();
    }
    const int shared_file = make_file("simulated-gpu-state", sizeof(sim_shared_state));
    const int host_file = make_file("simulated-gpu-host", SIM_HOST_SPAN);
    bool fine = shared_file >= 0 && host_file >= 0 &&
                map_at(SIM_SHARED_BASE, sizeof(sim_shared_state), PROT_READ | PROT_WRITE, shared_file) &&
                map_at(SIM_DEVICE_BASE, SIM_DEVICE_SPAN, PROT_NONE, -1) &&
                map_at(SIM_HOST_BASE, SIM_HOST_SPAN, PROT_NONE, host_file) && spawn(shared_file, host_file) &&
                wait_for_device();
    close(shared_file);
    close(host_file);
    if (!fine)
        return cudaErrorInitializationError;
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before); // signals are for the program's own threads
    std::thread(answer_calls).detach();
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    owner.store(getpid());
    atexit(finish);
    return cudaSuccess;
}
} // namespace

cudaError_t sim_give(cudaError_t error)
{
    if (error)
        last_error = error;
    return error;
}

bool sim_is_up(void)
{
    return owner.load() == getpid();
}

int sim_current_device(void)
{
    return current_device;
}

static cudaError_t begin_call(bool counts)
{
    static const uint64_t lost_at = sim_fault("lost");
    if (!owner.load()) {
        const cudaError_t error = sim_visible_device(0) < 0 ? cudaErrorNoDevice : start();
        if (error)
            return sim_give(error);
    }
    if (owner.load() != getpid()) // CUDA does not survive a fork either
        return sim_give(cudaErrorInitializationError);
    if (counts && calls.fetch_add(1) + 1 == lost_at)
        sim_set_error(cudaErrorUnknown);
    return sim_give((cudaError_t)sim_shared()->error.load());
}

cudaError_t sim_begin_call(void)
{
    return begin_call(true);
}

cudaError_t sim_begin_query(void)
{
    return begin_call(false);
}

void sim_look_after_device(void)
{
    struct pollfd of = {device_file, POLLIN, 0};
    if (poll(&of, 1, 0) == 1 && !sim_shared()->error.load()) {
        fprintf(stderr, "simulated device: its process (%d) has died\n", sim_shared()->device_pid.load());
        sim_set_error(cudaErrorUnknown);
    }
}

cudaError_t sim_ask(sim_command command, uint64_t a, uint64_t b, uint64_t c, uint64_t d)
{
    sim_shared_state *s = sim_shared();
    std::lock_guard<std::mutex> hold(ask_lock);
    s->command = command;
    s->argument[0] = a;
    s->argument[1] = b;
    s->argument[2] = c;
    s->argument[3] = d;
    const uint32_t mine = s->asked.fetch_add(1) + 1;
    sim_ring(&s->request);
    for (;;) {
        const uint32_t seen = s->reply.count.load();
        if (s->answered.load() == mine)
            return s->answer;
        sim_look_after_device();
        if (s->error.load() == cudaErrorUnknown)
            return cudaErrorUnknown;
        sim_await(&s->reply, seen);
    }
}

uint32_t sim_next_correlation(const char *call)
{
    const uint32_t mine = correlations.fetch_add(1) + 1;
    sim_call_hook *hook = call_hook.load();
    if (hook)
        hook(call, mine);
    return mine;
}

cudaError_t cudaGetLastError(void)
{
    const cudaError_t error = last_error;
    last_error = cudaSuccess;
    return error;
}

cudaError_t cudaPeekAtLastError(void)
{
    return last_error;
}

cudaError_t cudaSetDevice(int device)
{
    if (device < 0 || sim_visible_device(device) < 0)
        return sim_give(sim_visible_device(0) < 0 ? cudaErrorNoDevice : cudaErrorInvalidDevice);
    current_device = device;
    return sim_begin_call();
}

cudaError_t cudaGetDevice(int *device)
{
    if (!device)
        return sim_give(cudaErrorInvalidValue);
    *device = current_device;
    return cudaSuccess;
}

// ---- work

cudaError_t sim_enqueue(cudaStream_t stream, sim_work_fn *work, const void *args, size_t bytes,
                        const sim_activity *activity)
{
    SIM_BEGIN();
    CUstream_st *to = sim_stream(stream);
    if (!to || bytes > SIM_ARGUMENT_BYTES)
        return sim_give(to ? cudaErrorInvalidValue : cudaErrorInvalidResourceHandle);
    sim_entry entry = {};
    entry.kind = SIM_ENTRY_WORK;
    entry.work.run = work;
    entry.work.argument_bytes = (uint32_t)bytes;
    entry.work.has_activity = activity != NULL;
    if (activity) {
        entry.work.activity = *activity;
        if (!activity->correlation && activity->kind != SIM_QUIET)
            entry.work.activity.correlation = sim_next_correlation("cudaLaunchKernel");
    }
    return sim_give(sim_push(to, &entry, args, bytes, NULL));
}

namespace {
struct kernel_work {
    alignas(16) sim_grid grid;
    char name[96];
    alignas(16) char arguments[SIM_KERNEL_ARGUMENT_BYTES];
};

cudaError_t run_kernel(void *args)
{
    kernel_work *of = (kernel_work *)args;
    of->grid.name = of->name;
    of->grid.arguments = of->arguments;
    return sim_run_grid(&of->grid);
}

// Without the parentheses that keep a template's commas together.
void copy_name(char to[96], const char *name)
{
    const size_t length = strlen(name);
    if (length > 1 && name[0] == '(' && name[length - 1] == ')')
        snprintf(to, 96, "%.*s", (int)length - 2, name + 1);
    else
        snprintf(to, 96, "%s", name);
}
} // namespace

cudaError_t sim_launch(const char *name, const void *entry, dim3 grid, dim3 block, size_t shared_bytes,
                       cudaStream_t stream, void (*call)(const void *), const void *arguments, size_t bytes)
{
    const uint64_t threads = (uint64_t)block.x * block.y * block.z;
    if (!threads || threads > SIM_BLOCK_THREADS || block.z > 64 || !grid.x || !grid.y || !grid.z ||
        grid.x > 0x7fffffffu || grid.y > 65535 || grid.z > 65535)
        return sim_give(cudaErrorInvalidConfiguration);
    {
        std::lock_guard<std::mutex> hold(shared_memory_lock);
        auto found = allowed_shared.find(entry);
        const size_t limit =
            found == allowed_shared.end() || found->second < 49152 ? 49152 : (size_t)found->second;
        if (shared_bytes > limit)
            return sim_give(cudaErrorInvalidValue);
    }
    kernel_work work = {};
    work.grid = {NULL, {grid.x, grid.y, grid.z}, {block.x, block.y, block.z}, shared_bytes, call, NULL};
    copy_name(work.name, name);
    memcpy(work.arguments, arguments, bytes);
    sim_activity activity = {};
    activity.kind = SIM_KERNEL;
    memcpy(activity.name, work.name, sizeof activity.name);
    memcpy(activity.grid, &work.grid.grid, sizeof activity.grid);
    memcpy(activity.block, &work.grid.block, sizeof activity.block);
    return sim_enqueue(stream, run_kernel, &work, offsetof(kernel_work, arguments) + bytes, &activity);
}

cudaError_t cudaFuncSetAttribute(const void *kernel, cudaFuncAttribute attribute, int value)
{
    if (attribute == cudaFuncAttributePreferredSharedMemoryCarveout)
        return cudaSuccess;
    if (attribute != cudaFuncAttributeMaxDynamicSharedMemorySize || value < 0 || value > 232448)
        return sim_give(cudaErrorInvalidValue);
    std::lock_guard<std::mutex> hold(shared_memory_lock);
    allowed_shared[kernel] = value;
    return cudaSuccess;
}

cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void *data)
{
    SIM_BEGIN();
    CUstream_st *to = sim_stream(stream);
    if (!to || !function)
        return sim_give(to ? cudaErrorInvalidValue : cudaErrorInvalidResourceHandle);
    sim_entry entry = {};
    entry.kind = SIM_ENTRY_CALL;
    entry.call.function = function;
    entry.call.data = data;
    return sim_give(sim_push(to, &entry, NULL, 0, NULL));
}

// ---- records for the profiler

void sim_activity_on(bool on)
{
    if (!sim_begin_call())
        sim_shared()->records_on.store(on);
}

void sim_activity_hook(sim_call_hook *hook, sim_wait_hook *waited)
{
    call_hook.store(hook);
    wait_hook.store(waited);
}

uint64_t sim_wait_begin(const char *call, uint32_t *correlation)
{
    if (!wait_hook.load())
        return 0;
    *correlation = sim_next_correlation(call);
    timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

void sim_wait_end(uint64_t begin_ns, uint32_t correlation, uint32_t stream)
{
    sim_wait_hook *hook = wait_hook.load();
    if (begin_ns && hook)
        hook(correlation, stream, begin_ns);
}

size_t sim_activity_read(sim_record *records, size_t most, uint64_t *dropped)
{
    static std::mutex one;
    std::lock_guard<std::mutex> hold(one);
    size_t count = 0;
    if (owner.load() != getpid())
        return 0;
    sim_shared_state *s = sim_shared();
    for (; count < most; count++) {
        const uint64_t at = s->records_read.load();
        if (at == s->records_written.load())
            break;
        // A place is taken before it is filled: behind it may be records of work that the caller has waited
        // for.
        while (s->record[at % SIM_RECORDS].ready.load() != at + 1 && !s->error.load()) {
            sim_look_after_device();
            sched_yield();
        }
        if (s->record[at % SIM_RECORDS].ready.load() != at + 1)
            break;
        records[count] = s->record[at % SIM_RECORDS].record;
        s->records_read.store(at + 1);
    }
    if (dropped)
        *dropped = s->records_dropped.exchange(0);
    return count;
}
