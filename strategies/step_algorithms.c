// See step_algorithms.h.
#include "strategies/step_algorithms.h"

#include "collectives/comm.h"
#include "core/log.h"
#include "core/text.h"

#include <string.h>

static const char *const *names_of(const char *comm)
{
    const ptb_comm_ops *ops = (const ptb_comm_ops *)ptb_registry_find(PTB_KIND_COMM, comm);
    return ops->algorithms(PTB_ALL_REDUCE);
}

bool ptb_step_has_algorithm(const char *comm, const char *algorithm)
{
    if (strcmp(algorithm, "auto") == 0)
        return true;
    for (const char *const *name = names_of(comm); *name; name++)
        if (strcmp(*name, algorithm) == 0)
            return true;
    return false;
}

static void refuse(const char *const *comms, size_t comm_count, const char *algorithm)
{
    enum { NAMES_MAX = 64 };
    const char *names[NAMES_MAX] = {"auto"};
    size_t count = 1;
    for (size_t i = 0; i < comm_count; i++)
        for (const char *const *name = names_of(comms[i]); *name && count < NAMES_MAX; name++) {
            size_t k = 0;
            while (k < count && strcmp(names[k], *name) != 0)
                k++;
            if (k == count)
                names[count++] = *name;
        }
    char near[256];
    ptb_text_nearest(algorithm, names, count, near, sizeof near);
    ptb_error("--algo '%s': there is no all-reduce of that name; did you mean %s?", algorithm, near);
}

ptb_status ptb_step_check_algorithms(const char *const *comms, size_t comm_count,
                                     const char *const *algorithms, size_t algorithm_count)
{
    for (size_t a = 0; a < algorithm_count; a++) {
        bool known = false;
        for (size_t i = 0; i < comm_count; i++)
            known = known || ptb_step_has_algorithm(comms[i], algorithms[a]);
        if (!known) {
            refuse(comms, comm_count, algorithms[a]);
            return PTB_USAGE;
        }
    }
    return PTB_OK;
}
