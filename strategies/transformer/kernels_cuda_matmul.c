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

// The same product by the library, which sees it transposed, with as much of it fused as p asks for. One
// thing at most: bias and activation of a forward product count as one. `reserved` bytes of the stream's
// scratch are left alone. SKIPPED: it has no algorithm for that.
static ptb_status library_product_beside(ptb_stream *stream, ptb_product_form form, const ptb_cuda_product *p,
                                         size_t reserved)
{
    ptb_library_product product = {.m = p->n,
                                   .n = p->m,
                                   .k = p->k,
                                   .a_stride = p->b_stride,
                                   .b_stride = p->a_stride,
                                   .d_stride = p->out_stride,
                                   .transpose_a = form == PTB_PRODUCT_FORWARD,
                                   .transpose_b = form == PTB_PRODUCT_WEIGHT,
                                   .type = p->type,
                                   .out_type = p->out_type,
                                   .epilogue = p->gelu_in ? PTB_LIBRARY_GELU_GRADIENT
                                               : p->sums  ? PTB_LIBRARY_SUMS
                                                          : PTB_LIBRARY_PLAIN,
                                   .reserved = reserved};
    ptb_library_operands operands = {
        .a = p->b, .b = p->a, .c = p->addend, .d = p->out, .vector = p->sums, .matrix = (void *)p->gelu_in};
    if (p->activated) {
        product.epilogue = p->bias ? PTB_LIBRARY_GELU_BIAS : PTB_LIBRARY_GELU;
        operands.d = p->activated;
        operands.matrix = p->out;
    } else if (p->bias) {
        product.epilogue = PTB_LIBRARY_BIAS;
    }
    if (p->bias)
        operands.vector = (void *)p->bias;
    PTB_TRY(is_tf32(stream, p->type, &product.tf32));
    return ptb_library_run(stream, &product, &operands);
}

static ptb_status library_product(ptb_stream *stream, ptb_product_form form, const ptb_cuda_product *p)
{
    return library_product_beside(stream, form, p, 0);
}

// ---- forward

