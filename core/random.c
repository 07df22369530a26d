// Normal numbers from the counter-based generator.
#include "core/random.h"

#include <math.h>
#include <stdbool.h>
#include <string.h>

static const double two_pi = 6.283185307179586;

double ptb_random_normal(uint64_t seed, uint64_t stream, uint64_t index)
{
    double radius = sqrt(-2 * log(1 - ptb_random_uniform(seed, stream, 2 * index)));
    return radius * cos(two_pi * ptb_random_uniform(seed, stream, 2 * index + 1));
}

// Many at a time: loops that compilers vectorise, with logarithm and cosine as series. Their result differs
// from the C library's by some units of the last place of a double, which decides about the rounding to float
// once in millions; there the library is asked.
enum { BLOCK = 256 };
static const double series_error = 4e-15; // relative; a bound on both ways together

// log(x), 0 < x <= 1, as k log 2 + 2 atanh((m - 1) / (m + 1)) with x = m 2^k, m near 1: |s| < 0.172, whose
// 23rd power is below the last place.
static inline double series_log(double x)
{
    const double log_two = 0.6931471805599453;
    const uint64_t root_half = 0x3fe6a09e667f3bcdu; // bits of sqrt(1/2): m is from there to sqrt(2)
    uint64_t bits;
    memcpy(&bits, &x, sizeof bits);
    int64_t exponent = (int64_t)(bits - root_half) >> 52;
    bits -= (uint64_t)exponent << 52;
    double m;
    memcpy(&m, &bits, sizeof m);
    double s = (m - 1) / (m + 1), z = s * s, sum = 1.0 / 21;
    sum = sum * z + 1.0 / 19;
    sum = sum * z + 1.0 / 17;
    sum = sum * z + 1.0 / 15;
    sum = sum * z + 1.0 / 13;
    sum = sum * z + 1.0 / 11;
    sum = sum * z + 1.0 / 9;
    sum = sum * z + 1.0 / 7;
    sum = sum * z + 1.0 / 5;
    sum = sum * z + 1.0 / 3;
    return (double)exponent * log_two + 2 * (s + s * (z * sum));
}

// cos(x), 0 <= x < 2 pi, from the nearest multiple of pi / 2; its three parts are short enough for exact
// products.
static inline double series_cos(double x)
{
    const double part[] = {0x1.921fb544p+0, 0x1.0b4611a6p-34, 0x1.3198a2e037073p-69};
    const double magic = 0x1.8p52; // adding it rounds to an integer, which is then in the lowest bits
    double shifted = x * (1 / 1.5707963267948966) + magic, q = shifted - magic;
    uint64_t quadrant;
    memcpy(&quadrant, &shifted, sizeof quadrant);
    double r = x - q * part[0] - q * part[1] - q * part[2], z = r * r;
    double c = 1.0 / 20922789888000, s = 1.0 / 355687428096000; // 1 / 16!, 1 / 17!
    c = c * z - 1.0 / 87178291200;
    c = c * z + 1.0 / 479001600;
    c = c * z - 1.0 / 3628800;
    c = c * z + 1.0 / 40320;
    c = c * z - 1.0 / 720;
    c = c * z + 1.0 / 24;
    c = 1 + z * (c * z - 0.5);
    s = s * z - 1.0 / 1307674368000;
    s = s * z + 1.0 / 6227020800;
    s = s * z - 1.0 / 39916800;
    s = s * z + 1.0 / 362880;
    s = s * z - 1.0 / 5040;
    s = s * z + 1.0 / 120;
    s = r + r * (z * (s * z - 1.0 / 6));
    double magnitude = quadrant & 1 ? s : c;
    return (quadrant + 1) & 2 ? -magnitude : magnitude;
}

// Whether a rounding to float hangs on the error of the series.
static inline bool is_doubtful(double x)
{
    return (float)(x * (1 - series_error)) != (float)(x * (1 + series_error));
}

static void normals_of_block(uint64_t seed, uint64_t stream, uint64_t first, size_t count, float *out)
{
    double x[BLOCK];
    uint32_t doubtful = 0;
    for (size_t i = 0; i < count; i++) {
        double radius = sqrt(-2 * series_log(1 - ptb_random_uniform(seed, stream, 2 * (first + i))));
        x[i] = radius * series_cos(two_pi * ptb_random_uniform(seed, stream, 2 * (first + i) + 1));
    }
    for (size_t i = 0; i < count; i++) {
        out[i] = (float)x[i];
        doubtful += is_doubtful(x[i]);
    }
    for (size_t i = 0; doubtful && i < count; i++)
        if (is_doubtful(x[i]))
            out[i] = (float)ptb_random_normal(seed, stream, first + i);
}

void ptb_random_normals(uint64_t seed, uint64_t stream, uint64_t first, size_t count, float *out)
{
    for (size_t at = 0; at < count; at += BLOCK)
        normals_of_block(seed, stream, first + at, count - at < BLOCK ? count - at : BLOCK, out + at);
}
