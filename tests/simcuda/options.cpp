// The settings of the simulated device: PTB_SIM="name=value,name=value".
#include "tests/simcuda/sim.hpp"

#include <stdlib.h>
#include <string.h>

long sim_option(const char *name)
{
    const char *at = getenv("PTB_SIM");
    const size_t length = strlen(name);
    while (at && *at) {
        if (!strncmp(at, name, length) && at[length] == '=')
            return strtol(at + length + 1, NULL, 0);
        at = strchr(at, ',');
        at = at ? at + 1 : NULL;
    }
    return -1;
}
