// The communicators of a training run: one for each set of mesh axes that something is summed or sent over,
// and the lanes and streams on them.
#ifndef PTB_STRATEGIES_TRAINER_LANES_H
#define PTB_STRATEGIES_TRAINER_LANES_H

#include "strategies/lane.h"
#include "strategies/mesh.h"

typedef enum {
    PTB_LANE_LOSS,  // the loss, over everyone who has other tokens
    PTB_LANE_NORM,  // the gradient's norm, over everyone who has another part of the gradient
    PTB_LANE_DENSE, // ptb_data_env.reduce, by group
    PTB_LANE_EXPERTS,
    PTB_LANE_DENSE_SHARD, // ptb_data_env.shard
    PTB_LANE_EXPERTS_SHARD,
    PTB_LANE_REPLICATE, // ptb_data_env.replicate
    PTB_LANE_TENSOR,
    PTB_LANE_CONTEXT,
    PTB_LANE_EXPERT,
    PTB_LANE_BALANCE, // counts of experts' choices, over everyone who has other tokens
    PTB_LANE_COUNT
} ptb_lane_use;

// Lanes (numbers of streams) of the spans.
enum { PTB_LANE_MAIN, PTB_LANE_COMPUTE, PTB_LANE_COMMUNICATION, PTB_LANE_TP, PTB_LANE_CP, PTB_LANE_EP };

typedef struct {
    ptb_world *world; // of the lanes on it; `split`: made for it
    bool split;
    unsigned axes; // those larger than 1
    ptb_stream *stream;
    ptb_comm *comm;
} ptb_lanes_comm;

typedef struct {
    ptb_lane lane[PTB_LANE_COUNT];
    // By kind of lane: data-parallel and everything of whole steps, tensor, context, expert; NULL where no
    // lane of more than one rank has it.
    ptb_stream *stream[PTB_LANE_EP + 1];
    ptb_lanes_comm comm[PTB_LANE_COUNT];
    size_t comms;
} ptb_lanes;

typedef struct {
    ptb_world *world; // of all ranks
    const ptb_mesh *mesh;
    bool shards; // the data-parallel strategy cuts gradients over ranks
    ptb_device *device;
    ptb_timeline *timeline; // of compute
    ptb_stream *communication;
    const char *comm; // registered name
    const ptb_comm_config *config;
} ptb_lanes_config;

// Axes that a lane spans.
unsigned ptb_lanes_axes(ptb_lane_use use, const ptb_mesh *mesh, bool shards);
// Collective over the world; all ranks return the same status, with the worst of them. A lane of one rank has
// a communicator of one rank.
ptb_status ptb_lanes_init(ptb_lanes *lanes, const ptb_lanes_config *config);
void ptb_lanes_release(ptb_lanes *lanes); // collective; streams idle
// What each lane has moved.
void ptb_lanes_moved(const ptb_lanes *lanes, ptb_lane_moved moved[PTB_LANE_COUNT]);

#endif
