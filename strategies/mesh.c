// See mesh.h.
#include "strategies/mesh.h"

#include "core/log.h"
#include "core/text.h"

#include <inttypes.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct {
    const char *name;
    size_t at;
} keys[] = {{"tp", offsetof(ptb_mesh_sizes, tp)}, {"cp", offsetof(ptb_mesh_sizes, cp)},
            {"ep", offsetof(ptb_mesh_sizes, ep)}, {"pp", offsetof(ptb_mesh_sizes, pp)},
            {"dp", offsetof(ptb_mesh_sizes, dp)}, {"replicate", offsetof(ptb_mesh_sizes, replicate)}};
enum { KEYS = sizeof keys / sizeof *keys, SIZE_MAX_OF_AXIS = 1 << 20 };

static int *find_key(ptb_mesh_sizes *sizes, const char *name, size_t length)
{
    for (size_t i = 0; i < KEYS; i++)
        if (strlen(keys[i].name) == length && strncmp(keys[i].name, name, length) == 0)
            return (int *)((char *)sizes + keys[i].at);
    return NULL;
}

static ptb_status parse_piece(const char *piece, ptb_mesh_sizes *sizes)
{
    const char *equals = strchr(piece, '=');
    int *size = equals ? find_key(sizes, piece, (size_t)(equals - piece)) : NULL;
    char *end = NULL;
    long value = equals ? strtol(equals + 1, &end, 10) : 0;
    if (!size) {
        ptb_error("--mesh '%s': expected AXIS=RANKS with an axis of tp, cp, ep, pp, dp or replicate, as in "
                  "--mesh tp=2,dp=4",
                  piece);
        return PTB_USAGE;
    }
    if (end == equals + 1 || *end || value < 1 || value > SIZE_MAX_OF_AXIS) {
        ptb_error("--mesh '%s': '%s' is not a number of ranks from 1 to %d", piece, equals + 1,
                  SIZE_MAX_OF_AXIS);
        return PTB_USAGE;
    }
    if (*size) {
        ptb_error("--mesh gives %.*s twice", (int)(equals - piece), piece);
        return PTB_USAGE;
    }
    *size = (int)value;
    return PTB_OK;
}

ptb_status ptb_mesh_parse(const char *text, ptb_mesh_sizes *sizes)
{
    ptb_mesh_sizes parsed = {0};
    const char *pieces[KEYS];
    char *storage = NULL;
    ptb_status status = PTB_OK;
    if (text && *text && ptb_text_pieces(text, ',') > KEYS) {
        ptb_error("--mesh '%s' has more than the %d axes that there are", text, KEYS);
        return PTB_USAGE;
    }
    size_t count = text && *text ? ptb_text_split(text, ',', &storage, pieces, KEYS) : 0;
    for (size_t i = 0; i < count && status == PTB_OK; i++)
        status = parse_piece(pieces[i], &parsed);
    free(storage);
    if (status == PTB_OK)
        *sizes = parsed;
    return status;
}

static int at_least_one(int size)
{
    return size ? size : 1;
}

// The product of sizes, or INT64_MAX / SIZE_MAX_OF_AXIS where it is more than that.
static int64_t product(const int *sizes, size_t count)
{
    const int64_t most = INT64_MAX / SIZE_MAX_OF_AXIS;
    int64_t all = 1;
    for (size_t i = 0; i < count; i++)
        all = all > most / at_least_one(sizes[i]) ? most : all * at_least_one(sizes[i]);
    return all;
}

// How many data-parallel ranks there are, given or left over.
static ptb_status find_dp(const ptb_mesh_sizes *s, int ranks, char *reason, int *dp)
{
    const int sizes[] = {s->tp, s->cp, s->ep, s->pp};
    int64_t inner = product(sizes, sizeof sizes / sizeof *sizes);
    if (inner > SIZE_MAX_OF_AXIS) {
        snprintf(
            reason, PTB_REASON_BYTES,
            "a mesh of tp=%d x cp=%d x ep=%d x pp=%d has more than the %d ranks that there can be, and %d "
            "were started; change --mesh",
            at_least_one(s->tp), at_least_one(s->cp), at_least_one(s->ep), at_least_one(s->pp),
            SIZE_MAX_OF_AXIS, ranks);
        return PTB_USAGE;
    }
    if (s->dp && inner * s->dp != ranks) {
        snprintf(reason, PTB_REASON_BYTES,
                 "a mesh of tp=%d x cp=%d x ep=%d x pp=%d x dp=%d has %" PRId64 " ranks, and %d were "
                 "started; change --mesh or --np (leave dp out, and it is what remains)",
                 at_least_one(s->tp), at_least_one(s->cp), at_least_one(s->ep), at_least_one(s->pp), s->dp,
                 inner * s->dp, ranks);
        return PTB_USAGE;
    }
    if (!s->dp && (inner > ranks || ranks % inner)) {
        snprintf(reason, PTB_REASON_BYTES,
                 "a mesh of tp=%d x cp=%d x ep=%d x pp=%d = %" PRId64 " ranks does not divide the %d that "
                 "were started: %d = %" PRId64 " x %" PRId64 " + %" PRId64 "; change --mesh or --np",
                 at_least_one(s->tp), at_least_one(s->cp), at_least_one(s->ep), at_least_one(s->pp), inner,
                 ranks, ranks, inner, ranks / inner, ranks % inner);
        return PTB_USAGE;
    }
    *dp = s->dp ? s->dp : (int)(ranks / inner);
    return PTB_OK;
}

