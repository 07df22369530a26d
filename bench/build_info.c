// Compiler, flags and library versions, handed in by CMakeLists.txt.
#include "bench/build_info.h"

static const struct {
    const char *name, *value;
} facts[] = {
    {"compiler", __VERSION__},
    {"build", PTB_BUILD_TYPE},
    {"flags", PTB_BUILD_FLAGS},
    {"gpu", PTB_BUILD_GPU},
    {"mpi", PTB_VERSION_MPI},
    {"hwloc", PTB_VERSION_HWLOC},
    {"sqlite", PTB_VERSION_SQLITE},
    {"zstd", PTB_VERSION_ZSTD},
    {"jansson", PTB_VERSION_JANSSON},
    {"inih", PTB_VERSION_INIH},
    {"onednn", PTB_VERSION_DNNL},
    // "" in a build without GPU back-ends.
    {"cuda", PTB_VERSION_CUDA},
    {"nccl", PTB_VERSION_NCCL},
};
enum { FACT_COUNT = sizeof facts / sizeof facts[0] };

void ptb_build_json(ptb_text *out)
{
    ptb_text_append(out, "{");
    for (int i = 0; i < FACT_COUNT; i++) {
        if (!facts[i].value[0])
            continue;
        ptb_text_append(out, i ? ", " : "");
        ptb_text_append_json(out, facts[i].name);
        ptb_text_append(out, ": ");
        ptb_text_append_json(out, facts[i].value);
    }
    ptb_text_append(out, "}");
}

void ptb_build_describe(ptb_text *out)
{
    for (int i = 0; i < FACT_COUNT; i++)
        if (facts[i].value[0])
            ptb_text_printf(out, "%-9s %s\n", facts[i].name, facts[i].value);
}

const char *ptb_build_gpu(void)
{
    return PTB_BUILD_GPU;
}
