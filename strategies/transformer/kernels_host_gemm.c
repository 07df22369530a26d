// The matrix product: which part a thread takes, in which order it packs and multiplies, and what happens to
// finished tiles. Sizes of blocks are for caches of 32 KiB and more (L1) and 1 MiB (L2).
#include "strategies/transformer/kernels_host_gemm.h"

#include <string.h>

enum {
    ROWS = PTB_GEMM_TILE_ROWS,
    COLUMNS = PTB_GEMM_TILE_COLUMNS,
    LANES = PTB_GEMM_LANES,
    UNITS = 384, // of a pass over the depth, at most
    // Places of the operand that stays packed for a pass: up to about 500 lie in L2; more come from L3,
    // slowly enough, and the other operand need not be packed again.
    RESIDENT = 1056 / COLUMNS * COLUMNS,
    STREAMED_ROWS = (64 + ROWS - 1) / ROWS * ROWS, // places of the other one, packed as it is used
    STREAMED_COLUMNS = COLUMNS,
    PARTIAL = 480 / COLUMNS * COLUMNS, // places of the other one where sums of several passes are kept apart
};
_Static_assert(RESIDENT % ROWS == 0 && PARTIAL % ROWS == 0, "blocks are whole panels");

typedef struct {
    uint32_t resident[RESIDENT * (UNITS + 16)]; // more than the panels' distances add
    uint32_t streamed[(STREAMED_ROWS > STREAMED_COLUMNS ? STREAMED_ROWS : STREAMED_COLUMNS) * (UNITS + 16)];
    float partial[RESIDENT * PARTIAL];
} scratch_memory;

size_t ptb_host_gemm_scratch(void)
{
    return sizeof(scratch_memory);
}

static size_t smaller(size_t a, size_t b)
{
    return a < b ? a : b;
}

static size_t panels(size_t count, size_t width)
{
    return count / width + (count % width != 0);
}

// Share `index` of `count` shares of a range, in whole panels.
static ptb_gemm_range share(ptb_gemm_range whole, size_t width, size_t index, size_t count)
{
    size_t all = panels(whole.end - whole.begin, width);
    size_t begin = whole.begin + all * index / count * width;
    size_t end = whole.begin + all * (index + 1) / count * width;
    return (ptb_gemm_range){smaller(begin, whole.end), smaller(end, whole.end)};
}

// ---- finished tiles

static float bf16_value(uint16_t bits)
{
    uint32_t wide = (uint32_t)bits << 16;
    float value;
    memcpy(&value, &wide, sizeof value);
    return value;
}

static uint16_t bf16_bits(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    uint32_t rounded = bits + 0x7fff + (bits >> 16 & 1);
    return (uint16_t)((bits & 0x7fffffffu) > 0x7f800000u ? bits >> 16 | 0x40 : rounded >> 16);
}

static inline __attribute__((always_inline)) void add_values(float *sum, ptb_dtype type, const void *values,
                                                             size_t count)
{
    if (type == PTB_F32) {
        for (size_t i = 0; i < count; i++)
            sum[i] += ((const float *)values)[i];
    } else if (type == PTB_BF16) {
        for (size_t i = 0; i < count; i++)
            sum[i] += bf16_value(((const uint16_t *)values)[i]);
    } else {
        float wide[COLUMNS];
        ptb_f16_to_f32_array(wide, values, count);
        for (size_t i = 0; i < count; i++)
            sum[i] += wide[i];
    }
}

static inline __attribute__((always_inline)) void store_values(ptb_dtype type, void *out, const float *values,
                                                               size_t count)
{
    if (type == PTB_F32) {
        memcpy(out, values, count * sizeof *values);
    } else if (type == PTB_BF16) {
        for (size_t i = 0; i < count; i++)
            ((uint16_t *)out)[i] = bf16_bits(values[i]);
    } else {
        ptb_f32_to_f16_array(out, values, count);
    }
}

typedef struct {
    size_t row, column, rows, columns; // where the tile is
    const void *addend;                // of out's type; NULL: none
    const float *bias;                 /* [COLUMNS], NULL: none */
} place;

// out = tile + addend + bias, rounded once
static inline __attribute__((always_inline)) void finish_rows(const ptb_gemm *g, const place *p, float *tile,
                                                              size_t columns)
{
    size_t element = ptb_dtype_size(g->out_type);
    for (size_t r = 0; r < p->rows; r++, tile += COLUMNS) {
        size_t offset = ((p->row + r) * g->out_stride + p->column) * element;
        if (p->addend)
            add_values(tile, g->out_type, (const char *)p->addend + offset, columns);
        if (p->bias)
            add_values(tile, PTB_F32, p->bias, columns);
        store_values(g->out_type, (char *)g->out + offset, tile, columns);
    }
}

static void finish(const ptb_gemm *g, const place *p, float *tile)
{
    if (p->columns == COLUMNS)
        finish_rows(g, p, tile, COLUMNS);
    else
        finish_rows(g, p, tile, p->columns);
}

// ---- fetching ahead

