// Network cards and their counters out of a folder that looks like /sys, and distances on PCIe.
#include "core/links.h"
#include "core/nics.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

typedef struct {
    char root[64];
} fixture;

static void run_shell(const char *format, const char *root)
{
    char command[4096];
    snprintf(command, sizeof command, format, root);
    assert_int_equal(system(command), 0);
}

// Two RDMA cards, one of them with two ports, an Ethernet card, the interface of the RoCE card, a virtual
// one.
static int set_up(void **state)
{
    fixture *f = calloc(1, sizeof *f);
    snprintf(f->root, sizeof f->root, "/tmp/ptb-sysfs-XXXXXX");
    if (!mkdtemp(f->root))
        return -1;
    run_shell(
        "set -e; cd %s\n"
        "device() { mkdir -p devices/$1 bus/pci/devices; echo $2 >devices/$1/numa_node; "
        "ln -s ../../../devices/$1 bus/pci/devices/${1##*/}; }\n"
        "device pci0000:17/0000:17:01.0/0000:18:00.0/0000:19:00.0/0000:1a:00.0 0\n" // a GPU
        "device pci0000:17/0000:17:01.0/0000:18:00.0/0000:19:01.0/0000:1b:00.0 0\n"
        "device pci0000:98/0000:98:01.0/0000:99:00.0 1\n"
        "device pci0000:3a/0000:3a:02.0/0000:3b:00.0 0\n"
        "port() { d=class/infiniband/$1; mkdir -p $d/ports/$2/counters; "
        "ln -sfn ../../../bus/pci/devices/$3 $d/device; echo $4 >$d/ports/$2/link_layer; "
        "echo \"$5\" >$d/ports/$2/state; echo \"$6\" >$d/ports/$2/rate; "
        "echo 1000 >$d/ports/$2/counters/port_xmit_data; echo 50 >$d/ports/$2/counters/port_rcv_data; }\n"
        "port mlx5_0 1 0000:1b:00.0 InfiniBand '4: ACTIVE' '400 Gb/sec (4X NDR)'\n"
        "port mlx5_1 1 0000:99:00.0 Ethernet '4: ACTIVE' '100 Gb/sec (4X EDR)'\n"
        "port mlx5_1 2 0000:99:00.0 Ethernet '1: DOWN' '40 Gb/sec (4X QDR)'\n"
        "interface() { d=class/net/$1; mkdir -p $d/statistics; "
        "[ -z \"$2\" ] || ln -s ../../../bus/pci/devices/$2 $d/device; "
        "echo $3 >$d/speed; echo up >$d/operstate; "
        "echo 7 >$d/statistics/tx_bytes; echo 9 >$d/statistics/rx_bytes; }\n"
        "interface eth0 0000:3b:00.0 25000; interface ens1 0000:99:00.0 100000; interface veth3 '' 10000\n",
        f->root);
    *state = f;
    return 0;
}

static int tear_down(void **state)
{
    fixture *f = *state;
    run_shell("rm -r %s", f->root);
    free(f);
    return 0;
}

static void test_cards(void **state)
{
    fixture *f = *state;
    ptb_nic nics[PTB_NICS_MAX];
    assert_int_equal(ptb_nics_read(f->root, nics), 4);
    assert_string_equal(nics[0].name, "eth0");
    assert_string_equal(nics[0].kind, "Ethernet");
    assert_true(nics[0].gbits_s == 25);
    assert_int_equal(nics[0].numa_node, 0);
    assert_string_equal(nics[1].name, "mlx5_0");
    assert_string_equal(nics[1].kind, "InfiniBand");
    assert_int_equal(nics[1].port, 1);
    assert_true(nics[1].gbits_s == 400);
    assert_true(nics[1].is_up);
    assert_string_equal(nics[1].pci_path, "pci0000:17/0000:17:01.0/0000:18:00.0/0000:19:01.0/0000:1b:00.0");
    assert_string_equal(nics[2].kind, "RoCE");
    assert_int_equal(nics[2].numa_node, 1);
    assert_true(nics[2].is_up);
    assert_int_equal(nics[3].port, 2);
    assert_false(nics[3].is_up);
}

static void test_counters(void **state)
{
    fixture *f = *state;
    ptb_nic nics[PTB_NICS_MAX];
    uint64_t bytes;
    ptb_nics_read(f->root, nics);
    assert_true(ptb_nic_counter(&nics[0], 0, &bytes));
    assert_int_equal(bytes, 7);
    assert_true(ptb_nic_counter(&nics[1], 0, &bytes)); // in units of 4 bytes
    assert_int_equal(bytes, 4000);
    assert_true(ptb_nic_counter(&nics[1], 1, &bytes));
    assert_int_equal(bytes, 200);
    snprintf(nics[0].counters[0], sizeof nics[0].counters[0], "%s/nothing", f->root);
    assert_false(ptb_nic_counter(&nics[0], 0, &bytes));
}

static void test_no_cards(void **state)
{
    (void)state;
    ptb_nic nics[PTB_NICS_MAX];
    assert_int_equal(ptb_nics_read("/nonexistent", nics), 0);
}

