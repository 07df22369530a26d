// The simulated cuBLASLt: descriptors, layouts, heuristics and cublasLtMatmul under the real header, for real
// numbers in f32, bf16 and f16. What the real library refuses is refused; what it would do wrong in silence
// (an operand that is aligned worse than was promised) fails on the stream, as it does on a GPU, or at the
// call (a matrix in the workspace). The products themselves are in cublaslt_product.cpp.
//
// Settings (PTB_SIM): lt_plain=1: no epilogue but DEFAULT and BIAS, so that callers show what they do
// without; lt_none=1: no algorithms at all.
#include "tests/simcuda/cublaslt.hpp"

#include <new>
#include <string.h>
#include <utility>

// What stands in the opaque structs of the header.
struct sim_lt_handle {
    int magic;
};
struct sim_lt_layout {
    cudaDataType_t type;
    uint64_t rows, columns;
    int64_t stride;
    int32_t order, batch;
};
struct sim_lt_description {
    cublasComputeType_t compute;
    cudaDataType_t scale;
    int32_t transpose_a, transpose_b, pointer_mode, vector_type, matrix_type;
    uint32_t epilogue;
    void *vector, *matrix;
    int64_t matrix_stride;
};
struct sim_lt_preference {
    uint64_t workspace;
    uint32_t reductions, alignment[4]; // of a, b, c, d
    uint32_t search;
};
// In a cublasLtMatmulAlgo_t.
struct sim_lt_algorithm {
    uint32_t magic, kind, alignment;
    uint32_t parts; // of the depth, summed in the workspace
};

enum { HANDLE_MAGIC = 0x4c74, ALGORITHM_MAGIC = 0x616c676f };

template <typename T, typename Opaque> static T *behind(Opaque opaque)
{
    static_assert(sizeof(T) <= sizeof(*opaque), "it has to fit into the header's struct");
    return (T *)(void *)opaque;
}

extern "C" {

cublasStatus_t cublasLtCreate(cublasLtHandle_t *handle)
{
    if (!handle)
        return CUBLAS_STATUS_INVALID_VALUE;
    if (cudaFree(NULL) != cudaSuccess) // as the real one, it starts the device
        return CUBLAS_STATUS_NOT_INITIALIZED;
    sim_lt_handle *h = new (std::nothrow) sim_lt_handle{HANDLE_MAGIC};
    *handle = (cublasLtHandle_t)h;
    return h ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_ALLOC_FAILED;
}

cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle)
{
    delete (sim_lt_handle *)handle;
    return CUBLAS_STATUS_SUCCESS;
}

size_t cublasLtGetVersion(void)
{
    return CUBLAS_VERSION;
}

const char *cublasLtGetStatusName(cublasStatus_t status)
{
    switch (status) {
#define NAME(name)                                                                                           \
    case name:                                                                                               \
        return #name;
        NAME(CUBLAS_STATUS_SUCCESS)
        NAME(CUBLAS_STATUS_NOT_INITIALIZED)
        NAME(CUBLAS_STATUS_ALLOC_FAILED)
        NAME(CUBLAS_STATUS_INVALID_VALUE)
        NAME(CUBLAS_STATUS_ARCH_MISMATCH)
        NAME(CUBLAS_STATUS_MAPPING_ERROR)
        NAME(CUBLAS_STATUS_EXECUTION_FAILED)
        NAME(CUBLAS_STATUS_INTERNAL_ERROR)
        NAME(CUBLAS_STATUS_NOT_SUPPORTED)
        NAME(CUBLAS_STATUS_LICENSE_ERROR)
#undef NAME
    }
    return "an unknown status";
}

const char *cublasLtGetStatusString(cublasStatus_t status)
{
    switch (status) {
    case CUBLAS_STATUS_SUCCESS:
        return "success";
    case CUBLAS_STATUS_NOT_INITIALIZED:
        return "the library was not initialized";
    case CUBLAS_STATUS_INVALID_VALUE:
        return "an unsupported value or parameter was passed to the function";
    case CUBLAS_STATUS_EXECUTION_FAILED:
        return "the function failed to launch on the GPU";
    case CUBLAS_STATUS_NOT_SUPPORTED:
        return "the functionality requested is not supported";
    default:
        return "see the status's name";
    }
}

