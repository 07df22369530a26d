// See roll.h: accounts, and the thread that answers.
#include "core/roll_internal.h"

#include "core/clock.h"
#include "core/log.h"
#include "core/random.h"

#include <arpa/inet.h>
#include <errno.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

// ---- answers

static roll_account *find_account(ptb_roll *roll, uint64_t key)
{
    roll_account *a = atomic_load(&roll->first);
    while (a && (a->config.key != key || !atomic_load(&a->is_live)))
        a = a->next;
    return a;
}

void ptb_roll_answer_own(ptb_roll *roll, uint64_t key, int asker, ptb_roll_answer *answer)
{
    int nobody = -1;
    *answer = (ptb_roll_answer){.magic = PTB_ROLL_MAGIC,
                                .rank = roll->rank,
                                .nonce = roll->seats[roll->rank].nonce,
                                .key = key,
                                .teller = -1};
    pthread_mutex_lock(&roll->place_lock);
    memcpy(answer->place, roll->place, sizeof answer->place);
    pthread_mutex_unlock(&roll->place_lock);
    roll_account *a = find_account(roll, key);
    if (!a)
        return;
    answer->is_live = 1;
    atomic_compare_exchange_strong(&a->teller, &nobody, asker);
    answer->teller = atomic_load(&a->teller);
    answer->entered = atomic_load_explicit(&a->base.entered, memory_order_acquire);
    answer->messages = atomic_load_explicit(&a->base.messages, memory_order_acquire);
    if (answer->entered + answer->messages == 0)
        return;
    const ptb_roll_what what = {.kind = atomic_load(&a->base.kind),
                                .type = atomic_load(&a->base.type),
                                .amount = atomic_load(&a->base.amount)};
    answer->last_is_message = atomic_load(&a->base.last_is_message);
    a->config.describe(&what, answer->text);
}

static void answer_one(ptb_roll *roll)
{
    ptb_roll_question q;
    ptb_roll_answer answer;
    struct sockaddr_storage from;
    socklen_t length = sizeof from;
    ssize_t bytes = recvfrom(roll->socket, &q, sizeof q, MSG_DONTWAIT, (struct sockaddr *)&from, &length);
    if (bytes != (ssize_t)sizeof q || q.magic != PTB_ROLL_MAGIC || q.rank != roll->rank ||
        q.nonce != roll->seats[roll->rank].nonce)
        return;
    ptb_roll_answer_own(roll, q.key, q.asker, &answer);
    (void)sendto(roll->socket, &answer, sizeof answer, MSG_DONTWAIT, (struct sockaddr *)&from, length);
}

static void *answer_questions(void *arg)
{
    ptb_roll *roll = arg;
    for (;;) {
        struct pollfd waiting[] = {{.fd = roll->socket, .events = POLLIN},
                                   {.fd = roll->closing, .events = POLLIN}};
        if (poll(waiting, 2, -1) < 0 && errno != EINTR)
            return NULL;
        if (waiting[1].revents)
            return NULL;
        if (waiting[0].revents)
            answer_one(roll);
    }
}

// ---- opening

static ptb_roll_address make_address(const void *bytes, size_t length)
{
    ptb_roll_address address = {.length = (uint8_t)length};
    memcpy(address.bytes, bytes, length);
    return address;
}

// False: none of the family. A link-local address says nothing to another host, which would have to name the
// interface too.
static bool read_address(const struct sockaddr *from, ptb_roll_address *address)
{
    const struct in_addr *v4 = &((const struct sockaddr_in *)(const void *)from)->sin_addr;
    const struct in6_addr *v6 = &((const struct sockaddr_in6 *)(const void *)from)->sin6_addr;
    if (from->sa_family == AF_INET)
        *address = make_address(v4, sizeof *v4);
    else if (from->sa_family == AF_INET6 && !IN6_IS_ADDR_LINKLOCAL(v6))
        *address = make_address(v6, sizeof *v6);
    else
        return false;
    return true;
}

static ptb_roll_family family_of(const ptb_roll_address *address)
{
    return address->length == sizeof(struct in_addr) ? PTB_ROLL_IPV4 : PTB_ROLL_IPV6;
}

