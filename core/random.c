// Normal numbers from the counter-based generator.
#include "core/random.h"

#include <math.h>

double ptb_random_normal(uint64_t seed, uint64_t stream, uint64_t index)
{
    static const double two_pi = 6.283185307179586;
    double radius = sqrt(-2 * log(1 - ptb_random_uniform(seed, stream, 2 * index)));
    return radius * cos(two_pi * ptb_random_uniform(seed, stream, 2 * index + 1));
}