// ---- layouts

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t *layout, cudaDataType type, uint64_t rows,
                                          uint64_t columns, int64_t stride)
{
    cublasLtMatrixLayout_t made = new (std::nothrow) cublasLtMatrixLayoutOpaque_t();
    if (!made)
        return CUBLAS_STATUS_ALLOC_FAILED;
    *behind<sim_lt_layout>(made) = {type, rows, columns, stride, CUBLASLT_ORDER_COL, 1};
    *layout = made;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout)
{
    delete layout;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatrixLayoutSetAttribute(cublasLtMatrixLayout_t layout,
                                                cublasLtMatrixLayoutAttribute_t attribute, const void *value,
                                                size_t bytes)
{
    sim_lt_layout *l = behind<sim_lt_layout>(layout);
    if (attribute == CUBLASLT_MATRIX_LAYOUT_ORDER && bytes == sizeof l->order)
        memcpy(&l->order, value, bytes);
    else if (attribute == CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT && bytes == sizeof l->batch)
        memcpy(&l->batch, value, bytes);
    else
        return CUBLAS_STATUS_INVALID_VALUE;
    return CUBLAS_STATUS_SUCCESS;
}

// ---- descriptions

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t *description, cublasComputeType_t compute,
                                        cudaDataType_t scale)
{
    cublasLtMatmulDesc_t made = new (std::nothrow) cublasLtMatmulDescOpaque_t();
    if (!made)
        return CUBLAS_STATUS_ALLOC_FAILED;
    sim_lt_description *d = behind<sim_lt_description>(made);
    d->compute = compute;
    d->scale = scale;
    d->epilogue = CUBLASLT_EPILOGUE_DEFAULT;
    d->vector_type = d->matrix_type = -1;
    *description = made;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t description)
{
    delete description;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t description,
                                              cublasLtMatmulDescAttributes_t attribute, const void *value,
                                              size_t bytes)
{
    sim_lt_description *d = behind<sim_lt_description>(description);
    void *to = NULL;
    size_t size = 0;
    switch (attribute) {
#define FIELD(name, field)                                                                                   \
    case name:                                                                                               \
        to = &d->field;                                                                                      \
        size = sizeof d->field;                                                                              \
        break;
        FIELD(CUBLASLT_MATMUL_DESC_TRANSA, transpose_a)
        FIELD(CUBLASLT_MATMUL_DESC_TRANSB, transpose_b)
        FIELD(CUBLASLT_MATMUL_DESC_POINTER_MODE, pointer_mode)
        FIELD(CUBLASLT_MATMUL_DESC_EPILOGUE, epilogue)
        FIELD(CUBLASLT_MATMUL_DESC_BIAS_POINTER, vector)
        FIELD(CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, vector_type)
        FIELD(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, matrix)
        FIELD(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, matrix_stride)
        FIELD(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_DATA_TYPE, matrix_type)
#undef FIELD
    default:
        return CUBLAS_STATUS_INVALID_VALUE;
    }
    if (!value || bytes != size)
        return CUBLAS_STATUS_INVALID_VALUE;
    memcpy(to, value, size);
    return CUBLAS_STATUS_SUCCESS;
}

// ---- preferences

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t *preference)
{
    cublasLtMatmulPreference_t made = new (std::nothrow) cublasLtMatmulPreferenceOpaque_t();
    if (!made)
        return CUBLAS_STATUS_ALLOC_FAILED;
    *behind<sim_lt_preference>(made) = {0, CUBLASLT_REDUCTION_SCHEME_MASK, {256, 256, 256, 256}, 0};
    *preference = made;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference)
{
    delete preference;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t preference,
                                                    cublasLtMatmulPreferenceAttributes_t attribute,
                                                    const void *value, size_t bytes)
{
    sim_lt_preference *p = behind<sim_lt_preference>(preference);
    void *to = NULL;
    size_t size = 0;
    switch (attribute) {
#define FIELD(name, field)                                                                                   \
    case name:                                                                                               \
        to = &p->field;                                                                                      \
        size = sizeof p->field;                                                                              \
        break;
        FIELD(CUBLASLT_MATMUL_PREF_SEARCH_MODE, search)
        FIELD(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, workspace)
        FIELD(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, reductions)
        FIELD(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, alignment[0])
        FIELD(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, alignment[1])
        FIELD(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, alignment[2])
        FIELD(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, alignment[3])
#undef FIELD
    default:
        return CUBLAS_STATUS_INVALID_VALUE;
    }
    if (!value || bytes != size)
        return CUBLAS_STATUS_INVALID_VALUE;
    memcpy(to, value, size);
    return CUBLAS_STATUS_SUCCESS;
}

} // extern "C"

