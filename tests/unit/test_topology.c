// The description of this machine: plausible, the same twice, the fingerprint free of what may change from
// run to run, and valid JSON.
#include "core/topology.h"

#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>

#include <jansson.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static ptb_topology topology;

static int read_topology(void **state)
{
    (void)state;
    return ptb_topology_read(&topology) == PTB_OK ? 0 : -1;
}

static void test_plausible(void **state)
{
    (void)state;
    const ptb_topology *t = &topology;
    assert_true(t->packages >= 1 && t->numa_nodes >= 1);
    assert_true(t->cores >= t->packages && t->threads >= t->cores);
    assert_true(t->allowed_cpus >= 1 && t->allowed_cpus <= t->threads);
    assert_true(t->cgroup_cpus >= 0);
    assert_true(t->memory_bytes > (uint64_t)64 << 20);
    const char *const texts[] = {t->hostname, t->cpu_model, t->kernel, t->os,
                                 t->binding,  t->governor,  t->thp,    t->shmem_thp};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        assert_true(texts[i][0] != '\0' && !strchr(texts[i], '\n'));
    assert_int_equal(strncmp(t->kernel, "Linux ", 6), 0);
    assert_true(t->fingerprint != 0);
#ifdef __AVX512F__
    assert_non_null(strstr(t->isa, "avx512f")); // built for this machine
#endif
}

static void test_same_twice(void **state)
{
    (void)state;
    ptb_topology again;
    assert_int_equal(ptb_topology_read(&again), PTB_OK);
    assert_memory_equal(&again, &topology, sizeof again);
}

// Bound to its first processor, the process sees less, but the machine is the same.
static void test_binding(void **state)
{
    (void)state;
    cpu_set_t before, one;
    assert_int_equal(sched_getaffinity(0, sizeof before, &before), 0);
    int cpu = 0;
    while (!CPU_ISSET(cpu, &before))
        cpu++;
    CPU_ZERO(&one);
    CPU_SET(cpu, &one);
    assert_int_equal(sched_setaffinity(0, sizeof one, &one), 0);
    ptb_topology bound;
    ptb_status status = ptb_topology_read(&bound);
    int allowed = ptb_topology_allowed_cpus();
    assert_int_equal(sched_setaffinity(0, sizeof before, &before), 0);
    assert_int_equal(status, PTB_OK);
    assert_int_equal(allowed, 1);
    assert_int_equal(bound.allowed_cpus, 1);
    char want[16];
    snprintf(want, sizeof want, "%d", cpu);
    assert_string_equal(bound.binding, want);
    assert_int_equal(bound.cores, topology.cores);
    assert_int_equal(bound.threads, topology.threads);
    assert_true(bound.fingerprint == topology.fingerprint);
    assert_int_equal(CPU_COUNT(&before), topology.allowed_cpus);
}

// Two ranks, each bound to processors of its own: the host's topology has both.
static void test_allow(void **state)
{
    (void)state;
    ptb_topology host = topology;
    ptb_cpu_mask mask;
    ptb_topology_mask(&mask);
    ptb_topology_allow(&host, &mask);
    assert_memory_equal(&host, &topology, sizeof host);
    mask = (ptb_cpu_mask){{0}};
    ptb_topology_allow(&host, &mask);
    assert_string_equal(host.binding, topology.binding); // nothing is known: nothing changes
    mask.bytes[0] = 0x0D;
    mask.bytes[1023] = 0x80;
    ptb_topology_allow(&host, &mask);
    assert_int_equal(host.allowed_cpus, 4);
    assert_string_equal(host.binding, "0,2-3,8191");
}

static void test_cpu_model(void **state)
{
    (void)state;
    char model[128], cut[6];
    ptb_topology_cpu_model(model, sizeof model);
    assert_string_equal(model, topology.cpu_model);
    ptb_topology_cpu_model(cut, sizeof cut);
    assert_int_equal(strncmp(cut, model, 5), 0);
    assert_true(strlen(cut) <= 5);
}

static void test_json(void **state)
{
    (void)state;
    ptb_topology t = topology;
    snprintf(t.os, sizeof t.os, "%s", "a \"quoted\" \\ name\n");
    t.l3_bytes = (uint64_t)96 << 20;
    t.virtual_machine = true;
    t.fingerprint = 0x0123456789abcdefu;
    ptb_text text = PTB_TEXT_INIT;
    ptb_topology_json(&t, &text);
    json_error_t error;
    json_t *root = json_loads(ptb_text_string(&text), JSON_REJECT_DUPLICATES, &error);
    if (!root)
        fail_msg("%s: %s", error.text, ptb_text_string(&text));
    size_t parts = (json_object_get(root, "gpus") != NULL) + (json_object_get(root, "nics") != NULL);
    assert_int_equal(json_object_size(root),
                     21 + parts); // the fields of ptb_topology and the machine's parts
    assert_string_equal(json_string_value(json_object_get(root, "os")), t.os);
    assert_string_equal(json_string_value(json_object_get(root, "hostname")), t.hostname);
    assert_int_equal(json_integer_value(json_object_get(root, "cores")), t.cores);
    assert_int_equal(json_integer_value(json_object_get(root, "l3_bytes")), (json_int_t)t.l3_bytes);
    assert_int_equal(json_integer_value(json_object_get(root, "memory_bytes")), (json_int_t)t.memory_bytes);
    assert_true(json_is_true(json_object_get(root, "virtual_machine")));
    assert_string_equal(json_string_value(json_object_get(root, "fingerprint")), "0123456789abcdef");
    json_decref(root);
    ptb_text_release(&text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_plausible), cmocka_unit_test(test_same_twice), cmocka_unit_test(test_binding),
        cmocka_unit_test(test_cpu_model), cmocka_unit_test(test_allow),      cmocka_unit_test(test_json),
    };
    return cmocka_run_group_tests(tests, read_topology, NULL);
}
