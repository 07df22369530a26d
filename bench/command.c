// What several commands share.
#include "bench/command.h"

#include <stdlib.h>

const char *ptb_command_database(const char *option)
{
    const char *from_environment = getenv("PTBENCH_DB");
    if (option && *option)
        return option;
    return from_environment && *from_environment ? from_environment : "ptbench.db";
}