// ---- what is supported

static bool is_16bit(cudaDataType_t type)
{
    return type == CUDA_R_16BF || type == CUDA_R_16F;
}

// Types of operands and results, of an epilogue's vector and matrix.
static cublasStatus_t check_types(const sim_lt_description *x, const sim_lt_layout *a, const sim_lt_layout *b,
                                  const sim_lt_layout *c, const sim_lt_layout *d)
{
    bool f32 = a->type == CUDA_R_32F;
    if (a->type != b->type || c->type != d->type || (!f32 && !is_16bit(a->type)))
        return CUBLAS_STATUS_NOT_SUPPORTED;
    if (d->type != a->type && d->type != CUDA_R_32F)
        return CUBLAS_STATUS_NOT_SUPPORTED;
    if (x->scale != CUDA_R_32F ||
        (x->compute != CUBLAS_COMPUTE_32F && (x->compute != CUBLAS_COMPUTE_32F_FAST_TF32 || !f32)))
        return CUBLAS_STATUS_NOT_SUPPORTED;
    if ((x->vector_type != -1 && x->vector_type != d->type) ||
        (x->matrix_type != -1 && x->matrix_type != d->type))
        return CUBLAS_STATUS_NOT_SUPPORTED;
    return CUBLAS_STATUS_SUCCESS;
}

static bool uses_vector(uint32_t epilogue)
{
    return epilogue == CUBLASLT_EPILOGUE_BGRADB || epilogue & CUBLASLT_EPILOGUE_BIAS;
}

static bool uses_matrix(uint32_t epilogue)
{
    return (epilogue & 128) != 0;
}

static cublasStatus_t check_epilogue(const sim_lt_description *x, const sim_lt_layout *d)
{
    switch (x->epilogue) {
    case CUBLASLT_EPILOGUE_DEFAULT:
    case CUBLASLT_EPILOGUE_BIAS:
        break;
    case CUBLASLT_EPILOGUE_GELU_AUX:
    case CUBLASLT_EPILOGUE_GELU_AUX_BIAS:
    case CUBLASLT_EPILOGUE_DGELU:
    case CUBLASLT_EPILOGUE_BGRADB:
        if (sim_option("lt_plain") > 0)
            return CUBLAS_STATUS_NOT_SUPPORTED;
        break;
    default:
        return CUBLAS_STATUS_NOT_SUPPORTED;
    }
    if (uses_vector(x->epilogue) && !x->vector)
        return CUBLAS_STATUS_INVALID_VALUE;
    if (!uses_matrix(x->epilogue))
        return CUBLAS_STATUS_SUCCESS;
    if (!x->matrix || x->matrix_stride < (int64_t)d->rows)
        return CUBLAS_STATUS_INVALID_VALUE;
    return x->matrix_stride % 8 || (uintptr_t)x->matrix % 16 ? CUBLAS_STATUS_NOT_SUPPORTED
                                                             : CUBLAS_STATUS_SUCCESS;
}

static cublasStatus_t check_layout(const sim_lt_layout *l, uint64_t rows, uint64_t columns)
{
    if (l->rows != rows || l->columns != columns || !rows || !columns || l->stride < (int64_t)rows)
        return CUBLAS_STATUS_INVALID_VALUE;
    return l->order != CUBLASLT_ORDER_COL || l->batch != 1 || rows > INT32_MAX || columns > INT32_MAX
               ? CUBLAS_STATUS_NOT_SUPPORTED
               : CUBLAS_STATUS_SUCCESS;
}

