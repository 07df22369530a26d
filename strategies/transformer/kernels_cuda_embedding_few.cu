// The gradient of an embedding in one launch, for few rows: launches one after the other, as sorting needs
// them, would take longer than all of the work. A warp looks for the rows that have the same key as its own,
// in a list of all keys in shared memory. Of such a run, in order of rows, each SEGMENT-th row leads: its
// block sums it and those up to the next leader. A run of one segment is added to its row of the table at
// once; the segments of longer ones go to memory, and the block that finishes the last of them adds them all,
// in order, so that results do not depend on who was last. Positions without documents need no looking: the
// runs are known.
#include "strategies/transformer/kernels_cuda_embedding.cuh"

namespace {

constexpr unsigned WARP = 32, THREADS = 256, LEADERS = THREADS / WARP; // of a block: one a warp
constexpr unsigned SEGMENT = 16;
constexpr unsigned MOST_ROWS = 8192;            // that are compared each with all
constexpr size_t MOST_PARTIAL_BYTES = 15 << 20; // of the sums of segments, for tokens and for positions
constexpr unsigned CHUNK = 4 * WARP;            // keys that a warp compares at a time
constexpr unsigned ALL = 0xffffffffu, NO_KEY = 0xffffffffu;

// Keys and where their sums go.
struct key_sums {
    ptb_row_keys keys;
    float *out;        /* [keys, width] */
    float *partial;    /* [slots, width]: sums of the segments of runs that have several */
    unsigned *arrived; /* [MOST_ROWS]: finished segments of a run, by its first row; zero between launches */
    unsigned *ticket;  // segments that took a slot, modulo slots; never reset
    unsigned *slot_of; /* [MOST_ROWS]: of the segment that a row leads */
    unsigned slots;    // a power of 2 where there are tickets
    unsigned blocks;
    bool accumulate; // else rows of out that are written were 0
    __host__ __device__ bool is_known() const { return !keys.tokens && !keys.start; }
};

struct few_sums {
    key_sums table, positions;
    size_t width;
};

// What a warp has found: the rows of a segment. count 0: its row leads none.
struct segment {
    unsigned rows[SEGMENT], count;
    unsigned key, run;         // run: the first row with this key
    unsigned number, of, slot; // segment `number` of `of` in its run
};

// f(place, row) for the rows of [first, end) with this key; the warp calls it. place counts on from `before`,
// and what comes back is the place of the next. first and end are multiples of CHUNK.
template <typename F>
__device__ __forceinline__ unsigned each_member(const unsigned *keys, unsigned first, unsigned end,
                                                unsigned key, unsigned before, F f)
{
    unsigned lane = threadIdx.x % WARP, lower = (1u << lane) - 1;
    for (; first < end; first += CHUNK) {
        uint4 four = ((const uint4 *)(keys + first))[lane];
        const bool same[4] = {four.x == key, four.y == key, four.z == key, four.w == key};
        if (!__any_sync(ALL, same[0] | same[1] | same[2] | same[3]))
            continue;
        unsigned place = before;
#pragma unroll
        for (int i = 0; i < 4; i++) {
            unsigned mask = __ballot_sync(ALL, same[i]);
            place += (unsigned)__popc(mask & lower);
            before += (unsigned)__popc(mask);
        }
#pragma unroll
        for (unsigned i = 0; i < 4; i++)
            if (same[i])
                f(place++, first + 4 * lane + i);
    }
    return before;
}

__device__ unsigned padded(size_t rows)
{
    return (unsigned)((rows + CHUNK - 1) / CHUNK * CHUNK);
}

// The segment that the row leads, if any; the warp calls it.
__device__ void look_for_segment(segment &s, const key_sums &sums, const unsigned *keys, unsigned row)
{
    unsigned lane = threadIdx.x % WARP, key = keys[row], chunk = row / CHUNK * CHUNK, run = row, mine = 0;
    if (key >= sums.keys.limit)
        return;
    unsigned before =
        each_member(keys, 0, chunk, key, 0, [&](unsigned, unsigned r) { run = r < run ? r : run; });
    each_member(keys, chunk, chunk + CHUNK, key, before, [&](unsigned place, unsigned r) {
        run = r < run ? r : run;
        mine = r == row ? place : mine;
    });
    run = __reduce_min_sync(ALL, run);
    mine = __reduce_max_sync(ALL, mine);
    if (mine % SEGMENT)
        return;
    unsigned total =
        each_member(keys, chunk, padded(sums.keys.rows), key, before, [&](unsigned place, unsigned r) {
            if (place - mine < SEGMENT)
                s.rows[place - mine] = r;
        });
    if (lane)
        return;
    s.count = total - mine < SEGMENT ? total - mine : SEGMENT;
    s.key = key;
    s.run = run;
    s.number = mine / SEGMENT;
    s.of = (total + SEGMENT - 1) / SEGMENT;
    if (s.of > 1)
        sums.slot_of[row] = s.slot = atomicAdd(sums.ticket, 1u) & (sums.slots - 1);
}

// Positions without documents: rows r, r + sequence, ... are at the same one.
__device__ void know_segment(segment &s, const key_sums &sums, size_t leader)
{
    size_t position = leader % sums.keys.sequence, number = leader / sums.keys.sequence;
    if (position >= sums.keys.rows)
        return;
    size_t total = (sums.keys.rows - 1 - position) / sums.keys.sequence + 1;
    if (number * SEGMENT >= total)
        return;
    unsigned lane = threadIdx.x % WARP, count = (unsigned)(total - number * SEGMENT);
    count = count < SEGMENT ? count : SEGMENT;
    if (lane < count)
        s.rows[lane] = (unsigned)((number * SEGMENT + lane) * sums.keys.sequence + position);
    if (lane)
        return;
    s.count = count;
    s.key = (unsigned)(sums.keys.offset + position);
    s.run = (unsigned)position;
    s.number = (unsigned)number;
    s.of = (unsigned)((total + SEGMENT - 1) / SEGMENT);
    s.slot = (unsigned)leader;
}

// All segments of the block: each thread takes some columns of some of them, those of several at once on
// their way from memory.
template <typename T, int N>
__device__ __forceinline__ void add_segments(const segment *segments, const key_sums &sums,
                                             const T *d_out /* [rows, width] */, size_t width)
{
    constexpr int TOGETHER = 2;
    unsigned packs = (unsigned)(width / N), items = LEADERS * packs;
    for (unsigned first = threadIdx.x; first < items; first += TOGETHER * THREADS) {
        ptb_raw<T, N> values[TOGETHER][2];
        float before[TOGETHER][N] = {};
#pragma unroll
        for (unsigned t = 0; t < TOGETHER; t++) {
            unsigned item = first + t * THREADS;
            const segment &s = segments[item < items ? item / packs : 0];
            size_t column = (size_t)(item % packs) * N;
            values[t][0].zero(), values[t][1].zero();
            if (item >= items || !s.count)
                continue;
            values[t][0].load(d_out + s.rows[0] * width + column);
            if (s.count > 1)
                values[t][1].load(d_out + s.rows[1] * width + column);
            if (sums.accumulate && s.of == 1)
                ptb_load(before[t], sums.out + s.key * width + column);
        }
#pragma unroll
        for (unsigned t = 0; t < TOGETHER; t++) {
            unsigned item = first + t * THREADS;
            const segment &s = segments[item < items ? item / packs : 0];
            size_t column = (size_t)(item % packs) * N;
            if (item >= items || !s.count)
                continue;
            float sum[N] = {0};
            values[t][0].add_to(sum, 1);
            values[t][1].add_to(sum, 1);
#pragma unroll 4
            for (unsigned i = 2; i < s.count; i++) {
                ptb_raw<T, N> more;
                more.load(d_out + s.rows[i] * width + column);
                more.add_to(sum, 1);
            }
#pragma unroll
            for (int e = 0; e < N; e++)
                sum[e] += before[t][e];
            ptb_store((s.of == 1 ? sums.out + s.key * width : sums.partial + s.slot * width) + column, sum);
        }
    }
}

// By the block that finished the last segment of a run: out (+)= the sums of its segments. slots: room for as
// many as there can be.
__device__ void merge_run(const segment &s, const key_sums &sums, const unsigned *keys, unsigned *slots,
                          size_t width)
{
    if (sums.is_known())
        for (unsigned i = threadIdx.x; i < s.of; i += THREADS)
            slots[i] = (unsigned)(i * sums.keys.sequence) + s.run;
    else if (threadIdx.x < WARP)
        each_member(keys, 0, padded(sums.keys.rows), s.key, 0, [&](unsigned place, unsigned row) {
            if (place % SEGMENT == 0)
                slots[place / SEGMENT] = __ldcg(sums.slot_of + row);
        });
    __syncthreads();
    for (size_t column = threadIdx.x; column < width; column += THREADS) {
        float *out = sums.out + s.key * width + column, sum = sums.accumulate ? *out : 0;
#pragma unroll 8
        for (unsigned i = 0; i < s.of; i++)
            sum += __ldcg(sums.partial + slots[i] * width + column); // past the first-level cache
        *out = sum;
    }
}

template <typename T, int N>
__global__ void __launch_bounds__(THREADS, 4) add_few_rows(few_sums a, const T *d_out /* [rows, width] */)
{
    PTB_DYNAMIC_SHARED(unsigned, keys); /* [padded(rows)] */
    __shared__ segment segments[LEADERS];
    __shared__ unsigned slots[MOST_ROWS / SEGMENT];
    __shared__ bool is_last;
    bool first = blockIdx.x < a.table.blocks;
    const key_sums sums = first ? a.table : a.positions;
    unsigned warp = threadIdx.x / WARP;
    size_t leader = (size_t)(blockIdx.x - (first ? 0 : a.table.blocks)) * LEADERS + warp;
    if (threadIdx.x < LEADERS)
        segments[threadIdx.x].count = 0;
    if (!sums.is_known())
#pragma unroll 8
        for (unsigned i = threadIdx.x; i < padded(sums.keys.rows); i += THREADS)
            keys[i] = i < sums.keys.rows ? sums.keys.of(i) : NO_KEY;
    __syncthreads();
    if (sums.is_known())
        know_segment(segments[warp], sums, leader);
    else if (leader < sums.keys.rows)
        look_for_segment(segments[warp], sums, keys, (unsigned)leader);
    __syncthreads();
    add_segments<T, N>(segments, sums, d_out, a.width);
    for (unsigned i = 0; i < LEADERS; i++) {
        const segment &s = segments[i];
        if (!s.count || s.of == 1)
            continue;
        __threadfence(); // what this thread has stored of the segment, before it counts as finished
        __syncthreads();
        if (threadIdx.x == 0) {
            is_last = atomicAdd(sums.arrived + s.run, 1u) + 1 == s.of;
            if (is_last)
                sums.arrived[s.run] = 0;
            __threadfence();
        }
        __syncthreads();
        if (is_last)
            merge_run(s, sums, keys, slots, a.width);
    }
}

// ---- the host's side

// Rows or positions with a segment each, at most.
size_t leaders_of(const ptb_row_keys &keys)
{
    if (keys.tokens || keys.start)
        return keys.rows;
    size_t longest = (keys.rows + keys.sequence - 1) / keys.sequence;
    return (longest + SEGMENT - 1) / SEGMENT * keys.sequence;
}

// Slots for the segments of runs that have several: of SEGMENT + 1 rows, two at most.
unsigned slots_of(const ptb_row_keys &keys)
{
    size_t leaders = leaders_of(keys);
    if (!keys.tokens && !keys.start)
        return leaders > keys.sequence ? (unsigned)leaders : 0;
    unsigned slots = 1;
    while (slots < 2 * keys.rows / (SEGMENT + 1))
        slots *= 2;
    return slots;
}

// Places of the pieces of the scratch: for the table, then for positions.
size_t partial_bytes(const ptb_embedding_gradient *a, bool tokens)
{
    return ptb_cuda_is_few(a, tokens) ? slots_of(ptb_keys_of(a, tokens)) * a->width * sizeof(float) : 0;
}

key_sums sums_of(const ptb_embedding_gradient *a, bool tokens, char *scratch)
{
    unsigned *counters = ptb_cuda_counters(scratch), *slot_of = (unsigned *)scratch;
    char *partial = scratch + 2 * MOST_ROWS * sizeof(unsigned);
    key_sums s = {.keys = ptb_keys_of(a, tokens)};
    s.out = tokens ? a->d_table : a->d_positions;
    s.partial = (float *)(tokens ? partial : partial + partial_bytes(a, true));
    s.arrived = tokens ? counters : counters + MOST_ROWS;
    s.ticket = counters + 2 * MOST_ROWS + (tokens ? 0 : 1);
    s.slot_of = tokens ? slot_of : slot_of + MOST_ROWS;
    s.slots = slots_of(s.keys);
    s.blocks = (unsigned)ptb_blocks(leaders_of(s.keys), LEADERS);
    s.accumulate = tokens ? a->accumulate_table : a->accumulate_positions;
    return s;
}
static_assert(2 * MOST_ROWS + 2 <= PTB_CUDA_COUNTERS, "counters for both");

// Rows of out that are not accumulated and that no row may be added to: all of them, or those beside the
// positions that are known to be there.
int clear(cudaStream_t stream, const key_sums &s, size_t count, size_t width)
{
    if (s.accumulate)
        return cudaSuccess;
    size_t begin = 0, end = 0; // rows that are all written
    if (s.is_known()) {
        begin = s.keys.offset;
        end = begin + (s.keys.rows < s.keys.sequence ? s.keys.rows : s.keys.sequence);
    }
    cudaError_t error = cudaSuccess;
    if (begin)
        error = cudaMemsetAsync(s.out, 0, begin * width * sizeof(float), stream);
    if (error == cudaSuccess && end < count)
        error = cudaMemsetAsync(s.out + end * width, 0, (count - end) * width * sizeof(float), stream);
    return error;
}

template <typename T> int launch(cudaStream_t stream, const ptb_embedding_gradient *a, const few_sums &sums)
{
    constexpr int N = ptb_width<T>;
    const T *d_out = (const T *)a->d_out;
    bool looks = (sums.table.blocks && !sums.table.is_known()) ||
                 (sums.positions.blocks && !sums.positions.is_known());
    size_t bytes = looks ? ptb_blocks(a->rows, CHUNK) * CHUNK * sizeof(unsigned) : 0; // at most 32 KiB
    unsigned blocks = sums.table.blocks + sums.positions.blocks;
    if (a->width % N == 0 && ptb_aligned(16, d_out, sums.table.out, sums.positions.out))
        return PTB_LAUNCH((add_few_rows<T, N>), blocks, THREADS, bytes, stream, sums, d_out);
    return PTB_LAUNCH((add_few_rows<T, 1>), blocks, THREADS, bytes, stream, sums, d_out);
}

} // namespace

