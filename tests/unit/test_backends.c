// What goes with a device: kernels and communicators by what they say they are made for, and refusal of those
// made for another device. A device of the test's own stands for one that is not the host.
#include "strategies/backends.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

static const ptb_device_ops far = {.plugin = {"far", "a device of this test"}};
PTB_REGISTER(PTB_KIND_DEVICE, far);
static const ptb_device_ops bare = {.plugin = {"bare", "a device that nothing is made for"}};
PTB_REGISTER(PTB_KIND_DEVICE, bare);
static const ptb_kernels far_math = {.plugin = {"a_far_math", "kernels of this test"}, .device = "far"};
PTB_REGISTER(PTB_KIND_KERNELS, far_math);
static const ptb_comm_ops far_lines = {.plugin = {"a_far_line", "a communicator of this test"},
                                       .device = "far"};
PTB_REGISTER(PTB_KIND_COMM, far_lines);

static const char *kernels_for(const char *device, const char *name)
{
    const ptb_kernels *kernels = NULL;
    ptb_status status = ptb_backends_kernels(device, name, &kernels);
    assert_true(status == PTB_OK ? kernels != NULL : status == PTB_USAGE && !kernels);
    return kernels ? kernels->plugin.name : "refused";
}

static void test_kernels(void **state)
{
    (void)state;
    assert_string_equal(kernels_for("host", NULL), "host");
    assert_string_equal(kernels_for("host", ""), "host");
    assert_string_equal(kernels_for("host", "host"), "host");
    assert_string_equal(kernels_for("far", NULL), "a_far_math");
    assert_string_equal(kernels_for("far", "a_far_math"), "a_far_math");
    assert_string_equal(kernels_for("far", "host"), "refused");
    assert_string_equal(kernels_for("host", "a_far_math"), "refused");
    assert_string_equal(kernels_for("host", "nobody"), "refused");
    assert_string_equal(kernels_for("bare", NULL), "refused");
}

static void test_comm(void **state)
{
    (void)state;
    const char *name = NULL;
    assert_int_equal(ptb_backends_comm("host", &name), PTB_OK);
    assert_string_equal(name, "host"); // though others of the host come before it in the list
    assert_int_equal(ptb_backends_comm("far", &name), PTB_OK);
    assert_string_equal(name, "a_far_line");
    assert_int_equal(ptb_backends_comm("bare", &name), PTB_USAGE);
    assert_string_equal(ptb_backends_comm_device("mpi"), "host");
    assert_string_equal(ptb_backends_comm_device("a_far_line"), "far");
    assert_int_equal(ptb_backends_check_comm("far", "a_far_line"), PTB_OK);
    assert_int_equal(ptb_backends_check_comm("host", "mpi"), PTB_OK);
    assert_int_equal(ptb_backends_check_comm("far", "host"), PTB_USAGE);
    assert_int_equal(ptb_backends_check_comm("host", "a_far_line"), PTB_USAGE);
}

static void test_device(void **state)
{
    (void)state;
    assert_int_equal(ptb_backends_device("host"), PTB_OK);
    assert_int_equal(ptb_backends_device("far"), PTB_OK);
    assert_int_equal(ptb_backends_device("further"), PTB_USAGE);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_kernels), cmocka_unit_test(test_comm),
                                       cmocka_unit_test(test_device)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
