// CUPTI's functions, found at run time (core/dynlib.h): without CUPTI a step is timed as ever, and only not
// broken down. To call one more function, add it to the list.
#ifndef PTB_PROFILER_CUPTI_API_H
#define PTB_PROFILER_CUPTI_API_H

#include "core/status.h"
#include "core/text.h"

#include <cupti.h>

// Names without "cupti".
#define PTB_CUPTI_NEEDED(X)                                                                                  \
    X(ActivityDisable)                                                                                       \
    X(ActivityEnable)                                                                                        \
    X(ActivityFlushAll)                                                                                      \
    X(ActivityGetNextRecord)                                                                                 \
    X(ActivityGetNumDroppedRecords)                                                                          \
    X(ActivityPopExternalCorrelationId)                                                                      \
    X(ActivityPushExternalCorrelationId)                                                                     \
    X(ActivityRegisterCallbacks)                                                                             \
    X(ActivityRegisterTimestampCallback)                                                                     \
    X(EnableCallback)                                                                                        \
    X(GetGraphNodeId)                                                                                        \
    X(GetResultString)                                                                                       \
    X(GetVersion)                                                                                            \
    X(Subscribe)                                                                                             \
    X(Unsubscribe)

typedef struct {
#define X(name) __typeof__(&cupti##name) name;
    PTB_CUPTI_NEEDED(X)
#undef X
} ptb_cupti_api;

// UNSUPPORTED, with the reason and what to do appended to `why`, where CUPTI cannot be had. Nothing is
// logged.
ptb_status ptb_cupti_load(ptb_text *why);
// The functions. Valid only after ptb_cupti_load has returned OK.
const ptb_cupti_api *ptb_cupti_functions(void);
// Whether this process has asked CUPTI to record, ever: it then stays in CUDA's calls, though nothing is
// recorded, until the process ends (cuptiFinalize would end it, which is not safe beside threads of other
// libraries that call CUDA).
bool ptb_cupti_is_attached(void);
void ptb_cupti_note_attached(void);
// Appends what CUPTI says of an error of that function, and what to do about it.
void ptb_cupti_say(ptb_text *text, CUptiResult result, const char *function);

#endif
