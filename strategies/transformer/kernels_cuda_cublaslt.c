// See kernels_cuda_cublaslt.h; and for `ptbench doctor`: which cuBLASLt is found.
#include "strategies/transformer/kernels_cuda_cublaslt.h"

#include "core/dynlib.h"
#include "core/machine.h"

#if CUBLAS_VER_MAJOR >= 13
#define WHEEL "nvidia-cublas"
#else
#define WHEEL "nvidia-cublas-cu12"
#endif

static const char *const sonames[] = {"libcublasLt.so." PTB_CUDA_MAJOR, NULL};

static const ptb_dynlib_function functions[] = {
#define X(name) {"cublasLt" #name, offsetof(ptb_cublaslt_api, name), false},
    PTB_CUBLASLT_NEEDED(X)
#undef X
};

static const ptb_dynlib library = {
    .name = "cuBLASLt",
    .needed_for = "linear layers on a GPU need it",
    .sonames = sonames,
    .install = "Install cuBLAS of CUDA " PTB_CUDA_MAJOR " (with the toolkit, or pip install " WHEEL ")",
    .oldest = "that of CUDA 12.4",
    .functions = functions,
    .function_count = sizeof functions / sizeof *functions,
};

// Loaded once a process, as the library itself is.
static ptb_dynlib_state state = PTB_DYNLIB_STATE_INIT;
static ptb_cublaslt_api api;

ptb_status ptb_cublaslt_load(ptb_text *why)
{
    return ptb_dynlib_load(&library, &state, &api, why);
}

const ptb_cublaslt_api *ptb_cublaslt_functions(void)
{
    return &api;
}

static ptb_health check(ptb_text *said)
{
    if (ptb_cublaslt_load(said) != PTB_OK)
        return PTB_HEALTH_WARNING;
    size_t version = api.GetVersion(); // 130000 is 13.0.0
    ptb_text_printf(said, "cuBLASLt %zu.%zu.%zu, %s", version / 10000, version / 100 % 100, version % 100,
                    state.path);
#ifdef PTB_SIM
    ptb_text_append(said, ", SIMULATED");
#endif
    return PTB_HEALTH_FINE;
}

static const ptb_machine_part cublaslt_part = {
    .plugin = {"cublaslt", "the library of matrix products on a GPU"},
    .check = check,
};
PTB_REGISTER(PTB_KIND_MACHINE_PART, cublaslt_part);
