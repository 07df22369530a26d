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

uint64_t ptb_memory_available(void)
{
    uint64_t available = UINT64_MAX;
    FILE *file = fopen("/proc/meminfo", "re");
    char line[256];
    while (file && fgets(line, sizeof line, file)) {
        uint64_t kib;
        if (sscanf(line, "MemAvailable: %" SCNu64 " kB", &kib) == 1)
            available = kib * 1024;
    }
    if (file)
        fclose(file);
    // The limit of this process's own control group, where it is mounted as the root (containers).
    file = fopen("/sys/fs/cgroup/memory.max", "re");
    uint64_t limit;
    if (file && fscanf(file, "%" SCNu64, &limit) == 1 && limit < available)
        available = limit;
    if (file)
        fclose(file);
    return available;
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