// The part of an operand at these places and units.
static ptb_gemm_fetch fetch_of(const ptb_gemm *g, const ptb_gemm_operand *x, ptb_gemm_range at,
                               ptb_gemm_range units)
{
    enum { LINE = 64 };
    size_t element = ptb_dtype_size(x->type), per_unit = ptb_gemm_units(g) < g->depth ? 2 : 1;
    size_t depth_begin = units.begin * per_unit, depth_end = smaller(units.end * per_unit, g->depth);
    ptb_gemm_range down = at, along = {depth_begin, depth_end};
    if (!x->along_depth) {
        along = at;
        down = (ptb_gemm_range){depth_begin, depth_end};
    }
    return (ptb_gemm_fetch){.row = (const char *)x->data + (down.begin * x->stride + along.begin) * element,
                            .rows = down.end - down.begin,
                            .stride_bytes = x->stride * element,
                            .lines = ((along.end - along.begin) * element + 2 * LINE - 1) / LINE};
}

// ---- tiles

// A pass over a part of the depth for a block of the result.
typedef struct {
    const ptb_gemm *g;
    ptb_gemm_range units;
    bool first, last; // pass
    float *partial;   // sums of earlier passes, where out cannot hold them; NULL: it can
    size_t partial_row, partial_column, partial_stride; // of the block that `partial` is
} pass;

static void run_tile(const pass *p, ptb_gemm_tile *t, const place *at)
{
    const ptb_gemm *g = p->g;
    _Alignas(64) float tile[ROWS * COLUMNS];
    size_t vectors = panels(at->columns, LANES);
    ptb_gemm_tile_fn *run = ptb_host_gemm_tile(PTB_GEMM_HAS_BF16 && g->a.type == PTB_BF16, at->rows, vectors);
    place end = *at;
    t->from = NULL;
    t->bias = NULL;
    if (p->partial) {
        float *kept =
            p->partial + (at->row - p->partial_row) * p->partial_stride + at->column - p->partial_column;
        t->from = p->first ? NULL : kept;
        t->from_stride = p->partial_stride;
        t->out = p->last ? tile : kept;
        t->out_stride = p->last ? COLUMNS : p->partial_stride;
        run(t);
        if (!p->last)
            return;
        end.addend = g->addend;
    } else if (g->out_type == PTB_F32 && at->columns == vectors * LANES) {
        t->out = (float *)g->out + at->row * g->out_stride + at->column;
        t->out_stride = t->from_stride = g->out_stride;
        const float *from = p->first ? g->addend : g->out;
        t->from = from ? from + at->row * g->out_stride + at->column : NULL;
        t->bias = at->bias;
        run(t);
        return;
    } else {
        t->out = tile;
        t->out_stride = COLUMNS;
        run(t);
        end.addend = p->first ? g->addend : g->out;
    }
    finish(g, &end, tile);
}

// All tiles of a block whose operands are packed.
static void run_tiles(const pass *p, ptb_gemm_range rows, ptb_gemm_range columns, const uint32_t *a,
                      const uint32_t *b, ptb_gemm_fetch next)
{
    const ptb_gemm *g = p->g;
    size_t units = p->units.end - p->units.begin;
    float bias[COLUMNS];
    for (size_t c = columns.begin; c < columns.end; c += COLUMNS, b += ptb_gemm_panel(units, COLUMNS)) {
        place at = {.column = c, .columns = smaller(columns.end - c, COLUMNS)};
        if (g->bias && p->last) {
            memset(bias, 0, sizeof bias);
            add_values(bias, g->bias_type, (const char *)g->bias + c * ptb_dtype_size(g->bias_type),
                       at.columns);
            at.bias = bias;
        }
        ptb_gemm_tile t = {.units = units, .a = a, .b = b, .fetch = &next};
        for (size_t r = rows.begin; r < rows.end; r += ROWS, t.a += ptb_gemm_panel(units, ROWS)) {
            at.row = r;
            at.rows = smaller(rows.end - r, ROWS);
            run_tile(p, &t, &at);
        }
    }
}

// ---- sums along the depth

// Adds the units of packed panels of A to sums[], four at a time so that additions need not wait.
static void add_sums(const pass *p, ptb_gemm_range rows, const uint32_t *a)
{
    const ptb_gemm *g = p->g;
    size_t units = p->units.end - p->units.begin;
    bool pairs = PTB_GEMM_HAS_BF16 && g->a.type == PTB_BF16;
    for (size_t r = rows.begin; r < rows.end; r += ROWS, a += ptb_gemm_panel(units, ROWS)) {
        float sums[4][ROWS] = {{0}};
        for (size_t u = 0; u < units; u++)
            for (size_t i = 0; i < ROWS; i++) {
                uint32_t bits = a[u * ROWS + i], high = bits & 0xffff0000u, low = bits << 16;
                float value[2];
                memcpy(&value[0], pairs ? &high : &bits, sizeof *value);
                memcpy(&value[1], &low, sizeof *value);
                sums[u % 4][i] += pairs ? value[0] + value[1] : value[0];
            }
        for (size_t i = 0; i < smaller(ROWS, rows.end - r); i++) {
            float before = p->first && !g->sums_accumulate ? 0 : g->sums[r + i];
            g->sums[r + i] = before + ((sums[0][i] + sums[1][i]) + (sums[2][i] + sums[3][i]));
        }
    }
}

