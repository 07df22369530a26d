// The simulated cuBLASLt refuses what the real one refuses, and fails on the stream where the real one would
// read or write wrongly aligned words. That its products are right is shown by unit.kernels_matmul on the
// device (test_matmul.sh).
#include <cublasLt.h>
#include <cuda_runtime_api.h>

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

enum { M = 32, N = 16, K = 24, MOST = 8, WORKSPACE = 1 << 20 };

// A bf16 product of M x N x K with everything it needs; tests change one thing.
typedef struct {
    cublasLtHandle_t handle;
    cublasLtMatmulDesc_t description;
    cublasLtMatrixLayout_t a, b, d;
    cublasLtMatmulPreference_t preference;
    cublasLtMatmulHeuristicResult_t found[MOST];
    int count;
    char *memory; // host memory that the device sees
    uint16_t *a_data, *b_data, *d_data, *vector, *matrix;
    void *workspace;
} product;

#define SET(p, attribute, value)                                                                             \
    assert_int_equal(cublasLtMatmulDescSetAttribute((p)->description, attribute, &(value), sizeof(value)), 0)
#define PREFER(p, attribute, value)                                                                          \
    assert_int_equal(                                                                                        \
        cublasLtMatmulPreferenceSetAttribute((p)->preference, attribute, &(value), sizeof(value)), 0)

static void set_alignment(product *p, uint32_t bytes)
{
    PREFER(p, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, bytes);
    PREFER(p, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, bytes);
    PREFER(p, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, bytes);
    PREFER(p, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, bytes);
}

static int setup(void **state)
{
    static product p;
    uint64_t workspace = WORKSPACE;
    memset(&p, 0, sizeof p);
    assert_int_equal(cublasLtCreate(&p.handle), 0);
    assert_int_equal(cudaMallocHost((void **)&p.memory, 1 << 16), 0);
    memset(p.memory, 0, 1 << 16);
    p.a_data = (uint16_t *)p.memory;
    p.b_data = (uint16_t *)(p.memory + 8192);
    p.d_data = (uint16_t *)(p.memory + 16384);
    p.vector = (uint16_t *)(p.memory + 24576);
    p.matrix = (uint16_t *)(p.memory + 32768);
    assert_int_equal(cudaMalloc(&p.workspace, WORKSPACE), 0);
    assert_int_equal(cublasLtMatmulDescCreate(&p.description, CUBLAS_COMPUTE_32F, CUDA_R_32F), 0);
    assert_int_equal(cublasLtMatrixLayoutCreate(&p.a, CUDA_R_16BF, M, K, M), 0);
    assert_int_equal(cublasLtMatrixLayoutCreate(&p.b, CUDA_R_16BF, K, N, K), 0);
    assert_int_equal(cublasLtMatrixLayoutCreate(&p.d, CUDA_R_16BF, M, N, M), 0);
    assert_int_equal(cublasLtMatmulPreferenceCreate(&p.preference), 0);
    PREFER(&p, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, workspace);
    set_alignment(&p, 16);
    *state = &p;
    return 0;
}

static int teardown(void **state)
{
    product *p = *state;
    cublasLtMatmulPreferenceDestroy(p->preference);
    cublasLtMatrixLayoutDestroy(p->d);
    cublasLtMatrixLayoutDestroy(p->b);
    cublasLtMatrixLayoutDestroy(p->a);
    cublasLtMatmulDescDestroy(p->description);
    cudaFree(p->workspace);
    cudaFreeHost(p->memory);
    cublasLtDestroy(p->handle);
    return 0;
}

static cublasStatus_t propose(product *p)
{
    return cublasLtMatmulAlgoGetHeuristic(p->handle, p->description, p->a, p->b, p->d, p->d, p->preference,
                                          MOST, p->found, &p->count);
}

static cublasStatus_t multiply(product *p, const uint16_t *a, size_t workspace_bytes, int which)
{
    const float one = 1, zero = 0;
    return cublasLtMatmul(p->handle, p->description, &one, a, p->a, p->b_data, p->b, &zero, p->d_data, p->d,
                          p->d_data, p->d, &p->found[which].algo, p->workspace, workspace_bytes, NULL);
}

