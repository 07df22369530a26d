// The roll: what ranks say of each other's progress. Ranks are threads, each with its own roll.
// ctest: waits 30
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "collectives/world.h"
#include "core/roll_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { RANKS = 4, KEY = 77 };

static void describe(const ptb_roll_what *what, char text[PTB_ROLL_TEXT])
{
    snprintf(text, PTB_ROLL_TEXT, "work %u of %llu", what->kind, (unsigned long long)what->amount);
}

// What the ranks do before rank `asker` asks, and what it must say.
typedef struct {
    int calls[RANKS];    // that each enters; negative: it does not open the account
    int messages[RANKS]; // then
    int other;           // rank whose last call is another one; -1: none
    int gone;            // rank that has ended; -1: none
    bool only_missing;
    unsigned families;                  // of addresses; 0: all
    const char *said, *also, *not_said; // NULL: not looked at
} scene;

static void enter_all(const scene *s, int rank, ptb_account *account)
{
    for (int i = 0; i < s->calls[rank]; i++) {
        bool is_other = rank == s->other && i == s->calls[rank] - 1;
        ptb_account_enter(account, &(ptb_roll_what){.kind = is_other ? 9 : 1, .amount = 64});
    }
    for (int i = 0; i < s->messages[rank]; i++)
        ptb_account_message(account, &(ptb_roll_what){.kind = 5, .amount = 8});
}

static bool fits(const scene *s, bool is_told, const char *text)
{
    bool good = is_told == (s->said != NULL) && (!s->said || strstr(text, s->said)) &&
                (!s->also || strstr(text, s->also)) && (!s->not_said || !strstr(text, s->not_said));
    if (!good)
        fprintf(stderr, "said: %s\n", is_told ? text : "nothing");
    return good;
}

static ptb_status play(ptb_world *w, void *arg)
{
    const scene *s = arg;
    static const int members[RANKS] = {0, 1, 2, 3};
    char places[RANKS][PTB_ROLL_PLACE] = {"GPU 0", "GPU 1", "GPU 2", "GPU 3"};
    const ptb_account_config config = {.key = KEY,
                                       .name = "the tested account",
                                       .members = members,
                                       .size = RANKS,
                                       .rank = w->rank,
                                       .places = places,
                                       .describe = describe};
    ptb_roll *roll = NULL;
    ptb_account *account = NULL;
    ptb_text said = PTB_TEXT_INIT;
    ptb_status status = s->families ? ptb_roll_open_with(w, s->families, &roll) : ptb_roll_open(w, &roll);
    if (status != PTB_OK || !roll)
        return PTB_SYSTEM;
    if (s->calls[w->rank] >= 0)
        status = ptb_roll_join(roll, &config, &account);
    enter_all(s, w->rank, account);
    if (w->rank == s->gone)
        ptb_roll_close(roll);
    ptb_world_barrier(w);
    if (w->rank == 0) {
        bool is_told = ptb_account_explain(account, s->only_missing, &said);
        status = fits(s, is_told, ptb_text_string(&said)) ? PTB_OK : PTB_WRONG;
    }
    ptb_world_barrier(w);
    // Who asks while rank 0 tells leaves it to that rank.
    if (w->rank == 1 && s->gone != 1 && account && s->said) {
        ptb_text_clear(&said);
        if (!ptb_account_explain(account, s->only_missing, &said) ||
            strcmp(ptb_text_string(&said), "rank 0 says which ranks are missing") != 0)
            status = PTB_WRONG;
    }
    ptb_world_barrier(w);
    ptb_text_release(&said);
    ptb_roll_leave(w->rank == s->gone ? NULL : account);
    ptb_roll_close(w->rank == s->gone ? NULL : roll);
    return status;
}

static void expect(scene s)
{
    assert_int_equal(ptb_world_run_local(RANKS, NULL, play, &s), PTB_OK);
}

static void test_behind(void **state)
{
    (void)state;
    char host[200], who[300];
    gethostname(host, sizeof host);
    snprintf(who, sizeof who, "rank 2 (host %s, process %d, GPU 2) has come to call 1, work 1 of 64", host,
             (int)getpid());
    expect((scene){.calls = {3, 3, 1, 3},
                   .other = -1,
                   .gone = -1,
                   .said = "1 of 4 ranks did not come to call 3, work 1 of 64, of the tested account: rank 2",
                   .also = who,
                   .not_said = "; rank"});
    expect((scene){.calls = {2, 3, 0, 3},
                   .other = -1,
                   .gone = -1,
                   .said = "2 of 4 ranks did not come to call 3, work 1 of 64",
                   .also = "GPU 2) has entered no call",
                   .not_said = "rank 3"});
}

static void test_absent(void **state)
{
    (void)state;
    expect((scene){.calls = {0, 0, 0, -1},
                   .other = -1,
                   .gone = -1,
                   .said = "rank 3",
                   .also = "GPU 3) has not come to open the tested account",
                   .not_said = "rank 2"});
    expect((scene){.calls = {3, 3, 3, 3},
                   .other = -1,
                   .gone = 3,
                   .said = "1 of 4 ranks did not come to call 3",
                   .also = "GPU 3) does not answer: it has ended or is stopped",
                   .not_said = "rank 2"});
}

static void test_all_there(void **state)
{
    (void)state;
    expect((scene){.calls = {3, 3, 3, 3},
                   .other = -1,
                   .gone = -1,
                   .said = "all 4 ranks came to call 3, work 1 of 64, of the tested account: a GPU, a link"});
    expect((scene){.calls = {3, 3, 3, 3}, .other = -1, .gone = -1, .only_missing = true, .said = NULL});
    expect((scene){.calls = {0, 0, 0, 0},
                   .other = -1,
                   .gone = -1,
                   .said = "all 4 ranks came to open the tested account, and got no further"});
    expect((scene){.calls = {3, 3, 3, 3},
                   .other = 2,
                   .gone = -1,
                   .said = "all 4 ranks came to call 3 of the tested account, but not to the same one",
                   .also = "GPU 2) has come to call 3, work 9 of 64"});
}

