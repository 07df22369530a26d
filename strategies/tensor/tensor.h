// The tensor-parallel axis: what the ranks that share the layers of a model (layout_cut.c) exchange, and the
// buffers for it. Column-parallel layers need all rows of their input and leave a part of the columns of
// their output; row-parallel ones take that and leave, on each rank, one term of the sum that is their output
// (Shoeybi et al. 2019, "Megatron-LM", section 3). In its words: f is nothing forward and a sum backward, g a
// sum forward and nothing backward. With sequence parallelism (Korthikanti et al. 2022, section 4.2.2) rows
// of the residual stream are cut too: what stands before a column-parallel layer is gathered, and instead of
// being summed for all, each rank gets its rows of the sum; backward gathers where forward scattered and
// scatters where it gathered.
//
// Rows are exchanged in chunks, so that the product of one chunk runs while another is under way. A rank's
// slice has a part of every chunk: of chunk i of k, rows [i N / k, (i + 1) N / k), rank r of t has the r-th
// of t equal parts, so that what is gathered and scattered is contiguous.
//
// Everything enqueues and returns. Values are exchanged in the compute type, statistics of the loss and
// gradients in f32.
#ifndef PTB_STRATEGIES_TENSOR_TENSOR_H
#define PTB_STRATEGIES_TENSOR_TENSOR_H

#include "strategies/lane.h"
#include "strategies/transformer/layout.h"

#include <stdbool.h>

typedef struct {
    ptb_lane *lane; // over the tp ranks, in the order of layout->cut; outlives the axis
    ptb_device *device;
    const ptb_layout *layout;
    size_t rows;      // N, of a microbatch
    size_t loss_rows; // whose logits exist at once
    ptb_dtype type;
    bool sequence; // sequence parallelism
    int chunks;    // of the rows; 1: nothing overlaps
} ptb_tensor_env;

typedef struct ptb_tensor_axis {
    ptb_tensor_env env;
    // From the communicator:
    void *partial;       /* [N, hidden]: this rank's terms of a sum, to be written by compute */
    void *gathered;      /* [N, hidden]: rows of all ranks; sequence parallelism, else NULL */
    float *statistics;   /* [tp, 3, loss_rows]: of the loss (kernels.h) */
    ptb_event **arrived; // [chunks]: of what is gathered
} ptb_tensor_axis;

// USAGE, with the arithmetic in `reason` (PTB_REASON_BYTES), where the rows of a microbatch cannot be cut so.
ptb_status ptb_tensor_axis_fits(size_t tp, size_t rows, bool sequence, int chunks, char *reason);
// The same, logged. Of env, lane and device are not read.
ptb_status ptb_tensor_axis_check(const ptb_tensor_env *env);
// Collective over the lane; all ranks return the same status.
ptb_status ptb_tensor_axis_open(const ptb_tensor_env *env, ptb_tensor_axis **axis);
void ptb_tensor_axis_close(ptb_tensor_axis *axis); // collective, streams idle; NULL is allowed
// Bytes that open will allocate, added by category: e N hidden, twice with sequence parallelism, and 12 tp
// loss_rows, all of communication. lane and device are not read.
void ptb_tensor_axis_memory(const ptb_tensor_env *env, uint64_t bytes[PTB_MEMORY_COUNT]);

// Rows of this rank's slice of the residual stream: N, with sequence parallelism N / tp.
size_t ptb_tensor_axis_slice(const ptb_tensor_env *env);
// Which of the N rows row `row` of the slice is; returns how many rows from it on follow each other in both.
size_t ptb_tensor_axis_run(const ptb_tensor_axis *axis, size_t row, size_t *whole);
// Rows of a chunk.
ptb_range ptb_tensor_axis_chunk(const ptb_tensor_axis *axis, int chunk);

// Sequence parallelism: all slices into `gathered`, chunk by chunk. Begins when compute has come here; what
// compute read of `gathered` before is not needed any more.
ptb_status ptb_tensor_axis_gather(ptb_tensor_axis *axis, const void *slice /* [N / tp, hidden] */);
// Compute waits until a chunk has been gathered, and all before it.
ptb_status ptb_tensor_axis_wait(ptb_tensor_axis *axis, int chunk);
// The sum over ranks of a chunk's rows of `partial`, which compute has written by now: all rows of it on
// every rank, or each rank its own.
ptb_status ptb_tensor_axis_reduce(ptb_tensor_axis *axis, int chunk,
                                  void *out /* [N, hidden], may be partial; or [N / tp, hidden] */);
// Sums values over ranks, in place; begins when compute has come here.
ptb_status ptb_tensor_axis_sum(ptb_tensor_axis *axis, float *values /* [count] */, size_t count);
// Every rank gets the others' part of `statistics`, [tp, 3, rows] from its beginning on; compute waits.
ptb_status ptb_tensor_axis_share(ptb_tensor_axis *axis, size_t rows);
// Compute waits for everything so far.
ptb_status ptb_tensor_axis_join(ptb_tensor_axis *axis);

#endif
