// See strategy.h. Letters: N parameters, d data-parallel ranks, t, c, e ranks of tp, cp, ep; L layers, s
// sequence, b sequences of a rank, h hidden, w bytes of the compute type, K experts of a token, m
// microbatches, k and s the options --local-steps and --staleness.
#include "strategies/strategy.h"

#include "core/log.h"
#include "core/text.h"

#include <stdio.h>
#include <string.h>

static const ptb_strategy strategies[] = {
    {.name = "ddp",
     .summary = "every rank has the whole model; bucketed all-reduce of gradients beside backward",
     .shards = "nothing",
     .memory = "16 bytes a parameter in f32, 18 in 16 bits (gradients are f32 in both)",
     .volume = "2 (d-1)/d x 4 N bytes (all-reduce)",
     .data = "ddp",
     .axis = PTB_MESH_SHARD},
    {.name = "zero1",
     .summary = "optimizer state is cut: reduce-scatter of gradients, all-gather of new parameters",
     .shards = "optimizer state",
     .memory = "8 + 8/d bytes a parameter in f32, 6 + 12/d in 16 bits",
     .volume = "(d-1)/d x (4 + w) N bytes",
     .data = "zero1",
     .axis = PTB_MESH_SHARD},
    {.name = "zero2",
     .summary = "as zero1, and gradients are kept only where they are used",
     .shards = "optimizer state, gradients",
     .memory = "4 + 12/d bytes a parameter in f32, 2 + 16/d in 16 bits, and units in flight",
     .volume = "(d-1)/d x (4 m + w) N bytes",
     .data = "zero2",
     .axis = PTB_MESH_SHARD},
    {.name = "fsdp",
     .summary = "as zero2, and parameters are gathered a block at a time (ZeRO-3)",
     .shards = "optimizer state, gradients, parameters",
     .memory = "16/d bytes a parameter in f32, 18/d in 16 bits, and units in flight",
     .volume = "(d-1)/d x (2 w + 4) m N bytes; less for blocks that stay in their place",
     .data = "fsdp",
     .axis = PTB_MESH_SHARD},
    {.name = "hsdp",
     .summary = "fsdp inside each host, copies over hosts (or of halves, on one host)",
     .shards = "as fsdp, over the ranks of a host",
     .memory = "as fsdp, d the ranks of a host",
     .volume = "as fsdp inside a host, and an all-reduce of 4 N/d bytes over hosts",
     .data = "fsdp",
     .axis = PTB_MESH_SHARD,
     .hybrid = true},
    {.name = "local-sgd",
     .summary = "ranks train alone and average their parameters every k steps",
     .shards = "nothing",
     .memory = "as ddp",
     .volume = "2 (d-1)/d x 4 N / k bytes",
     .data = "local_sgd",
     .axis = PTB_MESH_SHARD},
    {.name = "async",
     .summary = "parameter server cut over ranks; steps compute with parameters up to s updates old",
     .shards = "optimizer state",
     .memory = "8 (s+1) + 12/d bytes a parameter in f32, 6 (s+1) + 12/d in 16 bits",
     .volume = "(d-1)/d x (4 + w) N bytes, beside compute of later steps",
     .data = "async",
     .axis = PTB_MESH_SHARD},
    {.name = "tp",
     .summary = "every layer's matrices are cut; activations are summed twice a block (Megatron)",
     .shards = "parameters and their state, heads, feed-forward, vocabulary",
     .memory = "as ddp, over t; activations of a block s b h (8 + 24/t) bytes in 16 bits",
     .volume =
         "4 (t-1)/t x (2 L + 1) b s h w bytes (4 all-reduces a block, 2 at the ends), and as ddp over d",
     .data = "ddp",
     .axis = PTB_MESH_TP},
    {.name = "tp+sp",
     .summary = "as tp, and norms and the residual stream are cut along the sequence",
     .shards = "as tp, and all activations",
     .memory = "as ddp, over t; activations of a block 32 s b h / t bytes in 16 bits",
     .volume = "as tp, in all-gathers and reduce-scatters, and 2 all-gathers a block more",
     .data = "ddp",
     .axis = PTB_MESH_TP,
     .sequence = true},
    {.name = "cp",
     .summary = "sequences are cut; attention gets keys and values from the other ranks",
     .shards = "all activations",
     .memory = "as ddp; activations over c",
     .volume = "keys, values and their gradients (`ptbench list context`), and as ddp over c and d",
     .data = "ddp",
     .axis = PTB_MESH_CP},
    {.name = "ep",
     .summary = "experts are cut; tokens travel to their experts and back",
     .shards = "experts and their state",
     .memory = "as ddp, experts over e",
     .volume = "4 (e-1)/e x K L b s h w bytes (4 all-to-alls a block), and dense parameters as ddp",
     .data = "ddp",
     .axis = PTB_MESH_EP},
};
enum { STRATEGIES = sizeof strategies / sizeof *strategies };

