// Processes that were written down are recognised: as living, as ended whatever has their number now, and as
// not to be known from here.
#include "core/process.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

enum { WORDS = 6, HOST = 0, MACHINE, BOOT, SPACES, PID, START };

// Words of a line, on which tests change some.
typedef struct {
    char word[WORDS][128];
} words;

static words words_of(const char *line)
{
    words w;
    assert_int_equal(sscanf(line, "%127s %127s %127s %127s %127s %127s", w.word[0], w.word[1], w.word[2],
                            w.word[3], w.word[4], w.word[5]),
                     WORDS);
    return w;
}

static words own_words(void)
{
    ptb_text text = PTB_TEXT_INIT;
    ptb_process_append(&text);
    words w = words_of(ptb_text_string(&text));
    ptb_text_release(&text);
    return w;
}

static ptb_process_state look(const words *w)
{
    char line[WORDS * 128];
    snprintf(line, sizeof line, "%s %s %s %s %s %s", w->word[0], w->word[1], w->word[2], w->word[3],
             w->word[4], w->word[5]);
    return ptb_process_look(line);
}

static ptb_process_state look_with(int at, const char *word)
{
    words w = own_words();
    snprintf(w.word[at], sizeof w.word[at], "%s", word);
    return look(&w);
}

// A process that waits until its pipe is closed; its own line.
typedef struct {
    pid_t pid;
    int hold;
    words line;
} child;

static child start_child(void)
{
    int hold[2], tell[2];
    assert_int_equal(pipe(hold), 0);
    assert_int_equal(pipe(tell), 0);
    child c = {.pid = fork(), .hold = hold[1]};
    if (c.pid == 0) {
        char byte;
        ptb_text text = PTB_TEXT_INIT;
        close(hold[1]);
        ptb_process_append(&text);
        bool good = write(tell[1], ptb_text_string(&text), text.length) == (ssize_t)text.length;
        close(tell[1]);
        _exit(good && read(hold[0], &byte, 1) == 0 ? 0 : 1);
    }
    assert_true(c.pid > 0);
    close(hold[0]);
    close(tell[1]);
    char text[1024];
    ssize_t got, used = 0;
    while ((got = read(tell[0], text + used, sizeof text - 1 - (size_t)used)) > 0)
        used += got;
    text[used] = '\0';
    close(tell[0]);
    c.line = words_of(text);
    return c;
}

static void a_process_is_recognised_until_it_ends(void **state)
{
    (void)state;
    words own = own_words();
    assert_int_equal(look(&own), PTB_PROCESS_LIVES);
    assert_int_equal(atoi(own.word[PID]), getpid());
    child c = start_child();
    assert_int_equal(atoi(c.line.word[PID]), c.pid);
    assert_int_equal(look(&c.line), PTB_PROCESS_LIVES);
    assert_true(ptb_process_lives(c.pid));
    assert_true(ptb_process_has_children(getpid()));
    char list[64]; // that some kernels do not have
    snprintf(list, sizeof list, "/proc/%d/task/%d/children", (int)c.pid, (int)c.pid);
    bool is_told = access(list, R_OK) == 0;
    assert_true(ptb_process_has_children(c.pid) == !is_told);
    close(c.hold);
    siginfo_t info;
    assert_int_equal(waitid(P_PID, (id_t)c.pid, &info, WEXITED | WNOWAIT), 0);
    assert_int_equal(look(&c.line), PTB_PROCESS_ENDED); // and not collected yet
    assert_false(ptb_process_lives(c.pid));
    assert_int_equal(waitpid(c.pid, NULL, 0), c.pid);
    assert_int_equal(look(&c.line), PTB_PROCESS_ENDED);
    assert_false(ptb_process_lives(c.pid));
    assert_true(ptb_process_has_children(getpid()) == !is_told);
    assert_true(ptb_process_has_children(c.pid)); // that cannot be told any more
}

// The start that is written down is field 22 of /proc/self/stat.
static void the_start_is_the_kernels(void **state)
{
    (void)state;
    char text[1024], *rest, *field = NULL;
    FILE *file = fopen("/proc/self/stat", "r");
    assert_non_null(file);
    text[fread(text, 1, sizeof text - 1, file)] = '\0';
    fclose(file);
    rest = strrchr(text, ')') + 2;
    for (int i = 3; i <= 22; i++)
        field = strsep(&rest, " ");
    assert_string_equal(own_words().word[START], field);
}

// The number of a process that ended may be another's now: that one started at another time.
static void a_number_used_again_is_another_process(void **state)
{
    (void)state;
    assert_int_equal(look_with(START, "1"), PTB_PROCESS_ENDED);
    assert_int_equal(look_with(START, "18446744073709551615"), PTB_PROCESS_ENDED);
}

static void what_cannot_be_seen_is_unknown(void **state)
{
    (void)state;
    words own = own_words();
    assert_int_equal(look_with(HOST, "elsewhere"), PTB_PROCESS_UNKNOWN);
    assert_int_equal(look_with(HOST, "-"), PTB_PROCESS_UNKNOWN);
    assert_int_equal(look_with(SPACES, "pid:[1],time:[1]"), PTB_PROCESS_UNKNOWN); // a container's
    assert_int_equal(look_with(BOOT, "-"), PTB_PROCESS_UNKNOWN);
    assert_int_equal(look_with(PID, "0"), PTB_PROCESS_UNKNOWN);
    assert_int_equal(look_with(PID, "many"), PTB_PROCESS_UNKNOWN);
    assert_int_equal(ptb_process_look(""), PTB_PROCESS_UNKNOWN);
    assert_int_equal(ptb_process_look("a b c"), PTB_PROCESS_UNKNOWN);
    // Started anew since, if it is this machine and not another of its name.
    bool is_named = strcmp(own.word[MACHINE], "-") != 0;
    words w = own;
    snprintf(w.word[BOOT], sizeof w.word[BOOT], "another");
    assert_int_equal(look(&w), is_named ? PTB_PROCESS_ENDED : PTB_PROCESS_UNKNOWN);
    snprintf(w.word[MACHINE], sizeof w.word[MACHINE], "another");
    assert_int_equal(look(&w), PTB_PROCESS_UNKNOWN);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_process_is_recognised_until_it_ends),
        cmocka_unit_test(the_start_is_the_kernels),
        cmocka_unit_test(a_number_used_again_is_another_process),
        cmocka_unit_test(what_cannot_be_seen_is_unknown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
