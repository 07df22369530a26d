// Checks of every access of an instrumented kernel (check.hpp, products.hpp). The hooks are those that GCC
// calls under -fsanitize=thread; its run-time library is not linked.
//
// Global memory: all bytes are of one allocation that is not freed. Shared memory: within what was asked for,
// and no race: of two accesses by two threads, one of them a write and not both atomic, the later one comes
// after a barrier of the block, or after a __syncwarp of both. Each byte of shared memory remembers its last
// write, and its reads since the last barrier: all warps, and of the latest warp the lanes.
#include "tests/simcuda/check.hpp"
#include "tests/simcuda/fibers.hpp"
#include "tests/simcuda/products.hpp"
#include "tests/simcuda/shared.hpp"

#include <algorithm>
#include <mutex>
#include <vector>

#include <cxxabi.h>
#include <elf.h>
#include <fcntl.h>
#include <inttypes.h>
#include <link.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

bool sim_checking;

namespace {
struct cell {
    uint64_t write_epoch, read_epoch;
    uint64_t write_clock; // of fences and products (products.hpp)
    uint32_t write_sync, read_sync;
    uint32_t read_warps, read_lanes; // the lanes are of read_warp
    uint16_t write_thread;
    uint8_t read_warp;
    bool write_atomic;
};

// A thread-local variable of the program file; `static __shared__` variables are those inside functions.
struct variable {
    uintptr_t offset;
    size_t bytes;
    const char *name; // mangled
};

// Behind the program's thread-local memory is the C library's description of the thread.
enum { BEHIND_BYTES = 4096 };

std::once_flag once;
std::vector<variable> variables; // by offset
size_t local_bytes;              // of the program's thread-local memory
__thread cell *dynamic_cells, *static_cells;

int find_local_segment(struct dl_phdr_info *info, size_t, void *)
{
    for (int i = 0; i < info->dlpi_phnum; i++)
        if (info->dlpi_phdr[i].p_type == PT_TLS) {
            const size_t align = info->dlpi_phdr[i].p_align ? info->dlpi_phdr[i].p_align : 1;
            local_bytes = (info->dlpi_phdr[i].p_memsz + align - 1) / align * align;
        }
    return 1; // the program comes first
}

// The symbols of the program file; a stripped one has none, and then static shared memory goes unchecked.
void read_symbols(void)
{
    dl_iterate_phdr(find_local_segment, NULL);
    const int file = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
    struct stat of;
    if (file < 0 || fstat(file, &of))
        return;
    const char *all = (const char *)mmap(NULL, (size_t)of.st_size, PROT_READ, MAP_PRIVATE, file, 0);
    close(file);
    if (all == MAP_FAILED)
        return;
    const Elf64_Ehdr *head = (const Elf64_Ehdr *)all;
    const Elf64_Shdr *sections = (const Elf64_Shdr *)(all + head->e_shoff);
    for (int i = 0; i < head->e_shnum; i++) {
        if (sections[i].sh_type != SHT_SYMTAB)
            continue;
        const Elf64_Sym *symbols = (const Elf64_Sym *)(all + sections[i].sh_offset);
        const char *names = all + sections[sections[i].sh_link].sh_offset;
        for (size_t s = 0; s < sections[i].sh_size / sizeof *symbols; s++)
            if (ELF64_ST_TYPE(symbols[s].st_info) == STT_TLS && symbols[s].st_shndx != SHN_UNDEF)
                variables.push_back({symbols[s].st_value, symbols[s].st_size, names + symbols[s].st_name});
    }
    std::sort(variables.begin(), variables.end(),
              [](const variable &a, const variable &b) { return a.offset < b.offset; });
}

cell *new_cells(size_t count)
{
    void *cells = mmap(NULL, count * sizeof(cell), PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (cells == MAP_FAILED) {
        fprintf(stderr, "simulated device: no memory for checks of shared memory\n");
        abort();
    }
    return (cell *)cells;
}

// Where the program's thread-local memory of this thread begins; 0: not known on this processor.
uintptr_t local_memory(void)
{
#if defined __x86_64__
    return (uintptr_t)__builtin_thread_pointer() - local_bytes;
#else
    return 0;
#endif
}

void print_place(const sim_check_thread *t, uintptr_t address, const variable *of, char text[256])
{
    if (!of) {
        snprintf(text, 256, "byte %" PRIuPTR " of dynamic shared memory", address - t->dynamic);
        return;
    }
    char *name = abi::__cxa_demangle(of->name, NULL, NULL, NULL);
    const char *last = name ? strrchr(name, ':') : NULL;
    snprintf(text, 256, "byte %" PRIuPTR " of %s", address - local_memory() - of->offset,
             last   ? last + 1
             : name ? name
                    : of->name);
    free(name);
}

[[noreturn]] void race(const sim_check_thread *t, uintptr_t address, const variable *of, bool writes,
                       int thread, bool other_writes)
{
    char place[256], other[64];
    print_place(t, address, of, place);
    if (thread < 0)
        snprintf(other, sizeof other, "a thread of another warp");
    else
        snprintf(other, sizeof other, "thread (%u,%u,%u)", (unsigned)thread % t->block_shape.x,
                 (unsigned)thread / t->block_shape.x % t->block_shape.y,
                 (unsigned)thread / t->block_shape.x / t->block_shape.y);
    sim_abort_grid(cudaErrorLaunchFailure, "race: %s %s, which %s has %s without a barrier between them",
                   writes ? "writes" : "reads", place, other, other_writes ? "written" : "read");
}

// Whether both lanes have been in a __syncwarp since number `since`.
bool is_synced(const sim_check_thread *t, unsigned lane, uint32_t since)
{
    const uint32_t both = 1u << lane | 1u << t->thread % SIM_WARP;
    if (t->sync - since >= SIM_SYNCS)
        return true;
    for (uint32_t i = since + 1; i <= t->sync; i++)
        if ((t->masks[i % SIM_SYNCS] & both) == both)
            return true;
    return false;
}

void check_readers(const sim_check_thread *t, const cell *c, uintptr_t address, const variable *of)
{
    const unsigned warp = t->thread / SIM_WARP, lane = t->thread % SIM_WARP;
    if (c->read_warps & ~(1u << warp))
        race(t, address, of, true, -1, false);
    if (c->read_warp != warp)
        return;
    for (uint32_t rest = c->read_lanes & ~(1u << lane); rest; rest &= rest - 1) {
        const unsigned other = (unsigned)__builtin_ctz(rest);
        if (!is_synced(t, other, c->read_sync))
            race(t, address, of, true, (int)(warp * SIM_WARP + other), false);
    }
}

void touch(const sim_check_thread *t, cell *c, uintptr_t address, const variable *of, bool writes,
           bool atomic)
{
    const unsigned warp = t->thread / SIM_WARP, lane = t->thread % SIM_WARP;
    if (c->write_epoch == t->epoch && c->write_thread != t->thread && !(atomic && c->write_atomic) &&
        (c->write_thread / SIM_WARP != warp || !is_synced(t, c->write_thread % SIM_WARP, c->write_sync)))
        race(t, address, of, writes, c->write_thread, true);
    if (writes) {
        if (c->read_epoch == t->epoch)
            check_readers(t, c, address, of);
        c->write_epoch = t->epoch;
        c->write_clock = sim_products_clock;
        c->write_sync = t->sync;
        c->write_thread = (uint16_t)t->thread;
        c->write_atomic = atomic;
        return;
    }
    if (c->read_epoch != t->epoch) {
        c->read_epoch = t->epoch;
        c->read_warps = c->read_lanes = 0;
    }
    if (c->read_warp != warp || c->read_sync != t->sync)
        c->read_lanes = 0;
    c->read_warp = (uint8_t)warp;
    c->read_sync = t->sync;
    c->read_warps |= 1u << warp;
    c->read_lanes |= 1u << lane;
}

void check_dynamic(const sim_check_thread *t, uintptr_t at, size_t bytes, bool writes, bool atomic)
{
    if (at < t->dynamic || at + bytes > t->dynamic + t->dynamic_bytes)
        sim_abort_grid(cudaErrorIllegalAddress,
                       "%s %zu bytes at byte %" PRIdPTR " of %zu bytes of dynamic shared memory",
                       writes ? "writes" : "reads", bytes, (intptr_t)(at - t->dynamic), t->dynamic_bytes);
    if (!dynamic_cells)
        dynamic_cells = new_cells(t->shared_end - t->shared);
    for (size_t i = 0; i < bytes; i++)
        touch(t, &dynamic_cells[at + i - t->shared], at + i, NULL, writes, atomic);
}

void check_static(const sim_check_thread *t, uintptr_t at, size_t bytes, bool writes, bool atomic)
{
    const uintptr_t offset = at - local_memory();
    auto after = std::upper_bound(variables.begin(), variables.end(), offset,
                                  [](uintptr_t o, const variable &v) { return o < v.offset; });
    const variable *of = after == variables.begin() ? NULL : &*std::prev(after);
    if (of && !strncmp(of->name, "_ZZ", 3) && offset + bytes <= of->offset + of->bytes) {
        if (!static_cells)
            static_cells = new_cells(local_bytes);
        for (size_t i = 0; i < bytes; i++)
            touch(t, &static_cells[offset + i], at + i, of, writes, atomic);
        return;
    }
    for (const void *known : {(void *)&threadIdx, (void *)&blockIdx, (void *)&blockDim, (void *)&gridDim})
        if (at - (uintptr_t)known < sizeof(uint3))
            return;
    if (at == (uintptr_t)&sim_thread || at == (uintptr_t)&sim_shared_memory)
        return;
    char place[256] = "a place that no variable has";
    if (of)
        print_place(t, at, of, place);
    sim_abort_grid(cudaErrorIllegalAddress, "%s %zu bytes at %s: beyond the end of shared memory",
                   writes ? "writes" : "reads", bytes, place);
}
} // namespace

void sim_check_access(const void *address, size_t bytes, bool writes, bool atomic)
{
    const uintptr_t at = (uintptr_t)address;
    if (at - SIM_DEVICE_BASE < SIM_DEVICE_SPAN || at - SIM_HOST_BASE < SIM_HOST_SPAN) {
        if (!sim_kernel_name() || sim_memory_holds(at, bytes))
            return;
        char text[256];
        sim_memory_describe(at, text, sizeof text);
        sim_abort_grid(cudaErrorIllegalAddress, "%s %zu bytes at 0x%" PRIxPTR ": %s",
                       writes ? "writes" : "reads", bytes, at, text);
    }
    sim_check_thread t;
    if (!sim_check_running(&t))
        return;
    std::call_once(once, read_symbols);
    if (at >= t.shared && at < t.shared_end)
        check_dynamic(&t, at, bytes, writes, atomic);
    else if (local_memory() && at - local_memory() < local_bytes + BEHIND_BYTES && !variables.empty())
        check_static(&t, at, bytes, writes, atomic);
}

void sim_product_reads(uint64_t number, const void *shared, size_t bytes, bool computed)
{
    sim_check_thread t;
    if (!sim_checking || !sim_check_running(&t))
        return;
    const uintptr_t at = (uintptr_t)shared;
    if (!computed)
        check_dynamic(&t, at, bytes, false, false);
    for (uintptr_t byte = at; byte < at + bytes; byte++) {
        const cell *c = &dynamic_cells[byte - t.shared];
        if (c->write_epoch < t.begun)
            continue;
        const char *wrong = c->write_clock >= number ? "while the product is computed, before a wait for it"
                            : !computed && sim_products_fenced(c->write_thread, t.epoch) <= c->write_clock
                                ? "without fence.proxy.async and then a barrier after that"
                                : NULL;
        if (wrong)
            sim_abort_grid(cudaErrorLaunchFailure,
                           "wgmma: a product reads byte %" PRIuPTR " of dynamic shared memory, which thread "
                           "%u has written %s",
                           byte - t.dynamic, c->write_thread, wrong);
    }
}

#ifndef __SANITIZE_THREAD__
// ---- what the compiler calls; under other names, since a compiler that instruments this very file declares
// them

#define SIM_HOOK(type, name, ...)                                                                            \
    extern "C" type hook_##name(__VA_ARGS__) asm("__tsan_" #name);                                           \
    extern "C" type hook_##name(__VA_ARGS__)

SIM_HOOK(void, init, void)
{
    sim_checking = true;
}
SIM_HOOK(void, func_entry, void *) {}
SIM_HOOK(void, func_exit, void) {}
SIM_HOOK(void, vptr_update, void **, void *) {}
SIM_HOOK(void, vptr_read, void **) {}
SIM_HOOK(void, read_range, void *at, size_t bytes)
{
    sim_check_access(at, bytes, false, false);
}
SIM_HOOK(void, write_range, void *at, size_t bytes)
{
    sim_check_access(at, bytes, true, false);
}

// The device reaches 2, 4, 8 or 16 bytes at once only at multiples of them.
static void check_whole(const void *at, size_t bytes, bool writes)
{
    if ((uintptr_t)at % bytes && sim_kernel_name())
        sim_abort_grid(cudaErrorMisalignedAddress, "%s %zu bytes at %p: misaligned",
                       writes ? "writes" : "reads", bytes, at);
    sim_check_access(at, bytes, writes, false);
}

#define SIM_HOOKS(n)                                                                                         \
    SIM_HOOK(void, read##n, void *at)                                                                        \
    {                                                                                                        \
        check_whole(at, n, false);                                                                           \
    }                                                                                                        \
    SIM_HOOK(void, write##n, void *at)                                                                       \
    {                                                                                                        \
        check_whole(at, n, true);                                                                            \
    }                                                                                                        \
    SIM_HOOK(void, unaligned_read##n, void *at)                                                              \
    {                                                                                                        \
        sim_check_access(at, n, false, false);                                                               \
    }                                                                                                        \
    SIM_HOOK(void, unaligned_write##n, void *at)                                                             \
    {                                                                                                        \
        sim_check_access(at, n, true, false);                                                                \
    }
SIM_HOOKS(1)
SIM_HOOKS(2)
SIM_HOOKS(4)
SIM_HOOKS(8)
SIM_HOOKS(16)
#undef SIM_HOOKS

static void check_atomic(const volatile void *at, size_t bytes)
{
    sim_check_access((const void *)at, bytes, true, true);
}

#define SIM_ATOMICS(bits, type)                                                                              \
    SIM_HOOK(type, atomic##bits##_load, const volatile type *at, int)                                        \
    {                                                                                                        \
        check_atomic(at, sizeof(type));                                                                      \
        return __atomic_load_n(at, __ATOMIC_SEQ_CST);                                                        \
    }                                                                                                        \
    SIM_HOOK(void, atomic##bits##_store, volatile type *at, type value, int)                                 \
    {                                                                                                        \
        check_atomic(at, sizeof(type));                                                                      \
        __atomic_store_n(at, value, __ATOMIC_SEQ_CST);                                                       \
    }                                                                                                        \
    SIM_HOOK(type, atomic##bits##_exchange, volatile type *at, type value, int)                              \
    {                                                                                                        \
        check_atomic(at, sizeof(type));                                                                      \
        return __atomic_exchange_n(at, value, __ATOMIC_SEQ_CST);                                             \
    }                                                                                                        \
    SIM_HOOK(type, atomic##bits##_fetch_add, volatile type *at, type value, int)                             \
    {                                                                                                        \
        check_atomic(at, sizeof(type));                                                                      \
        return __atomic_fetch_add(at, value, __ATOMIC_SEQ_CST);                                              \
    }                                                                                                        \
    SIM_HOOK(int, atomic##bits##_compare_exchange_weak, volatile type *at, type *expected, type value, int,  \
             int)                                                                                            \
    {                                                                                                        \
        check_atomic(at, sizeof(type));                                                                      \
        return __atomic_compare_exchange_n(at, expected, value, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);  \
    }                                                                                                        \
    SIM_HOOK(int, atomic##bits##_compare_exchange_strong, volatile type *at, type *expected, type value,     \
             int a, int b)                                                                                   \
    {                                                                                                        \
        return hook_atomic##bits##_compare_exchange_weak(at, expected, value, a, b);                         \
    }
SIM_ATOMICS(16, uint16_t)
SIM_ATOMICS(32, uint32_t)
SIM_ATOMICS(64, uint64_t)
#undef SIM_ATOMICS
SIM_HOOK(void, atomic_thread_fence, int)
{
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
}
SIM_HOOK(void, atomic_signal_fence, int) {}
#endif
