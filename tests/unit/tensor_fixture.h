// A model cut over tensor-parallel ranks, which are threads of this process, on the device that
// PTB_TEST_DEVICE names: one step of two microbatches, and its gradients put together as those of the whole
// model.
#ifndef PTB_TESTS_UNIT_TENSOR_FIXTURE_H
#define PTB_TESTS_UNIT_TENSOR_FIXTURE_H

#include "collectives/world.h"
#include "tests/unit/model_fixture.h"

enum { TP_MOST = 8 };

// What is wrong with rank 1 on purpose.
typedef enum { NO_FAULT, WRONG_PART, WRONG_HEAD, WRONG_TOKEN } tensor_fault;

typedef struct {
    const model_case *c;
    ptb_model_config mode; // what of a configuration is not filled in here
    int tp, chunks;
    bool sequence;
    model_order order;
    tensor_fault fault;
    // Of each rank.
    double loss[TP_MOST];
    float *gradients[TP_MOST]; /* [its layout's count] */
    ptb_lane_moved moved[TP_MOST];
    uint64_t bytes[TP_MOST][PTB_MEMORY_COUNT]; // predicted
    int told[TP_MOST];                         // calls of `ready` for all of a unit
} tensor_run;

// A rank while it runs.
typedef struct {
    tensor_run *run;
    ptb_world *world;
    ptb_device *device;
    ptb_stream *compute, *stream;
    ptb_timeline timeline;
    ptb_comm *comm;
    ptb_lane lane;
    ptb_layout layout;
    ptb_tensor_axis *axis;
    ptb_model *model;
    char *parameters; // compute type; memory of the host that the device sees
    float *gradients;
    double *loss;
} tensor_rank;

// Element of the whole model's tensor that an element of a part is; ranks of one process may have any part.
static inline size_t tensor_whole(const ptb_tensor *part, size_t i)
{
    size_t whole;
    ptb_tensor_run(part, i, &whole);
    return whole;
}

// The whole model's tensor that a part is of.
static inline const ptb_tensor *tensor_of_whole(const ptb_layout *whole, size_t unit, const ptb_tensor *part)
{
    return ptb_unit_tensor(&whole->unit[unit], part->role);
}

// Parameters of this rank's layout, or those of another rank's where that is the fault.
static inline void tensor_fill(tensor_rank *r, const ptb_layout *from)
{
    const model_case *c = r->run->c;
    size_t size = ptb_dtype_size(r->run->mode.type);
    for (size_t u = 0; u < r->layout.units; u++)
        for (size_t t = 0; t < r->layout.unit[u].tensors; t++) {
            const ptb_tensor *part = &r->layout.unit[u].tensor[t], *source = &from->unit[u].tensor[t];
            const ptb_tensor *whole = tensor_of_whole(&c->layout, u, part);
            const float *values = c->parameters + c->layout.unit[u].first + whole->first;
            for (size_t i = 0; i < ptb_tensor_count(part); i++)
                ptb_dtype_store(r->run->mode.type,
                                r->parameters + (r->layout.unit[u].first + part->first + i) * size,
                                (double)values[tensor_whole(source, i)]);
        }
}

static inline ptb_status tensor_prepare(tensor_rank *r)
{
    tensor_run *run = r->run;
    ptb_layout_cut cut = {.tp = run->tp, .tp_rank = r->world->rank};
    PTB_TRY(ptb_layout_init(&r->layout, &run->c->layout.shape, &cut));
    size_t count = r->layout.count, size = ptb_dtype_size(run->mode.type);
    PTB_TRY(ptb_device_alloc_host(r->device, count * size, (void **)&r->parameters));
    PTB_TRY(ptb_device_alloc_host(r->device, count * sizeof(float), (void **)&r->gradients));
    PTB_TRY(ptb_device_alloc_host(r->device, sizeof(double), (void **)&r->loss));
    ptb_layout from = r->layout;
    cut.tp_rank = run->fault == WRONG_PART && r->world->rank == 1 ? 0 : cut.tp_rank;
    PTB_TRY(ptb_layout_init(&from, &run->c->layout.shape, &cut));
    tensor_fill(r, &from);
    ptb_layout_release(&from);
    r->layout.first_head += run->fault == WRONG_HEAD && r->world->rank == 1;
    r->layout.first_token -= run->fault == WRONG_TOKEN && r->world->rank == 1;
    memset(r->gradients, 0xff, count * sizeof(float)); // NaN: what is not written shows
    return PTB_OK;
}

