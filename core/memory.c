// Large host buffers. First touch of a 4 KiB page costs microseconds and would land in the first timed
// iteration, so every buffer is advised to huge pages and touched here.
#include "core/device.h"

#include "core/log.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum {
    HUGE_PAGE = 2 << 20,
    ASK_FIRST = 64 << 20, // from here on, available memory is asked for before pages are touched
};

static size_t page_bytes(void)
{
    return (size_t)sysconf(_SC_PAGESIZE);
}

// What is really mapped for a request; map and unmap must agree. 0 when it overflows.
static size_t mapped_bytes(size_t bytes)
{
    size_t unit = bytes >= HUGE_PAGE ? HUGE_PAGE : page_bytes();
    if (bytes > SIZE_MAX - 2 * unit)
        return 0;
    return bytes ? (bytes + unit - 1) / unit * unit : unit;
}

// The number after `key` in the first line of a file that begins with it; UINT64_MAX when there is none
// ("max" in a control group's files).
static uint64_t read_number(const char *path, const char *key)
{
    uint64_t value = UINT64_MAX;
    FILE *file = fopen(path, "re");
    char line[128];
    while (file && value == UINT64_MAX && fgets(line, sizeof line, file)) {
        uint64_t number;
        if (strncmp(line, key, strlen(key)) == 0 && sscanf(line + strlen(key), "%" SCNu64, &number) == 1)
            value = number;
    }
    if (file)
        fclose(file);
    return value;
}

uint64_t ptb_memory_available(void)
{
    uint64_t kib = read_number("/proc/meminfo", "MemAvailable:");
    uint64_t available = kib < UINT64_MAX / 1024 ? kib * 1024 : UINT64_MAX;
    // The control group of this process, where it is mounted as the root (containers). What it holds of files
    // is counted as used, but given back when memory is asked for.
    uint64_t limit = read_number("/sys/fs/cgroup/memory.max", "");
    uint64_t used = read_number("/sys/fs/cgroup/memory.current", "");
    uint64_t files = read_number("/sys/fs/cgroup/memory.stat", "inactive_file ");
    if (limit == UINT64_MAX)
        return available;
    if (used == UINT64_MAX)
        used = 0;
    if (files < used)
        used -= files;
    uint64_t left = limit > used ? limit - used : 0;
    return left < available ? left : available;
}

static uint64_t read_status(const char *key)
{
    uint64_t kib = read_number("/proc/self/status", key);
    return kib < UINT64_MAX / 1024 ? kib * 1024 : UINT64_MAX;
}

uint64_t ptb_memory_resident(void)
{
    return read_status("VmRSS:");
}

uint64_t ptb_memory_resident_peak(void)
{
    return read_status("VmHWM:");
}

bool ptb_memory_reset_resident_peak(void)
{
    FILE *file = fopen("/proc/self/clear_refs", "we");
    if (!file)
        return false;
    bool written = fputs("5", file) >= 0; // 5: the high-water mark only (proc(5))
    return fclose(file) == 0 && written;
}

// A mapping whose start is a multiple of HUGE_PAGE: maps more and gives the ends back.
static void *map_aligned(size_t bytes)
{
    char *raw = mmap(NULL, bytes + HUGE_PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (raw == MAP_FAILED)
        return MAP_FAILED;
    size_t before = -(uintptr_t)raw & (HUGE_PAGE - 1), after = HUGE_PAGE - before;
    if (before)
        munmap(raw, before);
    if (after)
        munmap(raw + before + bytes, after);
    return raw + before;
}

ptb_status ptb_memory_map(size_t bytes, void **memory)
{
    size_t mapped = mapped_bytes(bytes);
    if (mapped == 0) {
        ptb_error("cannot allocate %zu bytes: more than an address space holds", bytes);
        return PTB_NO_MEMORY;
    }
    uint64_t available = bytes >= ASK_FIRST ? ptb_memory_available() : UINT64_MAX;
    if (mapped > available) {
        ptb_error("cannot allocate %zu bytes: only %" PRIu64
                  " bytes of memory are available; use smaller sizes or fewer ranks",
                  bytes, available);
        return PTB_NO_MEMORY;
    }
    char *base = bytes >= HUGE_PAGE
                     ? map_aligned(mapped)
                     : mmap(NULL, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (base == MAP_FAILED) {
        ptb_error("cannot allocate %zu bytes: %s; use smaller sizes or fewer ranks", bytes, strerror(errno));
        return PTB_NO_MEMORY;
    }
    if (bytes >= HUGE_PAGE)
        madvise(base, mapped, MADV_HUGEPAGE); // advice: a kernel without huge pages may refuse
    for (size_t at = 0, page = page_bytes(); at < mapped; at += page)
        ((volatile char *)base)[at] = 0;
    *memory = base;
    return PTB_OK;
}

void ptb_memory_unmap(void *memory, size_t bytes)
{
    if (memory)
        munmap(memory, mapped_bytes(bytes));
}
