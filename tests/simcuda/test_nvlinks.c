// The counters of a simulated GPU's NVLinks through core/links.h: they are those of the device that was
// named, and count what went over them in between.
#include "core/device.h"
#include "core/links.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

void sim_link_traffic(int machine_device, uint64_t sent_bytes, uint64_t received_bytes);

static void test_links(void **state)
{
    (void)state;
    static ptb_links before, after, moved;
    ptb_device *device;
    ptb_link_reader *reader;
    assert_int_equal(ptb_device_open("cuda", 2, &device), PTB_OK);
    assert_int_equal(ptb_links_open(device->identity, false, &reader), PTB_OK);
    ptb_links_read(reader, &before);
    assert_int_equal(before.count, 18);
    sim_link_traffic(1, (uint64_t)18 << 20, 18 << 20); // of another GPU
    sim_link_traffic(2, (uint64_t)18 << 24, 18 << 21);
    ptb_links_read(reader, &after);
    ptb_links_difference(&before, &after, &moved);
    assert_int_equal(moved.count, 18);
    for (size_t i = 0; i < moved.count; i++) {
        char name[32];
        snprintf(name, sizeof name, "nvlink%zu", i);
        assert_string_equal(moved.items[i].name, name);
        assert_string_equal(moved.items[i].kind, "NVLink");
        assert_int_equal(moved.items[i].sent_bytes, 1 << 24);
        assert_int_equal(moved.items[i].received_bytes, 1 << 21);
        assert_true(moved.items[i].gbits_s > 212 && moved.items[i].gbits_s < 213);
    }
    ptb_links_close(reader);
    // No such GPU, and an instance of MIG: no links, no complaint.
    static const char *const others[] = {"GPU-00000000-0000-0000-0000-000000000000", "MIG-1234", ""};
    for (int i = 0; i < 3; i++) {
        assert_int_equal(ptb_links_open(others[i], false, &reader), PTB_OK);
        ptb_links_read(reader, &before);
        assert_int_equal(before.count, 0);
        ptb_links_close(reader);
    }
    ptb_device_close(device);
}

int main(void)
{
    setenv("PTB_SIM", "devices=8,machine=" PTB_SOURCE_DIR "/tests/simcuda/machines/nvswitch.ini", 1);
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_links)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
