// Names of kernels as people know them.
#ifndef PTB_PROFILER_CUPTI_NAMES_H
#define PTB_PROFILER_CUPTI_NAMES_H

#include <stddef.h>

// The function's own name: demangled, without return type, namespaces, template arguments and parameters; cut
// to the room there is. "_ZN3ptb4normIfEEvPf" gives "norm".
void ptb_cupti_short_name(const char *name, char *out, size_t out_size);

#endif
