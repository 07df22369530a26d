// What data-parallel strategies share.
#include "strategies/data/data.h"

#include "core/random.h"

#include <string.h>

// Two pieces of host memory that copies pass without staging: one is copied while the host is busy with the
// other.
enum { PIECE = 1 << 20, PIECES = 2 }; // elements: 4 MiB a piece
typedef struct {
    ptb_device *device;
    float *memory[PIECES]; /* [PIECE] */
    ptb_event *copied[PIECES];
} staging;

static void staging_release(staging *s)
{
    for (int i = 0; i < PIECES; i++) {
        ptb_event_free(s->copied[i]);
        ptb_device_free_host(s->device, s->memory[i]);
    }
}

static ptb_status staging_init(staging *s, ptb_device *device, size_t count)
{
    size_t bytes = (count < PIECE ? count : PIECE) * sizeof(float);
    *s = (staging){.device = device};
    for (int i = 0; i < PIECES; i++) {
        void *memory;
        ptb_status status = ptb_device_alloc_host(device, bytes ? bytes : 1, &memory);
        if (status == PTB_OK) {
            s->memory[i] = memory;
            status = ptb_event_new(device, &s->copied[i]);
        }
        if (status != PTB_OK) {
            staging_release(s);
            return status;
        }
    }
    return PTB_OK;
}

static size_t piece_count(size_t count, size_t first)
{
    return count - first < PIECE ? count - first : PIECE;
}

static ptb_status fill_pieces(const ptb_data_env *e, staging *s, float *parameters)
{
    size_t count = e->layout->count;
    for (size_t first = 0, number = 0; first < count; first += PIECE, number++) {
        size_t n = piece_count(count, first), at = number % PIECES;
        PTB_TRY(ptb_event_sync(s->copied[at])); // its last copy has read it
        ptb_layout_fill_range(e->layout, e->seed, first, n, e->threads, s->memory[at]);
        PTB_TRY(ptb_stream_copy(e->compute, parameters + first, s->memory[at], n * sizeof(float)));
        PTB_TRY(ptb_event_record(s->copied[at], e->compute));
    }
    return PTB_OK;
}

ptb_status ptb_data_fill(const ptb_data_env *e, float *parameters)
{
    staging s;
    PTB_TRY(staging_init(&s, e->device, e->layout->count));
    ptb_status status = fill_pieces(e, &s, parameters), synced = ptb_stream_sync(e->compute);
    staging_release(&s);
    return status != PTB_OK ? status : synced;
}

// A sum, so that pieces can be summed in any order.
static uint64_t hash_piece(const float *values, uint64_t first, size_t count)
{
    uint64_t sum = 0;
    for (size_t i = 0; i < count; i++) {
        uint32_t bits;
        memcpy(&bits, &values[i], sizeof bits);
        sum += ptb_random_mix((first + i + 1) * 0x9e3779b97f4a7c15u + (bits + 1ull) * 0xd1b54a32d192ed03u);
    }
    return sum;
}

static ptb_status copy_piece(const ptb_data_env *e, staging *s, const float *values, size_t count,
                             size_t number)
{
    size_t first = number * PIECE, at = number % PIECES;
    if (first >= count)
        return PTB_OK;
    PTB_TRY(ptb_stream_copy(e->compute, s->memory[at], values + first,
                            piece_count(count, first) * sizeof(float)));
    return ptb_event_record(s->copied[at], e->compute);
}

static ptb_status hash_pieces(const ptb_data_env *e, staging *s, const float *values, size_t count,
                              uint64_t *hash)
{
    uint64_t sum = count;
    PTB_TRY(copy_piece(e, s, values, count, 0));
    for (size_t first = 0, number = 0; first < count; first += PIECE, number++) {
        PTB_TRY(copy_piece(e, s, values, count, number + 1));
        PTB_TRY(ptb_event_sync(s->copied[number % PIECES]));
        sum += hash_piece(s->memory[number % PIECES], first, piece_count(count, first));
    }
    *hash = ptb_random_mix(sum);
    return PTB_OK;
}

ptb_status ptb_data_hash(const ptb_data_env *e, const float *values, size_t count, uint64_t *hash)
{
    staging s;
    uint64_t got = 0;
    PTB_TRY(staging_init(&s, e->device, count));
    ptb_status status = hash_pieces(e, &s, values, count, &got), synced = ptb_stream_sync(e->compute);
    staging_release(&s);
    PTB_TRY(status);
    PTB_TRY(synced);
    *hash = got;
    return PTB_OK;
}

void ptb_data_account(ptb_device *device, ptb_memory category, int64_t bytes)
{
    device->used_bytes[category] += (uint64_t)bytes;
    if (device->used_bytes[category] > device->peak_bytes[category])
        device->peak_bytes[category] = device->used_bytes[category];
}
