// The file holds nothing, "s" (started), or ends in "eN" (ended with exit code N). It has no name in any
// folder, so that nothing stays behind however the launcher ends, and a full or missing TMPDIR does not
// matter: rank 0 reaches it through the launcher's /proc entry.
#include "bench/job_status.h"

#include "core/clock.h"
#include "core/log.h"
#include "core/random.h"

#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

ptb_status ptb_job_status_new(ptb_job_status *status)
{
    char name[40];
    uint64_t nonce = ptb_random_u64((uint64_t)ptb_clock_ns(), (uint64_t)getpid(), (uintptr_t)status);
    snprintf(name, sizeof name, "ptbench-status-%016llx", (unsigned long long)nonce);
    int file = memfd_create(name, MFD_CLOEXEC);
    if (file < 0) {
        ptb_error("a small file in memory cannot be made: %s", strerror(errno));
        return PTB_SYSTEM;
    }
    status->file = file;
    snprintf(status->path, sizeof status->path, "/proc/%d/fd/%d %s", (int)getpid(), file, name);
    return PTB_OK;
}

void ptb_job_status_clear(const ptb_job_status *status)
{
    if (ftruncate(status->file, 0) != 0)
        ptb_debug("the job's status cannot be emptied: %s", strerror(errno));
}

ptb_job_state ptb_job_status_read(const ptb_job_status *status, int *exit_code)
{
    char text[8] = "";
    ssize_t length = pread(status->file, text, sizeof text - 1, 0);
    if (length < 0)
        return PTB_JOB_UNKNOWN;
    if (length == 0)
        return PTB_JOB_NOT_STARTED;
    const char *ended = strchr(text, 'e');
    if (!ended)
        return PTB_JOB_STARTED;
    *exit_code = atoi(ended + 1);
    return PTB_JOB_ENDED;
}

void ptb_job_status_release(ptb_job_status *status)
{
    if (status->file >= 0)
        close(status->file);
    status->file = -1;
}

// The same numbers may mean another file on another host or in another process namespace; its name tells.
static int open_status(const char *path)
{
    char link[64], target[96], wanted[96];
    size_t length = path ? strcspn(path, " ") : 0;
    if (!length || length >= sizeof link || !path[length])
        return -1;
    snprintf(link, sizeof link, "%.*s", (int)length, path);
    snprintf(wanted, sizeof wanted, "/memfd:%.60s (deleted)", path + length + 1);
    ssize_t count = readlink(link, target, sizeof target - 1);
    if (count < 0)
        return -1;
    target[count] = '\0';
    return strcmp(target, wanted) == 0 ? open(link, O_WRONLY | O_APPEND | O_CLOEXEC) : -1;
}

static void append(const char *path, const char *text)
{
    int file = open_status(path);
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
    snprintf(text, sizeof text, "e%d", exit_code);
    append(path, text);
}
