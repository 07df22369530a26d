// See process.h: kill(2), and the state in /proc/PID/stat (proc(5)).
#include "collectives/process.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

bool ptb_process_lives(int pid)
{
    char path[64], text[512];
    if (kill(pid, 0) != 0 && errno == ESRCH)
        return false;
    snprintf(path, sizeof path, "/proc/%d/stat", pid);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return true;
    ssize_t got = read(fd, text, sizeof text - 1);
    close(fd);
    if (got <= 0)
        return got < 0 && errno != ESRCH; // ended between open and read
    text[got] = '\0';
    const char *end = strrchr(text, ')'); // "PID (name) STATE ..."; the name may hold anything
    return !end || !end[1] || (end[2] != 'Z' && end[2] != 'X');
}