static void test_proposals(void **state)
{
    product *p = *state;
    uint64_t nothing = 0;
    assert_int_equal(propose(p), CUBLAS_STATUS_SUCCESS);
    assert_true(p->count > 2);
    int with = 0;
    for (int i = 0; i < p->count; i++)
        with += p->found[i].workspaceSize > 0;
    assert_true(with > 0);
    for (int i = 0; i < p->count; i++) {
        assert_int_equal(multiply(p, p->a_data, WORKSPACE, i), CUBLAS_STATUS_SUCCESS);
        if (p->found[i].workspaceSize)
            assert_int_equal(multiply(p, p->a_data, p->found[i].workspaceSize - 1, i),
                             CUBLAS_STATUS_INVALID_VALUE);
    }
    assert_int_equal(cudaStreamSynchronize(NULL), cudaSuccess);
    void *workspace = p->workspace;
    p->workspace = p->matrix;
    assert_int_equal(multiply(p, p->a_data, 4096, 0), CUBLAS_STATUS_SUCCESS);
    p->workspace = p->d_data + M * N - 8; // d's last bytes
    assert_int_equal(multiply(p, p->a_data, 4096, 0), CUBLAS_STATUS_INVALID_VALUE);
    p->workspace = workspace;
    PREFER(p, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, nothing);
    assert_int_equal(propose(p), CUBLAS_STATUS_SUCCESS);
    for (int i = 0; i < p->count; i++)
        assert_int_equal(p->found[i].workspaceSize, 0);
}

// A bias has the type of the results.
static void test_types(void **state)
{
    product *p = *state;
    uint32_t bias = CUBLASLT_EPILOGUE_BIAS;
    int32_t type = CUDA_R_32F;
    SET(p, CUBLASLT_MATMUL_DESC_EPILOGUE, bias);
    assert_int_equal(propose(p), CUBLAS_STATUS_INVALID_VALUE); // no pointer
    SET(p, CUBLASLT_MATMUL_DESC_BIAS_POINTER, p->vector);
    assert_int_equal(propose(p), CUBLAS_STATUS_SUCCESS);
    SET(p, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, type);
    assert_int_equal(propose(p), CUBLAS_STATUS_NOT_SUPPORTED);
    cublasLtMatrixLayoutDestroy(p->b);
    assert_int_equal(cublasLtMatrixLayoutCreate(&p->b, CUDA_R_16F, K, N, K), 0);
    assert_int_equal(propose(p), CUBLAS_STATUS_NOT_SUPPORTED);
}

static void test_layouts(void **state)
{
    product *p = *state;
    uint32_t transposed = CUBLAS_OP_T;
    SET(p, CUBLASLT_MATMUL_DESC_TRANSA, transposed);
    assert_int_equal(propose(p), CUBLAS_STATUS_INVALID_VALUE); // a is M x K, and would have to be K x M
    transposed = CUBLAS_OP_N;
    SET(p, CUBLASLT_MATMUL_DESC_TRANSA, transposed);
    cublasLtMatrixLayoutDestroy(p->a);
    assert_int_equal(cublasLtMatrixLayoutCreate(&p->a, CUDA_R_16BF, M, K, M - 1), 0);
    assert_int_equal(propose(p), CUBLAS_STATUS_INVALID_VALUE); // columns overlap
}

// The matrix of GELU: 16-byte aligned, columns a multiple of 8 apart.
static void test_matrix(void **state)
{
    product *p = *state;
    uint32_t gelu = CUBLASLT_EPILOGUE_GELU_AUX;
    int64_t stride = M;
    uint16_t *off = p->matrix + 1;
    SET(p, CUBLASLT_MATMUL_DESC_EPILOGUE, gelu);
    SET(p, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, p->matrix);
    assert_int_equal(propose(p), CUBLAS_STATUS_INVALID_VALUE); // no stride
    SET(p, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, stride);
    assert_int_equal(propose(p), CUBLAS_STATUS_SUCCESS);
    stride = M + 4;
    SET(p, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, stride);
    assert_int_equal(propose(p), CUBLAS_STATUS_NOT_SUPPORTED);
    stride = M;
    SET(p, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, stride);
    SET(p, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, off);
    assert_int_equal(propose(p), CUBLAS_STATUS_NOT_SUPPORTED);
}

// Last: the error stays with the device.
static void test_misaligned(void **state)
{
    product *p = *state;
    set_alignment(p, 2);
    assert_int_equal(propose(p), CUBLAS_STATUS_SUCCESS);
    assert_int_equal(multiply(p, p->a_data + 1, WORKSPACE, 0), CUBLAS_STATUS_SUCCESS);
    assert_int_equal(cudaStreamSynchronize(NULL), cudaSuccess);
    set_alignment(p, 16);
    assert_int_equal(propose(p), CUBLAS_STATUS_SUCCESS);
    assert_int_equal(multiply(p, p->a_data + 1, WORKSPACE, 0), CUBLAS_STATUS_SUCCESS);
    assert_int_equal(cudaStreamSynchronize(NULL), cudaErrorMisalignedAddress);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        TEST(test_proposals), TEST(test_types), TEST(test_layouts), TEST(test_matrix), TEST(test_misaligned),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
