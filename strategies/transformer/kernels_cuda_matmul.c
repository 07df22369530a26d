// Linear layers of the back-end `cuda`. A row-major matrix is the transpose of a column-major one with the
// same memory, so for cuBLASLt, which thinks in columns, out^T = weight * in^T. Groups of rows, and what the
// library does not have, go to ptbench's own kernel (kernels_cuda_product.cu).
#include "strategies/transformer/kernels_cuda_internal.h"
#include "strategies/transformer/kernels_cuda_product.h"

#include "core/log.h"

static ptb_status own_product(ptb_stream *stream, ptb_product_form form, const ptb_cuda_product *p)
{
    PTB_CUDA(ptb_cuda_launch_product(ptb_cuda_stream(stream), form, p));
    return PTB_OK;
}

static ptb_status is_tf32(ptb_stream *stream, ptb_dtype type, bool *tf32)
{
    *tf32 = false;
    return type == PTB_F32 ? ptb_library_tf32(stream, tf32) : PTB_OK;
}

// ---- forward

static ptb_status forward_own(ptb_stream *stream, const ptb_matmul *x)
{
    return own_product(stream, PTB_PRODUCT_FORWARD,
                       &(ptb_cuda_product){.out = x->out,
                                           .a = x->in,
                                           .b = x->weight,
                                           .addend = x->residual,
                                           .bias = x->bias,
                                           .activated = x->activated,
                                           .m = x->rows,
                                           .n = x->columns,
                                           .k = x->inner,
                                           .a_stride = x->inner,
                                           .b_stride = x->inner,
                                           .out_stride = ptb_row_stride(x->out_stride, x->columns),
                                           .groups = x->groups,
                                           .offsets = x->offsets,
                                           .type = x->type,
                                           .out_type = x->wide ? PTB_F32 : x->type});
}

// activated: by the product itself.
static ptb_status forward_library(ptb_stream *stream, const ptb_matmul *x, bool activated)
{
    ptb_library_product product = {.m = x->columns,
                                   .n = x->rows,
                                   .k = x->inner,
                                   .a_stride = x->inner,
                                   .b_stride = x->inner,
                                   .d_stride = ptb_row_stride(x->out_stride, x->columns),
                                   .transpose_a = true,
                                   .type = x->type,
                                   .out_type = x->wide ? PTB_F32 : x->type};
    if (activated)
        product.epilogue = x->bias ? PTB_LIBRARY_GELU_BIAS : PTB_LIBRARY_GELU;
    else
        product.epilogue = x->bias ? PTB_LIBRARY_BIAS : PTB_LIBRARY_PLAIN;
    PTB_TRY(is_tf32(stream, x->type, &product.tf32));
    ptb_library_operands operands = {.a = x->weight,
                                     .b = x->in,
                                     .c = x->residual,
                                     .d = activated ? x->activated : x->out,
                                     .vector = (void *)x->bias,
                                     .matrix = activated ? x->out : NULL};
    return ptb_library_run(stream, &product, &operands);
}

// On an H200 cuBLASLt multiplied by 50257 columns at an eighth of its rate, whatever the stride of their
// rows, and by 50256 at full rate. So with many columns, whose rows begin at whole words, those beyond the
// last multiple of WHOLE are made apart.
enum { WHOLE = 8, MANY = 4096 };
static size_t columns_beyond(ptb_dtype type, size_t groups, size_t columns, size_t stride)
{
    return type != PTB_F32 && !groups && columns >= MANY && stride % WHOLE == 0 ? columns % WHOLE : 0;
}

static ptb_status forward_in_parts(ptb_stream *stream, const ptb_matmul *x, size_t beyond)
{
    size_t whole = x->columns - beyond, size = ptb_dtype_size(x->type);
    ptb_matmul first = *x, rest = *x;
    first.columns = whole;
    rest.columns = beyond;
    first.out_stride = rest.out_stride = ptb_row_stride(x->out_stride, x->columns);
    rest.out = (char *)x->out + whole * (x->wide ? sizeof(float) : size);
    rest.weight = (const char *)x->weight + whole * x->inner * size;
    PTB_TRY(ptb_cuda_matmul(stream, &first));
    return forward_own(stream, &rest);
}