ptb_status ptb_mesh_init(ptb_mesh *mesh, const ptb_mesh_sizes *s, int ranks, int rank, char *reason)
{
    int dp, replicate = at_least_one(s->replicate);
    PTB_TRY(find_dp(s, ranks, reason, &dp));
    if (dp % replicate) {
        snprintf(reason, PTB_REASON_BYTES,
                 "--mesh replicate=%d does not divide the %d data-parallel ranks: %d = %d x %d + %d; every "
                 "copy has as many shards",
                 replicate, dp, dp, replicate, dp / replicate, dp % replicate);
        return PTB_USAGE;
    }
    *mesh = (ptb_mesh){.size = {[PTB_MESH_TP] = at_least_one(s->tp),
                                [PTB_MESH_CP] = at_least_one(s->cp),
                                [PTB_MESH_EP] = at_least_one(s->ep),
                                [PTB_MESH_SHARD] = dp / replicate,
                                [PTB_MESH_REPLICATE] = replicate,
                                [PTB_MESH_PP] = at_least_one(s->pp)}};
    for (int a = 0; a < PTB_MESH_AXES; a++) {
        mesh->place[a] = rank % mesh->size[a];
        rank /= mesh->size[a];
    }
    return PTB_OK;
}

static ptb_status check_divides(const char *axis, int parts, const char *what, int64_t count, const char *why,
                                char *reason)
{
    if (count % parts == 0)
        return PTB_OK;
    snprintf(reason, PTB_REASON_BYTES,
             "--mesh %s=%d does not divide %s %" PRId64 ": %" PRId64 " = %d x %" PRId64 " + %" PRId64 "; %s",
             axis, parts, what, count, count, parts, count / parts, count % parts, why);
    return PTB_USAGE;
}

// Parts may differ by one; 0 stands for another value, which is large enough.
static ptb_status check_parts(int tp, const char *what, int64_t count, char *reason)
{
    if (count == 0 || count >= tp)
        return PTB_OK;
    snprintf(reason, PTB_REASON_BYTES,
             "--mesh tp=%d cannot cut %s %" PRId64 ": every rank needs 1 of it at least; use a smaller tp",
             tp, what, count);
    return PTB_USAGE;
}

// Axes over which this version divides a model besides the data-parallel ones.
static const unsigned divided = 1u << PTB_MESH_TP | 1u << PTB_MESH_CP | 1u << PTB_MESH_EP;

static ptb_status check_divided(const ptb_mesh *mesh, char *reason)
{
    static const char *const names[] = {
        [PTB_MESH_TP] = "tp", [PTB_MESH_CP] = "cp", [PTB_MESH_EP] = "ep", [PTB_MESH_PP] = "pp"};
    for (int a = 0; a < PTB_MESH_AXES; a++) {
        if (mesh->size[a] == 1 || a == PTB_MESH_SHARD || a == PTB_MESH_REPLICATE || divided & 1u << a)
            continue;
        snprintf(reason, PTB_REASON_BYTES,
                 "--mesh %s=%d: this version cannot divide a model over %s; leave it out of --mesh", names[a],
                 mesh->size[a], names[a]);
        return PTB_USAGE;
    }
    return PTB_OK;
}

