// Products by cuBLASLt. A plan is a product with its descriptors and the algorithm chosen for it; plans are
// kept with the stream, found again by the product's description and the alignment of its operands.
#include "strategies/transformer/kernels_cuda_cublaslt.h"
#include "strategies/transformer/kernels_cuda_internal.h"
#include "strategies/transformer/kernels_cuda_product.h"

#include "core/log.h"

#include <cuda_runtime_api.h>
#include <stdlib.h>
#include <string.h>

enum {
    CANDIDATES = 8, // algorithms that are timed, of those that the library proposes
    TIMED_RUNS = 3, // of each, after one that is not timed
    ALIGNMENT = 16, // bytes: no access is wider, and one product has one plan wherever its operands lie
};

typedef struct {
    ptb_library_product product;
    unsigned align_a, align_b, align_c, align_d, align_vector, align_matrix; // bytes, at most ALIGNMENT
} plan_key;

typedef struct {
    plan_key key;
    cublasLtMatmulDesc_t description;
    cublasLtMatrixLayout_t a, b, d; // c has d's
    cublasLtMatmulAlgo_t algorithm; // the best so far
    bool supported;                 // there is an algorithm
    bool timed;                     // it was chosen by time
} plan;

// What linear layers keep with a stream.
typedef struct {
    cublasLtHandle_t handle;
    cublasLtMatmulPreference_t preference;
    cudaEvent_t begin, end;
    void *workspace; // the stream's scratch
    size_t workspace_bytes;
    bool tf32;
    bool searches; // algorithms are timed
    plan *plans;
    size_t count, room;
} library_state;

static inline const ptb_cublaslt_api *lt(void)
{
    return ptb_cublaslt_functions();
}

static const char *advice(cublasStatus_t status)
{
    switch (status) {
    case CUBLAS_STATUS_NOT_INITIALIZED:
        return "the CUDA driver or the device did not start: see `ptbench doctor`";
    case CUBLAS_STATUS_ALLOC_FAILED:
        return "use a smaller model or batch, or fewer ranks on this GPU";
    case CUBLAS_STATUS_ARCH_MISMATCH:
        return "this cuBLAS is not made for this GPU: put another one first on LD_LIBRARY_PATH";
    default:
        return "CUBLASLT_LOG_LEVEL=5 in the environment has it say more";
    }
}

static ptb_status check(cublasStatus_t status, const char *call, int line)
{
    if (status == CUBLAS_STATUS_SUCCESS)
        return PTB_OK;
    ptb_text said = PTB_TEXT_INIT;
    ptb_status cause = ptb_cuda_cause(&said);
    if (cause == PTB_OK)
        ptb_text_append(&said, advice(status));
    ptb_error("%s failed at %s:%d: %s (%s); %s", call, __FILE__, line, lt()->GetStatusName(status),
              lt()->GetStatusString(status), ptb_text_string(&said));
    ptb_text_release(&said);
    if (cause != PTB_OK)
        return cause;
    return status == CUBLAS_STATUS_ALLOC_FAILED ? PTB_NO_MEMORY : PTB_SYSTEM;
}
#define LIBRARY(name, ...) PTB_TRY(check(lt()->name(__VA_ARGS__), "cublasLt" #name, __LINE__))

// ---- the stream's state

static void plan_release(plan *p)
{
    lt()->MatrixLayoutDestroy(p->d);
    lt()->MatrixLayoutDestroy(p->b);
    lt()->MatrixLayoutDestroy(p->a);
    lt()->MatmulDescDestroy(p->description);
}

static void state_free(ptb_stream *stream, void *state)
{
    library_state *s = state;
    (void)stream;
    for (size_t i = 0; i < s->count; i++)
        plan_release(&s->plans[i]);
    free(s->plans);
    if (s->end)
        cudaEventDestroy(s->end);
    if (s->begin)
        cudaEventDestroy(s->begin);
    if (s->preference)
        lt()->MatmulPreferenceDestroy(s->preference);
    if (s->handle)
        lt()->Destroy(s->handle);
    free(s);
}

