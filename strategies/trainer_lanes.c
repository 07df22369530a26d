// See trainer_lanes.h. Lanes over the same ranks and on the same stream share a communicator.
#include "strategies/trainer_lanes.h"

enum {
    CP = 1u << PTB_MESH_CP,
    EP = 1u << PTB_MESH_EP,
    TP = 1u << PTB_MESH_TP,
    SHARD = 1u << PTB_MESH_SHARD,
    REPLICATE = 1u << PTB_MESH_REPLICATE,
    PP = 1u << PTB_MESH_PP
};

// Axes, the axis that spans are told under, the number of the stream.
static const struct {
    unsigned axes;
    ptb_axis axis;
    int stream;
} uses[PTB_LANE_COUNT] = {
    [PTB_LANE_LOSS] = {CP | EP | SHARD | REPLICATE, PTB_AXIS_DP, PTB_LANE_COMMUNICATION},
    [PTB_LANE_NORM] = {TP | EP | PP, PTB_AXIS_DP, PTB_LANE_COMMUNICATION}, // and shards
    [PTB_LANE_DENSE] = {CP | EP | SHARD | REPLICATE, PTB_AXIS_DP, PTB_LANE_COMMUNICATION},
    [PTB_LANE_EXPERTS] = {CP | SHARD | REPLICATE, PTB_AXIS_DP, PTB_LANE_COMMUNICATION},
    [PTB_LANE_DENSE_SHARD] = {CP | EP | SHARD, PTB_AXIS_DP, PTB_LANE_COMMUNICATION},
    [PTB_LANE_EXPERTS_SHARD] = {CP | SHARD, PTB_AXIS_DP, PTB_LANE_COMMUNICATION},
    [PTB_LANE_REPLICATE] = {REPLICATE, PTB_AXIS_DP, PTB_LANE_COMMUNICATION},
    [PTB_LANE_TENSOR] = {TP, PTB_AXIS_TP, PTB_LANE_TP},
    [PTB_LANE_CONTEXT] = {CP, PTB_AXIS_CP, PTB_LANE_CP},
    [PTB_LANE_EXPERT] = {EP, PTB_AXIS_EP, PTB_LANE_EP},
    [PTB_LANE_BALANCE] = {CP | EP | SHARD | REPLICATE, PTB_AXIS_DP, PTB_LANE_COMMUNICATION},
};

unsigned ptb_lanes_axes(ptb_lane_use use, const ptb_mesh *mesh, bool shards)
{
    unsigned axes = uses[use].axes;
    if (use == PTB_LANE_NORM && shards)
        axes |= CP | SHARD;
    for (int a = 0; a < PTB_MESH_AXES; a++)
        if (mesh->size[a] == 1)
            axes &= ~(1u << a);
    return axes;
}

static ptb_status find_stream(ptb_lanes *l, const ptb_lanes_config *c, int number, bool alone)
{
    if (number == PTB_LANE_COMMUNICATION || alone) { // what moves nothing needs no stream of its own
        l->stream[number] = c->communication;
        return PTB_OK;
    }
    return ptb_stream_new(c->device, PTB_STREAM_URGENT, number, &l->stream[number]);
}

// A communicator over these axes on this stream: one that is there, or a new one.
static ptb_status find_comm(ptb_lanes *l, const ptb_lanes_config *c, unsigned axes, ptb_stream *stream,
                            ptb_comm **comm)
{
    for (size_t i = 0; i < l->comms; i++) {
        *comm = l->comm[i].comm;
        if (l->comm[i].axes == axes && l->comm[i].stream == stream)
            return PTB_OK;
    }
    ptb_lanes_comm *made = &l->comm[l->comms++];
    *made = (ptb_lanes_comm){.world = c->world, .axes = axes, .stream = stream};
    if (ptb_mesh_size(c->mesh, axes) < c->world->size) {
        made->split = true;
        made->world = NULL;
        PTB_TRY(ptb_world_agree(c->world, ptb_mesh_split(c->mesh, c->world, axes, &made->world)));
    }
    PTB_TRY(ptb_world_agree(c->world, ptb_comm_open(c->comm, made->world, c->config, &made->comm)));
    *comm = made->comm;
    return PTB_OK;
}

ptb_status ptb_lanes_init(ptb_lanes *l, const ptb_lanes_config *c)
{
    *l = (ptb_lanes){.comms = 0};
    for (int use = 0; use < PTB_LANE_COUNT; use++) {
        unsigned axes = ptb_lanes_axes((ptb_lane_use)use, c->mesh, c->shards);
        int number = uses[use].stream;
        ptb_comm *comm;
        if (!l->stream[number])
            PTB_TRY(ptb_world_agree(c->world, find_stream(l, c, number, axes == 0)));
        PTB_TRY(find_comm(l, c, axes, l->stream[number], &comm));
        ptb_status status =
            ptb_lane_init(&l->lane[use], comm, uses[use].axis, c->timeline, l->stream[number]);
        PTB_TRY(ptb_world_agree(c->world, status));
    }
    return PTB_OK;
}

void ptb_lanes_release(ptb_lanes *l)
{
    for (int use = 0; use < PTB_LANE_COUNT; use++)
        ptb_lane_release(&l->lane[use]);
    while (l->comms > 0) {
        ptb_lanes_comm *made = &l->comm[--l->comms];
        ptb_comm_close(made->comm);
        if (made->split)
            ptb_world_close(made->world);
    }
    for (int number = PTB_LANE_TP; number <= PTB_LANE_EP; number++)
        if (l->stream[number] != l->stream[PTB_LANE_COMMUNICATION])
            ptb_stream_free(l->stream[number]);
    *l = (ptb_lanes){.comms = 0};
}

void ptb_lanes_moved(const ptb_lanes *l, ptb_lane_moved moved[PTB_LANE_COUNT])
{
    for (int use = 0; use < PTB_LANE_COUNT; use++)
        moved[use] = l->lane[use].moved;
}
