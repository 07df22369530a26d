// This machine, through hwloc, /proc and /sys. Everything but the hwloc tree may be missing (containers,
// other architectures): such a field becomes "unknown" or 0. To add a field: core/topology.h, a reader here,
// and a line in ptb_topology_json.
#include "core/topology.h"

#include "core/log.h"
#include "core/machine.h"
#include "core/random.h"

#include <hwloc.h>

#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>
#include <unistd.h>

static const char UNKNOWN[] = "unknown";

// Copies as much as fits and ends it.
static void copy_text(char *out, size_t out_size, const char *text)
{
    size_t length = strnlen(text, out_size - 1);
    memcpy(out, text, length);
    out[length] = '\0';
}

// The first line of a small file without its end; false (and "unknown") when it cannot be read or is empty.
static bool read_line(const char *path, char *out, size_t out_size)
{
    FILE *file = fopen(path, "re");
    bool is_read = file && fgets(out, (int)out_size, file);
    if (file)
        fclose(file);
    if (is_read) {
        out[strcspn(out, "\r\n")] = '\0';
        is_read = out[0] != '\0';
    }
    if (!is_read)
        copy_text(out, out_size, UNKNOWN);
    return is_read;
}

// The value of the first line "KEY<blanks>:<blanks>VALUE" or KEY=VALUE of a file; `text` grows as needed.
static bool read_value(const char *path, const char *key, char separator, char **value)
{
    FILE *file = fopen(path, "re");
    char *line = NULL;
    size_t capacity = 0, key_length = strlen(key);
    bool found = false;
    *value = NULL;
    while (file && !found && getline(&line, &capacity, file) > 0) {
        if (strncmp(line, key, key_length) != 0)
            continue;
        char *at = line + key_length;
        at += strspn(at, " \t");
        if (*at != separator)
            continue;
        at++;
        at += strspn(at, " \t\"");
        size_t length = strcspn(at, "\"\r\n");
        while (length && isspace((unsigned char)at[length - 1]))
            length--;
        *value = strndup(at, length);
        found = *value != NULL;
    }
    free(line);
    if (file)
        fclose(file);
    return found;
}

void ptb_topology_cpu_model(char *out, size_t out_size)
{
    // x86 says "model name", POWER "cpu", s390 and some ARM boards "Processor"; most ARM servers say nothing.
    static const char *const keys[] = {"model name", "cpu", "Processor", "Hardware"};
    copy_text(out, out_size, UNKNOWN);
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        char *value;
        if (!read_value("/proc/cpuinfo", keys[i], ':', &value))
            continue;
        if (*value)
            copy_text(out, out_size, value);
        free(value);
        return;
    }
}

// The affinity mask of a process, 0 for this thread, for any number of processors; NULL when the kernel
// refuses. *size in bytes.
static cpu_set_t *allowed_set(int pid, size_t *size)
{
    for (int cpus = 1024; cpus <= 1 << 20; cpus *= 2) {
        cpu_set_t *set = CPU_ALLOC(cpus);
        *size = CPU_ALLOC_SIZE(cpus);
        if (!set)
            return NULL;
        CPU_ZERO_S(*size, set);
        if (sched_getaffinity(pid, *size, set) == 0)
            return set;
        CPU_FREE(set);
        if (errno != EINVAL) // EINVAL: the kernel's mask is longer
            return NULL;
    }
    return NULL;
}

int ptb_topology_allowed_cpus_of(int pid)
{
    size_t size;
    cpu_set_t *set = allowed_set(pid, &size);
    int count = set ? CPU_COUNT_S(size, set) : 0;
    if (set)
        CPU_FREE(set);
    return count;
}

int ptb_topology_allowed_cpus(void)
{
    int count = ptb_topology_allowed_cpus_of(0);
    if (!count)
        count = (int)sysconf(_SC_NPROCESSORS_ONLN);
    return count > 0 ? count : 1;
}

