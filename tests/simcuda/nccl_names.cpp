// Names of the simulated NCCL's kernels, as the real one's libraries have them and CUPTI tells them: mangled.
// Symmetric kernels have one each (src/device/symmetric/generate.py); of all others a few serve all
// (best_kernel in src/device/generate.py), until 2.30 under the name of the one that they are made for.
#include "tests/simcuda/nccl.hpp"

#include <string.h>

namespace {
enum { SYMK = 22800, SHORT_NAMES = 23200 }; // versions

const char *type_word(int type)
{
    static const char *const words[] = {"i8", "u8", "i32", "u32", "i64", "u64", "f16", "f32", "f64", "bf16"};
    return words[type];
}

// What is added up bit by bit alike has one kernel.
const char *primary_word(int type)
{
    switch (type) {
    case ncclInt8:
        return "u8";
    case ncclInt32:
        return "u32";
    case ncclInt64:
        return "u64";
    default:
        return type_word(type);
    }
}

bool reduces(int function)
{
    return function == SIM_NCCL_ALL_REDUCE || function == SIM_NCCL_REDUCE_SCATTER ||
           function == SIM_NCCL_REDUCE;
}

std::string mangled(const std::string &name, const char *argument)
{
    return "_Z" + std::to_string(name.size()) + name + argument;
}

std::string symmetric_name(const sim_nccl_operation &o)
{
    const bool is_new = sim_nccl_version() >= SYMK;
    std::string name = is_new ? "ncclSymkDevKernel_" : "ncclSymDevKernel_";
    name = name + sim_nccl_function_name(o.call.function) + "_" + o.run.protocol;
    if (reduces(o.call.function))
        name = name + (o.call.op == ncclAvg ? "_avg_" : "_sum_") + type_word(o.call.type);
    return mangled(name, is_new ? "21ncclSymkDevWorkArgs4K" : "14ncclSymDevArgs");
}
} // namespace

std::string sim_nccl_kernel_name(const sim_nccl_operation &o)
{
    static const char arguments[] = "24ncclDevKernelArgsStorageILm4096EE";
    const bool is_short = sim_nccl_version() >= SHORT_NAMES;
    const int function = o.call.function;
    if (o.run.is_symmetric)
        return symmetric_name(o);
    if (function >= SIM_NCCL_FUNCTIONS)
        return mangled("ncclDevKernel_SendRecv", arguments);
    std::string name = std::string("ncclDevKernel_") + sim_nccl_function_name(function);
    if (reduces(function))
        name = name + (is_short ? "_" : "_Sum_") + primary_word(o.call.type);
    const bool is_tree = reduces(function) && !strcmp(o.run.algorithm, "TREE");
    name = name + (is_tree ? "_TREE" : "_RING") + (is_short ? "" : "_LL");
    return mangled(name, arguments);
}
