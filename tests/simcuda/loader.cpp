// dlopen and dlsym of the program (the linker's --wrap), so that NVIDIA's libraries are found as on a real
// machine, while the simulated ones are part of the program.
// PTB_SIM: no_library=PREFIX (libraries whose file name begins so are not on this machine: "libnccl"),
// no_function=PREFIX (libraries lack functions whose name begins so, as older ones do: "ncclCommWindow"),
// nccl_version=21903 (NCCL is of that version: nccl.hpp).
#include "tests/simcuda/nccl.hpp"

#include <dlfcn.h>
#include <string.h>

#include <string>

extern "C" {
void *__real_dlopen(const char *file, int mode);
void *__real_dlsym(void *library, const char *symbol);
void *__wrap_dlopen(const char *file, int mode);
void *__wrap_dlsym(void *library, const char *symbol);
}

namespace {
bool begins(const char *text, const char *prefix)
{
    return strncmp(text, prefix, strlen(prefix)) == 0;
}

bool is_left_out(const char *option, const char *name)
{
    char prefix[128];
    return sim_option_text(option, prefix, sizeof prefix) && begins(name, prefix);
}

bool is_simulated(const char *name)
{
    static const char *const prefixes[] = {"libnccl.so", "libcublasLt.so", "libcupti.so", "libnvidia-ml.so",
                                           "libcuda.so"};
    for (const char *prefix : prefixes)
        if (begins(name, prefix))
            return true;
    return false;
}
} // namespace

void *__wrap_dlopen(const char *file, int mode)
{
    const char *slash = file ? strrchr(file, '/') : NULL;
    const char *name = slash ? slash + 1 : file;
    if (!name || !is_simulated(name))
        return __real_dlopen(file, mode);
    // What lies in a folder of this machine is real, and must not be loaded here.
    if (slash || is_left_out("no_library", name))
        return __real_dlopen((std::string("/simulated/") + name).c_str(), mode);
    return __real_dlopen(NULL, mode);
}

void *__wrap_dlsym(void *library, const char *symbol)
{
    return is_left_out("no_function", symbol) || !sim_nccl_has_function(symbol)
               ? NULL
               : __real_dlsym(library, symbol);
}
