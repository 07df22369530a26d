// Token and position embedding on the host, and its gradient.
#include "strategies/transformer/kernels_host_tasks.h"

#include <omp.h>

enum {
    SEQUENCES = 4,      // whose rows of the same position are added at once
    OWNED = 16,         // rows of a table in a row that belong to one thread
    START_BYTES = 1024, // of a row anywhere in the table: asked for before the processor sees where it goes
};

// Row of positions that row r of the batch uses.
static inline size_t position_of(size_t r, size_t sequence, size_t offset, const int32_t *start)
{
    return offset + r % sequence - (start ? (size_t)start[r] : 0);
}

// Row of the table that a token has; `vocabulary` or more: it is not in this part.
static inline size_t place_of(int32_t token, size_t first_token)
{
    return (size_t)(uint32_t)(token - (int32_t)first_token);
}

PTB_HOST_BODY embedding_row(ptb_dtype type, const ptb_embedding *args, size_t r)
{
    const ptb_embedding a = *args;
    size_t width = a.width, bytes = width * ptb_dtype_size(type), c = 0;
    size_t place = place_of(a.tokens[r], a.first_token);
    bool is_here = place < a.vocabulary;
    const char *token = (const char *)a.table + (is_here ? place * bytes : 0), *next = token;
    const char *position = NULL;
    char *out = (char *)a.out + r * bytes;
    if (a.positions)
        position = (const char *)a.positions + position_of(r, a.sequence, a.position_offset, a.start) * bytes;
    if (!is_here || !position) {
        if (is_here || position)
            memcpy(out, is_here ? token : position, bytes);
        else
            memset(out, 0, bytes);
        return;
    }
    if (r + 1 < a.rows && place_of(a.tokens[r + 1], a.first_token) < a.vocabulary)
        next = (const char *)a.table + place_of(a.tokens[r + 1], a.first_token) * bytes;
    for (; c + PTB_LANES <= width; c += PTB_LANES) {
        if (c * ptb_dtype_size(type) < START_BYTES && c % ptb_host_line(type) == 0)
            ptb_host_prefetch(type, next, c);
        ptb_vec_store(type, out, c, ptb_vec_load(type, token, c) + ptb_vec_load(type, position, c));
    }
    if (c < width) {
        size_t count = width - c;
        ptb_vec sum = ptb_vec_load_some(type, token, c, count) + ptb_vec_load_some(type, position, c, count);
        ptb_vec_store_some(type, out, c, count, sum);
    }
}

ptb_status ptb_host_run_embedding(void *arg)
{
    const ptb_embedding *a = arg;
#pragma omp parallel for schedule(static) if (a->rows * a->width > PTB_HOST_SERIAL)
    for (size_t r = 0; r < a->rows; r++)
        PTB_HOST_TYPED(embedding_row, a->type, a, r);
    return PTB_OK;
}

// Zeroes f32 values at the speed of memory: lines of a table much larger than the caches are streamed.
static void zero(float *values, size_t count)
{
    bool stream = ptb_host_streams(values, count * sizeof *values, PTB_HOST_LINE, NULL, NULL);
#pragma omp parallel for schedule(static) if (count > PTB_HOST_SERIAL)
    for (size_t first = 0; first < count; first += PTB_HOST_CHUNK) {
        size_t i = first, end = ptb_host_least(count, first + PTB_HOST_CHUNK);
        for (; i + PTB_LANES <= end; i += PTB_LANES)
            ptb_host_store(stream, PTB_F32, values, i, PTB_LANES, ptb_vec_set(0));
        memset(values + i, 0, (end - i) * sizeof *values);
        ptb_host_fence(stream);
    }
}

// sums[width] += the `rows` rows of values, `stride` elements apart, in order, while the sums that are needed
// next are asked for.
PTB_HOST_BODY add_rows(ptb_dtype type, float *sums, const void *values, size_t rows, size_t stride,
                       size_t width, const float *next)
{
    size_t c = 0;
    for (; c + PTB_LANES <= width; c += PTB_LANES) {
        ptb_host_prefetch(PTB_F32, next, c);
        ptb_vec sum = ptb_vec_load(PTB_F32, sums, c);
        for (size_t r = 0; r < rows; r++)
            sum += ptb_vec_load(type, values, r * stride + c);
        ptb_vec_store(PTB_F32, sums, c, sum);
    }
    if (c < width) {
        size_t n = width - c;
        ptb_vec sum = ptb_vec_load_some(PTB_F32, sums, c, n);
        for (size_t r = 0; r < rows; r++)
            sum += ptb_vec_load_some(type, values, r * stride + c, n);
        ptb_vec_store_some(PTB_F32, sums, c, n, sum);
    }
}