// Where this host is reached: addresses of interfaces that are up, for its own ranks also the loopback. No
// family takes more than its half.
static void find_addresses(unsigned families, ptb_roll_address addresses[PTB_ROLL_ADDRESSES])
{
    const struct in_addr v4 = {htonl(INADDR_LOOPBACK)};
    const struct in6_addr v6 = IN6ADDR_LOOPBACK_INIT;
    struct ifaddrs *all = NULL;
    int count = 0, of_family[] = {[PTB_ROLL_IPV4] = 1, [PTB_ROLL_IPV6] = 1};
    if (families & PTB_ROLL_IPV4)
        addresses[count++] = make_address(&v4, sizeof v4);
    if (families & PTB_ROLL_IPV6)
        addresses[count++] = make_address(&v6, sizeof v6);
    if (getifaddrs(&all) != 0)
        return;
    for (struct ifaddrs *i = all; i; i = i->ifa_next) {
        ptb_roll_address address;
        if (!i->ifa_addr || !(i->ifa_flags & IFF_UP) || (i->ifa_flags & IFF_LOOPBACK) ||
            !read_address(i->ifa_addr, &address))
            continue;
        ptb_roll_family family = family_of(&address);
        if ((families & family) && of_family[family] < PTB_ROLL_ADDRESSES / 2) {
            addresses[count++] = address;
            of_family[family]++;
        }
    }
    freeifaddrs(all);
}

// A socket of IPv6 takes datagrams of IPv4 too. Without IPv6 in the kernel, one of IPv4. The families that
// reach it are left in *families.
static int open_socket(unsigned *families, struct sockaddr_storage *bound)
{
    const struct sockaddr_in6 v6 = {.sin6_family = AF_INET6, .sin6_addr = IN6ADDR_ANY_INIT};
    const struct sockaddr_in v4 = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_ANY)};
    socklen_t length = sizeof *bound;
    const int alone = !(*families & PTB_ROLL_IPV4);
    int s = *families & PTB_ROLL_IPV6 ? socket(AF_INET6, SOCK_DGRAM | SOCK_CLOEXEC, 0) : -1;
    if (s >= 0 && setsockopt(s, IPPROTO_IPV6, IPV6_V6ONLY, &alone, sizeof alone) == 0 &&
        bind(s, (const struct sockaddr *)&v6, sizeof v6) == 0 &&
        getsockname(s, (struct sockaddr *)bound, &length) == 0)
        return s;
    if (s >= 0)
        close(s);
    *families &= PTB_ROLL_IPV4;
    s = *families ? socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0) : -1;
    if (s >= 0 && bind(s, (const struct sockaddr *)&v4, sizeof v4) == 0 &&
        getsockname(s, (struct sockaddr *)bound, &length) == 0)
        return s;
    if (s >= 0)
        close(s);
    return -1;
}

// port stays 0 where this rank cannot be asked.
static void take_seat(ptb_roll *roll, unsigned families, ptb_roll_seat *seat)
{
    struct sockaddr_storage bound;
    seat->pid = (int32_t)getpid();
    seat->nonce =
        ptb_random_mix((uint64_t)ptb_clock_ns() ^ ((uint64_t)getpid() << 32) ^ (uint64_t)(uintptr_t)roll);
    gethostname(seat->host, sizeof seat->host - 1);
    roll->socket = open_socket(&families, &bound);
    if (roll->socket < 0)
        return;
    find_addresses(families, seat->addresses);
    seat->port = bound.ss_family == AF_INET6 ? ((struct sockaddr_in6 *)(void *)&bound)->sin6_port
                                             : ((struct sockaddr_in *)(void *)&bound)->sin_port;
}

static bool start_thread(ptb_roll *roll)
{
    bool all = roll->closing >= 0;
    for (int r = 0; r < roll->size; r++)
        all = all && roll->seats[r].port != 0;
    roll->has_thread = all && pthread_create(&roll->thread, NULL, answer_questions, roll) == 0;
    return roll->has_thread;
}

ptb_status ptb_roll_open(ptb_world *world, ptb_roll **out)
{
    return ptb_roll_open_with(world, PTB_ROLL_IPV4 | PTB_ROLL_IPV6, out);
}