// "0-3,8": the mask as a list; a list that does not fit ends in "...".
static void list_cpus(const cpu_set_t *set, size_t size, char *out, size_t out_size)
{
    ptb_text text = PTB_TEXT_INIT;
    int last = (int)(size * 8) - 1;
    for (int cpu = 0; cpu <= last; cpu++) {
        if (!CPU_ISSET_S((size_t)cpu, size, set))
            continue;
        int end = cpu;
        while (end < last && CPU_ISSET_S((size_t)end + 1, size, set))
            end++;
        ptb_text_printf(&text, end > cpu ? "%s%d-%d" : "%s%d", text.length ? "," : "", cpu, end);
        cpu = end;
    }
    copy_text(out, out_size, ptb_text_string(&text));
    if (text.length >= out_size)
        memcpy(out + out_size - 4, "...", 4);
    ptb_text_release(&text);
}

static void read_binding(char *out, size_t out_size)
{
    size_t size;
    cpu_set_t *set = allowed_set(0, &size);
    copy_text(out, out_size, UNKNOWN);
    if (!set)
        return;
    list_cpus(set, size, out, out_size);
    CPU_FREE(set);
}

void ptb_topology_mask(ptb_cpu_mask *mask)
{
    size_t size;
    cpu_set_t *set = allowed_set(0, &size);
    *mask = (ptb_cpu_mask){{0}};
    if (!set)
        return;
    for (size_t cpu = 0; cpu < size * 8 && cpu < sizeof mask->bytes * 8; cpu++)
        if (CPU_ISSET_S(cpu, size, set))
            mask->bytes[cpu / 8] |= (unsigned char)(1u << cpu % 8);
    CPU_FREE(set);
}

void ptb_topology_allow(ptb_topology *topology, const ptb_cpu_mask *mask)
{
    size_t size = CPU_ALLOC_SIZE(sizeof mask->bytes * 8);
    cpu_set_t *set = CPU_ALLOC(sizeof mask->bytes * 8);
    if (!set)
        return;
    CPU_ZERO_S(size, set);
    for (size_t cpu = 0; cpu < sizeof mask->bytes * 8; cpu++)
        if (mask->bytes[cpu / 8] >> cpu % 8 & 1)
            CPU_SET_S(cpu, size, set);
    int count = CPU_COUNT_S(size, set);
    if (count > 0) {
        topology->allowed_cpus = count;
        list_cpus(set, size, topology->binding, sizeof topology->binding);
    }
    CPU_FREE(set);
}

// CPUs granted by one level of cgroup v2 ("max 100000" or "150000 100000"); 0: no quota here.
static double quota_v2(const char *folder)
{
    char path[4200], line[128];
    snprintf(path, sizeof path, "%s/cpu.max", folder);
    double quota, period;
    if (!read_line(path, line, sizeof line) || sscanf(line, "%lf %lf", &quota, &period) != 2 || period <= 0)
        return 0;
    return quota / period;
}

static double quota_v1(const char *folder)
{
    char path[4200], line[128];
    snprintf(path, sizeof path, "%s/cpu.cfs_quota_us", folder);
    if (!read_line(path, line, sizeof line))
        return 0;
    double quota = strtod(line, NULL);
    snprintf(path, sizeof path, "%s/cpu.cfs_period_us", folder);
    if (quota <= 0 || !read_line(path, line, sizeof line))
        return 0;
    double period = strtod(line, NULL);
    return period > 0 ? quota / period : 0;
}

// The smallest quota from the group `group` below `root` up to the root; 0: none.
static double smallest_quota(const char *root, const char *group, double (*quota_of)(const char *))
{
    char folder[4096];
    double smallest = 0;
    if (snprintf(folder, sizeof folder, "%s%s", root, group) >= (int)sizeof folder)
        return 0;
    for (size_t root_length = strlen(root);;) {
        double quota = quota_of(folder);
        if (quota > 0 && (smallest == 0 || quota < smallest))
            smallest = quota;
        char *slash = strrchr(folder, '/');
        if (strlen(folder) <= root_length || !slash || slash < folder + root_length)
            return smallest;
        *slash = '\0';
    }
}

// Whether the comma-separated list `list` of length `length` holds `word`.
static bool list_holds(const char *list, size_t length, const char *word)
{
    size_t word_length = strlen(word);
    for (const char *at = list; at < list + length;) {
        size_t piece = strcspn(at, ",:");
        if (piece == word_length && strncmp(at, word, piece) == 0)
            return true;
        at += piece + 1;
    }
    return false;
}

