// One line to standard error per message, in one write, so that lines of several ranks do not mix.
#include "core/log.h"

#include <errno.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static atomic_int log_level = PTB_LOG_INFO;
static atomic_int log_rank = -1;

void ptb_log_set_level(ptb_log_level level)
{
    atomic_store(&log_level, (int)level);
}

void ptb_log_set_rank(int rank)
{
    atomic_store(&log_rank, rank);
}

void ptb_log(ptb_log_level level, const char *format, ...)
{
    static const char *const tag[] = {"error: ", "warning: ", "", "debug: "};
    if ((int)level > atomic_load(&log_level))
        return;
    int saved_errno = errno;
    char line[4096];
    int rank = atomic_load(&log_rank);
    int used = rank >= 0 ? snprintf(line, sizeof line, "ptbench[%d]: %s", rank, tag[level])
                         : snprintf(line, sizeof line, "ptbench: %s", tag[level]);
    va_list args;
    va_start(args, format);
    int body = vsnprintf(line + used, sizeof line - (size_t)used - 1, format, args);
    va_end(args);
    size_t length = (size_t)used + (body > 0 ? (size_t)body : 0);
    if (length > sizeof line - 2)
        length = sizeof line - 2;
    line[length++] = '\n';
    for (size_t done = 0; done < length;) {
        ssize_t wrote = write(STDERR_FILENO, line + done, length - done);
        if (wrote < 0 && errno != EINTR)
            break;
        done += wrote > 0 ? (size_t)wrote : 0;
    }
    errno = saved_errno;
}
