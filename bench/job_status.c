// The file holds nothing, "s" (started) or "sN" (ended with exit code N).
#include "bench/job_status.h"

#include "core/log.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

ptb_status ptb_job_status_new(char *path, unsigned long size)
{
    const char *folder = getenv("TMPDIR");
    snprintf(path, size, "%s/ptbench-status-XXXXXX", folder && *folder ? folder : "/tmp");
    int file = mkostemp(path, O_CLOEXEC);
    if (file < 0) {
        ptb_error("%s: a small file cannot be made there: %s; set TMPDIR to a folder that can be written",
                  path, strerror(errno));
        return PTB_SYSTEM;
    }
    close(file);
    return PTB_OK;
}

void ptb_job_status_clear(const char *path)
{
    int file = open(path, O_WRONLY | O_TRUNC | O_CLOEXEC);
    if (file >= 0)
        close(file);
}

ptb_job_state ptb_job_status_read(const char *path, int *exit_code)
{
    char text[8] = "";
    int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0)
        return PTB_JOB_UNKNOWN;
    ssize_t length = read(file, text, sizeof text - 1);
    close(file);
    if (length < 0)
        return PTB_JOB_UNKNOWN;
    if (length == 0)
        return PTB_JOB_NOT_STARTED;
    if (length == 1)
        return PTB_JOB_STARTED;
    *exit_code = atoi(text + 1);
    return PTB_JOB_ENDED;
}

void ptb_job_status_remove(const char *path)
{
    unlink(path);
}

static void append(const char *path, const char *text)
{
    int file = path && *path ? open(path, O_WRONLY | O_APPEND | O_CLOEXEC) : -1;
    if (file < 0)
        return;
    if (write(file, text, strlen(text)) < 0)
        ptb_debug("%s: %s", path, strerror(errno));
    close(file);
}

void ptb_job_status_started(const char *path)
{
    append(path, "s");
}

void ptb_job_status_ended(const char *path, int exit_code)
{
    char text[16];
    snprintf(text, sizeof text, "%d", exit_code);
    append(path, text);
}
