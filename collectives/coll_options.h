// The options of the collective benchmarks: one row an option, so that each benchmark lists the rows that
// mean something to it and refuses the others. Letters are nccl-tests'. Included by the collective files and
// coll_*.c.
#ifndef PTB_COLLECTIVES_COLL_OPTIONS_H
#define PTB_COLLECTIVES_COLL_OPTIONS_H

#include "core/option.h"

#include <stddef.h>

// Fields whose rows a benchmark leaves out stay zero.
typedef struct {
    uint64_t min_bytes, max_bytes, step_bytes, segment_bytes;
    double step_factor;
    char *bytes, *count, *type, *op, *place, *comm, *algo, *transport, *split, *device, *pattern;
    int64_t root, aggregate, misalign;
    int64_t channels;
    char *gpu_direct;
    bool blocking, graph, registered;
} ptb_coll_config;

#define PTB_COLL_ROW(field_) .offset = offsetof(ptb_coll_config, field_)

#define PTB_COLL_OPT_OP                                                                                      \
    {                                                                                                        \
        .name = "op", .letter = 'o', .type = PTB_OPT_LIST, PTB_COLL_ROW(op), .def = "sum",                   \
        .help = "Reduction operations: sum, prod, min, max, avg, or all"                                     \
    }

#define PTB_COLL_OPT_ROOT                                                                                    \
    {                                                                                                        \
        .name = "root", .letter = 'r', .type = PTB_OPT_INT, PTB_COLL_ROW(root), .def = "0", .min = 0,        \
        .max = 1e9, .help = "Root rank (of each group)"                                                      \
    }

#define PTB_COLL_OPT_PLACE                                                                                   \
    {                                                                                                        \
        .name = "place", .type = PTB_OPT_LIST, PTB_COLL_ROW(place), .def = "out,in",                         \
        .choices = ptb_coll_place_names, .help = "Out of place, in place or both"                            \
    }

#define PTB_COLL_OPT_ALGO                                                                                    \
    {                                                                                                        \
        .name = "algo", .type = PTB_OPT_LIST, PTB_COLL_ROW(algo), .def = "default",                          \
        .help = "Algorithms to sweep over; default lets each communicator choose, all is default and every " \
                "algorithm there is. What ran is stored with each case"                                      \
    }

#define PTB_COLL_OPTS_DATA                                                                                   \
    {.name = "min-bytes",                                                                                    \
     .letter = 'b',                                                                                          \
     .type = PTB_OPT_SIZE,                                                                                   \
     PTB_COLL_ROW(min_bytes),                                                                                \
     .def = "8",                                                                                             \
     .help = "Smallest total size S (bytes of the whole vector). Sizes of a sweep that are not whole "       \
             "elements are taken down to whole elements; those below one element are left out"},             \
        {.name = "max-bytes",                                                                                \
         .letter = 'e',                                                                                      \
         .type = PTB_OPT_SIZE,                                                                               \
         PTB_COLL_ROW(max_bytes),                                                                            \
         .def = "64M",                                                                                       \
         .help = "Largest total size S"},                                                                    \
        {.name = "step-factor",                                                                              \
         .letter = 'f',                                                                                      \
         .type = PTB_OPT_DOUBLE,                                                                             \
         PTB_COLL_ROW(step_factor),                                                                          \
         .def = "2",                                                                                         \
         .min = 1.001,                                                                                       \
         .max = 1e9,                                                                                         \
         .help = "Each size is this many times the one before"},                                             \
        {.name = "step-bytes",                                                                               \
         .letter = 'i',                                                                                      \
         .type = PTB_OPT_SIZE,                                                                               \
         PTB_COLL_ROW(step_bytes),                                                                           \
         .def = "0",                                                                                         \
         .help = "Each size is this much more than the one before, instead of a factor; 0: use the factor"}, \
        {.name = "bytes",                                                                                    \
         .type = PTB_OPT_LIST,                                                                               \
         PTB_COLL_ROW(bytes),                                                                                \
         .metavar = "SIZE,...",                                                                              \
         .help = "Exactly these total sizes instead of a sweep; each must be a whole number of elements"},   \
        {.name = "count",                                                                                    \
         .type = PTB_OPT_LIST,                                                                               \
         PTB_COLL_ROW(count),                                                                                \
         .metavar = "N,...",                                                                                 \
         .help = "Exactly these numbers of elements of the whole vector instead of a sweep"},                \
        {.name = "type",                                                                                     \
         .letter = 'd',                                                                                      \
         .type = PTB_OPT_LIST,                                                                               \
         PTB_COLL_ROW(type),                                                                                 \
         .def = "f32",                                                                                       \
         .help = "Element types: f64, f32, f16, bf16, i64, i32, i8, u8, or all"},                            \
        {.name = "misalign",                                                                                 \
         .letter = 'u',                                                                                      \
         .type = PTB_OPT_INT,                                                                                \
         PTB_COLL_ROW(misalign),                                                                             \
         .def = "0",                                                                                         \
         .min = 0,                                                                                           \
         .max = 4096,                                                                                        \
         .help = "Start each buffer this many elements past an aligned address"},                            \
    {                                                                                                        \
        .name = "register", .letter = 'R', .type = PTB_OPT_BOOL, PTB_COLL_ROW(registered), .def = "yes",     \
        .help = "Use memory from the communicator, that peers on the host can read (nccl: symmetric "        \
                "windows, or only registered where an algorithm or channels are asked for); no: private "    \
                "memory"                                                                                     \
    }

