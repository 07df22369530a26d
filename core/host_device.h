// For small functions that host code and kernels share: what nvcc wants in front of them. Everywhere else it
// is nothing (the simulated device compiles kernels as host code).
#ifndef PTB_CORE_HOST_DEVICE_H
#define PTB_CORE_HOST_DEVICE_H

#ifdef __CUDACC__
#define PTB_HOST_DEVICE __host__ __device__
#else
#define PTB_HOST_DEVICE
#endif

#endif
