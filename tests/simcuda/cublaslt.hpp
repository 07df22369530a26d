// A product of the simulated cuBLASLt as it goes to the stream: cublaslt.cpp checks and enqueues it,
// cublaslt_product.cpp computes it in the device process.
#ifndef PTB_SIMCUDA_CUBLASLT_HPP
#define PTB_SIMCUDA_CUBLASLT_HPP

#include <cublasLt.h>

#include "tests/simcuda/sim.hpp"

#include <stdint.h>
#include <stdio.h>

struct sim_lt_matrix {
    void *data;
    cudaDataType_t type;
    int64_t stride; // between columns
    bool transposed;
};

// d [m, n] = epilogue(alpha * op(a) [m, k] * op(b) [k, n] + beta * c), column-major
struct sim_lt_product {
    sim_lt_matrix a, b, c, d;
    sim_lt_matrix beside; // the epilogue's matrix
    void *vector;         // the epilogue's vector, d's type
    int64_t m, n, k;
    float alpha, beta;
    cublasLtEpilogue_t epilogue;
    bool tf32;
    uint32_t alignment; // bytes that the chosen algorithm accesses at once
    int parts;          // of the depth, summed in the workspace
    float *workspace;   // [parts, n, m]
};

sim_work_fn sim_lt_run;

#endif