size_t ptb_cuda_stream_workspace(int threads)
{
    (void)threads;
    int device = 0, major = 0;
    bool asked = cudaGetDevice(&device) == cudaSuccess &&
                 cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device) == cudaSuccess;
    return (size_t)(asked && major >= 9 ? 64 : 32) << 20;
}

size_t ptb_library_scratch(void)
{
    return (ptb_cuda_stream_workspace(1) - PTB_CUDA_COUNTERS * sizeof(unsigned)) / 256 * 256;
}

// Algorithms add up partial sums in f32 only: results are rounded once.
static ptb_status preference_init(library_state *s)
{
    uint32_t reductions = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
    LIBRARY(MatmulPreferenceCreate, &s->preference);
    LIBRARY(MatmulPreferenceSetAttribute, s->preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
            &reductions, sizeof reductions);
    return PTB_OK;
}

// Two algorithms may round differently, so who compares results bit by bit over processes turns the search
// off. On a simulated device times say nothing, and it is off unless it is asked for.
static ptb_status read_search(const ptb_stream *stream, library_state *s)
{
    const char *asked = getenv("PTBENCH_CUBLASLT_SEARCH");
    if (!asked || !*asked)
        s->searches = !stream->device->simulated;
    else if (strcmp(asked, "time") == 0 || strcmp(asked, "first") == 0)
        s->searches = strcmp(asked, "time") == 0;
    else {
        ptb_error(
            "PTBENCH_CUBLASLT_SEARCH=%s: expected time (algorithms are timed) or first (the library's first "
            "proposal)",
            asked);
        return PTB_USAGE;
    }
    return PTB_OK;
}

static ptb_status load(void)
{
    ptb_text why = PTB_TEXT_INIT;
    ptb_status status = ptb_cublaslt_load(&why);
    if (status != PTB_OK)
        ptb_error("%s", ptb_text_string(&why));
    ptb_text_release(&why);
    return status;
}

static ptb_status state_init(const ptb_stream *stream, library_state *s)
{
    PTB_TRY(load());
    PTB_TRY(read_search(stream, s));
    LIBRARY(Create, &s->handle);
    PTB_CUDA(cudaEventCreate(&s->begin));
    PTB_CUDA(cudaEventCreate(&s->end));
    s->workspace_bytes = ptb_library_scratch();
    return preference_init(s);
}

static ptb_status state_of(ptb_stream *stream, library_state **state)
{
    ptb_cuda_kept *kept;
    PTB_TRY(ptb_cuda_keep(stream, &kept));
    if (!kept->linear) {
        library_state *s = calloc(1, sizeof *s);
        if (!s) {
            ptb_error("no memory for what matrix products keep with a stream");
            return PTB_NO_MEMORY;
        }
        ptb_status status = state_init(stream, s);
        if (status != PTB_OK) {
            state_free(stream, s);
            return status;
        }
        kept->linear = s;
        kept->linear_free = state_free;
    }
    *state = kept->linear;
    return ptb_cuda_scratch(stream, (*state)->workspace_bytes, &(*state)->workspace);
}

ptb_status ptb_cuda_reserve(ptb_stream *stream)
{
    library_state *s;
    PTB_TRY(state_of(stream, &s));
    return ptb_stream_sync(stream);
}

ptb_status ptb_library_set_tf32(ptb_stream *stream, bool on)
{
    library_state *s;
    PTB_TRY(state_of(stream, &s));
    s->tf32 = on;
    return PTB_OK;
}

ptb_status ptb_library_tf32(ptb_stream *stream, bool *on)
{
    library_state *s;
    PTB_TRY(state_of(stream, &s));
    *on = s->tf32;
    return PTB_OK;
}

ptb_status ptb_library_set_search(ptb_stream *stream, bool on)
{
    library_state *s;
    PTB_TRY(state_of(stream, &s));
    s->searches = on;
    return PTB_OK;
}

// ---- making a plan

static cudaDataType_t data_type(ptb_dtype type)
{
    return type == PTB_BF16 ? CUDA_R_16BF : type == PTB_F16 ? CUDA_R_16F : CUDA_R_32F;
}

