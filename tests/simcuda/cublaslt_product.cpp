// The products of the simulated cuBLASLt, in the device process: operands as f32, oneDNN's sgemm for each
// part of the depth, and the epilogue. The thread of a stream computes alone, since OpenMP's threads do not
// outlive the fork of the device process.
#include "tests/simcuda/cublaslt.hpp"

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <math.h>
#include <omp.h>
#include <string.h>
#include <vector>

#include <oneapi/dnnl/dnnl.h>

static float number(cudaDataType_t type, const void *data, int64_t i)
{
    switch (type) {
    case CUDA_R_16BF:
        return __bfloat162float(((const __nv_bfloat16 *)data)[i]);
    case CUDA_R_16F:
        return __half2float(((const __half *)data)[i]);
    default:
        return ((const float *)data)[i];
    }
}

static void set_number(cudaDataType_t type, void *data, int64_t i, float value)
{
    switch (type) {
    case CUDA_R_16BF:
        ((__nv_bfloat16 *)data)[i] = __float2bfloat16_rn(value);
        break;
    case CUDA_R_16F:
        ((__half *)data)[i] = __float2half_rn(value);
        break;
    default:
        ((float *)data)[i] = value;
    }
}

// 10 bits of mantissa, to nearest, as the tensor cores take them.
static float to_tf32(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    if (isfinite(value)) {
        bits += 0xfff + ((bits >> 13) & 1);
        bits &= ~0x1fffu;
    }
    memcpy(&value, &bits, sizeof value);
    return value;
}

// op(matrix) [rows, columns] as f32, column-major, packed.
static std::vector<float> operand(const sim_lt_matrix &x, int64_t rows, int64_t columns, bool tf32)
{
    std::vector<float> out((size_t)(rows * columns));
    for (int64_t c = 0; c < columns; c++)
        for (int64_t r = 0; r < rows; r++) {
            float value = number(x.type, x.data, x.transposed ? r * x.stride + c : c * x.stride + r);
            out[(size_t)(c * rows + r)] = tf32 ? to_tf32(value) : value;
        }
    return out;
}

// out [m, n] = the part of the depth from `first` on, `depth` of it. Row-major, the product is b^T * a^T.
static bool multiply(const sim_lt_product &p, const float *a, const float *b, int64_t first, int64_t depth,
                     float *out)
{
    return dnnl_sgemm('N', 'N', p.n, p.m, depth, 1, b + first, p.k, a + first * p.m, p.m, 0, out, p.m) ==
           dnnl_success;
}

static float gelu_gate(float x)
{
    return 0.5f * (1 + tanhf(0.79788456f * (x + 0.044715f * x * x * x)));
}

static float gelu_slope(float x)
{
    float t = tanhf(0.79788456f * (x + 0.044715f * x * x * x));
    return 0.5f * (1 + t) + 0.5f * x * (1 - t * t) * 0.79788456f * (1 + 3 * 0.044715f * x * x);
}

// The result at (row, column), stored.
static void finish(const sim_lt_product &p, int64_t row, int64_t column, float value)
{
    bool bias = p.epilogue == CUBLASLT_EPILOGUE_BIAS || p.epilogue == CUBLASLT_EPILOGUE_GELU_AUX_BIAS;
    int64_t beside = column * p.beside.stride + row;
    value *= p.alpha;
    if (p.beta != 0) // or else c is not read, NaN included
        value += p.beta * number(p.c.type, p.c.data, column * p.c.stride + row);
    if (bias)
        value += number(p.d.type, p.vector, row);
    if (p.epilogue == CUBLASLT_EPILOGUE_GELU_AUX || p.epilogue == CUBLASLT_EPILOGUE_GELU_AUX_BIAS) {
        set_number(p.beside.type, p.beside.data, beside, value);
        value *= gelu_gate(value);
    }
    if (p.epilogue == CUBLASLT_EPILOGUE_DGELU)
        value *= gelu_slope(number(p.beside.type, p.beside.data, beside));
    set_number(p.d.type, p.d.data, column * p.d.stride + row, value);
}

static bool is_aligned(const sim_lt_product &p)
{
    const void *all[] = {p.a.data, p.b.data, p.c.data, p.d.data};
    for (const void *pointer : all)
        if ((uintptr_t)pointer % p.alignment)
            return false;
    return true;
}

cudaError_t sim_lt_run(void *args)
{
    const sim_lt_product &p = *(const sim_lt_product *)args;
    if (!is_aligned(p))
        return cudaErrorMisalignedAddress;
    omp_set_num_threads(1);
    std::vector<float> a = operand(p.a, p.m, p.k, p.tf32), b = operand(p.b, p.k, p.n, p.tf32);
    std::vector<float> one((size_t)(p.parts == 1 ? p.m * p.n : 0));
    float *parts = p.parts == 1 ? one.data() : p.workspace;
    for (int part = 0; part < p.parts; part++) {
        int64_t first = p.k * part / p.parts, end = p.k * (part + 1) / p.parts;
        if (!multiply(p, a.data(), b.data(), first, end - first, parts + part * p.m * p.n))
            return cudaErrorUnknown;
    }
    if (p.epilogue == CUBLASLT_EPILOGUE_BGRADB)
        for (int64_t column = 0; column < p.n; column++) {
            float sum = 0;
            for (int64_t i = 0; i < p.k; i++)
                sum += b[(size_t)(column * p.k + i)];
            set_number(p.d.type, p.vector, column, sum);
        }
    for (int64_t column = 0; column < p.n; column++)
        for (int64_t row = 0; row < p.m; row++) {
            float sum = 0;
            for (int part = 0; part < p.parts; part++)
                sum += parts[(part * p.n + column) * p.m + row];
            finish(p, row, column, sum);
        }
    return cudaSuccess;
}