// ---- blocks

// One pass over a block: one operand is packed whole, the other a few panels at a time.
static void run_pass(const pass *p, ptb_gemm_range rows, ptb_gemm_range columns, bool rows_stay, bool sums,
                     scratch_memory *scratch)
{
    const ptb_gemm *g = p->g;
    if (rows_stay) {
        ptb_host_gemm_pack_a(g, rows, p->units, scratch->resident);
        if (sums)
            add_sums(p, rows, scratch->resident);
        for (size_t c = columns.begin; c < columns.end; c += STREAMED_COLUMNS) {
            ptb_gemm_range part = {c, smaller(c + STREAMED_COLUMNS, columns.end)};
            ptb_host_gemm_pack_b(g, part, p->units, scratch->streamed);
            ptb_gemm_range next = {part.end, smaller(part.end + STREAMED_COLUMNS, columns.end)};
            run_tiles(p, rows, part, scratch->resident, scratch->streamed,
                      fetch_of(g, &g->b, next, p->units));
        }
        return;
    }
    ptb_host_gemm_pack_b(g, columns, p->units, scratch->resident);
    for (size_t r = rows.begin; r < rows.end; r += STREAMED_ROWS) {
        ptb_gemm_range part = {r, smaller(r + STREAMED_ROWS, rows.end)};
        ptb_host_gemm_pack_a(g, part, p->units, scratch->streamed);
        if (sums)
            add_sums(p, part, scratch->streamed);
        ptb_gemm_range next = {part.end, smaller(part.end + STREAMED_ROWS, rows.end)};
        run_tiles(p, part, columns, scratch->streamed, scratch->resident, fetch_of(g, &g->a, next, p->units));
    }
}

static void run_block(const ptb_gemm *g, ptb_gemm_range rows, ptb_gemm_range columns, bool rows_stay,
                      size_t passes, scratch_memory *scratch)
{
    size_t units = ptb_gemm_units(g);
    pass p = {.g = g, .partial_row = rows.begin, .partial_column = columns.begin};
    p.partial_stride = panels(columns.end - columns.begin, COLUMNS) * COLUMNS;
    if (passes > 1 && g->out_type != PTB_F32)
        p.partial = scratch->partial;
    for (size_t i = 0; i < passes; i++) {
        p.units = (ptb_gemm_range){units * i / passes, units * (i + 1) / passes};
        p.first = i == 0;
        p.last = i == passes - 1;
        run_pass(&p, rows, columns, rows_stay, g->sums && columns.begin == 0, scratch);
    }
}

// The part of one thread: the operand with the smaller extent is the one that stays packed.
static void run_share(const ptb_gemm *g, ptb_gemm_range rows, ptb_gemm_range columns, scratch_memory *scratch)
{
    size_t height = rows.end - rows.begin, width = columns.end - columns.begin;
    if (!height || !width)
        return;
    size_t passes = panels(ptb_gemm_units(g), UNITS);
    passes = passes ? passes : 1; // no depth: zeros, addend and bias
    bool rows_stay = height <= width;
    size_t other = passes > 1 && g->out_type != PTB_F32 ? PARTIAL : SIZE_MAX;
    size_t row_blocks = panels(height, rows_stay ? RESIDENT : other);
    size_t column_blocks = panels(width, rows_stay ? other : RESIDENT);
    for (size_t r = 0; r < row_blocks; r++)
        for (size_t c = 0; c < column_blocks; c++)
            run_block(g, share(rows, ROWS, r, row_blocks), share(columns, COLUMNS, c, column_blocks),
                      rows_stay, passes, scratch);
}

// How many of `parts` go along the rows: the grid whose largest part takes least, a packed element counted
// as PACKING products.
static size_t parts_along_rows(const ptb_gemm *g, size_t parts)
{
    enum { PACKING = 16 };
    size_t best = 1, least = SIZE_MAX;
    for (size_t along = 1; along <= parts; along++) {
        size_t rows = panels(panels(g->rows, ROWS), along) * ROWS;
        size_t columns = panels(panels(g->columns, COLUMNS), parts / along) * COLUMNS;
        size_t cost = rows * columns + PACKING * (rows + columns);
        if (cost < least) {
            least = cost;
            best = along;
        }
    }
    return best;
}

void ptb_host_gemm_part(const ptb_gemm *g, int part, int parts, void *scratch)
{
    size_t down = parts_along_rows(g, (size_t)parts), across = (size_t)parts / down, index = (size_t)part;
    if (index >= down * across)
        return;
    run_share(g, share((ptb_gemm_range){0, g->rows}, ROWS, index / across, down),
              share((ptb_gemm_range){0, g->columns}, COLUMNS, index % across, across), scratch);
}
