// The table of the back-end `cuda`. Linear layers are in kernels_cuda_matmul.c; what runs
// on the device is in the .cu files beside the .c files named for the kernels.
#include "strategies/transformer/kernels_cuda_internal.h"
#include "strategies/transformer/kernels_cuda_product.h"

static ptb_status set_threads(ptb_stream *stream, int threads)
{
    (void)stream, (void)threads; // a property of host streams
    return PTB_OK;
}

// Work is enqueued only while nothing on the stream has failed, and what fails sticks to the stream.
#define X(method, arguments)                                                                                 \
    static ptb_status method(ptb_stream *stream, const arguments *args)                                      \
    {                                                                                                        \
        PTB_TRY(ptb_cuda_stream_status(stream));                                                             \
        PTB_TRY(ptb_cuda_use(stream->device));                                                               \
        ptb_status status = ptb_cuda_##method(stream, args);                                                 \
        if (status != PTB_OK)                                                                                \
            ptb_cuda_stream_fail(stream, status);                                                            \
        return status;                                                                                       \
    }
PTB_KERNEL_LIST(X)
#undef X

static const ptb_kernels cuda_kernels = {
    .plugin = {"cuda", "NVIDIA GPUs: cuBLASLt and ptbench's own kernels"},
    .device = "cuda",
#define X(method, arguments) .method = method,
    PTB_KERNEL_LIST(X)
#undef X
        .types = 1u << PTB_F32 | 1u << PTB_BF16 | 1u << PTB_F16,
    .loss_rows = 8192, // each piece of rows reads and writes the gradient of the head's weights once more
    .set_threads = set_threads,
    .set_tf32 = ptb_library_set_tf32,
    .set_search = ptb_library_set_search,
    .reserve = ptb_cuda_reserve,
    .stream_workspace = ptb_cuda_stream_workspace,
    .sum_workspace = PTB_CUDA_SCRATCH_BYTES,
    .matmul_peak = ptb_cuda_matmul_peak,
    .copy = ptb_cuda_copy,
    .read = ptb_cuda_read,
    .attention_workspace = ptb_cuda_attention_workspace,
    .attention_flops = ptb_cuda_attention_flops,
    .attention_kernels = ptb_cuda_attention_kernels,
};
PTB_REGISTER(PTB_KIND_KERNELS, cuda_kernels);
