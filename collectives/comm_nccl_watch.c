// What watches over calls that do not end: NCCL's asynchronous errors and the time limit, looked at while the
// host waits for a stream; and the account in the roll (core/roll.h), from which other ranks and the watch
// thread learn how far this one has come.
#include "collectives/comm_nccl.h"

#include "core/device_cuda.h"
#include "core/log.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void describe(const ptb_roll_what *what, char text[PTB_ROLL_TEXT])
{
    if (what->kind == PTB_COLL_COUNT)
        snprintf(text, PTB_ROLL_TEXT, "a message of %llu %s", (unsigned long long)what->amount,
                 ptb_dtype_name((ptb_dtype)what->type));
    else
        snprintf(text, PTB_ROLL_TEXT, "%s of %llu %s", ptb_coll_name((ptb_coll_kind)what->kind),
                 (unsigned long long)what->amount, ptb_dtype_name((ptb_dtype)what->type));
}

static ptb_roll_what what_of(const ptb_coll *call)
{
    return (ptb_roll_what){.kind = call->kind, .type = call->dtype, .amount = call->count};
}

// ---- the account

static void abort_comm(void *arg)
{
    ptb_nccl_abort(arg);
}

ptb_status ptb_nccl_join_roll(ptb_comm_nccl *c, uint64_t key, const ptb_gpu_place *gpus)
{
    const ptb_world *world = c->comm.world;
    char(*places)[PTB_ROLL_PLACE] = calloc((size_t)world->size, sizeof *places);
    if (!places) {
        ptb_error("no memory for the places of %d ranks", world->size);
        return PTB_NO_MEMORY;
    }
    for (int r = 0; r < world->size; r++)
        snprintf(places[r], sizeof places[r], "GPU %04x:%02x:%02x", (unsigned)gpus[r].domain,
                 (unsigned)gpus[r].bus, (unsigned)gpus[r].device);
    const ptb_account_config config = {.key = key,
                                       .name = "communicator nccl",
                                       .members = world->roll_rank,
                                       .size = world->size,
                                       .rank = world->rank,
                                       .places = places,
                                       .describe = describe,
                                       .abort = abort_comm,
                                       .arg = c};
    ptb_status status = ptb_roll_join(world->roll, &config, &c->account);
    free(places);
    return status;
}

void ptb_nccl_enter(ptb_comm_nccl *c, const ptb_coll *call)
{
    const ptb_roll_what what = what_of(call);
    c->last_call = *call;
    c->calls++;
    if (call->kind == PTB_COLL_COUNT)
        ptb_account_message(c->account, &what);
    else
        ptb_account_enter(c->account, &what);
}

// ---- while the host waits

static ptb_status tell_error(ptb_comm_nccl *c, ncclResult_t state, const char *call)
{
    ptb_text missing = PTB_TEXT_INIT;
    ptb_status status = ptb_nccl_check(state, c->nccl, call, __FILE__, __LINE__);
    if (status == PTB_LOST && ptb_account_explain(c->account, true, &missing))
        ptb_error("rank %d of %d: %s", c->comm.rank, c->comm.size, ptb_text_string(&missing));
    ptb_text_release(&missing);
    return status;
}

static void tell_timeout(ptb_comm_nccl *c, const char *call)
{
    ptb_text missing = PTB_TEXT_INIT;
    if (!ptb_account_explain(c->account, false, &missing))
        ptb_text_append(&missing,
                        "Of the ranks, those whose message names an earlier call, or that send none, "
                        "did not come to it (they died, hang, or called something else); where all "
                        "name the same, a link is down");
    ptb_error("rank %d of %d: %s, this rank's call %llu, did not end within %g s, so NCCL's communicator is "
              "aborted; %s. Look at dmesg (Xid messages) and nvidia-smi on the hosts of these ranks; "
              "NCCL_DEBUG=INFO shows the links and interfaces that NCCL chose",
              c->comm.rank, c->comm.size, call, (unsigned long long)c->calls, c->timeout_s,
              ptb_text_string(&missing));
    ptb_text_release(&missing);
}

ptb_status ptb_nccl_look(ptb_stream_watch *watch, int64_t waited_ns)
{
    ptb_comm_nccl *c = ((ptb_nccl_stream *)watch)->comm;
    ncclResult_t state = ncclSuccess;
    char text[PTB_ROLL_TEXT];
    const ptb_roll_what what = what_of(&c->last_call);
    pthread_mutex_lock(&c->lock); // against the thread that aborts it
    if (c->nccl) {
        ncclResult_t result = c->api->CommGetAsyncError(c->nccl, &state);
        if (result != ncclSuccess)
            state = result;
    }
    pthread_mutex_unlock(&c->lock);
    if (!c->nccl)
        return PTB_LOST;
    describe(&what, text);
    if (state != ncclSuccess && state != ncclInProgress) {
        ptb_status status = tell_error(c, state, text);
        ptb_nccl_abort(c);
        return status;
    }
    if (c->timeout_s > 0 && (double)waited_ns > c->timeout_s * 1e9) {
        tell_timeout(c, text);
        ptb_nccl_abort(c);
        return PTB_LOST;
    }
    return PTB_OK;
}
