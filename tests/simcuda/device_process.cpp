// The device process: how the program file becomes it, the commands that it answers, and its end, which is
// that of the program.
#include "tests/simcuda/shared.hpp"

#include <mutex>
#include <thread>

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

extern "C" int __real_main(int argc, char **argv);

static bool in_device;

bool sim_in_device(void)
{
    return in_device;
}

// The linker puts this before main (-Wl,--wrap=main). The program starts its own file again with
// PTB_SIM_DEVICE set: that copy is the device.
extern "C" int __wrap_main(int argc, char **argv)
{
    int shared_file, host_file, program;
    const char *files = getenv("PTB_SIM_DEVICE");
    if (!files || sscanf(files, "%d,%d,%d", &shared_file, &host_file, &program) != 3)
        return __real_main(argc, argv);
    // Once more, so that the program's wait() never sees a process that it did not start.
    if (fork() != 0)
        _exit(0);
    void *state = mmap((void *)SIM_SHARED_BASE, sizeof(sim_shared_state), PROT_READ | PROT_WRITE,
                       MAP_SHARED | MAP_FIXED_NOREPLACE, shared_file, 0);
    if (state != (void *)SIM_SHARED_BASE) {
        perror("simulated device: cannot map what it shares with the program");
        _exit(1);
    }
    in_device = true;
    unsetenv("PTB_SIM_DEVICE");
    sim_device_main(host_file, program);
}

// Ends with the program, whatever ends that.
static void watch_program(int program)
{
    struct pollfd of = {program, POLLIN, 0};
    while (poll(&of, 1, -1) < 0)
        ;
    _exit(0);
}

static cudaError_t obey(const sim_shared_state *s)
{
    switch (s->command) {
    case SIM_COMMAND_STREAM:
        sim_worker_start((uint32_t)s->argument[0]);
        return cudaSuccess;
    case SIM_COMMAND_MAP:
        return sim_memory_map(s->argument[0], s->argument[1], s->argument[2], s->argument[3]);
    case SIM_COMMAND_UNMAP:
        return sim_memory_unmap(s->argument[0]);
    case SIM_COMMAND_CHECK:
        return sim_memory_check();
    case SIM_COMMAND_NONE:
        break;
    }
    return cudaErrorInvalidValue;
}

static void quiet_signals(void)
{
    // A terminal's signals, and those that a launcher sends to a rank's whole process group, are for the
    // program.
    for (int number : {SIGINT, SIGQUIT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2, SIGPIPE, SIGALRM})
        signal(number, SIG_IGN);
    sigset_t none;
    sigemptyset(&none);
    pthread_sigmask(SIG_SETMASK, &none, NULL);
}

void sim_device_main(int host_file, int program)
{
    sim_shared_state *s = sim_shared();
    quiet_signals();
    prctl(PR_SET_NAME, "simulated GPU");
    void *device = mmap((void *)SIM_DEVICE_BASE, SIM_DEVICE_SPAN, PROT_NONE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE, -1, 0);
    void *host = mmap((void *)SIM_HOST_BASE, SIM_HOST_SPAN, PROT_NONE,
                      MAP_SHARED | MAP_NORESERVE | MAP_FIXED_NOREPLACE, host_file, 0);
    if (device != (void *)SIM_DEVICE_BASE || host != (void *)SIM_HOST_BASE) {
        perror("simulated device: cannot map its memory");
        _exit(1);
    }
    // Nothing else of the program's is kept open: whoever reads a pipe from the program sees its end.
    const int end = program > host_file ? program : host_file;
    for (int file = 3; file <= end; file++)
        if (file != program)
            close(file);
    closefrom(end + 1);
    std::thread(watch_program, program).detach();
    sim_faults_install();
    s->device_pid.store(getpid());
    sim_ring(&s->reply);
    for (;;) {
        const uint32_t seen = s->request.count.load();
        if (s->asked.load() == s->answered.load()) {
            sim_await_idle(&s->request, seen);
            continue;
        }
        s->answer = obey(s);
        s->answered.fetch_add(1);
        sim_ring(&s->reply);
    }
}