ptb_status ptb_mesh_check(const ptb_mesh *mesh, const ptb_model_shape *s, char *reason)
{
    int tp = mesh->size[PTB_MESH_TP], ep = mesh->size[PTB_MESH_EP];
    PTB_TRY(check_divided(mesh, reason));
    PTB_TRY(check_divides("cp", mesh->size[PTB_MESH_CP], "--sequence", s->sequence,
                          "every rank has as long a part of each sequence", reason));
    PTB_TRY(check_divides("tp", tp, "--heads", s->heads, "every rank has as many heads", reason));
    PTB_TRY(check_divides("tp", tp, "--kv-heads", s->kv_heads ? s->kv_heads : s->heads,
                          "every rank has as many heads of key and value", reason));
    PTB_TRY(check_parts(tp, "--feed-forward", s->feed_forward, reason));
    PTB_TRY(check_parts(tp, "--expert-hidden", s->experts ? s->expert_hidden : 0, reason));
    PTB_TRY(check_parts(tp, "--vocab", s->vocabulary, reason));
    if (ep > 1 && !s->experts) {
        snprintf(reason, PTB_REASON_BYTES,
                 "--mesh ep=%d cuts experts, and the model has none; give --experts, or a preset that has "
                 "some (`ptbench list models`)",
                 ep);
        return PTB_USAGE;
    }
    if (ep > 1)
        PTB_TRY(check_divides("ep", ep, "--experts", s->experts, "every rank has as many experts", reason));
    return PTB_OK;
}

bool ptb_mesh_divides_batch(int ranks, int64_t micro_batches, int64_t batch, const char *name, char *reason)
{
    if (micro_batches < 1 || batch < 1) {
        snprintf(reason, PTB_REASON_BYTES,
                 "%s %" PRId64 " in %" PRId64 " microbatches of each rank: both are 1 at least", name, batch,
                 micro_batches);
        return false;
    }
    int64_t parts = ranks * micro_batches;
    if (batch % parts == 0)
        return true;
    char over[64] = "", near[64] = "";
    if (micro_batches > 1)
        snprintf(over, sizeof over, " x %" PRId64 " microbatches = %" PRId64 " parts", micro_batches, parts);
    if (batch > parts)
        snprintf(near, sizeof near, "%" PRId64 " or ", batch / parts * parts);
    snprintf(reason, PTB_REASON_BYTES,
             "%s %" PRId64 " does not divide over %d data-parallel ranks%s: %" PRId64 " = %" PRId64
             " x %" PRId64 " + %" PRId64 "; use %s%" PRId64,
             name, batch, ranks, over, batch, parts, batch / parts, batch % parts, near,
             (batch / parts + 1) * parts);
    return false;
}

ptb_layout_cut ptb_mesh_cut(const ptb_mesh *mesh)
{
    return (ptb_layout_cut){.tp = mesh->size[PTB_MESH_TP],
                            .tp_rank = mesh->place[PTB_MESH_TP],
                            .ep = mesh->size[PTB_MESH_EP],
                            .ep_rank = mesh->place[PTB_MESH_EP]};
}

int ptb_mesh_size(const ptb_mesh *mesh, unsigned axes)
{
    int size = 1;
    for (int a = 0; a < PTB_MESH_AXES; a++)
        size *= axes & 1u << a ? mesh->size[a] : 1;
    return size;
}

int ptb_mesh_place(const ptb_mesh *mesh, unsigned axes)
{
    int place = 0;
    for (int a = PTB_MESH_AXES; a-- > 0;)
        if (axes & 1u << a)
            place = place * mesh->size[a] + mesh->place[a];
    return place;
}

ptb_status ptb_mesh_split(const ptb_mesh *mesh, ptb_world *world, unsigned axes, ptb_world **out)
{
    return ptb_world_split(world, ptb_mesh_place(mesh, ~axes & PTB_MESH_ALL), ptb_mesh_place(mesh, axes),
                           out);
}

void ptb_mesh_text(const ptb_mesh *mesh, char out[PTB_MESH_TEXT])
{
    static const char *const names[] = {"tp", "cp", "ep", "dp", "replicate", "pp"};
    size_t used = 0;
    out[0] = '\0';
    for (int a = 0; a < PTB_MESH_AXES; a++) {
        int size = mesh->size[a];
        if (a == PTB_MESH_SHARD)
            size *= mesh->size[PTB_MESH_REPLICATE];
        if (size > 1)
            used += (size_t)snprintf(out + used, PTB_MESH_TEXT - used, "%s%s=%d", used ? " " : "", names[a],
                                     size);
    }
    if (!used)
        snprintf(out, PTB_MESH_TEXT, "1");
}

void ptb_mesh_sizes_text(const ptb_mesh_sizes *sizes, char out[PTB_MESH_TEXT])
{
    size_t used = 0;
    out[0] = '\0';
    for (size_t i = 0; i < KEYS; i++) {
        int size = *(const int *)((const char *)sizes + keys[i].at);
        if (size)
            used += (size_t)snprintf(out + used, PTB_MESH_TEXT - used, "%s%s=%d", used ? " " : "",
                                     keys[i].name, size);
    }
}
