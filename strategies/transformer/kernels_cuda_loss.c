// Cross-entropy of the back-end `cuda`; what runs on the device is in kernels_cuda_loss.cu.
#include "strategies/transformer/kernels_cuda_internal.h"

PTB_CUDA_KERNEL(cross_entropy, ptb_cross_entropy)