static void test_messages(void **state)
{
    (void)state;
    expect((scene){.calls = {1, 1, 1, 1},
                   .messages = {4, 2, 0, 0},
                   .other = -1,
                   .gone = -1,
                   .said = "GPU 1) has entered 1 calls and 2 messages, the last work 5 of 8",
                   .also = "GPU 3) has come to call 1, work 1 of 64"});
}

// ---- addresses

// Whether this machine has an interface with IPv6, such as the loopback.
static bool has_ipv6(void)
{
    FILE *file = fopen("/proc/net/if_inet6", "r");
    bool has = file && fgetc(file) != EOF;
    if (file)
        fclose(file);
    return has;
}

static const scene two_missing = {.calls = {3, 3, 1, -1},
                                  .other = -1,
                                  .gone = -1,
                                  .said = "2 of 4 ranks did not come to call 3",
                                  .also = "GPU 2) has come to call 1",
                                  .not_said = "does not answer"};

static void test_ipv4_alone(void **state)
{
    (void)state;
    scene s = two_missing;
    s.families = PTB_ROLL_IPV4;
    expect(s);
}

static void test_ipv6_alone(void **state)
{
    (void)state;
    scene s = two_missing;
    if (!has_ipv6())
        skip();
    s.families = PTB_ROLL_IPV6;
    expect(s);
}

// Ranks on a host without IPv4 and ranks on one that has it alone.
static ptb_status see_addresses(ptb_world *w, void *arg)
{
    const bool *has_both = arg;
    static const unsigned families[] = {PTB_ROLL_IPV4, PTB_ROLL_IPV6, PTB_ROLL_IPV4 | PTB_ROLL_IPV6};
    ptb_roll *roll = NULL;
    bool good = ptb_roll_open_with(w, *has_both ? families[w->rank] : PTB_ROLL_IPV4, &roll) == PTB_OK && roll;
    for (int r = 0; good && r < w->size; r++) {
        unsigned seen = 0;
        const ptb_roll_address *a = roll->seats[r].addresses;
        for (int i = 0; i < PTB_ROLL_ADDRESSES && a[i].length; i++)
            seen |= a[i].length == 4 ? PTB_ROLL_IPV4 : PTB_ROLL_IPV6;
        good = seen == (*has_both ? families[r] : PTB_ROLL_IPV4);
    }
    ptb_world_barrier(w);
    ptb_roll_close(roll);
    return good ? PTB_OK : PTB_WRONG;
}

static void test_addresses(void **state)
{
    (void)state;
    bool has_both = has_ipv6();
    assert_int_equal(ptb_world_run_local(3, NULL, see_addresses, &has_both), PTB_OK);
}

// ---- several accounts, as a thread that watches sees them

static void note_abort(void *arg)
{
    ++*(int *)arg;
}

static ptb_status play_two(ptb_world *w, void *arg)
{
    (void)arg;
    static const int members[2] = {0, 1};
    int aborted = 0;
    bool good = true;
    ptb_roll *roll = NULL;
    ptb_account *world = NULL, *comm = NULL;
    ptb_text said = PTB_TEXT_INIT;
    ptb_account_config config = {
        .key = 1, .name = "control", .members = members, .size = 2, .rank = w->rank, .describe = describe};
    if (ptb_roll_open(w, &roll) != PTB_OK || !roll || ptb_roll_join(roll, &config, &world) != PTB_OK)
        return PTB_SYSTEM;
    config.key = 2;
    config.name = "communicator";
    config.abort = note_abort;
    config.arg = &aborted;
    if (ptb_roll_join(roll, &config, &comm) != PTB_OK)
        return PTB_SYSTEM;
    ptb_account_enter(comm, &(ptb_roll_what){.kind = 1});
    if (w->rank == 0)
        ptb_account_enter(comm, &(ptb_roll_what){.kind = 2});
    ptb_account_enter(world, &(ptb_roll_what){.kind = 3}); // both are in it, the communicator is what tells
    ptb_world_barrier(w);
    if (w->rank == 0)
        good = ptb_roll_explain(roll, &said) &&
               strstr(ptb_text_string(&said),
                      "1 of 2 ranks did not come to call 2, work 2 of 0, of communicator");
    ptb_world_barrier(w);
    good = good && ptb_roll_abort(roll, 60) && aborted == 1; // returns when it is done
    ptb_roll_leave(comm);
    good = good && !ptb_roll_abort(roll, 60) && aborted == 1;
    ptb_world_barrier(w);
    ptb_roll_leave(world);
    ptb_roll_close(roll);
    ptb_text_release(&said);
    return good ? PTB_OK : PTB_WRONG;
}

static void test_watch(void **state)
{
    (void)state;
    ptb_text said = PTB_TEXT_INIT;
    assert_int_equal(ptb_world_run_local(2, NULL, play_two, NULL), PTB_OK);
    assert_false(ptb_roll_explain(NULL, &said));
    assert_false(ptb_roll_abort(NULL, 1));
    assert_false(ptb_account_explain(NULL, false, &said));
    assert_int_equal(said.length, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_behind),     cmocka_unit_test(test_absent),
        cmocka_unit_test(test_all_there),  cmocka_unit_test(test_messages),
        cmocka_unit_test(test_ipv4_alone), cmocka_unit_test(test_ipv6_alone),
        cmocka_unit_test(test_addresses),  cmocka_unit_test(test_watch),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