// All of it; m, n and k of a product that is supported.
static cublasStatus_t check_product(const sim_lt_description *x, const sim_lt_layout *a,
                                    const sim_lt_layout *b, const sim_lt_layout *c, const sim_lt_layout *d,
                                    uint64_t *k)
{
    bool trans_a = x->transpose_a == CUBLAS_OP_T, trans_b = x->transpose_b == CUBLAS_OP_T;
    *k = trans_a ? a->rows : a->columns;
    const cublasStatus_t all[] = {check_types(x, a, b, c, d),
                                  check_layout(a, trans_a ? *k : d->rows, trans_a ? d->rows : *k),
                                  check_layout(b, trans_b ? d->columns : *k, trans_b ? *k : d->columns),
                                  check_layout(c, d->rows, d->columns),
                                  check_layout(d, d->rows, d->columns),
                                  check_epilogue(x, d),
                                  sim_option("lt_none") > 0 ? CUBLAS_STATUS_NOT_SUPPORTED
                                                            : CUBLAS_STATUS_SUCCESS};
    for (cublasStatus_t status : all)
        if (status != CUBLAS_STATUS_SUCCESS)
            return status;
    return CUBLAS_STATUS_SUCCESS;
}

// ---- heuristics

static size_t size_of(cudaDataType_t type)
{
    return type == CUDA_R_32F ? 4 : 2;
}

// Workspace of an algorithm that sums `parts` parts of the depth.
static size_t parts_bytes(uint32_t parts, uint64_t m, uint64_t n)
{
    return parts > 1 ? parts * m * n * sizeof(float) : 0;
}

// Largest power of two up to 16 that divides the promised alignment of the pointers and the strides' bytes:
// what a kernel may access at once.
static uint32_t common_alignment(const sim_lt_preference *p, const sim_lt_layout *const *layouts)
{
    uint64_t bits = 16;
    for (int i = 0; i < 4; i++)
        bits |= p->alignment[i] | (uint64_t)layouts[i]->stride * size_of(layouts[i]->type);
    return (uint32_t)(bits & -bits);
}

extern "C" cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t, cublasLtMatmulDesc_t description,
                                                         cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                                         cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                                         cublasLtMatmulPreference_t preference, int most,
                                                         cublasLtMatmulHeuristicResult_t results[],
                                                         int *count)
{
    const sim_lt_layout *layouts[4] = {behind<sim_lt_layout>(a), behind<sim_lt_layout>(b),
                                       behind<sim_lt_layout>(c), behind<sim_lt_layout>(d)};
    const sim_lt_preference *p = behind<sim_lt_preference>(preference);
    uint64_t k, m = layouts[3]->rows, n = layouts[3]->columns;
    if (most <= 0 || !count)
        return CUBLAS_STATUS_INVALID_VALUE;
    *count = 0;
    cublasStatus_t status = check_product(behind<sim_lt_description>(description), layouts[0], layouts[1],
                                          layouts[2], layouts[3], &k);
    if (status != CUBLAS_STATUS_SUCCESS)
        return status;
    // Kinds that need whole words come first, as the faster ones do; those that sum parts differ in rounding.
    const uint32_t fast = common_alignment(p, layouts);
    const uint32_t slow = (uint32_t)size_of(layouts[0]->type);
    const sim_lt_algorithm all[] = {{ALGORITHM_MAGIC, 0, fast, 1},
                                    {ALGORITHM_MAGIC, 1, fast, 2},
                                    {ALGORITHM_MAGIC, 2, fast, 4},
                                    {ALGORITHM_MAGIC, 3, slow, 1}};
    for (const sim_lt_algorithm &algorithm : all) {
        size_t bytes = parts_bytes(algorithm.parts, m, n);
        if (*count == most || bytes > p->workspace || algorithm.parts > k ||
            (algorithm.parts > 1 && !(p->reductions & CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE)))
            continue;
        cublasLtMatmulHeuristicResult_t *r = &results[(*count)++];
        memset(r, 0, sizeof *r);
        *behind<sim_lt_algorithm>(&r->algo) = algorithm;
        r->workspaceSize = bytes;
        r->state = CUBLAS_STATUS_SUCCESS;
        r->wavesCount = 1;
    }
    return *count ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_NOT_SUPPORTED;
}

// ---- the product

static sim_lt_matrix matrix_of(const void *data, const sim_lt_layout *l, bool transposed)
{
    return {(void *)data, l->type, l->stride, transposed};
}