static cublasLtEpilogue_t epilogue_of(ptb_library_epilogue epilogue)
{
    switch (epilogue) {
    case PTB_LIBRARY_BIAS:
        return CUBLASLT_EPILOGUE_BIAS;
    case PTB_LIBRARY_GELU:
        return CUBLASLT_EPILOGUE_GELU_AUX;
    case PTB_LIBRARY_GELU_BIAS:
        return CUBLASLT_EPILOGUE_GELU_AUX_BIAS;
    case PTB_LIBRARY_GELU_GRADIENT:
        return CUBLASLT_EPILOGUE_DGELU;
    case PTB_LIBRARY_SUMS:
        return CUBLASLT_EPILOGUE_BGRADB;
    case PTB_LIBRARY_PLAIN:
        break;
    }
    return CUBLASLT_EPILOGUE_DEFAULT;
}

// Of what the pointer is a multiple.
static unsigned alignment(const void *pointer)
{
    uintptr_t bits = (uintptr_t)pointer | ALIGNMENT;
    return (unsigned)(bits & -bits);
}

static plan_key key_of(const ptb_library_product *product, const ptb_library_operands *o)
{
    plan_key key;
    memset(&key, 0, sizeof key); // padding too: keys are compared as bytes
    memcpy(&key.product, product, sizeof *product);
    key.align_a = alignment(o->a);
    key.align_b = alignment(o->b);
    key.align_c = alignment(o->c ? o->c : o->d); // something has to stand there
    key.align_d = alignment(o->d);
    key.align_vector = alignment(o->vector);
    key.align_matrix = alignment(o->matrix);
    return key;
}

static ptb_status set_description(plan *p, cublasLtMatmulDescAttributes_t attribute, const void *value,
                                  size_t bytes)
{
    LIBRARY(MatmulDescSetAttribute, p->description, attribute, value, bytes);
    return PTB_OK;
}
#define DESCRIBE(p, attribute, value) PTB_TRY(set_description(p, attribute, &(value), sizeof(value)))

static bool has_vector(ptb_library_epilogue epilogue)
{
    return epilogue == PTB_LIBRARY_BIAS || epilogue == PTB_LIBRARY_GELU_BIAS || epilogue == PTB_LIBRARY_SUMS;
}

static bool has_matrix(ptb_library_epilogue epilogue)
{
    return epilogue == PTB_LIBRARY_GELU || epilogue == PTB_LIBRARY_GELU_BIAS ||
           epilogue == PTB_LIBRARY_GELU_GRADIENT;
}

// The pointers of an epilogue are part of the description.
static ptb_status set_operands(plan *p, const ptb_library_operands *o)
{
    if (has_vector(p->key.product.epilogue))
        DESCRIBE(p, CUBLASLT_MATMUL_DESC_BIAS_POINTER, o->vector);
    if (has_matrix(p->key.product.epilogue))
        DESCRIBE(p, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, o->matrix);
    return PTB_OK;
}

static ptb_status describe(plan *p)
{
    const ptb_library_product *x = &p->key.product;
    cublasComputeType_t compute = x->tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F;
    int32_t transpose_a = x->transpose_a ? CUBLAS_OP_T : CUBLAS_OP_N;
    int32_t transpose_b = x->transpose_b ? CUBLAS_OP_T : CUBLAS_OP_N;
    uint32_t epilogue = (uint32_t)epilogue_of(x->epilogue);
    int64_t matrix_stride = (int64_t)x->d_stride;
    LIBRARY(MatmulDescCreate, &p->description, compute, CUDA_R_32F);
    DESCRIBE(p, CUBLASLT_MATMUL_DESC_TRANSA, transpose_a);
    DESCRIBE(p, CUBLASLT_MATMUL_DESC_TRANSB, transpose_b);
    DESCRIBE(p, CUBLASLT_MATMUL_DESC_EPILOGUE, epilogue);
    if (has_matrix(x->epilogue))
        DESCRIBE(p, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, matrix_stride);
    LIBRARY(MatrixLayoutCreate, &p->a, data_type(x->type), x->transpose_a ? x->k : x->m,
            x->transpose_a ? x->m : x->k, (int64_t)x->a_stride);
    LIBRARY(MatrixLayoutCreate, &p->b, data_type(x->type), x->transpose_b ? x->n : x->k,
            x->transpose_b ? x->k : x->n, (int64_t)x->b_stride);
    LIBRARY(MatrixLayoutCreate, &p->d, data_type(x->out_type), x->m, x->n, (int64_t)x->d_stride);
    return PTB_OK;
}

