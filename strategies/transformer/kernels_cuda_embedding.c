// Embedding of the back-end `cuda`; what runs on the device is in kernels_cuda_embedding.cu.
#include "strategies/transformer/kernels_cuda_internal.h"

PTB_CUDA_KERNEL(embedding, ptb_embedding)
PTB_CUDA_SCRATCH_KERNEL(embedding_gradient, ptb_embedding_gradient)
