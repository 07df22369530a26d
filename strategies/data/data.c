// What data-parallel strategies share.
#include "strategies/data/data.h"

#include "core/random.h"

#include <string.h>

uint64_t ptb_data_hash(const float *values, size_t count)
{
    uint64_t hash = count;
    for (size_t i = 0; i < count; i++) {
        uint32_t bits;
        memcpy(&bits, &values[i], sizeof bits);
        hash = ptb_random_mix(hash + 0x9e3779b97f4a7c15u * (bits + 1ull));
    }
    return hash;
}

void ptb_data_account(ptb_device *device, ptb_memory category, int64_t bytes)
{
    device->used_bytes[category] += (uint64_t)bytes;
    if (device->used_bytes[category] > device->peak_bytes[category])
        device->peak_bytes[category] = device->used_bytes[category];
}
