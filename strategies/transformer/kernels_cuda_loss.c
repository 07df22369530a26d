// Cross-entropy of the back-end `cuda`; what runs on the device is in kernels_cuda_loss.cu and
// kernels_cuda_loss_parts.cu.
#include "strategies/transformer/kernels_cuda_internal.h"

PTB_CUDA_KERNEL(cross_entropy, ptb_cross_entropy)
PTB_CUDA_KERNEL(loss_statistics, ptb_loss_statistics)
PTB_CUDA_KERNEL(loss_gradient, ptb_loss_gradient)
