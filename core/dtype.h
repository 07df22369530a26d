// Element types and reduction operations, with nccl-tests' and NCCL's usual names.
#ifndef PTB_CORE_DTYPE_H
#define PTB_CORE_DTYPE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

// name, bytes, is floating, significant bits (of the integers it represents exactly)
#define PTB_DTYPE_LIST(X)                                                                                    \
    X(F64, f64, 8, true, 53)                                                                                 \
    X(F32, f32, 4, true, 24)                                                                                 \
    X(F16, f16, 2, true, 11)                                                                                 \
    X(BF16, bf16, 2, true, 8)                                                                                \
    X(I64, i64, 8, false, 63)                                                                                \
    X(I32, i32, 4, false, 31)                                                                                \
    X(I8, i8, 1, false, 7)                                                                                   \
    X(U8, u8, 1, false, 8)

typedef enum {
#define X(upper, lower, bytes, floating, bits) PTB_##upper,
    PTB_DTYPE_LIST(X)
#undef X
        PTB_DTYPE_COUNT
} ptb_dtype;

typedef enum { PTB_SUM, PTB_PROD, PTB_MIN, PTB_MAX, PTB_AVG, PTB_REDOP_COUNT } ptb_redop;

static inline size_t ptb_dtype_size(ptb_dtype type)
{
    static const unsigned char sizes[] = {
#define X(upper, lower, bytes, floating, bits) bytes,
        PTB_DTYPE_LIST(X)
#undef X
    };
    return sizes[type];
}

const char *ptb_dtype_name(ptb_dtype type);              // "f32"
bool ptb_dtype_parse(const char *name, ptb_dtype *type); // also "float", "half", "bfloat16", "int32", ...
bool ptb_dtype_is_float(ptb_dtype type);
int ptb_dtype_significant_bits(ptb_dtype type);
const char *ptb_redop_name(ptb_redop op); // "sum"
bool ptb_redop_parse(const char *name, ptb_redop *op);
extern const char *const ptb_dtype_names[]; // NULL-terminated, for option choices
extern const char *const ptb_redop_names[];

// Conversions with round-to-nearest-even; exact for values the type represents. Integers are converted by
// value.
double ptb_dtype_load(ptb_dtype type, const void *element);
void ptb_dtype_store(ptb_dtype type, void *element, double value);
uint16_t ptb_f32_to_bf16(float value);
float ptb_bf16_to_f32(uint16_t bits);
uint16_t ptb_f32_to_f16(float value);
float ptb_f16_to_f32(uint16_t bits);
// The same for arrays, vectorised.
void ptb_f32_to_f16_array(uint16_t *out, const float *in, size_t count);
void ptb_f16_to_f32_array(float *out, const uint16_t *in, size_t count);

// out[i] = a[i] op b[i] for i < count, on host memory; out may be a or b. AVG adds (finish with
// ptb_reduce_finish). f16 and bf16 are computed in f32 and rounded once. Integers wrap.
typedef void ptb_reduce_fn(void *out, const void *a, const void *b, size_t count);
ptb_reduce_fn *ptb_reduce_function(ptb_dtype type, ptb_redop op);
// As above with streaming (non-temporal) stores, for results that are larger than the caches; out must not be
// a or b.
ptb_reduce_fn *ptb_reduce_function_streaming(ptb_dtype type, ptb_redop op);
// Two results at once: out0[i] = out1[i] = a[i] op b[i]; streaming chooses non-temporal stores.
typedef void ptb_reduce2_fn(void *out0, void *out1, const void *a, const void *b, size_t count,
                            bool streaming);
ptb_reduce2_fn *ptb_reduce2_function(ptb_dtype type, ptb_redop op);
// AVG: buffer[i] /= ranks (floats: divided in the compute type, then rounded; integers: truncated toward
// zero). Other ops: nothing.
void ptb_reduce_finish(ptb_dtype type, ptb_redop op, void *buffer, size_t count, int ranks);

#endif