#define PTB_COLL_OPTS_COMMON                                                                                 \
    {.name = "comm",                                                                                         \
     .type = PTB_OPT_LIST,                                                                                   \
     PTB_COLL_ROW(comm),                                                                                     \
     .help = "Communicators to sweep over: mpi (the MPI library's), host (ptbench's own), local (threads), " \
             "nccl (GPUs; never run between real ones); not given: mpi,host, or those that move the memory " \
             "of the device that --device names"},                                                           \
        {.name = "transport",                                                                                \
         .type = PTB_OPT_STRING,                                                                             \
         PTB_COLL_ROW(transport),                                                                            \
         .help = "Transport that must be used: shm, tcp or ucx of the MPI library, shm, mpi or shm+mpi of "  \
                 "host; "                                                                                    \
                 "cases of a communicator without it are skipped"},                                          \
        {.name = "split",                                                                                    \
         .type = PTB_OPT_STRING,                                                                             \
         PTB_COLL_ROW(split),                                                                                \
         .def = "all",                                                                                       \
         .metavar = "HOW",                                                                                   \
         .help = "Groups that work at the same time: all (one group), node (ranks of one host), across "     \
                 "(ranks with the same place on their host), mod:K (rank mod K), div:K (rank div K)"},       \
        {.name = "aggregate",                                                                                \
         .letter = 'm',                                                                                      \
         .type = PTB_OPT_INT,                                                                                \
         PTB_COLL_ROW(aggregate),                                                                            \
         .def = "1",                                                                                         \
         .min = 1,                                                                                           \
         .max = 1e6,                                                                                         \
         .help =                                                                                             \
             "Operations grouped in one iteration, on the same buffers; bandwidths are of one operation"},   \
        {.name = "blocking",                                                                                 \
         .letter = 'z',                                                                                      \
         .type = PTB_OPT_BOOL,                                                                               \
         PTB_COLL_ROW(blocking),                                                                             \
         .def = "no",                                                                                        \
         .help = "Wait for each operation before the next; on the host device this is always so"},           \
        {.name = "channels",                                                                                 \
         .type = PTB_OPT_INT,                                                                                \
         PTB_COLL_ROW(channels),                                                                             \
         .def = "0",                                                                                         \
         .min = 0,                                                                                           \
         .max = 64,                                                                                          \
         .help = "Channels (thread blocks) of nccl; 0: its own choice. What ran is stored with each case"},  \
        {.name = "gpu-direct",                                                                               \
         .type = PTB_OPT_CHOICE,                                                                             \
         PTB_COLL_ROW(gpu_direct),                                                                           \
         .def = "default",                                                                                   \
         .choices = ptb_coll_gpu_direct_names,                                                               \
         .help = "GPUDirect RDMA of nccl: network cards that read and write GPU memory themselves; "         \
                 "default leaves it to NCCL"},                                                               \
        {.name = "graph",                                                                                    \
         .letter = 'G',                                                                                      \
         .type = PTB_OPT_BOOL,                                                                               \
         PTB_COLL_ROW(graph),                                                                                \
         .def = "no",                                                                                        \
         .help =                                                                                             \
             "Capture an iteration in a graph and replay it; needs a device with stream capture (cuda)"},    \
    {                                                                                                        \
        .name = "device", .type = PTB_OPT_STRING, PTB_COLL_ROW(device),                                      \
        .help = "Device that holds the buffers; not given: each communicator's own (nccl: cuda, else host)"  \
    }

#define PTB_COLL_OPT_SEGMENT                                                                                 \
    {                                                                                                        \
        .name = "segment", .type = PTB_OPT_SIZE, PTB_COLL_ROW(segment_bytes), .def = "0",                    \
        .help = "Pipeline segment of the algorithms that have one; 0: the algorithm's own choice"            \
    }

extern const char *const ptb_coll_place_names[];      // "out", "in", NULL
extern const char *const ptb_coll_gpu_direct_names[]; // "default", "off", "on", NULL, as ptb_gpu_direct

#endif
