// The products of the simulated cuBLASLt, in the device process: operands as f32, oneDNN's sgemm for each
// part of the depth, and the epilogue. The thread of a stream computes alone, since OpenMP's threads do not
// outlive the fork of the device process.
#include "tests/simcuda/cublaslt.hpp"

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <math.h>
#include <omp.h>
#include <string.h>

#include <algorithm>
#include <vector>

#include <oneapi/dnnl/dnnl.h>

static uint32_t bits_of(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static float of_bits(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

// Exact, and without branches: the compiler makes vectors of loops over it. The product moves the exponent,
// and makes normal numbers of those that were not.
static float half_to_f32(uint16_t half)
{
    const uint32_t bits = half & 0x7fff;
    const uint32_t moved = bits_of(of_bits(bits << 13) * 0x1p112f);
    return of_bits(moved | (bits >= 0x7c00 ? 0x7f800000 : 0) | (uint32_t)(half & 0x8000) << 16);
}

// To nearest, ties to even; as __float2bfloat16_rn.
static uint16_t f32_to_bf16(float value)
{
    const uint32_t bits = bits_of(value);
    return (uint16_t)(value != value ? 0x7fff : (bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

// to[i] = number `first` + i, as f32.
static void widen(cudaDataType_t type, const void *data, int64_t first, int64_t count, float *to)
{
    const uint16_t *words = (const uint16_t *)data + first;
    switch (type) {
    case CUDA_R_16BF:
        for (int64_t i = 0; i < count; i++)
            to[i] = of_bits((uint32_t)words[i] << 16);
        break;
    case CUDA_R_16F:
        for (int64_t i = 0; i < count; i++)
            to[i] = half_to_f32(words[i]);
        break;
    default:
        memcpy(to, (const float *)data + first, (size_t)count * sizeof *to);
    }
}

static void narrow(cudaDataType_t type, const float *from, int64_t count, void *data, int64_t first)
{
    switch (type) {
    case CUDA_R_16BF:
        for (int64_t i = 0; i < count; i++)
            ((uint16_t *)data)[first + i] = f32_to_bf16(from[i]);
        break;
    case CUDA_R_16F:
        for (int64_t i = 0; i < count; i++)
            ((__half *)data)[first + i] = __float2half_rn(from[i]);
        break;
    default:
        memcpy((float *)data + first, from, (size_t)count * sizeof *from);
    }
}

// 10 bits of mantissa, to nearest, as the tensor cores take them.
static float to_tf32(float value)
{
    const uint32_t bits = bits_of(value), rounded = (bits + 0xfff + (bits >> 13 & 1)) & ~0x1fffu;
    return of_bits((bits & 0x7f800000) == 0x7f800000 ? bits : rounded);
}

// op(matrix) [rows, columns] as f32, column-major, packed.
static std::vector<float> operand(const sim_lt_matrix &x, int64_t rows, int64_t columns, bool tf32)
{
    enum { LINES = 16 }; // of memory, a row each, that are turned at once
    std::vector<float> out((size_t)(rows * columns)), lines((size_t)(x.transposed ? LINES * columns : 0));
    for (int64_t c = 0; !x.transposed && c < columns; c++)
        widen(x.type, x.data, c * x.stride, rows, &out[(size_t)(c * rows)]);
    for (int64_t first = 0; x.transposed && first < rows; first += LINES) {
        const int64_t count = std::min<int64_t>(rows - first, LINES);
        for (int64_t r = 0; r < count; r++)
            widen(x.type, x.data, (first + r) * x.stride, columns, &lines[(size_t)(r * columns)]);
        for (int64_t c = 0; c < columns; c++)
            for (int64_t r = 0; r < count; r++)
                out[(size_t)(c * rows + first + r)] = lines[(size_t)(r * columns + c)];
    }
    if (tf32)
        for (float &value : out)
            value = to_tf32(value);
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

// A column of the result, `value` [m] before the epilogue, stored. bias, other: [m], the epilogue's vector
// and room.
static void finish(const sim_lt_product &p, int64_t column, const float *bias, float *value, float *other)
{
    const bool keeps =
        p.epilogue == CUBLASLT_EPILOGUE_GELU_AUX || p.epilogue == CUBLASLT_EPILOGUE_GELU_AUX_BIAS;
    for (int64_t row = 0; row < p.m; row++)
        value[row] *= p.alpha;
    if (p.beta != 0) { // or else c is not read, NaN included
        widen(p.c.type, p.c.data, column * p.c.stride, p.m, other);
        for (int64_t row = 0; row < p.m; row++)
            value[row] += p.beta * other[row];
    }
    for (int64_t row = 0; bias && row < p.m; row++)
        value[row] += bias[row];
    if (keeps) {
        narrow(p.beside.type, value, p.m, p.beside.data, column * p.beside.stride);
        for (int64_t row = 0; row < p.m; row++)
            value[row] *= gelu_gate(value[row]);
    }
    if (p.epilogue == CUBLASLT_EPILOGUE_DGELU) {
        widen(p.beside.type, p.beside.data, column * p.beside.stride, p.m, other);
        for (int64_t row = 0; row < p.m; row++)
            value[row] *= gelu_slope(other[row]);
    }
    narrow(p.d.type, value, p.m, p.d.data, column * p.d.stride);
}

// The sums of the parts, [parts, n, m], through the epilogue.
static void finish_all(const sim_lt_product &p, const float *parts)
{
    const bool biased = p.epilogue == CUBLASLT_EPILOGUE_BIAS || p.epilogue == CUBLASLT_EPILOGUE_GELU_AUX_BIAS;
    std::vector<float> bias((size_t)(biased ? p.m : 0)), value((size_t)p.m), other((size_t)p.m);
    if (biased)
        widen(p.d.type, p.vector, 0, p.m, bias.data());
    for (int64_t column = 0; column < p.n; column++) {
        std::fill(value.begin(), value.end(), 0.0f);
        for (int part = 0; part < p.parts; part++)
            for (int64_t row = 0; row < p.m; row++)
                value[(size_t)row] += parts[(part * p.n + column) * p.m + row];
        finish(p, column, biased ? bias.data() : NULL, value.data(), other.data());
    }
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
            narrow(p.d.type, &sum, 1, p.vector, column);
        }
    finish_all(p, parts);
    return cudaSuccess;
}