ptb_status ptb_cuda_matmul(ptb_stream *stream, const ptb_matmul *x)
{
    if (x->activated && (x->wide || x->out_stride)) {
        ptb_error("a linear layer with wide or strided results has no activation");
        return PTB_INTERNAL;
    }
    if (!x->rows || !x->columns)
        return PTB_OK;
    size_t beyond = columns_beyond(x->type, x->groups, x->columns, ptb_row_stride(x->out_stride, x->columns));
    if (beyond && !x->bias && !x->residual && !x->activated)
        return forward_in_parts(stream, x, beyond);
    if (x->groups || (x->wide && x->bias && x->type != PTB_F32)) // the library's bias has the results' type
        return forward_own(stream, x);
    ptb_status status = PTB_SKIPPED;
    if (x->activated && x->residual != x->out) { // or else it would be read and written at once
        status = forward_library(stream, x, true);
        if (status != PTB_SKIPPED)
            return status;
    }
    status = forward_library(stream, x, false);
    if (status == PTB_SKIPPED)
        return forward_own(stream, x);
    if (status != PTB_OK || !x->activated)
        return status;
    return ptb_cuda_activation(stream, &(ptb_activation){.out = x->activated,
                                                         .in = x->out,
                                                         .rows = x->rows,
                                                         .width = x->columns,
                                                         .kind = PTB_GELU,
                                                         .type = x->type});
}

// ---- input gradient

static ptb_status input_own(ptb_stream *stream, const ptb_matmul_input_gradient *x)
{
    return own_product(stream, PTB_PRODUCT_INPUT,
                       &(ptb_cuda_product){.out = x->d_in,
                                           .a = x->d_out,
                                           .b = x->weight,
                                           .addend = x->accumulate ? x->d_in : NULL,
                                           .gelu_in = x->gelu_in,
                                           .m = x->rows,
                                           .n = x->inner,
                                           .k = x->columns,
                                           .a_stride = ptb_row_stride(x->d_out_stride, x->columns),
                                           .b_stride = x->inner,
                                           .out_stride = x->inner,
                                           .groups = x->groups,
                                           .offsets = x->offsets,
                                           .type = x->type,
                                           .out_type = x->type});
}

static ptb_status input_library(ptb_stream *stream, const ptb_matmul_input_gradient *x, bool gelu)
{
    ptb_library_product product = {.m = x->inner,
                                   .n = x->rows,
                                   .k = x->columns,
                                   .a_stride = x->inner,
                                   .b_stride = ptb_row_stride(x->d_out_stride, x->columns),
                                   .d_stride = x->inner,
                                   .type = x->type,
                                   .out_type = x->type,
                                   .epilogue = gelu ? PTB_LIBRARY_GELU_GRADIENT : PTB_LIBRARY_PLAIN};
    PTB_TRY(is_tf32(stream, x->type, &product.tf32));
    ptb_library_operands operands = {.a = x->weight,
                                     .b = x->d_out,
                                     .c = x->accumulate ? x->d_in : NULL,
                                     .d = x->d_in,
                                     .matrix = gelu ? (void *)x->gelu_in : NULL};
    return ptb_library_run(stream, &product, &operands);
}

// The columns beyond are added to what the others gave: one rounding more.
static ptb_status input_in_parts(ptb_stream *stream, const ptb_matmul_input_gradient *x, size_t beyond)
{
    size_t whole = x->columns - beyond, size = ptb_dtype_size(x->type);
    ptb_matmul_input_gradient first = *x, rest = *x;
    first.columns = whole;
    rest.columns = beyond;
    first.d_out_stride = rest.d_out_stride = ptb_row_stride(x->d_out_stride, x->columns);
    rest.d_out = (const char *)x->d_out + whole * size;
    rest.weight = (const char *)x->weight + whole * x->inner * size;
    rest.accumulate = true;
    PTB_TRY(ptb_cuda_matmul_input_gradient(stream, &first));
    return input_own(stream, &rest);
}

ptb_status ptb_cuda_matmul_input_gradient(ptb_stream *stream, const ptb_matmul_input_gradient *x)
{
    size_t beyond =
        columns_beyond(x->type, x->groups, x->columns, ptb_row_stride(x->d_out_stride, x->columns));
    if (beyond && x->rows && !x->gelu_in)
        return input_in_parts(stream, x, beyond);
    if (!x->rows || !x->inner)
        return PTB_OK;
    if (x->groups)
        return input_own(stream, x);
    ptb_status status = PTB_SKIPPED;
    if (x->gelu_in) {
        status = input_library(stream, x, true);
        if (status != PTB_SKIPPED)
            return status;
    }
    status = input_library(stream, x, false);
    if (status == PTB_SKIPPED)
        return input_own(stream, x);
    if (status != PTB_OK || !x->gelu_in)
        return status;
    return ptb_cuda_activation_gradient(stream, &(ptb_activation_gradient){.d_in = x->d_in,
                                                                           .d_out = x->d_in,
                                                                           .in = x->gelu_in,
                                                                           .rows = x->rows,
                                                                           .width = x->inner,
                                                                           .kind = PTB_GELU,
                                                                           .type = x->type});
}

// ---- weight gradient