static inline ptb_status tensor_make_model(tensor_rank *r)
{
    tensor_run *run = r->run;
    const ptb_kernels *kernels = test_kernels();
    uint64_t before[PTB_MEMORY_COUNT], *bytes = run->bytes[r->world->rank];
    ptb_model_config config = run->mode;
    config.device = r->device;
    config.stream = r->compute;
    config.timeline = &r->timeline;
    config.kernels = kernels;
    config.layout = &r->layout;
    config.batch = (int64_t)run->c->batch;
    config.threads = 1;
    config.slots = run->order == ONE_BY_ONE ? 0 : MICROBATCHES;
    config.deferred = run->order == WEIGHTS_AT_LAST;
    if (kernels->set_search)
        PTB_TRY(kernels->set_search(r->compute, false));
    ptb_tensor_env env = ptb_model_tensor(&config, run->sequence, run->chunks);
    memcpy(before, r->device->used_bytes, sizeof before);
    ptb_tensor_axis only_settings = {.env = env};
    config.tensor = &only_settings;
    ptb_model_memory(&config, bytes);
    ptb_tensor_axis_memory(&env, bytes);
    env.lane = &r->lane;
    PTB_TRY(ptb_tensor_axis_open(&env, &r->axis));
    config.tensor = r->axis;
    PTB_TRY(ptb_model_new(&config, &r->model));
    bool holds = test_ledger_is(r->world->rank, r->device->used_bytes, before, bytes);
    return holds ? PTB_OK : PTB_WRONG;
}

static inline ptb_unit_memory tensor_unit_memory(const tensor_rank *r, size_t u)
{
    const ptb_unit *unit = &r->layout.unit[u];
    size_t size = ptb_dtype_size(r->run->mode.type);
    ptb_unit_memory memory = {.parameters = r->parameters + unit->first * size,
                              .gradients = r->gradients + unit->first};
    if (r->layout.shape.tied && unit->kind == PTB_UNIT_HEAD) {
        memory.tied_parameters = r->parameters;
        memory.tied_gradients = r->gradients;
    }
    return memory;
}

static inline ptb_status tensor_forward(tensor_rank *r, int slot, int microbatch)
{
    const model_case *c = r->run->c;
    size_t at = (size_t)microbatch * c->rows, bytes = c->rows * sizeof(int32_t);
    ptb_microbatch place = {.step = 4,
                            .sequence = (uint64_t)microbatch * c->batch,
                            .scale = 1.0 / (double)(MICROBATCHES * c->rows),
                            .share = 1.0 / MICROBATCHES};
    PTB_TRY(ptb_model_begin(r->model, slot, &place));
    PTB_TRY(ptb_stream_copy(r->compute, ptb_model_inputs(r->model, slot), c->inputs + at, bytes));
    PTB_TRY(ptb_stream_copy(r->compute, ptb_model_targets(r->model, slot), c->targets + at, bytes));
    if (ptb_model_starts(r->model, slot))
        PTB_TRY(ptb_stream_copy(r->compute, ptb_model_starts(r->model, slot), c->starts + at, bytes));
    ptb_unit_memory memory;
    for (size_t u = 0; u < r->layout.units; u++) {
        memory = tensor_unit_memory(r, u);
        PTB_TRY(ptb_model_forward(r->model, slot, u, &memory));
    }
    return ptb_model_loss(r->model, slot, &memory, microbatch > 0, microbatch > 0, r->loss);
}

static inline ptb_status tensor_told(void *context, size_t unit, size_t first)
{
    tensor_rank *r = context;
    (void)unit;
    r->run->told[r->world->rank] += first == 0;
    return PTB_OK;
}

static inline ptb_status tensor_backward(tensor_rank *r, int slot, int microbatch, int parts)
{
    ptb_gradient_ready ready = {tensor_told, r};
    for (size_t u = r->layout.units; u-- > 0;) {
        ptb_unit_memory memory = tensor_unit_memory(r, u);
        PTB_TRY(ptb_model_backward(r->model, slot, u, &memory, parts, microbatch > 0,
                                   microbatch + 1 == MICROBATCHES ? &ready : NULL));
    }
    return PTB_OK;
}

