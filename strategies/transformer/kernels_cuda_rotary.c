// Rotary positions of the back-end `cuda`; what runs on the device is in kernels_cuda_rotary.cu.
#include "strategies/transformer/kernels_cuda_internal.h"

PTB_CUDA_KERNEL(rotary, ptb_rotary)
