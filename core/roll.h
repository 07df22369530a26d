// The roll: how far each rank has come, for the message when a rank is waited for in vain. Each rank counts
// what it enters (one store a call) and has a thread that sleeps until another rank asks; so a rank is
// answered for even while it is stuck in the driver or the MPI library, and silence means that the process
// has ended, is stopped, or that its host cannot be reached. Questions and answers are single datagrams
// (UDP over IPv4 or IPv6, a port a process), which need neither the MPI library nor the help of a rank that
// hangs.
//
// An account is what some ranks enter together and in the same order: calls of a communicator, control
// traffic of a world. What a CUDA graph replays is not counted.
#ifndef PTB_CORE_ROLL_H
#define PTB_CORE_ROLL_H

#include "core/status.h"
#include "core/text.h"
#include "core/world.h"

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

enum { PTB_ROLL_TEXT = 64, PTB_ROLL_PLACE = 48 };

typedef struct ptb_roll ptb_roll;

// What an entry was: describe turns it into "all_reduce of 64 f32".
typedef struct {
    uint32_t kind, type;
    uint64_t amount;
} ptb_roll_what;
typedef void ptb_roll_describe_fn(const ptb_roll_what *what, char text[PTB_ROLL_TEXT]);

typedef struct {
    uint64_t key;                   // the same on all members and of no other account; not 0
    const char *name;               // "communicator nccl"
    const int *members;             // [size] their ranks in the roll; copied
    int size, rank;                 // rank: this process's place in members
    char (*places)[PTB_ROLL_PLACE]; // [size] where a member works, "GPU 0000:19:00.0"; copied; NULL: unknown
    ptb_roll_describe_fn *describe;
    void (*abort)(
        void *arg); // ends at once what waits for the members; any thread may call it; NULL: nothing to do
    void *arg;
} ptb_account_config;

// First member of the roll's own struct.
typedef struct ptb_account {
    atomic_ullong entered; // in the same order on all members
    atomic_ullong messages;
    atomic_uint kind, type; // of the last entry
    atomic_ullong amount;
    atomic_bool last_is_message;
    _Atomic(struct ptb_account *) *current; // of the roll: the account that was entered last
} ptb_account;

// Collective over the world. *roll is NULL where some rank has no UDP socket or thread for it; then nothing
// is known of how far ranks have come, and everything else works.
ptb_status ptb_roll_open(ptb_world *world, ptb_roll **roll);
// NULL is allowed. No account may be in use.
void ptb_roll_close(ptb_roll *roll);

// A key that no other call gives, on any rank of the job: for one member to make and to send to the others.
uint64_t ptb_roll_key(ptb_roll *roll);
// NO_MEMORY, logged. A NULL roll gives a NULL account, which all functions take.
ptb_status ptb_roll_join(ptb_roll *roll, const ptb_account_config *config, ptb_account **account);
// Nobody is answered from it any more, and it is not aborted.
void ptb_roll_leave(ptb_account *account);

static inline void ptb_account_note(ptb_account *account, const ptb_roll_what *what, bool is_message)
{
    atomic_store_explicit(&account->kind, what->kind, memory_order_relaxed);
    atomic_store_explicit(&account->type, what->type, memory_order_relaxed);
    atomic_store_explicit(&account->amount, what->amount, memory_order_relaxed);
    atomic_store_explicit(&account->last_is_message, is_message, memory_order_relaxed);
    atomic_store_explicit(account->current, account, memory_order_relaxed);
}

// This rank enters the next call, which all members must enter. Only one thread enters an account.
static inline void ptb_account_enter(ptb_account *account, const ptb_roll_what *what)
{
    if (!account)
        return;
    ptb_account_note(account, what, false);
    unsigned long long entered = atomic_load_explicit(&account->entered, memory_order_relaxed);
    atomic_store_explicit(&account->entered, entered + 1, memory_order_release);
}

// A message to or from one member, whose number differs from rank to rank.
static inline void ptb_account_message(ptb_account *account, const ptb_roll_what *what)
{
    if (!account)
        return;
    ptb_account_note(account, what, true);
    unsigned long long messages = atomic_load_explicit(&account->messages, memory_order_relaxed);
    atomic_store_explicit(&account->messages, messages + 1, memory_order_release);
}

// Asks all members how far they have come and appends one sentence: which did not come to the last call that
// anybody has entered, with host, process, place and how far they came; or, unless only_missing, that all
// have. One of the ranks that ask says it, the others that it does. Takes at most seven seconds. Any thread
// may call it; false when nothing was appended, as for a NULL account.
bool ptb_account_explain(ptb_account *account, bool only_missing, ptb_text *said);
// The same for the account that this rank has entered last, or where all have come to that, for another one
// in which somebody is behind. For a thread that watches over the rank.
bool ptb_roll_explain(ptb_roll *roll, ptb_text *said);
// Aborts all accounts that have something to abort, in a thread that is waited for at most `limit_s`. True
// when there was one.
bool ptb_roll_abort(ptb_roll *roll, double limit_s);

#endif
