// Device memory, and memory that the host shares, in the device process. Each allocation ends at a guard
// page; what lies between its last byte and the page, and before its first byte, holds a known value. It
// begins as bytes of 0xff (NaN in every float type) and is without access once it is freed. The address
// sanitizer is told what lies around each allocation, and so finds the access itself.
#include "tests/simcuda/check.hpp"
#include "tests/simcuda/sanitize.hpp"
#include "tests/simcuda/shared.hpp"

#include <algorithm>
#include <map>
#include <mutex>

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

namespace {
enum { FREED_REMEMBERED = 4096 };
constexpr uintptr_t PAGE_BYTES = 4096, POISON_FILE_BYTES = 2 << 20;

struct allocation {
    uintptr_t first;
    uint64_t bytes;
    uintptr_t guard;
    bool freed;
};

std::mutex lock;
std::map<uintptr_t, allocation> by_data;
std::atomic<uint64_t> changes; // of what is allocated

__attribute__((no_sanitize_address)) bool holds_canary(uintptr_t from, uintptr_t to, uintptr_t *wrong)
{
    for (; from < to; from++)
        if (*(const unsigned char *)from != SIM_CANARY) {
            *wrong = from;
            return false;
        }
    return true;
}

cudaError_t check(uintptr_t data, const allocation *of)
{
    uintptr_t wrong;
    if (of->freed)
        return cudaSuccess;
    if (!holds_canary(of->first, data, &wrong))
        fprintf(stderr,
                "simulated device: something wrote %" PRIuPTR " bytes before the allocation of %" PRIu64
                " bytes at 0x%" PRIxPTR "\n",
                data - wrong, of->bytes, data);
    else if (!holds_canary(data + of->bytes, of->guard, &wrong))
        fprintf(stderr,
                "simulated device: something wrote %" PRIuPTR " bytes after the allocation of %" PRIu64
                " bytes at 0x%" PRIxPTR "\n",
                wrong - data - of->bytes + 1, of->bytes, data);
    else
        return cudaSuccess;
    sim_set_error(cudaErrorIllegalAddress);
    return cudaErrorIllegalAddress;
}

int make_poison_file(void)
{
    const int file = memfd_create("poison", MFD_CLOEXEC);
    if (file < 0 || ftruncate(file, POISON_FILE_BYTES))
        return -1;
    void *all = mmap(NULL, POISON_FILE_BYTES, PROT_WRITE, MAP_SHARED, file, 0);
    if (all == MAP_FAILED)
        return -1;
    memset(all, SIM_POISON, POISON_FILE_BYTES);
    munmap(all, POISON_FILE_BYTES);
    return file;
}

// Whole pages of large allocations are those of a file until somebody writes to them: most of a workspace is
// never touched.
void poison(uintptr_t data, uint64_t bytes)
{
    uintptr_t at = (data + PAGE_BYTES - 1) / PAGE_BYTES * PAGE_BYTES;
    const uintptr_t pages_end = (data + bytes) / PAGE_BYTES * PAGE_BYTES;
    if (bytes >= POISON_FILE_BYTES) {
        static const int file = make_poison_file();
        memset((void *)data, SIM_POISON, at - data);
        while (file >= 0 && at < pages_end) {
            const size_t length = std::min(POISON_FILE_BYTES, pages_end - at);
            if (mmap((void *)at, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_FIXED, file, 0) ==
                MAP_FAILED)
                break;
            at += length;
        }
        bytes -= at - data;
        data = at;
    }
    memset((void *)data, SIM_POISON, bytes);
}

void forget_oldest_freed(void)
{
    size_t freed = 0;
    for (const auto &entry : by_data)
        freed += entry.second.freed;
    for (auto at = by_data.begin(); freed > FREED_REMEMBERED / 2 && at != by_data.end();) {
        if (at->second.freed) {
            at = by_data.erase(at);
            freed--;
        } else {
            ++at;
        }
    }
}
} // namespace

