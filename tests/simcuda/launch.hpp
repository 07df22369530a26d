// The launch of a kernel: its address and a copy of its arguments go to the stream.
#ifndef PTB_SIMCUDA_LAUNCH_HPP
#define PTB_SIMCUDA_LAUNCH_HPP

#include <cuda_runtime.h>

#include <stddef.h>
#include <type_traits>
#include <utility>

enum { SIM_KERNEL_ARGUMENT_BYTES = 3072 };

// Enqueues; `call` runs one thread of the kernel with a copy of the packed arguments. `entry` is the kernel,
// whose attributes cudaFuncSetAttribute may have set. name: as written at the launch.
cudaError_t sim_launch(const char *name, const void *entry, dim3 grid, dim3 block, size_t shared_bytes,
                       cudaStream_t stream, void (*call)(const void *), const void *arguments, size_t bytes);

template <class... P> struct sim_pack {
    template <class Call> static void apply(const sim_pack *, Call call) { call(); }
};
template <class First, class... Rest> struct sim_pack<First, Rest...> {
    static_assert(std::is_trivially_copyable<First>::value, "arguments of a kernel are copied as bytes");
    First first;
    sim_pack<Rest...> rest;
    sim_pack(First f, Rest... r) : first(f), rest(r...) {}
    template <class Call> static void apply(const sim_pack *pack, Call call)
    {
        sim_pack<Rest...>::apply(&pack->rest, [&](const Rest &...r) { call(pack->first, r...); });
    }
};

template <class... P> struct sim_kernel_call {
    void (*kernel)(P...);
    sim_pack<P...> arguments;
    static void run(const void *packed)
    {
        const sim_kernel_call *of = (const sim_kernel_call *)packed;
        sim_pack<P...>::apply(&of->arguments, [=](const P &...a) { of->kernel(a...); });
    }
};

template <class... P, class... A>
static inline cudaError_t sim_launch_kernel(const char *name, void (*kernel)(P...), dim3 grid, dim3 block,
                                            size_t shared_bytes, cudaStream_t stream, A &&...arguments)
{
    static_assert(sizeof...(P) == sizeof...(A), "as many arguments as the kernel has parameters");
    const sim_kernel_call<P...> call = {kernel, {(P)std::forward<A>(arguments)...}};
    static_assert(sizeof call <= SIM_KERNEL_ARGUMENT_BYTES, "arguments of a kernel are too large");
    return sim_launch(name, (const void *)kernel, grid, block, shared_bytes, stream,
                      sim_kernel_call<P...>::run, &call, sizeof call);
}

// A kernel template with commas in its name goes in parentheses.
#define PTB_LAUNCH(kernel, grid, block, shared_bytes, stream, ...)                                           \
    (sim_launch_kernel(#kernel, kernel, grid, block, shared_bytes, stream, ##__VA_ARGS__))

#endif
