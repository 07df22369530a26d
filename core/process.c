// See process.h: kill(2), /proc/PID/stat (proc(5)), namespaces(7), machine-id(5).
#include "core/process.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { WORD = 128 };

// What tells a process from all others.
typedef struct {
    char host[WORD], machine[WORD], boot[WORD], spaces[WORD]; // "-": unknown
    int pid;
    unsigned long long start;
} identity;

// State and start of a process; false where /proc does not tell. "PID (name) STATE ..."; the name may hold
// anything. STATE is field 3, the start field 22.
static bool read_stat(int pid, char *state, unsigned long long *start)
{
    char path[64], text[1024];
    snprintf(path, sizeof path, "/proc/%d/stat", pid);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return false;
    ssize_t got = read(fd, text, sizeof text - 1);
    close(fd);
    if (got <= 0)
        return false;
    text[got] = '\0';
    const char *end = strrchr(text, ')');
    return end &&
           sscanf(end, ") %c %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %llu",
                  state, start) == 2;
}

static bool is_free(int pid)
{
    return kill(pid, 0) != 0 && errno == ESRCH;
}

static bool has_ended(char state)
{
    return state == 'Z' || state == 'X';
}

bool ptb_process_lives(int pid)
{
    char state;
    unsigned long long start;
    if (is_free(pid))
        return false;
    if (read_stat(pid, &state, &start))
        return !has_ended(state);
    return !is_free(pid); // it may have ended meanwhile
}

// Each thread has a list of its own.
static bool thread_has_children(int pid, const char *thread)
{
    char path[300];
    snprintf(path, sizeof path, "/proc/%d/task/%.255s/children", pid, thread);
    FILE *file = fopen(path, "re");
    if (!file)
        return true;
    bool any = fgetc(file) != EOF;
    fclose(file);
    return any;
}

bool ptb_process_has_children(int pid)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/task", pid);
    DIR *threads = opendir(path);
    bool any = !threads;
    for (const struct dirent *entry; threads && !any && (entry = readdir(threads));)
        any = entry->d_name[0] != '.' && thread_has_children(pid, entry->d_name);
    if (threads)
        closedir(threads);
    return any;
}

static void set_unknown(char out[WORD])
{
    snprintf(out, WORD, "-");
}

// The first word of a file.
static void read_word(const char *path, char out[WORD])
{
    FILE *file = fopen(path, "re");
    if (!file || fscanf(file, "%127s", out) != 1)
        set_unknown(out);
    if (file)
        fclose(file);
}

// Numbers and times mean something in their name spaces alone.
static void read_spaces(char out[WORD])
{
    static const char *const paths[] = {"/proc/self/ns/pid", "/proc/self/ns/time"};
    size_t used = 0;
    for (size_t i = 0; i < sizeof paths / sizeof *paths; i++) {
        char target[48] = "-";
        ssize_t got = readlink(paths[i], target, sizeof target - 1);
        if (got > 0)
            target[got] = '\0';
        used += (size_t)snprintf(out + used, WORD - used, "%s%s", used ? "," : "", target);
    }
}

// /proc may show the processes of another name space than ours.
static bool is_our_proc(void)
{
    char target[32], own[32];
    ssize_t got = readlink("/proc/self", target, sizeof target - 1);
    target[got > 0 ? got : 0] = '\0';
    snprintf(own, sizeof own, "%d", (int)getpid());
    return strcmp(target, own) == 0;
}

static bool read_own(identity *id)
{
    char state;
    set_unknown(id->host);
    if (gethostname(id->host, sizeof id->host) != 0 || !*id->host || strpbrk(id->host, " \t\n"))
        set_unknown(id->host);
    id->host[WORD - 1] = '\0';
    read_word("/etc/machine-id", id->machine);
    read_word("/proc/sys/kernel/random/boot_id", id->boot);
    read_spaces(id->spaces);
    id->pid = (int)getpid();
    return is_our_proc() && read_stat(id->pid, &state, &id->start);
}

void ptb_process_append(ptb_text *text)
{
    identity id;
    if (read_own(&id))
        ptb_text_printf(text, "%s %s %s %s %d %llu", id.host, id.machine, id.boot, id.spaces, id.pid,
                        id.start);
}

static bool is_same(const char *a, const char *b)
{
    return strcmp(a, b) == 0 && strcmp(a, "-") != 0;
}

static ptb_process_state look_here(const identity *id)
{
    char state;
    unsigned long long start;
    if (id->pid <= 0)
        return PTB_PROCESS_UNKNOWN;
    if (is_free(id->pid))
        return PTB_PROCESS_ENDED;
    if (!read_stat(id->pid, &state, &start)) // another user's, hidden from us
        return PTB_PROCESS_LIVES;
    return start == id->start && !has_ended(state) ? PTB_PROCESS_LIVES : PTB_PROCESS_ENDED;
}

ptb_process_state ptb_process_look(const char *line)
{
    identity id, own;
    if (sscanf(line, "%127s %127s %127s %127s %d %llu", id.host, id.machine, id.boot, id.spaces, &id.pid,
               &id.start) != 6 ||
        !read_own(&own) || !is_same(id.host, own.host))
        return PTB_PROCESS_UNKNOWN;
    if (is_same(id.boot, own.boot))
        return strcmp(id.spaces, own.spaces) == 0 ? look_here(&id) : PTB_PROCESS_UNKNOWN;
    // Hosts may have one name; those of one machine id are one host, which no process outlives the boot of.
    bool is_known = strcmp(id.boot, "-") != 0 && strcmp(own.boot, "-") != 0;
    return is_known && is_same(id.machine, own.machine) ? PTB_PROCESS_ENDED : PTB_PROCESS_UNKNOWN;
}