// Whole CPUs that the control groups of this process grant: at least 1 where there is a quota.
int ptb_topology_cgroup_cpus(void)
{
    FILE *file = fopen("/proc/self/cgroup", "re");
    char *line = NULL;
    size_t capacity = 0;
    double quota = 0;
    while (file && getline(&line, &capacity, file) > 0) {
        line[strcspn(line, "\n")] = '\0';
        char *controllers = strchr(line, ':'), *group = controllers ? strchr(controllers + 1, ':') : NULL;
        if (!group)
            continue;
        size_t length = (size_t)(group - controllers - 1);
        double here = 0;
        if (length == 0)
            here = smallest_quota("/sys/fs/cgroup", group + 1, quota_v2);
        else if (list_holds(controllers + 1, length, "cpu"))
            here = smallest_quota("/sys/fs/cgroup/cpu", group + 1, quota_v1);
        if (here > 0 && (quota == 0 || here < quota))
            quota = here;
    }
    free(line);
    if (file)
        fclose(file);
    if (quota <= 0)
        return 0;
    return quota < 1 ? 1 : (int)quota;
}

// First line of a file of the kernel's description of cache `level` of a processor.
static bool read_cache(int cpu, int level, const char *name, char *out, size_t out_size)
{
    char path[128];
    snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu%d/cache/index%d/%s", cpu, level, name);
    FILE *file = fopen(path, "re");
    bool found = file && fgets(out, (int)out_size, file);
    if (file)
        fclose(file);
    return found;
}

size_t ptb_topology_cache_share(int processes)
{
    int cpu = sched_getcpu(), level = 3;
    char size[64], list[4096];
    if (!read_cache(cpu, level, "size", size, sizeof size))
        level = 2;
    size_t kib = 0;
    if (!read_cache(cpu, level, "size", size, sizeof size) || sscanf(size, "%zuK", &kib) != 1 ||
        !read_cache(cpu, level, "shared_cpu_list", list, sizeof list))
        return (size_t)2 << 20;
    size_t sharers = 0;
    for (char *at = list; *at;) {
        char *rest;
        unsigned long first = strtoul(at, &rest, 10), last = first;
        if (rest == at)
            break;
        if (*rest == '-')
            last = strtoul(rest + 1, &rest, 10);
        sharers += last - first + 1;
        at = *rest == ',' ? rest + 1 : rest;
    }
    size_t busy = processes > 0 && (size_t)processes < sharers ? (size_t)processes : sharers;
    return kib * 1024 / (busy ? busy : 1);
}

// "always [madvise] never": the word in brackets.
static void read_chosen(const char *path, char *out, size_t out_size)
{
    char line[256];
    bool is_read = read_line(path, line, sizeof line);
    char *open = is_read ? strchr(line, '[') : NULL, *close = open ? strchr(open, ']') : NULL;
    if (close)
        *close = '\0';
    copy_text(out, out_size, close ? open + 1 : UNKNOWN);
}

static bool has_flag(const char *flags, const char *flag)
{
    size_t length = strlen(flag);
    for (const char *at = flags; (at = strstr(at, flag)) != NULL; at += length)
        if ((at == flags || at[-1] == ' ') && (at[length] == ' ' || at[length] == '\0'))
            return true;
    return false;
}

static void read_flags(ptb_topology *t)
{
    static const char *const wanted[] = {"avx2",     "f16c",    "avx512f", "avx512_bf16", "avx512_fp16",
                                         "amx_bf16", "asimdhp", "sve",     "sve2",        "bf16"};
    char *flags = NULL;
    if (!read_value("/proc/cpuinfo", "flags", ':', &flags) &&
        !read_value("/proc/cpuinfo", "Features", ':', &flags)) {
        copy_text(t->isa, sizeof t->isa, UNKNOWN);
        return;
    }
    size_t length = 0;
    for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++) {
        size_t more = strlen(wanted[i]) + (length > 0);
        if (!has_flag(flags, wanted[i]) || length + more >= sizeof t->isa)
            continue;
        snprintf(t->isa + length, sizeof t->isa - length, "%s%s", length ? " " : "", wanted[i]);
        length += more;
    }
    t->virtual_machine = has_flag(flags, "hypervisor");
    free(flags);
}

