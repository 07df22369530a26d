// Resolves the words through the store; a run named twice counts once.
#include "bench/find_runs.h"

#include "core/log.h"

ptb_status ptb_find_runs(ptb_store *store, const char *const *words, size_t count, size_t max, int64_t *ids,
                         size_t *found)
{
    static const char *const last[] = {"last"};
    size_t n = 0;
    if (!count) {
        words = last;
        count = 1;
    }
    if (count > max) {
        ptb_error("%zu runs are named; at most %zu at a time", count, max);
        return PTB_USAGE;
    }
    for (size_t i = 0; i < count; i++) {
        int64_t id;
        bool is_new = true;
        PTB_TRY(ptb_store_find_run(store, words[i], &id));
        for (size_t k = 0; k < n; k++)
            is_new = is_new && ids[k] != id;
        if (is_new)
            ids[n++] = id;
    }
    *found = n;
    return PTB_OK;
}
