// See nvtx_cuda.h. Tools have the program load their library by an environment variable.
#include "profiler/nvtx_cuda.h"

#include <nvtx3/nvToolsExt.h>

#include <stdlib.h>

bool ptb_nvtx_is_heard(void)
{
    return getenv("NVTX_INJECTION64_PATH") != NULL;
}

uint64_t ptb_nvtx_start(const char *name)
{
    return nvtxRangeStartA(name);
}

void ptb_nvtx_end(uint64_t range)
{
    nvtxRangeEnd(range);
}

void ptb_nvtx_push(const char *name)
{
    nvtxRangePushA(name);
}

void ptb_nvtx_pop(void)
{
    nvtxRangePop();
}