static uint64_t cache_bytes(hwloc_topology_t tree, hwloc_obj_type_t type)
{
    hwloc_obj_t cache = hwloc_get_obj_by_type(tree, type, 0);
    return cache ? cache->attr->cache.size : 0;
}

// At least 1: where hwloc cannot tell, there is still the one we run on.
static int count_of(hwloc_topology_t tree, hwloc_obj_type_t type)
{
    int count = hwloc_get_nbobjs_by_type(tree, type);
    return count > 0 ? count : 1;
}

static ptb_status read_tree(ptb_topology *t)
{
    hwloc_topology_t tree;
    if (hwloc_topology_init(&tree) != 0) {
        ptb_error("hwloc cannot start: %s", strerror(errno));
        return PTB_SYSTEM;
    }
    // The whole machine, not what a control group leaves of it.
    hwloc_topology_set_flags(tree, HWLOC_TOPOLOGY_FLAG_INCLUDE_DISALLOWED);
    if (hwloc_topology_load(tree) != 0) {
        ptb_error("hwloc cannot read this machine's topology: %s", strerror(errno));
        hwloc_topology_destroy(tree);
        return PTB_SYSTEM;
    }
    t->packages = count_of(tree, HWLOC_OBJ_PACKAGE);
    t->numa_nodes = count_of(tree, HWLOC_OBJ_NUMANODE);
    t->cores = count_of(tree, HWLOC_OBJ_CORE);
    t->threads = count_of(tree, HWLOC_OBJ_PU);
    t->l1d_bytes = cache_bytes(tree, HWLOC_OBJ_L1CACHE);
    t->l2_bytes = cache_bytes(tree, HWLOC_OBJ_L2CACHE);
    t->l3_bytes = cache_bytes(tree, HWLOC_OBJ_L3CACHE);
    hwloc_topology_destroy(tree);
    return PTB_OK;
}

static uint64_t read_memory_bytes(void)
{
    char *value;
    if (read_value("/proc/meminfo", "MemTotal", ':', &value)) {
        uint64_t kib = strtoull(value, NULL, 10);
        free(value);
        return kib * 1024;
    }
    long pages = sysconf(_SC_PHYS_PAGES), page_bytes = sysconf(_SC_PAGESIZE);
    return pages > 0 && page_bytes > 0 ? (uint64_t)pages * (uint64_t)page_bytes : 0;
}

static void read_system(ptb_topology *t)
{
    if (gethostname(t->hostname, sizeof t->hostname - 1) != 0 || !t->hostname[0])
        copy_text(t->hostname, sizeof t->hostname, UNKNOWN);
    struct utsname name;
    copy_text(t->kernel, sizeof t->kernel, UNKNOWN);
    if (uname(&name) == 0)
        snprintf(t->kernel, sizeof t->kernel, "%.60s %.60s", name.sysname, name.release);
    char *os = NULL;
    if (!read_value("/etc/os-release", "PRETTY_NAME", '=', &os))
        read_value("/usr/lib/os-release", "PRETTY_NAME", '=', &os);
    copy_text(t->os, sizeof t->os, os ? os : UNKNOWN);
    free(os);
    t->memory_bytes = read_memory_bytes();
    read_line("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor", t->governor, sizeof t->governor);
    read_chosen("/sys/kernel/mm/transparent_hugepage/enabled", t->thp, sizeof t->thp);
    read_chosen("/sys/kernel/mm/transparent_hugepage/shmem_enabled", t->shmem_thp, sizeof t->shmem_thp);
}

// FNV-1a (Fowler, Noll, Vo), mixed. Memory counts in GiB and the kernel as major.minor: the rest changes with
// every update without changing what is measured.
// identity: of the machine's other parts.
static uint64_t fingerprint_of(const ptb_topology *t, const char *identity)
{
    int major = 0, minor = 0;
    const char *release = strchr(t->kernel, ' ');
    if (release)
        sscanf(release, " %d.%d", &major, &minor);
    uint64_t gib = (t->memory_bytes + ((uint64_t)1 << 29)) >> 30;
    ptb_text text = PTB_TEXT_INIT;
    ptb_text_printf(&text, "%s|%d|%d|%d|%d|", t->cpu_model, t->packages, t->numa_nodes, t->cores, t->threads);
    ptb_text_printf(&text, "%" PRIu64 "|%" PRIu64 "|%" PRIu64 "|", t->l1d_bytes, t->l2_bytes, t->l3_bytes);
    ptb_text_printf(&text, "%d.%d|%" PRIu64, major, minor, gib);
    ptb_text_append(&text, identity);
    uint64_t hash = 0xcbf29ce484222325u;
    for (const char *c = ptb_text_string(&text); *c; c++)
        hash = (hash ^ (unsigned char)*c) * 0x100000001b3u;
    ptb_text_release(&text);
    return ptb_random_mix(hash);
}

