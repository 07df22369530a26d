// What a function returns, and which exit code of the program each outcome becomes.
#ifndef PTB_CORE_STATUS_H
#define PTB_CORE_STATUS_H

#include <stdbool.h>

// name, exit code of the program, what it means
#define PTB_STATUS_LIST(X)                                                                                   \
    X(OK, 0, "done")                                                                                         \
    X(WRONG, 1, "a result was wrong")                                                                        \
    X(USAGE, 2, "the request was not understood")                                                            \
    X(UNSUPPORTED, 3, "this machine or build cannot do it")                                                  \
    X(NO_MEMORY, 3, "not enough memory")                                                                     \
    X(SYSTEM, 3, "the operating system or a library refused")                                                \
    X(NO_VERDICT, 4, "not enough data for a verdict")                                                        \
    X(LOST, 5, "a rank died, hung or left")                                                                  \
    X(INTERRUPTED, 5, "stopped on request")                                                                  \
    X(STORE, 6, "results could not be stored")                                                               \
    X(SKIPPED, 0, "not run, for a stated reason")                                                            \
    X(INTERNAL, 3, "a defect in ptbench")

typedef enum {
#define X(name, exit_code, meaning) PTB_##name,
    PTB_STATUS_LIST(X)
#undef X
        PTB_STATUS_COUNT
} ptb_status;

// "OK", "WRONG", ...
const char *ptb_status_name(ptb_status status);
// One plain clause, from the list above.
const char *ptb_status_meaning(ptb_status status);
// The process exit code (0..6) that the program ends with.
int ptb_status_exit_code(ptb_status status);

// Evaluates an expression that yields a status and returns it from the enclosing function unless it is OK.
#define PTB_TRY(expression)                                                                                  \
    do {                                                                                                     \
        ptb_status ptb_try_status_ = (expression);                                                           \
        if (ptb_try_status_ != PTB_OK)                                                                       \
            return ptb_try_status_;                                                                          \
    } while (0)

#endif
