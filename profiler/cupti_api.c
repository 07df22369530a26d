// See cupti_api.h; and for `ptbench doctor`: which CUPTI is found.
#include "profiler/cupti_api.h"

#include "core/dynlib.h"
#include "core/machine.h"

#if CUDA_VERSION >= 13000
#define WHEEL "nvidia-cuda-cupti"
#else
#define WHEEL "nvidia-cuda-cupti-cu12"
#endif

static const char *const sonames[] = {"libcupti.so." PTB_CUDA_MAJOR, NULL};

static const ptb_dynlib_function functions[] = {
#define X(name) {"cupti" #name, offsetof(ptb_cupti_api, name), false},
    PTB_CUPTI_NEEDED(X)
#undef X
};

static const ptb_dynlib library = {
    .name = "CUPTI",
    .needed_for = "what ran when on a GPU can only be recorded with it",
    .sonames = sonames,
    .install = "Install CUPTI of CUDA " PTB_CUDA_MAJOR " (with the toolkit, or pip install " WHEEL ")",
    .oldest = "that of CUDA 12.4",
    .functions = functions,
    .function_count = sizeof functions / sizeof *functions,
};

// Loaded once a process, as the library itself is.
static ptb_dynlib_state state = PTB_DYNLIB_STATE_INIT;
static ptb_cupti_api api;

ptb_status ptb_cupti_load(ptb_text *why)
{
    return ptb_dynlib_load(&library, &state, &api, why);
}

const ptb_cupti_api *ptb_cupti_functions(void)
{
    return &api;
}

static ptb_health check(ptb_text *said)
{
    uint32_t version = 0;
    if (ptb_cupti_load(said) != PTB_OK)
        return PTB_HEALTH_WARNING;
    api.GetVersion(&version);
    ptb_text_printf(said, "CUPTI, interface %u, %s", version, state.path);
#ifdef PTB_SIM
    ptb_text_append(said, ", SIMULATED");
#endif
    return PTB_HEALTH_FINE;
}

static const ptb_machine_part cupti_part = {
    .plugin = {"cupti", "the library that records what ran on a GPU"},
    .check = check,
};
PTB_REGISTER(PTB_KIND_MACHINE_PART, cupti_part);