static ptb_cuda_product forward_of(const ptb_matmul *x)
{
    return (ptb_cuda_product){.out = x->out,
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
                              .out_type = x->wide ? PTB_F32 : x->type};
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
    ptb_cuda_product p = forward_of(&rest);
    return own_product(stream, PTB_PRODUCT_FORWARD, &p);
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
    ptb_cuda_product p = forward_of(x), plain = p;
    if (x->groups || (x->wide && x->bias && x->type != PTB_F32)) // the library's bias has the results' type
        return own_product(stream, PTB_PRODUCT_FORWARD, &p);
    ptb_status status = PTB_SKIPPED;
    if (x->activated && x->residual != x->out) { // or else it would be read and written at once
        status = library_product(stream, PTB_PRODUCT_FORWARD, &p);
        if (status != PTB_SKIPPED)
            return status;
    }
    plain.activated = NULL;
    status = library_product(stream, PTB_PRODUCT_FORWARD, &plain);
    if (status == PTB_SKIPPED)
        return own_product(stream, PTB_PRODUCT_FORWARD, &p);
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

static ptb_cuda_product input_of(const ptb_matmul_input_gradient *x)
{
    return (ptb_cuda_product){.out = x->d_in,
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
                              .out_type = x->type};
}

// The library's sums over the whole words, in f32, to which those over the columns beyond are added before
// the result is rounded.
static ptb_status input_rows_in_parts(ptb_stream *stream, const ptb_matmul_input_gradient *x, size_t beyond,
                                      float *partial, size_t reserved)
{
    size_t whole = x->columns - beyond, size = ptb_dtype_size(x->type);
    ptb_cuda_product all = input_of(x), first = all, rest = all;
    first.k = whole;
    first.out = partial;
    first.out_type = PTB_F32;
    first.addend = NULL;
    rest.k = beyond;
    rest.a = (const char *)all.a + whole * size;
    rest.b = (const char *)all.b + whole * x->inner * size;
    rest.partial = partial;
    ptb_status status = library_product_beside(stream, PTB_PRODUCT_INPUT, &first, reserved);
    if (status != PTB_OK)
        return status == PTB_SKIPPED ? own_product(stream, PTB_PRODUCT_INPUT, &all) : status;
    return own_product(stream, PTB_PRODUCT_INPUT, &rest);
}

// Those sums take half of the stream's scratch, so rows come as many at a time as fit, in equal parts.
static ptb_status input_in_parts(ptb_stream *stream, const ptb_matmul_input_gradient *x, size_t beyond)
{
    size_t stride = ptb_row_stride(x->d_out_stride, x->columns), size = ptb_dtype_size(x->type);
    size_t reserved = ptb_library_scratch() / 2 / 256 * 256, most = reserved / (x->inner * sizeof(float));
    void *partial;
    if (!most) {
        ptb_cuda_product all = input_of(x);
        return own_product(stream, PTB_PRODUCT_INPUT, &all);
    }
    PTB_TRY(ptb_cuda_scratch(stream, ptb_library_scratch(), &partial));
    size_t parts = (x->rows + most - 1) / most, at_once = (x->rows + parts - 1) / parts;
    for (size_t row = 0; row < x->rows; row += at_once) {
        ptb_matmul_input_gradient some = *x;
        some.rows = x->rows - row < at_once ? x->rows - row : at_once;
        some.d_in = (char *)x->d_in + row * x->inner * size;
        some.d_out = (const char *)x->d_out + row * stride * size;
        some.d_out_stride = stride;
        PTB_TRY(input_rows_in_parts(stream, &some, beyond, partial, reserved));
    }
    return PTB_OK;
}

ptb_status ptb_cuda_matmul_input_gradient(ptb_stream *stream, const ptb_matmul_input_gradient *x)
{
    size_t beyond =
        columns_beyond(x->type, x->groups, x->columns, ptb_row_stride(x->d_out_stride, x->columns));
    if (!x->rows || !x->inner)
        return PTB_OK;
    if (beyond && !x->gelu_in)
        return input_in_parts(stream, x, beyond);
    ptb_cuda_product p = input_of(x), plain = p;
    if (x->groups)
        return own_product(stream, PTB_PRODUCT_INPUT, &p);
    ptb_status status = PTB_SKIPPED;
    if (x->gelu_in) {
        status = library_product(stream, PTB_PRODUCT_INPUT, &p);
        if (status != PTB_SKIPPED)
            return status;
    }
    plain.gelu_in = NULL;
    status = library_product(stream, PTB_PRODUCT_INPUT, &plain);
    if (status == PTB_SKIPPED)
        return own_product(stream, PTB_PRODUCT_INPUT, &p);
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

static ptb_cuda_product weight_of(const ptb_matmul_weight_gradient *x)
{
    return (ptb_cuda_product){.out = x->d_weight,
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
                              .out_type = PTB_F32};
}

static ptb_status column_sums(ptb_stream *stream, const ptb_cuda_sums *sums)
{
    void *scratch;
    PTB_TRY(ptb_cuda_scratch(stream, ptb_cuda_sums_scratch(sums), &scratch));
    PTB_CUDA(ptb_cuda_launch_sums(ptb_cuda_stream(stream), sums, scratch));
    return PTB_OK;
}

static ptb_status bias_sums(ptb_stream *stream, const ptb_matmul_weight_gradient *x)
{
    return column_sums(stream, &(ptb_cuda_sums){.sums = x->d_bias,
                                                .in = x->d_out,
                                                .rows = x->rows,
                                                .width = x->columns,
                                                .stride = ptb_row_stride(x->d_out_stride, x->columns),
                                                .type = x->type,
                                                .accumulate = x->accumulate});
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

// A column beyond the whole words is a row of weights: the sum of all rows of `in`, times that column.
static ptb_status weight_in_parts(ptb_stream *stream, const ptb_matmul_weight_gradient *x, size_t beyond)
{
    size_t whole = x->columns - beyond, size = ptb_dtype_size(x->type);
    ptb_matmul_weight_gradient first = *x;
    first.columns = whole;
    first.d_out_stride = ptb_row_stride(x->d_out_stride, x->columns);
    PTB_TRY(ptb_cuda_matmul_weight_gradient(stream, &first));
    for (size_t column = whole; column < x->columns; column++)
        PTB_TRY(column_sums(stream, &(ptb_cuda_sums){.sums = x->d_weight + column * x->inner,
                                                     .in = x->in,
                                                     .factor = (const char *)x->d_out + column * size,
                                                     .rows = x->rows,
                                                     .width = x->inner,
                                                     .stride = x->inner,
                                                     .factor_stride = first.d_out_stride,
                                                     .type = x->type,
                                                     .accumulate = x->accumulate}));
    return PTB_OK;
}

ptb_status ptb_cuda_matmul_weight_gradient(ptb_stream *stream, const ptb_matmul_weight_gradient *x)
{
    if (!x->columns || !x->inner)
        return PTB_OK;
    if (!x->rows)
        return weight_of_nothing(stream, x);
    ptb_cuda_product p = weight_of(x), plain = p;
    if (x->groups)
        return own_product(stream, PTB_PRODUCT_WEIGHT, &p);
    size_t stride = ptb_row_stride(x->d_out_stride, x->columns);
    size_t beyond = x->d_bias ? 0 : columns_beyond(x->type, x->groups, x->columns, stride);
    if (beyond)
        return weight_in_parts(stream, x, beyond);
    ptb_status status = PTB_SKIPPED;
    if (x->d_bias && !x->accumulate) { // the library can write the bias's gradient, not add to it
        status = library_product(stream, PTB_PRODUCT_WEIGHT, &p);
        if (status != PTB_SKIPPED)
            return status;
    }
    plain.sums = NULL;
    status = library_product(stream, PTB_PRODUCT_WEIGHT, &plain);
    if (status == PTB_SKIPPED)
        return own_product(stream, PTB_PRODUCT_WEIGHT, &p);
    return status == PTB_OK && x->d_bias ? bias_sums(stream, x) : status;
}
