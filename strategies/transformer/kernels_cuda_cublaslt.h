// cuBLASLt's functions, found at run time (core/dynlib.h): the library is large, and what only communicates
// does not need it. To call one more function, add it to the list.
#ifndef PTB_STRATEGIES_TRANSFORMER_KERNELS_CUDA_CUBLASLT_H
#define PTB_STRATEGIES_TRANSFORMER_KERNELS_CUDA_CUBLASLT_H

#include "core/status.h"
#include "core/text.h"

#include <cublasLt.h>

// Names without "cublasLt".
#define PTB_CUBLASLT_NEEDED(X)                                                                               \
    X(Create)                                                                                                \
    X(Destroy)                                                                                               \
    X(GetStatusName)                                                                                         \
    X(GetStatusString)                                                                                       \
    X(GetVersion)                                                                                            \
    X(Matmul)                                                                                                \
    X(MatmulAlgoGetHeuristic)                                                                                \
    X(MatmulDescCreate)                                                                                      \
    X(MatmulDescDestroy)                                                                                     \
    X(MatmulDescSetAttribute)                                                                                \
    X(MatmulPreferenceCreate)                                                                                \
    X(MatmulPreferenceDestroy)                                                                               \
    X(MatmulPreferenceSetAttribute)                                                                          \
    X(MatrixLayoutCreate)                                                                                    \
    X(MatrixLayoutDestroy)

typedef struct {
#define X(name) __typeof__(&cublasLt##name) name;
    PTB_CUBLASLT_NEEDED(X)
#undef X
} ptb_cublaslt_api;

// UNSUPPORTED, with the reason and what to do appended to `why`, where cuBLASLt cannot be had. Nothing is
// logged.
ptb_status ptb_cublaslt_load(ptb_text *why);
// The functions. Valid only after ptb_cublaslt_load has returned OK.
const ptb_cublaslt_api *ptb_cublaslt_functions(void);

#endif
