// Names and exit codes of ptb_status. Add a status by adding a line to PTB_STATUS_LIST.
#include "core/status.h"

static const struct {
    const char *name;
    int exit_code;
    const char *meaning;
} table[] = {
#define X(name, exit_code, meaning) [PTB_##name] = {#name, exit_code, meaning},
    PTB_STATUS_LIST(X)
#undef X
};

static bool is_known(ptb_status status)
{
    return (unsigned)status < PTB_STATUS_COUNT;
}

const char *ptb_status_name(ptb_status status)
{
    return is_known(status) ? table[status].name : "UNKNOWN";
}

const char *ptb_status_meaning(ptb_status status)
{
    return is_known(status) ? table[status].meaning : "unknown status";
}

int ptb_status_exit_code(ptb_status status)
{
    return is_known(status) ? table[status].exit_code : 3;
}
