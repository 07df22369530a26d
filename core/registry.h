// The registry of plug-ins: every device, communicator, algorithm, collective, benchmark, strategy, report
// and command is a const descriptor whose first member is a ptb_plugin, registered before main by
// PTB_REGISTER at the end of its own .c file. To add one thing, add one file.
#ifndef PTB_CORE_REGISTRY_H
#define PTB_CORE_REGISTRY_H

#include <stddef.h>

// kind, its word in messages
#define PTB_KIND_LIST(X)                                                                                     \
    X(DEVICE, "device")                                                                                      \
    X(MACHINE_PART, "machine part")                                                                          \
    X(LINK_SOURCE, "link source")                                                                            \
    X(KERNELS, "kernels")                                                                                    \
    X(COMM, "communicator")                                                                                  \
    X(ALGORITHM, "algorithm")                                                                                \
    X(COLLECTIVE, "collective")                                                                              \
    X(CAPTURE, "capture")                                                                                    \
    X(DATA_PARALLEL, "data-parallel strategy")                                                               \
    X(EXPERT_DISPATCH, "expert dispatch")                                                                    \
    X(CONTEXT, "context parallelism")                                                                        \
    X(BENCH, "benchmark")                                                                                    \
    X(EXPORTER, "exporter")                                                                                  \
    X(IMPORTER, "importer")                                                                                  \
    X(REPORT, "report")                                                                                      \
    X(COMMAND, "command")

typedef enum {
#define X(name, word) PTB_KIND_##name,
    PTB_KIND_LIST(X)
#undef X
        PTB_KIND_COUNT
} ptb_kind;

typedef struct {
    const char *name;    // as typed by users: lower case, words joined by '_'
    const char *summary; // one line for `ptbench list`, no full stop
} ptb_plugin;

// The word for a kind in messages: "communicator".
const char *ptb_kind_word(ptb_kind kind);

// Called by PTB_REGISTER. Aborts the process if the name is taken within the kind. `file` is __FILE__ of the
// descriptor.
void ptb_registry_add(ptb_kind kind, const ptb_plugin *plugin, const char *file);

// Number of plug-ins of a kind, and the i-th in order of name (NULL past the end).
size_t ptb_registry_count(ptb_kind kind);
const ptb_plugin *ptb_registry_at(ptb_kind kind, size_t i);
// Source file (as given by the compiler) that registered the i-th one.
const char *ptb_registry_file(ptb_kind kind, size_t i);
// NULL if there is none; logs nothing.
const ptb_plugin *ptb_registry_find(ptb_kind kind, const char *name);
// Like find, but logs an error that names the nearest valid names when there is none.
const ptb_plugin *ptb_registry_need(ptb_kind kind, const char *name);

// PTB_REGISTER(PTB_KIND_COMM, host_ops): `object` is a const struct whose first member is `ptb_plugin
// plugin`.
#define PTB_REGISTER(kind, object)                                                                           \
    __attribute__((constructor)) static void ptb_register_##object(void)                                     \
    {                                                                                                        \
        ptb_registry_add((kind), &(object).plugin, __FILE__);                                                \
    }                                                                                                        \
    _Static_assert(offsetof(__typeof__(object), plugin) == 0, "the plugin must be the first member")

#endif
