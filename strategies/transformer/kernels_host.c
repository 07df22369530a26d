// The table of the host back-end. Linear layers are in kernels_host_matmul.c on the product of
// kernels_host_gemm.c, attention is in kernels_host_attention.c, elementwise and row kernels in
// kernels_host_{norm,elementwise,embedding,loss,optimizer}.c. Threads are OpenMP's; their number is a
// property of the thread that runs the stream.
#include "strategies/transformer/kernels_host.h"

#include <omp.h>

static ptb_status run_set_threads(void *arg)
{
    omp_set_num_threads(*(const int *)arg);
    return PTB_OK;
}

static ptb_status set_threads(ptb_stream *stream, int threads)
{
    return ptb_stream_call(stream, run_set_threads, &threads, sizeof threads);
}

static ptb_status run_reserve(void *arg)
{
    char *memory;
    size_t stride;
    return ptb_host_stream_scratch(*(ptb_stream **)arg, omp_get_max_threads(), &memory, &stride);
}

static ptb_status reserve(ptb_stream *stream)
{
    PTB_TRY(ptb_stream_call(stream, run_reserve, &stream, sizeof stream));
    return ptb_stream_sync(stream);
}

// Arguments travel with their stream behind them: ptb_host_stream_of.
#define X(method, arguments)                                                                                 \
    static ptb_status method(ptb_stream *stream, const arguments *args)                                      \
    {                                                                                                        \
        struct {                                                                                             \
            arguments args;                                                                                  \
            ptb_stream *stream;                                                                              \
        } call = {*args, stream};                                                                            \
        _Static_assert(sizeof call <= PTB_CALL_BYTES,                                                        \
                       "arguments of a kernel must fit into a stream's call");                               \
        _Static_assert(sizeof call == sizeof *args + sizeof stream, "the stream is where it is looked for"); \
        return ptb_stream_call(stream, ptb_host_run_##method, &call, sizeof call);                           \
    }
PTB_KERNEL_LIST(X)
#undef X

static const ptb_kernels host_kernels = {
    .plugin = {"host", "the processor's vector units; threads are OpenMP's"},
#define X(method, arguments) .method = method,
    PTB_KERNEL_LIST(X)
#undef X
        .types = 1u << PTB_F32 | 1u << PTB_BF16 | 1u << PTB_F16,
    .set_threads = set_threads,
    .reserve = reserve,
    .stream_workspace = ptb_host_stream_workspace,
    .matmul_peak = ptb_host_matmul_peak,
    .copy = ptb_host_copy,
    .read = ptb_host_read,
    .attention_workspace = ptb_host_attention_workspace,
    .attention_flops = ptb_host_attention_flops,
};
PTB_REGISTER(PTB_KIND_KERNELS, host_kernels);
