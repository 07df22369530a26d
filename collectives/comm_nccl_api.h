// NCCL's functions, found at run time (core/dynlib.h): a machine without NCCL runs everything else, and an
// older NCCL than the header runs what it has. To call one more function, add it to the list.
#ifndef PTB_COLLECTIVES_COMM_NCCL_API_H
#define PTB_COLLECTIVES_COMM_NCCL_API_H

#include "core/status.h"
#include "core/text.h"

#include <nccl.h>

// Names without "nccl". What NCCL 2.19 has is needed; what came later may be missing.
#define PTB_NCCL_NEEDED(X)                                                                                   \
    X(AllGather)                                                                                             \
    X(AllReduce)                                                                                             \
    X(Broadcast)                                                                                             \
    X(CommAbort)                                                                                             \
    X(CommDeregister)                                                                                        \
    X(CommDestroy)                                                                                           \
    X(CommFinalize)                                                                                          \
    X(CommGetAsyncError)                                                                                     \
    X(CommInitRankConfig)                                                                                    \
    X(CommRegister)                                                                                          \
    X(GetErrorString)                                                                                        \
    X(GetLastError)                                                                                          \
    X(GetUniqueId)                                                                                           \
    X(GetVersion)                                                                                            \
    X(GroupEnd)                                                                                              \
    X(GroupStart)                                                                                            \
    X(MemAlloc)                                                                                              \
    X(MemFree)                                                                                               \
    X(Recv)                                                                                                  \
    X(Reduce)                                                                                                \
    X(ReduceScatter)                                                                                         \
    X(Send)

// What came later, by the version that it came with. What needs a type or a structure of that version is only
// called by a program that was built with its header.
#define PTB_NCCL_2_22(X) X(GroupSimulateEnd)
#define PTB_NCCL_2_27(X) X(CommWindowRegister) X(CommWindowDeregister)
#define PTB_NCCL_2_28(X) X(AlltoAll) X(Gather) X(Scatter)

#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 28, 0)
#define PTB_NCCL_OPTIONAL(X) PTB_NCCL_2_22(X) PTB_NCCL_2_27(X) PTB_NCCL_2_28(X)
#elif NCCL_VERSION_CODE >= NCCL_VERSION(2, 27, 0)
#define PTB_NCCL_OPTIONAL(X) PTB_NCCL_2_22(X) PTB_NCCL_2_27(X)
#elif NCCL_VERSION_CODE >= NCCL_VERSION(2, 22, 0)
#define PTB_NCCL_OPTIONAL(X) PTB_NCCL_2_22(X)
#else
#define PTB_NCCL_OPTIONAL(X)
#endif

typedef struct {
#define X(name) __typeof__(&nccl##name) name;
    PTB_NCCL_NEEDED(X)
    PTB_NCCL_OPTIONAL(X)
#undef X
} ptb_nccl_api;

// UNSUPPORTED, with the reason and what to do appended to `why`, where NCCL cannot be had. Nothing is logged.
ptb_status ptb_nccl_load(ptb_text *why);
// The functions; those that are optional may be NULL. Valid only after ptb_nccl_load has returned OK.
const ptb_nccl_api *ptb_nccl_functions(void);
// The file that was loaded.
const char *ptb_nccl_path(void);
// Which of the later functions cannot be called, because the library or the header of the build is older,
// behind the version that has them: "2.22: ncclGroupSimulateEnd; 2.28: ncclAlltoAll, ncclGather"; "": all
// can.
const char *ptb_nccl_lacks(void);

#endif
