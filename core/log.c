// One line to standard error per message, in one write, so that lines of several ranks do not mix.
#include "core/log.h"

#include <errno.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static atomic_int log_level = PTB_LOG_INFO;
static atomic_int log_rank = -1;
static struct {
    pthread_mutex_t mutex;
    ptb_listener *first;
} listeners = {.mutex = PTHREAD_MUTEX_INITIALIZER};

void ptb_listen_begin(ptb_listener *listener)
{
    listener->heard[0] = '\0';
    pthread_mutex_lock(&listeners.mutex);
    listener->next = listeners.first;
    listeners.first = listener;
    pthread_mutex_unlock(&listeners.mutex);
}

void ptb_listen_end(ptb_listener *listener)
{
    pthread_mutex_lock(&listeners.mutex);
    for (ptb_listener **at = &listeners.first; *at; at = &(*at)->next)
        if (*at == listener) {
            *at = listener->next;
            break;
        }
    pthread_mutex_unlock(&listeners.mutex);
}

static void let_hear(const char *text, size_t length)
{
    pthread_mutex_lock(&listeners.mutex);
    for (ptb_listener *l = listeners.first; l; l = l->next) {
        if (l->heard[0])
            continue;
        snprintf(l->heard, sizeof l->heard, "%.*s", (int)length, text);
        if (length >= sizeof l->heard)
            memcpy(l->heard + sizeof l->heard - 4, "...", 4);
    }
    pthread_mutex_unlock(&listeners.mutex);
}

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
    bool is_shown = (int)level <= atomic_load(&log_level);
    if (!is_shown && level != PTB_LOG_ERROR)
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
    if (level == PTB_LOG_ERROR)
        let_hear(line + used, length - (size_t)used);
    line[length++] = '\n';
    for (size_t done = 0; done < length && is_shown;) {
        ssize_t wrote = write(STDERR_FILENO, line + done, length - done);
        if (wrote < 0 && errno != EINTR)
            break;
        done += wrote > 0 ? (size_t)wrote : 0;
    }
    errno = saved_errno;
}
