// Rotary positions on the host. Angles are reduced to a quarter turn in double, so that late positions are as
// exact as early ones; the sines of a position serve all heads and, without documents, all sequences.
#include "strategies/transformer/kernels_host.h"
#include "strategies/transformer/kernels_host_vector.h"

#include <math.h>

enum { PAIRS = 128 }; // columns that are turned at a time: heads up to 256 wide in one go

// sine and cosine of `pairs` angles, given in turns at position 1.
static void turn_angles(int64_t position, bool inverse, const double *turns, size_t pairs, float *sine,
                        float *cosine)
{
    double at = inverse ? -(double)position : (double)position;
#pragma omp simd
    for (size_t i = 0; i < pairs; i++) {
        const double magic = 0x1.8p52; // adding it rounds to a whole number, left in the low bits
        double quarters = at * turns[i] * 4;
        quarters -= 4 * ((at * turns[i] + magic) - magic); // |quarters| <= 2
        float rounded = ((float)quarters + 0x1.8p23f) - 0x1.8p23f;
        int32_t quadrant = (int32_t)rounded;
        float x = (float)((quarters - (double)rounded) * 1.5707963267948966), square = x * x;
        // Minimax polynomials on [-pi/4, pi/4], errors 3e-9 and 6e-11.
        float s = square * -1.9501754e-4f + 8.3320159e-3f;
        s = s * square - 1.6666650e-1f;
        s = s * square * x + x;
        float c = square * 2.4372807e-5f - 1.3886531e-3f;
        c = c * square + 4.1666613e-2f;
        c = c * square - 0.5f;
        c = c * square + 1;
        float even = quadrant & 1 ? c : s, odd = quadrant & 1 ? s : c;
        sine[i] = quadrant & 2 ? -even : even;
        cosine[i] = (quadrant + 1) & 2 ? -odd : odd;
    }
}

// Columns [first, first + pairs) and their partners of all heads of a row.
PTB_INLINE void turn_row(ptb_dtype type, const ptb_rotary *a, size_t row, size_t first, size_t pairs,
                         const float *sine, const float *cosine)
{
    size_t half = a->head_width / 2, heads = a->heads, width = a->head_width;
    void *values = (char *)a->values + row * a->stride * ptb_dtype_size(type);
    for (size_t h = 0; h < heads; h++) {
        size_t low = h * width + first, high = low + half, i = 0;
        for (; i + PTB_LANES <= pairs; i += PTB_LANES) {
            ptb_vec s = ptb_vec_load(PTB_F32, sine, i), c = ptb_vec_load(PTB_F32, cosine, i);
            ptb_vec x = ptb_vec_load(type, values, low + i), y = ptb_vec_load(type, values, high + i);
            ptb_vec_store(type, values, low + i, x * c - y * s);
            ptb_vec_store(type, values, high + i, y * c + x * s);
        }
        size_t n = pairs - i;
        if (!n)
            continue;
        ptb_vec s = ptb_vec_load_some(PTB_F32, sine, i, n), c = ptb_vec_load_some(PTB_F32, cosine, i, n);
        ptb_vec x = ptb_vec_load_some(type, values, low + i, n);
        ptb_vec y = ptb_vec_load_some(type, values, high + i, n);
        ptb_vec_store_some(type, values, low + i, n, x * c - y * s);
        ptb_vec_store_some(type, values, high + i, n, y * c + x * s);
    }
}

// Row `first` of every sequence.
PTB_INLINE void turn_rows(ptb_dtype type, const ptb_rotary *a, size_t first, size_t column, size_t pairs,
                          const double *turns)
{
    float sine[PAIRS], cosine[PAIRS];
    for (size_t row = first; row < a->rows; row += a->length) {
        if (row == first || a->start) {
            int64_t position = a->offset + (int64_t)first - (a->start ? a->start[row] : 0);
            turn_angles(position, a->inverse, turns, pairs, sine, cosine);
        }
        turn_row(type, a, row, column, pairs, sine, cosine);
    }
}

ptb_status ptb_host_run_rotary(void *arg)
{
    const ptb_rotary *a = arg;
    size_t half = a->head_width / 2, length = a->length < a->rows ? a->length : a->rows;
    for (size_t column = 0; column < half; column += PAIRS) {
        size_t pairs = half - column < PAIRS ? half - column : PAIRS;
        double turns[PAIRS];
        for (size_t i = 0; i < pairs; i++)
            turns[i] = pow((double)a->base, -(double)(column + i) / (double)half) / 6.283185307179586;
#pragma omp parallel for schedule(static)
        for (size_t first = 0; first < length; first++) {
            if (a->type == PTB_F32)
                turn_rows(PTB_F32, a, first, column, pairs, turns);
            else if (a->type == PTB_BF16)
                turn_rows(PTB_BF16, a, first, column, pairs, turns);
            else
                turn_rows(PTB_F16, a, first, column, pairs, turns);
        }
    }
    return PTB_OK;
}
