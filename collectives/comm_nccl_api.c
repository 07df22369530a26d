// See comm_nccl_api.h.
#include "collectives/comm_nccl_api.h"

#include "core/dynlib.h"

#include <stdio.h>
#include <string.h>

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
static pthread_once_t once = PTHREAD_ONCE_INIT;
static char lacks[256];

static bool is_there(const char *symbol)
{
    for (size_t i = 0; i < sizeof functions / sizeof *functions; i++)
        if (strcmp(functions[i].symbol, symbol) == 0) {
            void *function;
            memcpy(&function, (const char *)&api + functions[i].place, sizeof function);
            return function;
        }
    return false; // the header of the build does not know it
}

static void note_lacks(void)
{
#define X(name) "nccl" #name,
    static const struct {
        const char *version, *symbols[4];
    } later[] = {{"2.22", {PTB_NCCL_2_22(X)}}, {"2.27", {PTB_NCCL_2_27(X)}}, {"2.28", {PTB_NCCL_2_28(X)}}};
#undef X
    ptb_text text = PTB_TEXT_INIT;
    for (size_t v = 0; v < sizeof later / sizeof *later; v++) {
        const char *between = text.length ? "; " : "";
        for (const char *const *symbol = later[v].symbols; *symbol; symbol++) {
            if (is_there(*symbol) || strstr(*symbol, "Deregister")) // that goes with its Register
                continue;
            ptb_text_append(&text, between);
            if (strcmp(between, ", ") != 0)
                ptb_text_printf(&text, "%s: ", later[v].version);
            ptb_text_append(&text, *symbol);
            between = ", ";
        }
    }
    snprintf(lacks, sizeof lacks, "%s", ptb_text_string(&text));
    ptb_text_release(&text);
}

ptb_status ptb_nccl_load(ptb_text *why)
{
    PTB_TRY(ptb_dynlib_load(&library, &state, &api, why));
    pthread_once(&once, note_lacks); // ranks that are threads come here together
    return PTB_OK;
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
    return lacks;
}
