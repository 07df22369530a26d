// Normal numbers made many at a time are those made one by one, to the bit, wherever blocks and vectors end.
#include "core/random.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static void check(uint64_t seed, uint64_t stream, uint64_t first, size_t count)
{
    float *out = malloc((count + 1) * sizeof *out);
    assert_non_null(out);
    out[count] = 77;
    ptb_random_normals(seed, stream, first, count, out);
    for (size_t i = 0; i < count; i++) {
        float wanted = (float)ptb_random_normal(seed, stream, first + i);
        if (memcmp(&wanted, &out[i], sizeof wanted) != 0)
            fail_msg("number %zu from %llu on is %a, wanted %a", i, (unsigned long long)first, (double)out[i],
                     (double)wanted);
    }
    assert_true(out[count] == 77);
    free(out);
}

static void test_normals(void **state)
{
    (void)state;
    for (size_t count = 0; count < 40; count++)
        check(3, 5, count, count);
    check(1, 2, 0, 255);
    check(1, 2, 1, 256);
    check(1, 2, 2, 257);
    // Here the series' error decides about the rounding, so the library must be asked.
    check(1, 14, 11677143, 1);
    check(1, 17, 4268430 - 100, 200);
    check(7, UINT64_MAX, UINT64_MAX / 4, 1000); // counters near the end of their range
    for (uint64_t seed = 0; seed < 20; seed++)
        check(seed, seed * seed, seed << 40, 50000);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_normals)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
