// See comm_nccl_api.h.
#include "collectives/comm_nccl_api.h"

#include "core/dynlib.h"

static const char *const sonames[] = {"libnccl.so.2", NULL};

static const ptb_dynlib_function functions[] = {
#define X(name) {"nccl" #name, offsetof(ptb_nccl_api, name), false},
    PTB_NCCL_NEEDED(X)
#undef X
#define X(name) {"nccl" #name, offsetof(ptb_nccl_api, name), true},
        PTB_NCCL_OPTIONAL(X)
#undef X
};

static const ptb_dynlib library = {
    .name = "NCCL",
    .needed_for = "the communicator nccl needs it",
    .sonames = sonames,
    .install =
        "Install NCCL 2.19 or later (package libnccl2, or pip install nvidia-nccl-cu" PTB_CUDA_MAJOR ")",
    .oldest = "2.19",
    .functions = functions,
    .function_count = sizeof functions / sizeof *functions,
};

// Loaded once a process, as the library itself is.
static ptb_dynlib_state state = PTB_DYNLIB_STATE_INIT;
static ptb_nccl_api api;

ptb_status ptb_nccl_load(ptb_text *why)
{
    return ptb_dynlib_load(&library, &state, &api, why);
}

const ptb_nccl_api *ptb_nccl_functions(void)
{
    return &api;
}

const char *ptb_nccl_path(void)
{
    return state.path;
}

const char *ptb_nccl_lacks(void)
{
    return state.lacks;
}
