// Names of the kernels of a CUDA graph, from the driver: the runtime tells of a kernel only to the library
// that it came with, and those of other libraries (NCCL) are what is asked for here. Nothing is launched, and
// no profiler is needed. Where the driver does not tell (before CUDA 12.3), no name is known. Never run on
// real hardware.
#include "core/device_cuda_internal.h"

#include "core/dynlib.h"

#include <cuda_runtime_api.h>
#include <stdlib.h>
#include <string.h>

// CUDA_KERNEL_NODE_PARAMS_v2 of cuda.h.
typedef struct {
    void *function;
    unsigned grid[3], block[3], shared_bytes;
    void **arguments, **extra;
    void *kernel; // where function is NULL
    void *context;
} kernel_node;
_Static_assert(offsetof(kernel_node, arguments) == 40 && offsetof(kernel_node, kernel) == 56 &&
                   sizeof(kernel_node) == 72,
               "CUDA_KERNEL_NODE_PARAMS_v2");

typedef struct {
    int (*node)(cudaGraphNode_t node, kernel_node *is);
    int (*function_name)(const char **name, void *function);
    int (*kernel_name)(const char **name, void *kernel);
} driver_api;

static const ptb_dynlib_function functions[] = {
    {"cuGraphKernelNodeGetParams_v2", offsetof(driver_api, node), false},
    {"cuFuncGetName", offsetof(driver_api, function_name), false},
    {"cuKernelGetName", offsetof(driver_api, kernel_name), false},
};
static const char *const sonames[] = {"libcuda.so.1", NULL};
static const ptb_dynlib library = {
    .name = "CUDA's driver",
    .needed_for = "only it tells the names of a graph's kernels",
    .sonames = sonames,
    .install = "Install the driver of CUDA 12.4 or later",
    .oldest = "that of CUDA 12.3",
    .functions = functions,
    .function_count = sizeof functions / sizeof *functions,
};
static ptb_dynlib_state state = PTB_DYNLIB_STATE_INIT;
static driver_api api;

static bool has_driver(void)
{
    ptb_text why = PTB_TEXT_INIT;
    ptb_status status = ptb_dynlib_load(&library, &state, &api, &why);
    ptb_text_release(&why);
    return status == PTB_OK;
}

static const char *name_of(cudaGraphNode_t node)
{
    kernel_node is = {.function = NULL};
    const char *name = NULL;
    if (api.node(node, &is) != 0)
        return NULL;
    int failed = is.function ? api.function_name(&name, is.function) : api.kernel_name(&name, is.kernel);
    return failed ? NULL : name;
}

// False where a kernel has no name that is known; *count: names so far.
static bool add_node(cudaGraphNode_t node, const char **names, size_t most, size_t *count)
{
    enum cudaGraphNodeType type;
    if (cudaGraphNodeGetType(node, &type) != cudaSuccess || type == cudaGraphNodeTypeGraph)
        return false;
    const char *name = type == cudaGraphNodeTypeKernel ? name_of(node) : NULL;
    if (!name)
        return type != cudaGraphNodeTypeKernel;
    for (size_t i = 0; i < *count && i < most; i++)
        if (strcmp(names[i], name) == 0)
            return true;
    if (*count < most)
        names[*count] = name;
    ++*count;
    return true;
}

size_t ptb_cuda_graph_kernels(const ptb_graph *graph, const char **names, size_t most)
{
    const ptb_cuda_graph *g = (const ptb_cuda_graph *)graph;
    size_t nodes = 0, count = 0;
    if (!has_driver() || cudaGraphGetNodes(g->recorded, NULL, &nodes) != cudaSuccess)
        return 0;
    cudaGraphNode_t *list = calloc(nodes ? nodes : 1, sizeof *list);
    bool is_known = list && cudaGraphGetNodes(g->recorded, list, &nodes) == cudaSuccess;
    for (size_t i = 0; i < nodes && is_known; i++)
        is_known = add_node(list[i], names, most, &count);
    free(list);
    cudaGetLastError(); // what is not told is no error of the device
    return is_known ? count : 0;
}
