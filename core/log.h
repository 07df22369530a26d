// Messages to the person at the terminal. Whoever detects an error logs it once, with its exact cause and
// what to do; callers only pass the status on. Messages go to standard error, one line each, and never into a
// timed loop.
#ifndef PTB_CORE_LOG_H
#define PTB_CORE_LOG_H

typedef enum { PTB_LOG_ERROR, PTB_LOG_WARN, PTB_LOG_INFO, PTB_LOG_DEBUG } ptb_log_level;

// Messages above `level` are dropped. Default: PTB_LOG_INFO.
void ptb_log_set_level(ptb_log_level level);
// Rank shown in front of each message; -1 (the default) shows none.
void ptb_log_set_rank(int rank);
// printf-style; a newline is added. Thread-safe: one write call a message.
void ptb_log(ptb_log_level level, const char *format, ...) __attribute__((format(printf, 2, 3)));

// Keeps the first error that any thread of this process logs while it listens, shown or not: the cause of
// what fails then, for where results are stored. Several may listen at a time.
enum { PTB_HEARD_BYTES = 400 };
typedef struct ptb_listener {
    char heard[PTB_HEARD_BYTES]; // "": nothing; ends in "..." where it was longer
    struct ptb_listener *next;
} ptb_listener;
void ptb_listen_begin(ptb_listener *listener);
// The text stays.
void ptb_listen_end(ptb_listener *listener);

#define ptb_error(...) ptb_log(PTB_LOG_ERROR, __VA_ARGS__)
#define ptb_warn(...)  ptb_log(PTB_LOG_WARN, __VA_ARGS__)
#define ptb_info(...)  ptb_log(PTB_LOG_INFO, __VA_ARGS__)
#define ptb_debug(...) ptb_log(PTB_LOG_DEBUG, __VA_ARGS__)

#endif
