// Optimizer kernels of the back-end `cuda`; what runs on the device is in kernels_cuda_optimizer.cu.
#include "strategies/transformer/kernels_cuda_internal.h"

PTB_CUDA_SCRATCH_KERNEL(sum_squares, ptb_sum_squares)
PTB_CUDA_KERNEL(update_begin, ptb_update_begin)
PTB_CUDA_KERNEL(adamw, ptb_adamw)
PTB_CUDA_KERNEL(sgd, ptb_sgd)
