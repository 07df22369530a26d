// See roll.h: asking the members of an account, and what to say of their answers.
#include "core/roll_internal.h"

#include "core/clock.h"
#include "core/log.h"

#include <netinet/in.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum {
    ROUNDS = 4, // questions to a rank that does not answer: datagrams may be lost
    ROUND_MS = 400,
    NAMED = 16,  // ranks that are named at most
    NOBODY = -1, // instead of a rank that tells
};

typedef struct {
    const roll_account *account;
    ptb_roll_answer *answers; // [size], by place among the members
    bool *answered;           // [size]
    int missing;              // answers
    uint64_t most;            // calls that anybody has entered
    ptb_text *said;
} inquiry;

// ---- asking

// One for each family of addresses; -1: the kernel has none of it.
typedef struct {
    int v4, v6;
} sockets;

static void send_to(const sockets *s, const ptb_roll_address *address, uint16_t port,
                    const ptb_roll_question *question)
{
    struct sockaddr_in v4 = {.sin_family = AF_INET, .sin_port = port};
    struct sockaddr_in6 v6 = {.sin6_family = AF_INET6, .sin6_port = port};
    bool is_v4 = address->length == sizeof v4.sin_addr;
    if (is_v4)
        memcpy(&v4.sin_addr, address->bytes, sizeof v4.sin_addr);
    else
        memcpy(&v6.sin6_addr, address->bytes, sizeof v6.sin6_addr);
    (void)sendto(is_v4 ? s->v4 : s->v6, question, sizeof *question, MSG_DONTWAIT,
                 is_v4 ? (const struct sockaddr *)&v4 : (const struct sockaddr *)&v6,
                 is_v4 ? sizeof v4 : sizeof v6);
}

static void ask(const inquiry *q, const sockets *s, int place, int teller)
{
    const ptb_account_config *config = &q->account->config;
    const ptb_roll_seat *seat = &q->account->roll->seats[config->members[place]];
    const ptb_roll_question question = {.magic = PTB_ROLL_MAGIC,
                                        .rank = config->members[place],
                                        .asker = teller,
                                        .nonce = seat->nonce,
                                        .key = config->key};
    for (int i = 0; i < PTB_ROLL_ADDRESSES && seat->addresses[i].length; i++)
        send_to(s, &seat->addresses[i], seat->port, &question);
}

static void take(inquiry *q, const ptb_roll_answer *answer)
{
    const ptb_account_config *config = &q->account->config;
    if (answer->magic != PTB_ROLL_MAGIC || answer->key != config->key)
        return;
    for (int i = 0; i < config->size; i++)
        if (config->members[i] == answer->rank && !q->answered[i] &&
            q->account->roll->seats[answer->rank].nonce == answer->nonce) {
            q->answers[i] = *answer;
            q->answers[i].text[PTB_ROLL_TEXT - 1] = q->answers[i].place[PTB_ROLL_PLACE - 1] = 0;
            q->answered[i] = true;
            q->missing--;
        }
}

// Until all have answered or ROUND_MS are over.
static void listen_to(inquiry *q, const sockets *s)
{
    int64_t end_ns = ptb_clock_ns() + (int64_t)ROUND_MS * 1000000;
    struct pollfd waiting[] = {{.fd = s->v4, .events = POLLIN},
                               {.fd = s->v6, .events = POLLIN}}; // < 0: left out
    while (q->missing > 0) {
        int64_t left_ms = (end_ns - ptb_clock_ns()) / 1000000;
        ptb_roll_answer answer;
        if (left_ms <= 0 || poll(waiting, 2, (int)left_ms) <= 0)
            return;
        for (int i = 0; i < 2; i++)
            if (waiting[i].revents &&
                recv(waiting[i].fd, &answer, sizeof answer, MSG_DONTWAIT) == (ssize_t)sizeof answer)
                take(q, &answer);
    }
}