cudaError_t sim_memory_map(uintptr_t first, uint64_t data, uint64_t bytes, uint64_t guard)
{
    if (mprotect((void *)first, guard - first, PROT_READ | PROT_WRITE))
        return cudaErrorMemoryAllocation;
    if (first >= SIM_DEVICE_BASE &&
        first < SIM_DEVICE_BASE + SIM_DEVICE_SPAN) { // the rest is filled by the program
        memset((void *)first, SIM_CANARY, data - first);
        poison(data, bytes);
        memset((void *)(data + bytes), SIM_CANARY, guard - data - bytes);
    }
    sim_forbid((void *)first, data - first);
    sim_forbid((void *)(data + bytes), guard - data - bytes);
    std::lock_guard<std::mutex> hold(lock);
    by_data[data] = {first, bytes, guard, false};
    changes.fetch_add(1);
    return cudaSuccess;
}

cudaError_t sim_memory_unmap(uintptr_t data)
{
    std::lock_guard<std::mutex> hold(lock);
    auto found = by_data.find(data);
    if (found == by_data.end() || found->second.freed)
        return cudaErrorInvalidValue;
    allocation *of = &found->second;
    const cudaError_t error = check(data, of);
    of->freed = true;
    changes.fetch_add(1);
    if (of->first < SIM_HOST_BASE)
        madvise((void *)of->first, of->guard - of->first, MADV_DONTNEED);
    mprotect((void *)of->first, of->guard - of->first, PROT_NONE);
    if (by_data.size() % FREED_REMEMBERED == 0)
        forget_oldest_freed();
    return error;
}

cudaError_t sim_memory_check(void)
{
    cudaError_t error = cudaSuccess;
    std::lock_guard<std::mutex> hold(lock);
    for (const auto &entry : by_data) {
        const cudaError_t one = check(entry.first, &entry.second);
        error = error ? error : one;
    }
    return error;
}

bool sim_memory_holds(uintptr_t address, size_t bytes)
{
    // The same allocation as at the last look, mostly.
    static __thread uintptr_t first, end;
    static __thread uint64_t when;
    if (when == changes.load(std::memory_order_relaxed) && address >= first && address + bytes <= end)
        return true;
    std::lock_guard<std::mutex> hold(lock);
    auto after = by_data.upper_bound(address);
    if (after == by_data.begin())
        return false;
    auto of = std::prev(after);
    if (of->second.freed || address + bytes > of->first + of->second.bytes)
        return false;
    first = of->first;
    end = of->first + of->second.bytes;
    when = changes.load();
    return true;
}

void sim_memory_describe(uintptr_t address, char *text, size_t bytes)
{
    if (address < 4096) {
        snprintf(text, bytes, "a null pointer");
        return;
    }
    if (address - SIM_DEVICE_BASE >= SIM_DEVICE_SPAN && address - SIM_HOST_BASE >= SIM_HOST_SPAN) {
        snprintf(text, bytes,
                 "not memory of the device: plain memory of the host? (kernels reach cudaMalloc's and "
                 "cudaMallocHost's)");
        return;
    }
    std::unique_lock<std::mutex> hold(lock, std::try_to_lock);
    if (!hold.owns_lock()) {
        snprintf(text, bytes, "memory of the device that is not allocated");
        return;
    }
    auto after = by_data.upper_bound(address);
    if (after != by_data.begin()) {
        auto of = std::prev(after);
        if (address - of->first < of->second.bytes)
            snprintf(text, bytes, "byte %" PRIuPTR " of %s%" PRIu64 " bytes at 0x%" PRIxPTR,
                     address - of->first, of->second.freed ? "a freed allocation of " : "an allocation of ",
                     of->second.bytes, of->first);
        else
            snprintf(text, bytes,
                     "%" PRIuPTR " bytes behind the %sallocation of %" PRIu64 " bytes at 0x%" PRIxPTR,
                     address - of->first - of->second.bytes + 1, of->second.freed ? "freed " : "",
                     of->second.bytes, of->first);
        return;
    }
    snprintf(text, bytes, "memory of the device that is not allocated");
}
