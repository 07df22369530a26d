// What strategies that cut optimizer state share (Rajbhandari et al. 2020, "ZeRO", section 5): master
// parameters and moments of this rank's own parts of all segments, the reduction of gradients into these
// parts, their update, and the all-gather of what other ranks have updated.
//
// With `replicate`, each part has copies: gradients are reduce-scattered over `shard`, then parts are summed
// over `replicate`.
#ifndef PTB_STRATEGIES_DATA_SHARD_H
#define PTB_STRATEGIES_DATA_SHARD_H

#include "strategies/data/segment.h"

typedef struct {
    ptb_segment_kind kind;
    bool whole_parameters; // every rank has all of them, in the compute type
    bool whole_gradients;  // and all gradients, until they are reduced
    // 0: parameters change where they are, and the step ends with that. Else parameters, whole, and gradients
    // exist so many times (ptb_shard_use); masters are separate in f32 too, and every rank has all initial
    // parameters in version 0.
    int versions;
} ptb_shard_config;

typedef struct {
    ptb_data *data;
    ptb_shard_config config;
    ptb_segments segments;
    void *parameters;  /* [layout.count] if whole, else [segments.own]; compute type, from the
                          communicator of the dense shard lane */
    float *master;     /* [segments.own]; NULL: f32, where `parameters` are updated themselves */
    float *moment[2];  /* [segments.own] */
    float *gradients;  /* [layout.count] if whole, else [segments.own]; from that communicator */
    void *parameters0; // version 0 of the two: all versions are behind each other
    void *gradients0;
    size_t parameters_stride, gradients_stride; // bytes from a version to the next
    void *staging;                              /* [segments.largest], reduce type, from it too; NULL: f32 */
    ptb_event **reduced;                        // [segments.count]: own part of the gradient is there
    ptb_event **gathered;                       // [segments.count]: all parts of the parameters are there
    size_t gathering; // of whole parameters: segments from here on are on every rank
} ptb_shard;

// Collective over the ranks of the dense shard lane; all get the same status. Parameters of own parts get
// their initial values; whole ones are to be gathered before they are used. A shard that is zeroed, or whose
// init failed, may be released.
ptb_status ptb_shard_init(ptb_shard *shard, ptb_data *data, const ptb_shard_config *config);
void ptb_shard_release(ptb_shard *shard); // collective
void ptb_shard_memory(const ptb_data_env *env, const ptb_shard_config *config,
                      uint64_t bytes[PTB_MEMORY_COUNT]);

// With versions: what follows writes new parameters into this one, and takes gradients from this one.
void ptb_shard_use(ptb_shard *shard, size_t parameters, size_t gradients);
// A version of the whole parameters, compute type.
void *ptb_shard_version(const ptb_shard *shard, size_t version);

// Enqueues the reduction of a segment's gradients, complete on compute, into this rank's own part. add: to
// what the part has from earlier microbatches; last: of the step, after which parts are summed over their
// copies. `gradients` are overwritten in part; the segment's event `reduced` says when they may be reused.
ptb_status ptb_shard_reduce(ptb_shard *shard, size_t segment, float *gradients /* [segment.count] */,
                            bool add, bool last);
// Enqueues update of all own parts from reduced gradients: the norm, clipping, skipping, the optimizer; where
// the strategy's updates go (ptb_data.updates).
ptb_status ptb_shard_optimize(ptb_shard *shard);
// Whole parameters. begin: enqueues the all-gather of all segments, in order of use in forward; wait: compute
// waits for those of the unit and below. Without overlap begin waits for all.
ptb_status ptb_shard_gather_begin(ptb_shard *shard);
ptb_status ptb_shard_gather_wait(ptb_shard *shard, size_t unit);
// As begin, where updates are on the lane's stream: behind them, and nobody waits.
ptb_status ptb_shard_gather(ptb_shard *shard);
// A segment's own part of the parameters, compute type.
void *ptb_shard_parameters(const ptb_shard *shard, const ptb_segment *segment);
// As ptb_data_parallel.part.
bool ptb_shard_part(const ptb_shard *shard, ptb_data_what what, size_t i, ptb_data_part *part);
// Adds how many segments there are, their largest, and what reduces them.
void ptb_shard_describe(const ptb_shard *shard, ptb_params *facts);

#endif