// Whether a row of a table belongs to the thread. Threads' rows are not next to each other: the processor
// would fetch the beginning of the next row, which another thread is writing.
PTB_INLINE bool is_owned(size_t row, uint32_t thread, uint32_t threads)
{
    return (uint32_t)(row / OWNED) % threads == thread;
}

// The first row from r on whose token is in the table and belongs to this thread.
PTB_INLINE size_t owned_row(const ptb_embedding_gradient *a, size_t r, uint32_t thread, uint32_t threads)
{
    for (; r < a->rows; r++) {
        size_t place = place_of(a->tokens[r], a->first_token);
        if (place < a->vocabulary && is_owned(place, thread, threads))
            break;
    }
    return r;
}

// Where row r's token is summed.
PTB_INLINE float *token_sums(const ptb_embedding_gradient *a, size_t r)
{
    return a->d_table + place_of(a->tokens[r], a->first_token) * a->width;
}

// Adds the rows whose token belongs to this thread. Tokens are anywhere in the table: the sums of the next
// one are asked for while one is added.
PTB_HOST_BODY add_tokens(ptb_dtype type, const ptb_embedding_gradient *a, uint32_t thread, uint32_t threads)
{
    size_t r = owned_row(a, 0, thread, threads), size = ptb_dtype_size(type);
    while (r < a->rows) {
        size_t next = owned_row(a, r + 1, thread, threads);
        float *sums = token_sums(a, r);
        add_rows(type, sums, (const char *)a->d_out + r * a->width * size, 1, 0, a->width,
                 next < a->rows ? token_sums(a, next) : sums);
        r = next;
    }
}

// Adds the rows whose position belongs to this thread: of all sequences at once where positions repeat.
PTB_HOST_BODY add_positions(ptb_dtype type, const ptb_embedding_gradient *a, uint32_t thread,
                            uint32_t threads)
{
    size_t width = a->width, size = ptb_dtype_size(type), sequence = a->sequence;
    size_t together = a->start ? 1 : SEQUENCES;
    for (size_t block = 0; block < a->rows; block += together * sequence)
        for (size_t r = block; r < a->rows && r < block + sequence; r++) {
            size_t position = position_of(r, sequence, a->position_offset, a->start);
            float *sums = a->d_positions + position * width;
            const char *d_out = (const char *)a->d_out + r * width * size;
            if (!is_owned(position, thread, threads))
                continue;
            if (r + (SEQUENCES - 1) * sequence < a->rows && together == SEQUENCES)
                add_rows(type, sums, d_out, SEQUENCES, sequence * width, width, sums);
            else
                for (size_t s = 0; s < together && r + s * sequence < a->rows; s++)
                    add_rows(type, sums, d_out + s * sequence * width * size, 1, 0, width, sums);
        }
}

PTB_HOST_BODY add_owned(ptb_dtype type, const ptb_embedding_gradient *args, uint32_t thread, uint32_t threads)
{
    const ptb_embedding_gradient a = *args; // a copy: stores can not be taken to change it
    add_tokens(type, &a, thread, threads);
    if (a.d_positions)
        add_positions(type, &a, thread, threads);
}

// Threads own tokens and positions: rows of the same one add in the order of the rows, whatever the number of
// threads. (Were columns split, each thread's prefetcher would take lines that the other one is writing.)
ptb_status ptb_host_run_embedding_gradient(void *arg)
{
    const ptb_embedding_gradient *a = arg;
    size_t width = a->width;
    if (!a->accumulate_table)
        zero(a->d_table, a->vocabulary * width);
    if (a->d_positions && !a->accumulate_positions)
        zero(a->d_positions, a->positions * width);
#pragma omp parallel if (a->rows * width > PTB_HOST_SERIAL)
    PTB_HOST_TYPED(add_owned, a->type, a, (uint32_t)omp_get_thread_num(), (uint32_t)omp_get_num_threads());
    return PTB_OK;
}