// Algorithms may use the workspace.
static ptb_status set_preference(library_state *s, const plan_key *key)
{
    uint64_t workspace = s->workspace_bytes - key->product.reserved;
    const struct {
        cublasLtMatmulPreferenceAttributes_t attribute;
        uint32_t bytes;
    } all[] = {{CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, key->align_a},
               {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, key->align_b},
               {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, key->align_c},
               {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, key->align_d}};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        LIBRARY(MatmulPreferenceSetAttribute, s->preference, all[i].attribute, &all[i].bytes,
                sizeof all[i].bytes);
    LIBRARY(MatmulPreferenceSetAttribute, s->preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace,
            sizeof workspace);
    return PTB_OK;
}

// Algorithms that the library proposes, those it expects to be faster first; 0: none.
static ptb_status propose(library_state *s, const plan *p, cublasLtMatmulHeuristicResult_t *proposals,
                          int most, int *count)
{
    int found = 0;
    PTB_TRY(set_preference(s, &p->key));
    cublasStatus_t status = lt()->MatmulAlgoGetHeuristic(s->handle, p->description, p->a, p->b, p->d, p->d,
                                                         s->preference, most, proposals, &found);
    *count = 0;
    if (status == CUBLAS_STATUS_NOT_SUPPORTED || status == CUBLAS_STATUS_INVALID_VALUE)
        return PTB_OK; // it says either for combinations that it does not have
    PTB_TRY(check(status, "cublasLtMatmulAlgoGetHeuristic", __LINE__));
    for (int i = 0; i < found; i++)
        if (proposals[i].state == CUBLAS_STATUS_SUCCESS &&
            proposals[i].workspaceSize <= s->workspace_bytes - p->key.product.reserved)
            proposals[(*count)++] = proposals[i];
    return PTB_OK;
}

static ptb_status plan_init(library_state *s, const plan_key *key, const ptb_library_operands *o, plan *p)
{
    cublasLtMatmulHeuristicResult_t first;
    int count;
    *p = (plan){.key = *key};
    memcpy(&p->key, key, sizeof *key);
    PTB_TRY(describe(p));
    PTB_TRY(set_operands(p, o));
    PTB_TRY(propose(s, p, &first, 1, &count));
    p->supported = count > 0;
    if (p->supported)
        p->algorithm = first.algo;
    return PTB_OK;
}

// The plan is valid until the next call.
static ptb_status plan_of(library_state *s, const ptb_library_product *product, const ptb_library_operands *o,
                          plan **found)
{
    plan_key key = key_of(product, o);
    for (size_t i = 0; i < s->count; i++)
        if (memcmp(&s->plans[i].key, &key, sizeof key) == 0) {
            *found = &s->plans[i];
            return PTB_OK;
        }
    if (s->count == s->room) {
        size_t room = s->room ? 2 * s->room : 32;
        plan *more = realloc(s->plans, room * sizeof *more);
        if (!more) {
            ptb_error("no memory for %zu plans of matrix products", room);
            return PTB_NO_MEMORY;
        }
        s->plans = more;
        s->room = room;
    }
    plan *p = &s->plans[s->count];
    ptb_status status = plan_init(s, &key, o, p);
    if (status != PTB_OK) {
        plan_release(p);
        return status;
    }
    s->count++;
    *found = p;
    return PTB_OK;
}

// ---- running and timing

static cublasStatus_t enqueue(ptb_stream *stream, const library_state *s, const plan *p,
                              const ptb_library_operands *o, const cublasLtMatmulAlgo_t *algorithm)
{
    const float one = 1, beta = o->c ? 1 : 0;
    size_t reserved = p->key.product.reserved;
    return lt()->Matmul(s->handle, p->description, &one, o->a, p->a, o->b, p->b, &beta, o->c ? o->c : o->d,
                        p->d, o->d, p->d, algorithm, (char *)s->workspace + reserved,
                        s->workspace_bytes - reserved, ptb_cuda_stream(stream));
}