// teller: this rank, when it means to say what comes out; else NOBODY.
static void ask_all(inquiry *q, int teller)
{
    const ptb_account_config *config = &q->account->config;
    const sockets s = {socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0),
                       socket(AF_INET6, SOCK_DGRAM | SOCK_CLOEXEC, 0)};
    ptb_roll_answer own;
    q->missing = config->size;
    ptb_roll_answer_own(q->account->roll, config->key, teller, &own);
    take(q, &own);
    for (int round = 0; (s.v4 >= 0 || s.v6 >= 0) && round < ROUNDS && q->missing > 0; round++) {
        for (int i = 0; i < config->size; i++)
            if (!q->answered[i])
                ask(q, &s, i, teller);
        listen_to(q, &s);
    }
    if (s.v4 >= 0)
        close(s.v4);
    if (s.v6 >= 0)
        close(s.v6);
    for (int i = 0; i < config->size; i++)
        if (q->answered[i] && q->answers[i].entered > q->most)
            q->most = q->answers[i].entered;
}

// ---- saying

// Whether somebody did not come to the call that others have entered.
static bool is_behind(const inquiry *q, int place)
{
    return !q->answered[place] || !q->answers[place].is_live || q->answers[place].entered < q->most;
}

static int count_behind(const inquiry *q)
{
    int count = 0;
    for (int i = 0; i < q->account->config.size; i++)
        count += is_behind(q, i);
    return count;
}

static void say_rank(const inquiry *q, int place)
{
    const ptb_account_config *config = &q->account->config;
    const ptb_roll_seat *seat = &q->account->roll->seats[config->members[place]];
    const ptb_roll_answer *a = &q->answers[place];
    const char *where = *config->places[place] ? config->places[place] : a->place;
    ptb_text_printf(q->said, "rank %d (host %s, process %d%s%s) ", config->members[place], seat->host,
                    seat->pid, *where ? ", " : "", where);
    if (!q->answered[place])
        ptb_text_append(q->said,
                        "does not answer: it has ended or is stopped, or its host cannot be reached");
    else if (!a->is_live)
        ptb_text_printf(q->said, "has not come to open %s", q->account->name);
    else if (a->last_is_message)
        ptb_text_printf(q->said, "has entered %llu calls and %llu messages, the last %s",
                        (unsigned long long)a->entered, (unsigned long long)a->messages, a->text);
    else if (a->entered == 0)
        ptb_text_append(q->said, "has entered no call");
    else
        ptb_text_printf(q->said, "has come to call %llu, %s", (unsigned long long)a->entered, a->text);
}

// The ranks for which `pick` holds.
static void say_ranks(const inquiry *q, bool (*pick)(const inquiry *q, int place))
{
    int named = 0, more = 0;
    for (int i = 0; i < q->account->config.size; i++) {
        if (!pick(q, i))
            continue;
        if (named == NAMED) {
            more++;
            continue;
        }
        if (named++)
            ptb_text_append(q->said, "; ");
        say_rank(q, i);
    }
    if (more)
        ptb_text_printf(q->said, "; and %d others", more);
}

// The text of the furthest call, from the first that has entered it.
static const char *furthest(const inquiry *q)
{
    for (int i = 0; i < q->account->config.size; i++)
        if (!is_behind(q, i) && !q->answers[i].last_is_message)
            return q->answers[i].text;
    return "";
}

static bool differs(const inquiry *q, int place)
{
    return !q->answers[place].last_is_message && strcmp(q->answers[place].text, furthest(q)) != 0;
}

static bool is_anybody(const inquiry *q, int place)
{
    (void)q, (void)place;
    return true;
}

