// The mesh: ranks on named axes, and the communicators between those that differ in some axes alone. Axes,
// innermost first, so that those that talk most have neighbours, of the same host where ranks are numbered
// host by host:
//
//   tp         a layer's matrices are cut: every rank has a part of each
//   cp         sequences are cut
//   ep         experts are cut; for everything else these ranks are data-parallel
//   shard      data-parallel, and what a strategy shards is cut over these
//   replicate  data-parallel copies of the shards (hybrid sharding)
//   pp         blocks are cut into stages
//
// rank = tp + TP (cp + CP (ep + EP (shard + SHARD (replicate + REPLICATE pp)))). Sequences of the global
// batch are divided over ep, shard and replicate; the ranks of a tp and cp group have the same ones.
#ifndef PTB_STRATEGIES_MESH_H
#define PTB_STRATEGIES_MESH_H

#include "core/bench.h"
#include "core/world.h"
#include "strategies/transformer/layout.h"

#include <stdbool.h>

typedef enum {
    PTB_MESH_TP,
    PTB_MESH_CP,
    PTB_MESH_EP,
    PTB_MESH_SHARD,
    PTB_MESH_REPLICATE,
    PTB_MESH_PP,
    PTB_MESH_AXES
} ptb_mesh_axis;

// Sets of axes: bits 1u << axis.
enum {
    PTB_MESH_DATA = 1u << PTB_MESH_EP | 1u << PTB_MESH_SHARD | 1u << PTB_MESH_REPLICATE,
    PTB_MESH_ALL = (1u << PTB_MESH_AXES) - 1
};

typedef struct {
    int size[PTB_MESH_AXES];  // 1 at least
    int place[PTB_MESH_AXES]; // of this rank
} ptb_mesh;

// Sizes as they were asked for; 0: not given.
typedef struct {
    int tp, cp, ep, pp;
    int dp;        // shard x replicate; not given: what is left of the ranks
    int replicate; // of dp; not given: 1
} ptb_mesh_sizes;

// "tp=2,dp=4" or "" into sizes. USAGE, logged, with what is allowed.
ptb_status ptb_mesh_parse(const char *text, ptb_mesh_sizes *sizes);
// USAGE, with the arithmetic in `reason` (PTB_REASON_BYTES), when the sizes do not make up the ranks.
ptb_status ptb_mesh_init(ptb_mesh *mesh, const ptb_mesh_sizes *sizes, int ranks, int rank, char *reason);
// The same when the model cannot be cut so: heads, key and value heads, inner widths and vocabulary over tp;
// experts over ep; the sequence over cp.
ptb_status ptb_mesh_check(const ptb_mesh *mesh, const ptb_model_shape *shape, char *reason);
// Whether `batch` sequences divide over so many data-parallel ranks and the microbatches of each (1 at least
// of all three); else why not, and what divides, into `reason` (PTB_REASON_BYTES). name: of the batch, in
// words.
bool ptb_mesh_divides_batch(int ranks, int64_t micro_batches, int64_t batch, const char *name, char *reason);
// What of the model this rank has.
ptb_layout_cut ptb_mesh_cut(const ptb_mesh *mesh);
// Ranks that differ in these axes alone, and this rank's number among them (innermost axis fastest).
int ptb_mesh_size(const ptb_mesh *mesh, unsigned axes);
int ptb_mesh_place(const ptb_mesh *mesh, unsigned axes);
// A world of them, in that order. Collective over all ranks.
ptb_status ptb_mesh_split(const ptb_mesh *mesh, ptb_world *world, unsigned axes, ptb_world **out);
// "tp=2 dp=4", axes of size 1 left out; "1" when all are.
enum { PTB_MESH_TEXT = 96 };
void ptb_mesh_text(const ptb_mesh *mesh, char out[PTB_MESH_TEXT]);
// Sizes as they were asked for, in the order of axes; "" when none was.
void ptb_mesh_sizes_text(const ptb_mesh_sizes *sizes, char out[PTB_MESH_TEXT]);

#endif
