// What roll.c (accounts, answers) and roll_explain.c (questions, the sentence) share.
#ifndef PTB_CORE_ROLL_INTERNAL_H
#define PTB_CORE_ROLL_INTERNAL_H

#include "core/roll.h"

#include <pthread.h>

enum { PTB_ROLL_ADDRESSES = 12, PTB_ROLL_HOST = 64 };

// Of a host.
typedef struct {
    uint8_t bytes[16];
    uint8_t length; // 4: IPv4, 16: IPv6, 0: none
} ptb_roll_address;

// Which addresses are used, bits.
typedef enum { PTB_ROLL_IPV4 = 1, PTB_ROLL_IPV6 = 2 } ptb_roll_family;

// Where a rank is reached, as all ranks know it.
typedef struct {
    uint64_t nonce; // of its process: what has another one on the same port is not meant
    ptb_roll_address addresses[PTB_ROLL_ADDRESSES]; // up to the first that is none
    int32_t pid;
    uint16_t port; // network order; 0: it cannot be asked
    char host[PTB_ROLL_HOST];
} ptb_roll_seat;

typedef struct roll_account {
    ptb_account base;
    ptb_account_config config; // members and places are its own
    char name[PTB_ROLL_TEXT];
    ptb_roll *roll;
    atomic_bool is_live; // between join and leave
    atomic_int teller;   // the rank that says who is missing, as far as this one knows; -1: none
    struct roll_account *next;
} roll_account;

struct ptb_roll {
    _Atomic(ptb_account *) current;
    _Atomic(roll_account *) first; // accounts stay in the list until the roll is closed
    pthread_mutex_t lock;          // of joining, and of leaving against aborting
    pthread_t thread;
    bool has_thread;
    atomic_uint keys; // given out
    pthread_mutex_t place_lock;
    char place[PTB_ROLL_PLACE]; // where this rank works; "": unknown
    int rank, size, socket;
    int closing;          // eventfd: written once, when the thread is to end
    ptb_roll_seat *seats; // [size]
};

enum { PTB_ROLL_MAGIC = 0x70746272 };
typedef struct {
    uint32_t magic;
    int32_t rank;   // who is meant
    int32_t asker;  // it says who is missing, unless another one does; -1: it only asks
    uint64_t nonce; // of the one who is meant
    uint64_t key;   // of the account
} ptb_roll_question;

typedef struct {
    uint32_t magic;
    int32_t rank; // who answers
    uint64_t nonce, key;
    uint64_t entered, messages;
    int32_t teller;  // as it knows; -1: none
    uint8_t is_live; // it has joined the account
    uint8_t last_is_message;
    char text[PTB_ROLL_TEXT]; // what it has entered last; "": nothing
    char place[PTB_ROLL_PLACE];
} ptb_roll_answer;

// ptb_roll_open with the addresses of some families alone, ptb_roll_family bits.
ptb_status ptb_roll_open_with(ptb_world *world, unsigned families, ptb_roll **roll);

// How far this rank has come, as its answer to `asker`.
void ptb_roll_answer_own(ptb_roll *roll, uint64_t key, int asker, ptb_roll_answer *answer);

#endif
