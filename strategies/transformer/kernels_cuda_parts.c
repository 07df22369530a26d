// What parts of attention, and of rows, need of the back-end `cuda`; what runs on the device is in
// kernels_cuda_parts.cu.
#include "strategies/transformer/kernels_cuda_internal.h"

PTB_CUDA_KERNEL(merge, ptb_merge)
PTB_CUDA_KERNEL(permute, ptb_permute)
