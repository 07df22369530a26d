// A folder for files of tokens, and what was said on standard error, for the tests of tokens.
#ifndef PTB_TESTS_UNIT_TOKENS_FIXTURE_H
#define PTB_TESTS_UNIT_TOKENS_FIXTURE_H

#include "strategies/tokens.h"

#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

enum { FIXTURE_GPT2 = 20240520, FIXTURE_LLAMA3 = 20240801, FIXTURE_HEADER = 256 };

// Each test has an empty folder as its current one.
static inline int fixture_enter(void **state)
{
    char *path = strdup("/tmp/ptb_tokens_XXXXXX");
    *state = path;
    return path && mkdtemp(path) && chdir(path) == 0 ? 0 : -1;
}

static inline int fixture_leave(void **state)
{
    char command[128];
    snprintf(command, sizeof command, "chmod -R u+rwx '%s'; rm -rf '%s'", (char *)*state, (char *)*state);
    int failed = chdir("/") || system(command);
    free(*state);
    return failed;
}

static inline void fixture_write(const char *path, const void *bytes, size_t size)
{
    int file = open(path, O_CREAT | O_TRUNC | O_WRONLY, 0644);
    assert_true(file >= 0);
    assert_int_equal(write(file, bytes, size), size);
    close(file);
}

static inline void fixture_text(const char *path, const char *text)
{
    fixture_write(path, text, strlen(text));
}

// A file as llm.c writes it: the header says `said` tokens.
static inline void fixture_tokens(const char *path, int32_t magic, int32_t version, int64_t said,
                                  const uint32_t *tokens, size_t count)
{
    size_t width = magic == FIXTURE_LLAMA3 ? 4 : 2, size = FIXTURE_HEADER * sizeof(int32_t) + count * width;
    unsigned char *bytes = calloc(1, size);
    assert_non_null(bytes);
    int32_t header[3] = {magic, version, (int32_t)said};
    memcpy(bytes, header, sizeof header);
    for (size_t i = 0; i < count; i++)
        memcpy(bytes + FIXTURE_HEADER * sizeof(int32_t) + i * width, &tokens[i], width);
    fixture_write(path, bytes, size);
    free(bytes);
}

// What opening says, in `said`.
static inline ptb_status fixture_open(const ptb_tokens_config *config, ptb_tokens **tokens, char *said,
                                      size_t said_size)
{
    int before = dup(2), file = memfd_create("said", MFD_CLOEXEC); // not every file system has O_TMPFILE
    assert_true(before >= 0 && file >= 0);
    dup2(file, 2);
    ptb_status status = ptb_tokens_open(config, tokens);
    dup2(before, 2);
    ssize_t got = pread(file, said, said_size - 1, 0);
    said[got > 0 ? got : 0] = 0;
    close(file);
    close(before);
    return status;
}

#endif