extern "C" bool ptb_cuda_is_few(const ptb_embedding_gradient *a, bool tokens)
{
    ptb_row_keys keys = ptb_keys_of(a, tokens);
    if (!a->rows || a->width > 0xffffffffu / LEADERS)
        return false;
    if (slots_of(keys) * a->width * sizeof(float) > MOST_PARTIAL_BYTES)
        return false;
    bool is_known = !keys.tokens && !keys.start;
    // Known runs of one segment need no counters, and positions are fewer than 2^32.
    return is_known ? leaders_of(keys) == keys.sequence || leaders_of(keys) <= MOST_ROWS
                    : keys.rows <= MOST_ROWS;
}

extern "C" size_t ptb_cuda_few_scratch(const ptb_embedding_gradient *a)
{
    return 2 * MOST_ROWS * sizeof(unsigned) + partial_bytes(a, true) +
           (a->d_positions ? partial_bytes(a, false) : 0);
}

extern "C" int ptb_cuda_launch_few(cudaStream_t stream, const ptb_embedding_gradient *a, bool table,
                                   bool positions, void *scratch)
{
    few_sums sums = {.width = a->width};
    int error = cudaSuccess;
    if (table) {
        sums.table = sums_of(a, true, (char *)scratch);
        error = clear(stream, sums.table, a->vocabulary, a->width);
    }
    if (positions && error == cudaSuccess) {
        sums.positions = sums_of(a, false, (char *)scratch);
        error = clear(stream, sums.positions, a->positions, a->width);
    }
    if (error != cudaSuccess || (!table && !positions))
        return error;
    return ptb_for_type(a->type, [&](auto type) { return launch<decltype(type)>(stream, a, sums); });
}