// Milliseconds of a run; negative: it does not run.
static ptb_status time_of(ptb_stream *stream, library_state *s, const plan *p, const ptb_library_operands *o,
                          const cublasLtMatmulAlgo_t *algorithm, float *ms)
{
    *ms = -1;
    if (enqueue(stream, s, p, o, algorithm) != CUBLAS_STATUS_SUCCESS)
        return PTB_OK; // proposed, and then refused: others remain
    PTB_CUDA(cudaEventRecord(s->begin, ptb_cuda_stream(stream)));
    for (int i = 0; i < TIMED_RUNS; i++)
        PTB_TRY(check(enqueue(stream, s, p, o, algorithm), "cublasLtMatmul", __LINE__));
    PTB_CUDA(cudaEventRecord(s->end, ptb_cuda_stream(stream)));
    PTB_CUDA(cudaEventSynchronize(s->end));
    PTB_CUDA(cudaEventElapsedTime(ms, s->begin, s->end));
    return PTB_OK;
}

// Every run writes the same result: no operand is d.
static ptb_status choose(ptb_stream *stream, library_state *s, plan *p, const ptb_library_operands *o)
{
    cublasLtMatmulHeuristicResult_t proposals[CANDIDATES];
    int count;
    float best = -1;
    PTB_TRY(propose(s, p, proposals, CANDIDATES, &count));
    for (int i = 0; i < count; i++) {
        float ms;
        PTB_TRY(time_of(stream, s, p, o, &proposals[i].algo, &ms));
        if (ms >= 0 && (best < 0 || ms < best)) {
            best = ms;
            p->algorithm = proposals[i].algo;
        }
    }
    p->timed = true;
    p->supported = best >= 0;
    return PTB_OK;
}

// Where c is d, the timed runs write to memory of their own, which is in no category of the ledger since it
// exists in this call alone; without memory for it the library's first proposal stays.
static ptb_status choose_apart(ptb_stream *stream, library_state *s, plan *p, const ptb_library_operands *o)
{
    const ptb_library_product *x = &p->key.product;
    ptb_library_operands apart = *o;
    if (o->c != o->d)
        return choose(stream, s, p, o);
    p->timed = true;
    if (cudaMallocAsync(&apart.d, x->d_stride * x->n * ptb_dtype_size(x->out_type),
                        ptb_cuda_stream(stream)) != cudaSuccess) {
        cudaGetLastError();
        return PTB_OK;
    }
    ptb_status status = choose(stream, s, p, &apart);
    PTB_CUDA(cudaFreeAsync(apart.d, ptb_cuda_stream(stream)));
    return status;
}

static ptb_status may_time(ptb_stream *stream, const library_state *s, const plan *p, bool *may)
{
    enum cudaStreamCaptureStatus capture = cudaStreamCaptureStatusActive;
    if (s->searches && !p->timed)
        PTB_CUDA(cudaStreamIsCapturing(ptb_cuda_stream(stream), &capture));
    *may = capture == cudaStreamCaptureStatusNone;
    return PTB_OK;
}

ptb_status ptb_library_run(ptb_stream *stream, const ptb_library_product *product,
                           const ptb_library_operands *o)
{
    library_state *s;
    plan *p;
    bool may;
    PTB_TRY(state_of(stream, &s));
    PTB_TRY(plan_of(s, product, o, &p));
    if (!p->supported)
        return PTB_SKIPPED;
    PTB_TRY(set_operands(p, o));
    PTB_TRY(may_time(stream, s, p, &may));
    if (may)
        PTB_TRY(choose_apart(stream, s, p, o));
    cublasStatus_t status =
        p->supported ? enqueue(stream, s, p, o, &p->algorithm) : CUBLAS_STATUS_NOT_SUPPORTED;
    if (status == CUBLAS_STATUS_NOT_SUPPORTED) { // it may propose what it then does not have
        p->supported = false;
        return PTB_SKIPPED;
    }
    PTB_TRY(check(status, "cublasLtMatmul", __LINE__));
    return PTB_OK;
}
