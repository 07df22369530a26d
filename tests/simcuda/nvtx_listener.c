// A tool that listens to NVTX as Nsight does: the program loads it where NVTX_INJECTION64_PATH names it. What
// it hears goes to the file of PTB_NVTX_HEARD, followed by the number of the process, one event a line:
// "start 7 NAME", "end 7", "push NAME", "pop".
#include <nvtx3/nvToolsExt.h>

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static FILE *heard;
static atomic_ullong ranges;

static nvtxRangeId_t range_start(const char *name)
{
    nvtxRangeId_t id = atomic_fetch_add(&ranges, 1) + 1;
    fprintf(heard, "start %llu %s\n", (unsigned long long)id, name);
    return id;
}

static void range_end(nvtxRangeId_t id)
{
    fprintf(heard, "end %llu\n", (unsigned long long)id);
}

static int range_push(const char *name)
{
    fprintf(heard, "push %s\n", name);
    return 0;
}

static int range_pop(void)
{
    fprintf(heard, "pop\n");
    return 0;
}

int InitializeInjectionNvtx2(NvtxGetExportTableFunc_t table_of);
int InitializeInjectionNvtx2(NvtxGetExportTableFunc_t table_of)
{
    const NvtxExportTableCallbacks *callbacks = table_of(NVTX_ETID_CALLBACKS);
    NvtxFunctionTable table = NULL;
    unsigned size = 0;
    char path[4096];
    snprintf(path, sizeof path, "%s.%d", getenv("PTB_NVTX_HEARD"), (int)getpid());
    heard = fopen(path, "w");
    if (!heard || !callbacks || !callbacks->GetModuleFunctionTable(NVTX_CB_MODULE_CORE, &table, &size) ||
        size <= NVTX_CBID_CORE_RangePop)
        return 0;
    setvbuf(heard, NULL, _IOLBF, 0);
    *table[NVTX_CBID_CORE_RangeStartA] = (NvtxFunctionPointer)range_start;
    *table[NVTX_CBID_CORE_RangeEnd] = (NvtxFunctionPointer)range_end;
    *table[NVTX_CBID_CORE_RangePushA] = (NvtxFunctionPointer)range_push;
    *table[NVTX_CBID_CORE_RangePop] = (NvtxFunctionPointer)range_pop;
    return 1;
}