// The library may write to any of the workspace that it is given, at any time of the product.
static bool is_apart(const void *data, const sim_lt_layout *l, const void *workspace, size_t bytes)
{
    const uintptr_t at = (uintptr_t)data, from = (uintptr_t)workspace;
    const size_t size = ((l->columns - 1) * (uint64_t)l->stride + l->rows) * size_of(l->type);
    return !workspace || at + size <= from || from + bytes <= at;
}

extern "C" cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t description,
                                         const void *alpha, const void *a, cublasLtMatrixLayout_t a_layout,
                                         const void *b, cublasLtMatrixLayout_t b_layout, const void *beta,
                                         const void *c, cublasLtMatrixLayout_t c_layout, void *d,
                                         cublasLtMatrixLayout_t d_layout, const cublasLtMatmulAlgo_t *algo,
                                         void *workspace, size_t workspace_bytes, cudaStream_t stream)
{
    const sim_lt_description *x = behind<sim_lt_description>(description);
    const sim_lt_layout *la = behind<sim_lt_layout>(a_layout), *lb = behind<sim_lt_layout>(b_layout),
                        *lc = behind<sim_lt_layout>(c_layout), *ld = behind<sim_lt_layout>(d_layout);
    uint64_t k;
    if (!handle || ((sim_lt_handle *)handle)->magic != HANDLE_MAGIC || !alpha || !beta || !a || !b || !c ||
        !d)
        return CUBLAS_STATUS_INVALID_VALUE;
    cublasStatus_t status = check_product(x, la, lb, lc, ld, &k);
    if (status != CUBLAS_STATUS_SUCCESS)
        return status;
    if (!algo || x->pointer_mode != CUBLASLT_POINTER_MODE_HOST)
        return CUBLAS_STATUS_NOT_SUPPORTED; // ptbench always names one
    const sim_lt_algorithm *algorithm = (const sim_lt_algorithm *)(const void *)algo;
    if (algorithm->magic != ALGORITHM_MAGIC || (c == d && lc->stride != ld->stride))
        return CUBLAS_STATUS_INVALID_VALUE;
    size_t bytes = parts_bytes(algorithm->parts, ld->rows, ld->columns);
    if (bytes > workspace_bytes || (bytes && (!workspace || (uintptr_t)workspace % 16)))
        return CUBLAS_STATUS_INVALID_VALUE;
    for (const auto &of : {std::make_pair(a, la), std::make_pair(b, lb), std::make_pair(c, lc),
                           std::make_pair((const void *)d, ld)})
        if (!is_apart(of.first, of.second, workspace, workspace_bytes)) {
            fprintf(stderr, "simulated device: cublasLtMatmul: a matrix lies in the workspace\n");
            return CUBLAS_STATUS_INVALID_VALUE;
        }
    sim_lt_product product = {};
    product.a = matrix_of(a, la, x->transpose_a == CUBLAS_OP_T);
    product.b = matrix_of(b, lb, x->transpose_b == CUBLAS_OP_T);
    product.c = matrix_of(c, lc, false);
    product.d = matrix_of(d, ld, false);
    product.beside = {x->matrix, ld->type, x->matrix_stride, false};
    product.vector = x->vector;
    product.m = (int64_t)ld->rows;
    product.n = (int64_t)ld->columns;
    product.k = (int64_t)k;
    product.alpha = *(const float *)alpha;
    product.beta = *(const float *)beta;
    product.epilogue = (cublasLtEpilogue_t)x->epilogue;
    product.tf32 = x->compute == CUBLAS_COMPUTE_32F_FAST_TF32;
    product.alignment = algorithm->alignment;
    product.parts = (int)algorithm->parts;
    product.workspace = (float *)workspace;
    sim_activity activity = {};
    activity.kind = SIM_KERNEL;
    snprintf(activity.name, sizeof activity.name, "sim_gemm_%s_%u_parts%u",
             la->type == CUDA_R_32F ? "f32" : "16bit", algorithm->kind, algorithm->parts);
    return sim_enqueue(stream, sim_lt_run, &product, sizeof product, &activity) == cudaSuccess
               ? CUBLAS_STATUS_SUCCESS
               : CUBLAS_STATUS_EXECUTION_FAILED;
}