// In a container: of the virtual interfaces, the one whose other end is elsewhere; and what training goes
// over.
static void test_virtual(void **state)
{
    (void)state;
    char root[] = "/tmp/ptb-sysfs-XXXXXX";
    ptb_nic nics[PTB_NICS_MAX], rails[PTB_NICS_MAX];
    assert_non_null(mkdtemp(root));
    run_shell(
        "set -e; cd %s\n"
        "interface() { d=class/net/$1; mkdir -p $d/statistics; echo $2 >$d/ifindex; echo $3 >$d/iflink; "
        "echo up >$d/operstate; echo 10000 >$d/speed; echo 5 >$d/statistics/tx_bytes; echo 6 "
        ">$d/statistics/rx_bytes; }\n"
        "interface lo 1 1; interface br0 3 3; interface eth0 2 7",
        root);
    assert_int_equal(ptb_nics_read(root, nics), 1);
    assert_string_equal(nics[0].name, "eth0");
    assert_string_equal(nics[0].kind, "virtual");
    assert_true(nics[0].gbits_s <= 0); // the speed that it says is made up
    assert_int_equal(ptb_nics_rails(nics, 1, rails), 1);
    run_shell("rm -rf %s", root);
}

static void test_rails(void **state)
{
    fixture *f = *state;
    ptb_nic nics[PTB_NICS_MAX], rails[PTB_NICS_MAX];
    size_t count = ptb_nics_read(f->root, nics);
    assert_int_equal(ptb_nics_rails(nics, count, rails), 2); // no interface, no port that is down
    assert_string_equal(rails[0].name, "mlx5_0");
    assert_string_equal(rails[1].name, "mlx5_1");
    assert_int_equal(rails[1].port, 1);
    for (size_t i = 0; i < count; i++)
        nics[i].is_up &= nics[i].port == 0;
    assert_int_equal(ptb_nics_rails(nics, count, rails), 1);
    assert_string_equal(rails[0].name, "eth0");
}

static void test_addresses(void **state)
{
    fixture *f = *state;
    char path[PTB_PCI_PATH_BYTES];
    assert_true(ptb_pci_path(f->root, "00000000:1A:00.0", path)); // as NVML writes it
    assert_string_equal(path, "pci0000:17/0000:17:01.0/0000:18:00.0/0000:19:00.0/0000:1a:00.0");
    assert_int_equal(ptb_pci_numa_node(f->root, path), 0);
    assert_false(ptb_pci_path(f->root, "0000:77:00.0", path));
    assert_false(ptb_pci_path(f->root, "nonsense", path));
}

static void test_distances(void **state)
{
    (void)state;
    const char *gpu = "pci0000:17/0000:17:01.0/0000:18:00.0/0000:19:00.0/0000:1a:00.0";
    assert_string_equal(
        ptb_pci_distance(gpu, 0, "pci0000:17/0000:17:01.0/0000:18:00.0/0000:19:01.0/0000:1b:00.0", 0), "PIX");
    assert_string_equal(ptb_pci_distance(gpu, 0, "pci0000:17/0000:17:01.0/0000:20:00.0/0000:21:00.0", 0),
                        "PXB");
    assert_string_equal(ptb_pci_distance(gpu, 0, "pci0000:17/0000:17:05.0/0000:2a:00.0", 0), "PHB");
    assert_string_equal(ptb_pci_distance(gpu, 0, "pci0000:3a/0000:3a:02.0/0000:3b:00.0", 0), "NODE");
    assert_string_equal(ptb_pci_distance(gpu, 0, "pci0000:98/0000:98:01.0/0000:99:00.0", 1), "SYS");
    assert_string_equal(ptb_pci_distance(gpu, -1, "pci0000:98/0000:98:01.0/0000:99:00.0", -1), "SYS");
    assert_string_equal(ptb_pci_distance("", -1, "", -1), "SYS"); // not on PCIe
}

static void test_difference(void **state)
{
    (void)state;
    static ptb_links before, after, moved;
    before.items[0] = (ptb_link){.name = "eth0", .sent_bytes = 100, .received_bytes = 5};
    before.items[1] = (ptb_link){.name = "gone", .sent_bytes = 1};
    before.count = 2;
    after.items[0] = (ptb_link){.name = "new", .sent_bytes = 3};
    after.items[1] = (ptb_link){.name = "eth0", .kind = "Ethernet", .sent_bytes = 160, .received_bytes = 5};
    after.count = 2;
    ptb_links_difference(&before, &after, &moved);
    assert_int_equal(moved.count, 1);
    assert_string_equal(moved.items[0].name, "eth0");
    assert_string_equal(moved.items[0].kind, "Ethernet");
    assert_int_equal(moved.items[0].sent_bytes, 60);
    assert_int_equal(moved.items[0].received_bytes, 0);
}

// This machine's own, whatever it has: readings grow, and a reader without links is fine.
static void test_reader(void **state)
{
    (void)state;
    static ptb_links before, after, moved;
    ptb_link_reader *reader;
    assert_int_equal(ptb_links_open("", false, &reader), PTB_OK);
    ptb_links_read(reader, &before);
    assert_int_equal(before.count, 0);
    ptb_links_close(reader);
    assert_int_equal(ptb_links_open(NULL, true, &reader), PTB_OK);
    ptb_links_read(reader, &before);
    ptb_links_read(reader, &after);
    ptb_links_difference(&before, &after, &moved);
    assert_int_equal(moved.count, after.count);
    for (size_t i = 0; i < moved.count; i++)
        assert_true(moved.items[i].sent_bytes < (uint64_t)1 << 40);
    ptb_links_close(reader);
    ptb_links_close(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_cards, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_counters, set_up, tear_down),
        cmocka_unit_test(test_no_cards),
        cmocka_unit_test(test_virtual),
        cmocka_unit_test_setup_teardown(test_rails, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_addresses, set_up, tear_down),
        cmocka_unit_test(test_distances),
        cmocka_unit_test(test_difference),
        cmocka_unit_test(test_reader),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
