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
static bool attached;

ptb_status ptb_cupti_load(ptb_text *why)
{
    return ptb_dynlib_load(&library, &state, &api, why);
}

const ptb_cupti_api *ptb_cupti_functions(void)
{
    return &api;
}

bool ptb_cupti_is_attached(void)
{
    return attached;
}

void ptb_cupti_note_attached(void)
{
    attached = true;
}

// What is known to help.
static const char *remedy_of(CUptiResult result)
{
    switch (result) {
    case CUPTI_ERROR_INSUFFICIENT_PRIVILEGES:
        return "the driver lets only administrators profile: run as root, or load the driver's module with "
               "NVreg_RestrictProfilingToAdminUsers=0";
    case CUPTI_ERROR_VIRTUALIZED_DEVICE_INSUFFICIENT_PRIVILEGES:
    case CUPTI_ERROR_VIRTUALIZED_DEVICE_NOT_SUPPORTED:
        return "this is a virtual GPU, whose host must allow profiling (vGPU plug-in: enable_profiling=1)";
    case CUPTI_ERROR_CONFIDENTIAL_COMPUTING_NOT_SUPPORTED:
        return "the GPU is in confidential-computing mode, in which it cannot be profiled";
    case CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED:
        return "another profiler in this process (nsys, ncu, PyTorch) keeps it from being used: run without "
               "that one";
    case CUPTI_ERROR_NOT_COMPATIBLE:
        return "something else that profiles this GPU does not go together with it: run without that (nsys, "
               "ncu, DCGM's profiling metrics)";
    case CUPTI_ERROR_INVALID_KIND:
    case CUPTI_ERROR_NOT_SUPPORTED:
        return "this CUPTI or this GPU does not have it: CUPTI of CUDA 12.4 or later, of the driver's "
               "version "
               "at most, is needed";
    default:
        return "see whether nsys works on this machine";
    }
}

void ptb_cupti_say(ptb_text *text, CUptiResult result, const char *function)
{
    const char *said = "unknown error";
    api.GetResultString(result, &said);
    ptb_text_printf(text, "CUPTI says to %s: %s (%d); %s", function, said, (int)result, remedy_of(result));
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
