// LayerNorm and RMSNorm of the back-end `cuda`; what runs on the device is in kernels_cuda_norm.cu.
#include "strategies/transformer/kernels_cuda_internal.h"

PTB_CUDA_KERNEL(norm, ptb_norm)
PTB_CUDA_SCRATCH_KERNEL(norm_gradient, ptb_norm_gradient)