ptb_status ptb_roll_open_with(ptb_world *world, unsigned families, ptb_roll **out)
{
    ptb_roll_seat mine = {.port = 0};
    ptb_roll *roll = calloc(1, sizeof *roll);
    ptb_roll_seat *seats = calloc((size_t)world->size, sizeof *seats);
    *out = NULL;
    ptb_status status = ptb_world_agree(world, roll && seats ? PTB_OK : PTB_NO_MEMORY);
    if (status != PTB_OK) {
        free(roll);
        free(seats);
        return status;
    }
    *roll = (ptb_roll){.rank = world->rank,
                       .size = world->size,
                       .socket = -1,
                       .closing = eventfd(0, EFD_CLOEXEC),
                       .seats = seats};
    pthread_mutex_init(&roll->lock, NULL);
    pthread_mutex_init(&roll->place_lock, NULL);
    take_seat(roll, families, &mine);
    status = ptb_world_all_gather(world, &mine, sizeof mine, seats);
    double missing = status == PTB_OK && start_thread(roll) ? 0 : 1;
    if (status == PTB_OK)
        status = ptb_world_reduce_max(world, &missing, 1);
    if (status != PTB_OK || missing > 0) {
        ptb_debug("ranks cannot ask each other how far they have come: no UDP socket or thread for it");
        ptb_roll_close(roll);
        return status;
    }
    *out = roll;
    return PTB_OK;
}

void ptb_roll_close(ptb_roll *roll)
{
    if (!roll)
        return;
    if (roll->has_thread) {
        eventfd_write(roll->closing, 1);
        pthread_join(roll->thread, NULL);
    }
    if (roll->closing >= 0)
        close(roll->closing);
    if (roll->socket >= 0)
        close(roll->socket);
    for (roll_account *a = atomic_load(&roll->first); a;) {
        roll_account *next = a->next;
        free((void *)a->config.members);
        free(a->config.places);
        free(a);
        a = next;
    }
    pthread_mutex_destroy(&roll->lock);
    pthread_mutex_destroy(&roll->place_lock);
    free(roll->seats);
    free(roll);
}

// ---- accounts

uint64_t ptb_roll_key(ptb_roll *roll)
{
    return ((uint64_t)roll->rank + 1) << 32 | atomic_fetch_add(&roll->keys, 1);
}

ptb_status ptb_roll_join(ptb_roll *roll, const ptb_account_config *config, ptb_account **account)
{
    *account = NULL;
    if (!roll)
        return PTB_OK;
    size_t size = (size_t)config->size;
    roll_account *a = calloc(1, sizeof *a);
    int *members = malloc(size * sizeof *members);
    char(*places)[PTB_ROLL_PLACE] = calloc(size, sizeof *places);
    if (!a || !members || !places) {
        ptb_error("no memory for an account of %d ranks", config->size);
        free(a);
        free(members);
        free(places);
        return PTB_NO_MEMORY;
    }
    memcpy(members, config->members, size * sizeof *members);
    if (config->places) {
        memcpy(places, config->places, size * sizeof *places);
        pthread_mutex_lock(&roll->place_lock);
        memcpy(roll->place, places[config->rank], sizeof roll->place);
        pthread_mutex_unlock(&roll->place_lock);
    }
    a->config = *config;
    a->config.members = members;
    a->config.places = places;
    snprintf(a->name, sizeof a->name, "%s", config->name);
    a->roll = roll;
    a->base.current = &roll->current;
    atomic_store(&a->teller, -1);
    atomic_store(&a->is_live, true);
    pthread_mutex_lock(&roll->lock);
    a->next = atomic_load(&roll->first);
    atomic_store(&roll->first, a);
    pthread_mutex_unlock(&roll->lock);
    *account = &a->base;
    return PTB_OK;
}

void ptb_roll_leave(ptb_account *account)
{
    roll_account *a = (roll_account *)account;
    if (!a)
        return;
    pthread_mutex_lock(&a->roll->lock);
    atomic_store(&a->is_live, false);
    pthread_mutex_unlock(&a->roll->lock);
}

// ---- ending

static void *abort_all(void *arg)
{
    ptb_roll *roll = arg;
    for (roll_account *a = atomic_load(&roll->first); a; a = a->next) {
        pthread_mutex_lock(&roll->lock);
        if (atomic_load(&a->is_live) && a->config.abort)
            a->config.abort(a->config.arg);
        pthread_mutex_unlock(&roll->lock);
    }
    return NULL;
}

bool ptb_roll_abort(ptb_roll *roll, double limit_s)
{
    bool any = false;
    for (roll_account *a = roll ? atomic_load(&roll->first) : NULL; a; a = a->next)
        any = any || (atomic_load(&a->is_live) && a->config.abort);
    pthread_t thread;
    if (!any || pthread_create(&thread, NULL, abort_all, roll) != 0)
        return false;
    struct timespec end;
    clock_gettime(CLOCK_REALTIME, &end);
    end.tv_sec += (time_t)limit_s + 1;
    if (pthread_timedjoin_np(thread, NULL, &end) != 0)
        pthread_detach(thread); // stuck in the driver; the process is about to end
    return true;
}