static inline ptb_status tensor_step(tensor_rank *r)
{
    model_order order = r->run->order;
    for (int i = 0; i < MICROBATCHES; i++) {
        PTB_TRY(tensor_forward(r, order == ONE_BY_ONE ? 0 : i, i));
        if (order == ONE_BY_ONE)
            PTB_TRY(tensor_backward(r, 0, i, PTB_BACKWARD_BOTH));
    }
    for (int i = 0; i < MICROBATCHES && order != ONE_BY_ONE; i++)
        PTB_TRY(tensor_backward(r, i, i, order == ALL_FORWARD ? PTB_BACKWARD_BOTH : PTB_BACKWARD_INPUT));
    for (int i = 0; i < MICROBATCHES && order == WEIGHTS_AT_LAST; i++)
        PTB_TRY(tensor_backward(r, i, i, PTB_BACKWARD_WEIGHT));
    PTB_TRY(ptb_stream_sync(r->compute));
    return ptb_stream_sync(r->stream);
}

static inline ptb_status tensor_open(tensor_rank *r)
{
    PTB_TRY(ptb_device_open_local(test_device(), r->world, false, &r->device));
    PTB_TRY(ptb_stream_new(r->device, PTB_STREAM_WORKER, 1, &r->compute));
    PTB_TRY(ptb_stream_new(r->device, PTB_STREAM_URGENT, 2, &r->stream));
    r->timeline = (ptb_timeline){.stream = r->compute};
    PTB_TRY(ptb_comm_open(test_comm(), r->world, &(ptb_comm_config){.threads = true}, &r->comm));
    return ptb_lane_init(&r->lane, r->comm, PTB_AXIS_TP, &r->timeline, r->stream);
}

static inline ptb_status tensor_rank_main(ptb_world *world, void *arg)
{
    tensor_rank r = {.run = arg, .world = world};
    tensor_run *run = arg;
    PTB_TRY(tensor_open(&r));
    PTB_TRY(tensor_prepare(&r));
    ptb_status status = tensor_make_model(&r);
    if (status == PTB_OK)
        status = tensor_step(&r);
    size_t bytes = r.layout.count * sizeof(float);
    run->gradients[world->rank] = memcpy(malloc(bytes), r.gradients, bytes);
    run->loss[world->rank] = *r.loss;
    run->moved[world->rank] = r.lane.moved;
    ptb_model_free(r.model);
    ptb_tensor_axis_close(r.axis);
    ptb_lane_release(&r.lane);
    ptb_comm_close(r.comm);
    ptb_stream_free(r.stream);
    ptb_stream_free(r.compute);
    ptb_device_free_host(r.device, r.loss);
    ptb_device_free_host(r.device, r.gradients);
    ptb_device_free_host(r.device, r.parameters);
    ptb_device_close(r.device);
    ptb_layout_release(&r.layout);
    return status;
}

static inline void tensor_run_release(tensor_run *run)
{
    for (int r = 0; r < run->tp; r++)
        free(run->gradients[r]);
}

// Puts the whole gradient together. Parts that two ranks have must be the same to the bit.
static inline float *tensor_gather(const tensor_run *run)
{
    const ptb_layout *whole = &run->c->layout;
    float *out = calloc(whole->count, sizeof *out);
    unsigned char *seen = calloc(whole->count, 1);
    for (int rank = 0; rank < run->tp; rank++) {
        ptb_layout l;
        ptb_layout_cut cut = {.tp = run->tp, .tp_rank = rank};
        assert_int_equal(ptb_layout_init(&l, &whole->shape, &cut), PTB_OK);
        for (size_t u = 0; u < l.units; u++)
            for (size_t t = 0; t < l.unit[u].tensors; t++) {
                const ptb_tensor *part = &l.unit[u].tensor[t], *of = tensor_of_whole(whole, u, part);
                const float *from = run->gradients[rank] + l.unit[u].first + part->first;
                size_t first = whole->unit[u].first + of->first;
                for (size_t i = 0; i < ptb_tensor_count(part); i++) {
                    size_t at = first + tensor_whole(part, i);
                    if (seen[at] && (!part->replicated || memcmp(&out[at], &from[i], sizeof *from)))
                        fail_msg("unit %zu, %s: rank %d has %g, another one %g", u, part->name, rank,
                                 (double)from[i], (double)out[at]);
                    out[at] = from[i];
                    seen[at] = 1;
                }
            }
        ptb_layout_release(&l);
    }
    for (size_t u = 0; u < whole->units; u++)
        for (size_t t = 0; t < whole->unit[u].tensors; t++)
            for (size_t i = 0; i < ptb_tensor_count(&whole->unit[u].tensor[t]); i++)
                assert_true(seen[whole->unit[u].first + whole->unit[u].tensor[t].first + i]);
    free(seen);
    return out;
}

#endif
