// Elementwise kernels of the back-end `cuda`; what runs on the device is in kernels_cuda_elementwise.cu.
#include "strategies/transformer/kernels_cuda_internal.h"

PTB_CUDA_KERNEL(activation, ptb_activation)
PTB_CUDA_KERNEL(activation_gradient, ptb_activation_gradient)
PTB_CUDA_KERNEL(add, ptb_add)
PTB_CUDA_KERNEL(dropout, ptb_dropout)
PTB_CUDA_KERNEL(convert, ptb_convert)
