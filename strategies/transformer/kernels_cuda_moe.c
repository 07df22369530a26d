// Mixture of experts of the back-end `cuda`; what runs on the device is in kernels_cuda_moe.cu,
// kernels_cuda_route.cu and kernels_cuda_experts.cu.
#include "strategies/transformer/kernels_cuda_internal.h"
#include "strategies/transformer/route.h"

PTB_CUDA_KERNEL(dispatch, ptb_dispatch)
PTB_CUDA_KERNEL(dispatch_gradient, ptb_dispatch_gradient)
PTB_CUDA_KERNEL(combine, ptb_combine)
PTB_CUDA_KERNEL(combine_gradient, ptb_combine_gradient)
PTB_CUDA_KERNEL(balance_loss, ptb_balance_loss)

ptb_status ptb_cuda_route(ptb_stream *stream, const ptb_route *args)
{
    void *scratch;
    PTB_TRY(ptb_route_check(args->rows, args->experts, args->top_k));
    PTB_TRY(ptb_cuda_scratch(stream, ptb_cuda_route_scratch(args), &scratch));
    PTB_CUDA(ptb_cuda_enqueue_route(ptb_cuda_stream(stream), args, scratch));
    return PTB_OK;
}

ptb_status ptb_cuda_route_gradient(ptb_stream *stream, const ptb_route_gradient *args)
{
    PTB_TRY(ptb_route_check(args->rows, args->experts, args->top_k));
    PTB_CUDA(ptb_cuda_launch_route_gradient(ptb_cuda_stream(stream), args));
    return PTB_OK;
}

ptb_status ptb_cuda_expert_order(ptb_stream *stream, const ptb_expert_order *args)
{
    PTB_TRY(ptb_route_check_experts(args->experts, args->first, args->local));
    PTB_CUDA(ptb_cuda_launch_expert_order(ptb_cuda_stream(stream), args));
    return PTB_OK;
}
