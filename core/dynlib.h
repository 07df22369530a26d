// Shared libraries that are found when something first needs them, not when the program starts: where one is
// missing, everything else works, and what needs it says which library, where it was looked for and what to
// install. A library is described by a ptb_dynlib; its functions go into a table of typed pointers that the
// caller makes from one list (profiler/cupti_api.h, for example).
#ifndef PTB_CORE_DYNLIB_H
#define PTB_CORE_DYNLIB_H

#include "core/status.h"
#include "core/text.h"

#include <pthread.h>
#include <stddef.h>

typedef struct {
    const char *symbol;
    size_t place;     // of its pointer in the table
    bool is_optional; // its pointer is NULL where the library lacks it
} ptb_dynlib_function;

typedef struct {
    const char *name;           // "NCCL"
    const char *needed_for;     // "the communicator nccl needs it"
    const char *const *sonames; // NULL-terminated, the preferred one first
    const char *install;        // "Install ...": what to do where it is missing
    const char *oldest;         // version that has all functions that are not optional
    const ptb_dynlib_function *functions;
    size_t function_count;
} ptb_dynlib;

// Of a library in this process: zero-initialise with PTB_DYNLIB_STATE_INIT. A library stays loaded until the
// program ends, and one that was not found is not looked for again.
typedef struct {
    pthread_mutex_t lock; // while it is looked for
    bool is_tried;
    void *handle; // NULL: it cannot be had
    char *why;    // then: the reason, and what to do
    char *path;   // of the file; "the program itself" where it holds the functions
    char *lacks;  // optional functions that it does not have: "ncclAlltoAll, ncclGather"; "": none
} ptb_dynlib_state;
#define PTB_DYNLIB_STATE_INIT                                                                                \
    {                                                                                                        \
        .lock = PTHREAD_MUTEX_INITIALIZER                                                                    \
    }

// Fills the table. Looked for by soname, as the system's loader does (LD_LIBRARY_PATH, /etc/ld.so.conf), then
// in the folders of CUDA toolkits, of NVIDIA's HPC SDK and of Python packages that carry NVIDIA's libraries.
// UNSUPPORTED, with the reason and what to do appended to `why`, when it is not there, cannot be loaded or is
// too old. Nothing is logged. Any thread may call it.
ptb_status ptb_dynlib_load(const ptb_dynlib *library, ptb_dynlib_state *state, void *table, ptb_text *why);

#endif
