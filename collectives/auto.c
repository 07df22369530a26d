// Choosing an algorithm: a table measured on this machine, or a fixed rule. See auto.h.
#include "collectives/auto.h"

int ptb_auto_class(uint64_t bytes)
{
    int size_class = 0;
    while (size_class < PTB_AUTO_CLASSES - 1 && ptb_auto_class_bytes(size_class) < bytes)
        size_class++;
    return size_class;
}

uint64_t ptb_auto_class_bytes(int size_class)
{
    return size_class == PTB_AUTO_CLASSES - 1 ? (uint64_t)64 << 20 : (uint64_t)8 << (2 * size_class);
}

// Direct where all share memory. Between hosts what the literature gives (Thakur, Rabenseifner and Gropp
// 2005): few rounds for short vectors, least traffic for long ones.
static const ptb_algorithm *rule(const ptb_team *team, const ptb_coll *call)
{
    enum { SHORT_BYTES = 32 << 10 };
    static const char *const short_names[] = {"direct",           "recursive_doubling", "tree",
                                              "halving_doubling", "pairwise",           "ring"};
    static const char *const long_names[] = {
        "direct", "ring", "halving_doubling", "tree", "recursive_doubling", "pairwise"};
    bool is_short = call->count * ptb_dtype_size(call->dtype) <= SHORT_BYTES;
    const char *const *names = is_short ? short_names : long_names;
    bool in_place = call->kind == PTB_ALL_TO_ALL && call->send == call->recv;
    const ptb_algorithm *any = NULL;
    for (size_t i = 0; i < sizeof short_names / sizeof *short_names; i++) {
        const ptb_algorithm *a =
            (const ptb_algorithm *)(const void *)ptb_registry_find(PTB_KIND_ALGORITHM, names[i]);
        if (a && ptb_algorithm_supports(a, team, call, in_place, NULL))
            return a;
        any = a && (a->collectives & PTB_COLL_BIT(call->kind)) ? a : any;
    }
    return any;
}

static const ptb_algorithm *cell_of(const ptb_auto *table, const ptb_coll *call)
{
    uint64_t bytes = call->kind == PTB_ALL_TO_ALL_V || call->kind == PTB_BARRIER
                         ? 0
                         : call->count * ptb_dtype_size(call->dtype);
    return table->best[call->kind][ptb_auto_class(bytes)];
}

const ptb_algorithm *ptb_auto_choose(const ptb_auto *table, const ptb_team *team, const ptb_coll *call)
{
    const ptb_algorithm *best = cell_of(table, call);
    bool in_place = call->kind == PTB_ALL_TO_ALL && call->send == call->recv;
    if (best && ptb_algorithm_supports(best, team, call, in_place, NULL))
        return best;
    return rule(team, call);
}

bool ptb_auto_is_measured(const ptb_auto *table, const ptb_team *team, const ptb_coll *call)
{
    const ptb_algorithm *best = cell_of(table, call);
    return best && ptb_auto_choose(table, team, call) == best;
}