// The descriptions of the other parts into t->parts.
static void read_parts(ptb_topology *t, ptb_text *identity)
{
    ptb_text json = PTB_TEXT_INIT;
    size_t length = 0;
    for (size_t i = 0; i < ptb_registry_count(PTB_KIND_MACHINE_PART); i++) {
        const ptb_machine_part *part = (const ptb_machine_part *)ptb_registry_at(PTB_KIND_MACHINE_PART, i);
        ptb_text_clear(&json);
        if (part->describe)
            part->describe(&json, identity);
        if (json.length == 0)
            continue;
        size_t room = sizeof t->parts - length;
        int more =
            snprintf(t->parts + length, room, "\"%s\": %s, ", part->plugin.name, ptb_text_string(&json));
        if ((size_t)more < room) {
            length += (size_t)more;
            continue;
        }
        t->parts[length] = '\0';
        ptb_warn("the description of this machine's %s takes %d bytes and is not stored", part->plugin.name,
                 more);
    }
    ptb_text_release(&json);
}

ptb_status ptb_topology_read(ptb_topology *topology)
{
    ptb_topology t = {0};
    PTB_TRY(read_tree(&t));
    read_system(&t);
    ptb_topology_cpu_model(t.cpu_model, sizeof t.cpu_model);
    t.allowed_cpus = ptb_topology_allowed_cpus();
    read_binding(t.binding, sizeof t.binding);
    t.cgroup_cpus = ptb_topology_cgroup_cpus();
    read_flags(&t);
    ptb_text identity = PTB_TEXT_INIT;
    read_parts(&t, &identity);
    t.fingerprint = fingerprint_of(&t, ptb_text_string(&identity));
    ptb_text_release(&identity);
    *topology = t;
    return PTB_OK;
}

static void json_text(ptb_text *out, const char *name, const char *value)
{
    ptb_text_printf(out, "\"%s\": ", name);
    ptb_text_append_json(out, value);
    ptb_text_append(out, ", ");
}

static void json_number(ptb_text *out, const char *name, uint64_t value)
{
    ptb_text_printf(out, "\"%s\": %" PRIu64 ", ", name, value);
}

void ptb_topology_json(const ptb_topology *t, ptb_text *out)
{
    ptb_text_append(out, "{");
    json_text(out, "hostname", t->hostname);
    json_text(out, "cpu_model", t->cpu_model);
    json_text(out, "kernel", t->kernel);
    json_text(out, "os", t->os);
    json_number(out, "packages", (uint64_t)t->packages);
    json_number(out, "numa_nodes", (uint64_t)t->numa_nodes);
    json_number(out, "cores", (uint64_t)t->cores);
    json_number(out, "threads", (uint64_t)t->threads);
    json_number(out, "allowed_cpus", (uint64_t)t->allowed_cpus);
    json_text(out, "binding", t->binding);
    json_number(out, "cgroup_cpus", (uint64_t)t->cgroup_cpus);
    json_number(out, "memory_bytes", t->memory_bytes);
    json_number(out, "l1d_bytes", t->l1d_bytes);
    json_number(out, "l2_bytes", t->l2_bytes);
    json_number(out, "l3_bytes", t->l3_bytes);
    json_text(out, "governor", t->governor);
    json_text(out, "thp", t->thp);
    json_text(out, "shmem_thp", t->shmem_thp);
    json_text(out, "isa", t->isa);
    ptb_text_append(out, t->parts);
    ptb_text_printf(out, "\"virtual_machine\": %s, ", t->virtual_machine ? "true" : "false");
    ptb_text_printf(out, "\"fingerprint\": \"%016" PRIx64 "\"}", t->fingerprint);
}