static void say(const inquiry *q)
{
    int size = q->account->config.size, behind = count_behind(q), others = 0;
    const ptb_roll_answer *own = &q->answers[q->account->config.rank];
    for (int i = 0; i < size; i++)
        others += q->answered[i] && differs(q, i);
    if (behind) {
        ptb_text_printf(q->said, "%d of %d ranks did not come to call %llu", behind, size,
                        (unsigned long long)q->most);
        if (*furthest(q))
            ptb_text_printf(q->said, ", %s", furthest(q));
        ptb_text_printf(q->said, ", of %s: ", q->account->name);
        say_ranks(q, is_behind);
    } else if (q->most == 0 && !own->last_is_message) {
        ptb_text_printf(q->said,
                        "all %d ranks came to open %s, and got no further: the network between them hangs",
                        size, q->account->name);
    } else if (own->last_is_message) {
        ptb_text_printf(q->said, "within %s ", q->account->name);
        say_ranks(q, is_anybody);
    } else if (others) {
        ptb_text_printf(q->said,
                        "all %d ranks came to call %llu of %s, but not to the same one: the first to %s, ",
                        size, (unsigned long long)q->most, q->account->name, furthest(q));
        say_ranks(q, differs);
    } else {
        ptb_text_printf(q->said,
                        "all %d ranks came to call %llu, %s, of %s: a GPU, a link or the network hangs", size,
                        (unsigned long long)q->most, furthest(q), q->account->name);
    }
}

// Of ranks that ask at the same time the lowest tells.
static int choose_teller(const inquiry *q)
{
    int teller = q->account->roll->rank;
    for (int i = 0; i < q->account->config.size; i++)
        if (q->answered[i] && q->answers[i].teller >= 0 && q->answers[i].teller < teller)
            teller = q->answers[i].teller;
    return teller;
}

// Somebody else tells, who may have begun to ask just now. It must not be ended by what this rank does next
// before it has, nor where its process stands still for a second.
static void leave_it_to(int teller, ptb_text *said)
{
    const struct timespec patience = {.tv_sec = 2, .tv_nsec = 900000000};
    ptb_text_printf(said, "rank %d says which ranks are missing", teller);
    nanosleep(&patience, NULL);
}

static bool inquiry_init(inquiry *q, roll_account *a, ptb_text *said)
{
    size_t size = (size_t)a->config.size;
    *q = (inquiry){.account = a,
                   .answers = calloc(size, sizeof *q->answers),
                   .answered = calloc(size, sizeof *q->answered),
                   .said = said};
    return q->answers && q->answered;
}

static void inquiry_release(inquiry *q)
{
    free(q->answers);
    free(q->answered);
}

static bool is_somebody_behind(roll_account *a)
{
    inquiry q;
    bool is_ready = inquiry_init(&q, a, NULL);
    if (is_ready)
        ask_all(&q, NOBODY);
    bool is_so = is_ready && count_behind(&q) > 0;
    inquiry_release(&q);
    return is_so;
}

static bool tell(roll_account *a, ptb_text *said)
{
    int own = a->roll->rank, teller = NOBODY;
    if (!atomic_compare_exchange_strong(&a->teller, &teller, own) && teller != own) {
        leave_it_to(teller, said); // it has asked this rank
        return true;
    }
    inquiry q;
    bool is_ready = inquiry_init(&q, a, said);
    if (is_ready) {
        ask_all(&q, own);
        teller = choose_teller(&q);
        if (teller == own)
            say(&q);
        else
            leave_it_to(teller, said);
    }
    inquiry_release(&q);
    return is_ready;
}

bool ptb_account_explain(ptb_account *account, bool only_missing, ptb_text *said)
{
    roll_account *a = (roll_account *)account;
    return a && (!only_missing || is_somebody_behind(a)) && tell(a, said);
}

bool ptb_roll_explain(ptb_roll *roll, ptb_text *said)
{
    roll_account *current = roll ? (roll_account *)atomic_load(&roll->current) : NULL;
    if (!current)
        return false;
    if (atomic_load(&current->is_live) && is_somebody_behind(current))
        return tell(current, said);
    for (roll_account *a = atomic_load(&roll->first); a; a = a->next)
        if (a != current && a->config.abort && atomic_load(&a->is_live) && is_somebody_behind(a))
            return tell(a, said);
    return tell(current, said);
}