const ptb_data_parallel *ptb_strategy_data(const ptb_strategy *s)
{
    return (const ptb_data_parallel *)ptb_registry_find(PTB_KIND_DATA_PARALLEL, s->data);
}

const ptb_strategy *ptb_strategy_at(size_t i)
{
    for (size_t k = 0; k < STRATEGIES; k++)
        if (ptb_strategy_data(&strategies[k]) && i-- == 0)
            return &strategies[k];
    return NULL;
}

const ptb_strategy *ptb_strategy_find(const char *name)
{
    for (size_t i = 0; ptb_strategy_at(i); i++)
        if (strcmp(ptb_strategy_at(i)->name, name) == 0)
            return ptb_strategy_at(i);
    return NULL;
}

const ptb_strategy *ptb_strategy_need(const char *name)
{
    const ptb_strategy *found = ptb_strategy_find(name);
    const char *names[STRATEGIES];
    size_t count = 0;
    if (found)
        return found;
    for (; ptb_strategy_at(count); count++)
        names[count] = ptb_strategy_at(count)->name;
    char near[256];
    ptb_text_nearest(name, names, count, near, sizeof near);
    ptb_error("there is no strategy '%s'; did you mean %s? (`ptbench list strategies` has all of them)", name,
              near);
    return NULL;
}

// Ranks that sizes other than `left` leave over; 0: they do not divide.
static int left_over(const ptb_mesh_sizes *s, const int *left, int ranks)
{
    const int *sizes[] = {&s->tp, &s->cp, &s->ep, &s->pp, &s->dp};
    int64_t product = 1;
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        if (product <= ranks) // what is more already does not divide them
            product *= sizes[i] != left && *sizes[i] ? *sizes[i] : 1;
    return product <= ranks && ranks % product == 0 ? (int)(ranks / product) : 0;
}

// Copies of a hybrid strategy: one a host, or two where there is one host.
static int copies(const ptb_world *world, const ptb_mesh_sizes *s)
{
    int dp = s->dp ? s->dp : left_over(s, &s->dp, world->size);
    int wanted = world->hosts > 1 ? world->hosts : 2;
    return dp % wanted == 0 ? wanted : 1;
}

ptb_status ptb_strategy_mesh(const ptb_strategy *strategy, const ptb_mesh_sizes *asked,
                             const ptb_world *world, const ptb_model_shape *shape, ptb_mesh *mesh,
                             char *reason)
{
    ptb_mesh_sizes sizes = *asked;
    int *axis = strategy->axis == PTB_MESH_TP   ? &sizes.tp
                : strategy->axis == PTB_MESH_CP ? &sizes.cp
                : strategy->axis == PTB_MESH_EP ? &sizes.ep
                                                : NULL;
    if (axis && !*axis) {
        sizes.dp = sizes.dp ? sizes.dp : 1;
        int ranks = left_over(&sizes, axis, world->size);
        *axis = ranks ? ranks : 1;
    }
    if (strategy->hybrid && !sizes.replicate)
        sizes.replicate = copies(world, &sizes);
    PTB_TRY(ptb_mesh_init(mesh, &sizes, world->size, world->rank, reason));
    if (axis && world->size > 1 && mesh->size[strategy->axis] == 1) {
        char text[PTB_MESH_TEXT];
        ptb_mesh_text(mesh, text);
        snprintf(reason, PTB_REASON_BYTES,
                 "a mesh of %s leaves --strategy %s 1 rank of the %d that were started, so that it would cut "
                 "nothing; give it 2 at least, or name another strategy",
                 text, strategy->name, world->size);
        return PTB_USAGE;
    }
    return ptb_mesh_check(mesh, shape, reason);
}
