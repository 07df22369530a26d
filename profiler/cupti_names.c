// See cupti_names.h.
#include "profiler/cupti_names.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// The C++ ABI's (Itanium C++ ABI, 3.4): a heap string, or NULL when `name` is not a mangled one.
extern char *__cxa_demangle(const char *name, char *buffer, size_t *size, int *status);

void ptb_cupti_short_name(const char *name, char *out, size_t out_size)
{
    int status = -1;
    char *demangled = name ? __cxa_demangle(name, NULL, NULL, &status) : NULL;
    const char *text = demangled ? demangled : name ? name : "unknown";
    // The name ends where template arguments or parameters begin, outside of "(anonymous namespace)".
    const char *begin = text, *end = text;
    while (*end && *end != '<') {
        if (*end == '(' && strncmp(end, "(anonymous", 10) != 0)
            break;
        end++;
        if (end[-1] == ' ' && strncmp(end, "namespace)", 10) != 0)
            begin = end;
        else if (end[-1] == ':')
            begin = end;
    }
    snprintf(out, out_size, "%.*s", (int)(end - begin), begin);
    free(demangled);
}