static ptb_status weight_own(ptb_stream *stream, const ptb_matmul_weight_gradient *x)
{
    return own_product(stream, PTB_PRODUCT_WEIGHT,
                       &(ptb_cuda_product){.out = x->d_weight,
                                           .a = x->d_out,
                                           .b = x->in,
                                           .addend = x->accumulate ? x->d_weight : NULL,
                                           .sums = x->d_bias,
                                           .sums_accumulate = x->accumulate,
                                           .m = x->columns,
                                           .n = x->inner,
                                           .k = x->rows,
                                           .a_stride = ptb_row_stride(x->d_out_stride, x->columns),
                                           .b_stride = x->inner,
                                           .out_stride = x->inner,
                                           .groups = x->groups,
                                           .offsets = x->offsets,
                                           .type = x->type,
                                           .out_type = PTB_F32});
}

// sums: the bias's gradient by the product itself, which can write it but not add to it.
static ptb_status weight_library(ptb_stream *stream, const ptb_matmul_weight_gradient *x, bool sums)
{
    ptb_library_product product = {.m = x->inner,
                                   .n = x->columns,
                                   .k = x->rows,
                                   .a_stride = x->inner,
                                   .b_stride = ptb_row_stride(x->d_out_stride, x->columns),
                                   .d_stride = x->inner,
                                   .transpose_b = true,
                                   .type = x->type,
                                   .out_type = PTB_F32,
                                   .epilogue = sums ? PTB_LIBRARY_SUMS : PTB_LIBRARY_PLAIN};
    PTB_TRY(is_tf32(stream, x->type, &product.tf32));
    ptb_library_operands operands = {.a = x->in,
                                     .b = x->d_out,
                                     .c = x->accumulate ? x->d_weight : NULL,
                                     .d = x->d_weight,
                                     .vector = sums ? x->d_bias : NULL};
    return ptb_library_run(stream, &product, &operands);
}

static ptb_status bias_sums(ptb_stream *stream, const ptb_matmul_weight_gradient *x)
{
    const ptb_cuda_sums sums = {.sums = x->d_bias,
                                .in = x->d_out,
                                .rows = x->rows,
                                .width = x->columns,
                                .stride = ptb_row_stride(x->d_out_stride, x->columns),
                                .type = x->type,
                                .accumulate = x->accumulate};
    void *scratch;
    PTB_TRY(ptb_cuda_scratch(stream, ptb_cuda_sums_scratch(&sums), &scratch));
    PTB_CUDA(ptb_cuda_launch_sums(ptb_cuda_stream(stream), &sums, scratch));
    return PTB_OK;
}

static ptb_status weight_of_nothing(ptb_stream *stream, const ptb_matmul_weight_gradient *x)
{
    size_t weights = x->groups ? x->groups : 1;
    if (x->accumulate)
        return PTB_OK;
    PTB_TRY(ptb_stream_set(stream, x->d_weight, 0, weights * x->columns * x->inner * sizeof *x->d_weight));
    return x->d_bias ? ptb_stream_set(stream, x->d_bias, 0, weights * x->columns * sizeof *x->d_bias)
                     : PTB_OK;
}

static ptb_status weight_in_parts(ptb_stream *stream, const ptb_matmul_weight_gradient *x, size_t beyond)
{
    size_t whole = x->columns - beyond, size = ptb_dtype_size(x->type);
    ptb_matmul_weight_gradient first = *x, rest = *x;
    first.columns = whole;
    rest.columns = beyond;
    first.d_out_stride = rest.d_out_stride = ptb_row_stride(x->d_out_stride, x->columns);
    rest.d_weight = x->d_weight + whole * x->inner;
    rest.d_out = (const char *)x->d_out + whole * size;
    PTB_TRY(ptb_cuda_matmul_weight_gradient(stream, &first));
    return weight_own(stream, &rest);
}

ptb_status ptb_cuda_matmul_weight_gradient(ptb_stream *stream, const ptb_matmul_weight_gradient *x)
{
    if (!x->columns || !x->inner)
        return PTB_OK;
    if (!x->rows)
        return weight_of_nothing(stream, x);
    if (x->groups)
        return weight_own(stream, x);
    size_t stride = ptb_row_stride(x->d_out_stride, x->columns);
    size_t beyond = x->d_bias ? 0 : columns_beyond(x->type, x->groups, x->columns, stride);
    if (beyond)
        return weight_in_parts(stream, x, beyond);
    ptb_status status = PTB_SKIPPED;
    if (x->d_bias && !x->accumulate) {
        status = weight_library(stream, x, true);
        if (status != PTB_SKIPPED)
            return status;
    }
    status = weight_library(stream, x, false);
    if (status == PTB_SKIPPED)
        return weight_own(stream, x);
    return status == PTB_OK && x->d_bias ? bias_sums(stream, x) : status;
}
