// What data sheets promise: peak rates of matrix products by the name of the GPU.
#ifndef PTB_STRATEGIES_DATASHEET_H
#define PTB_STRATEGIES_DATASHEET_H

#include "core/dtype.h"

#include <stdbool.h>

// FLOP/s of dense matrix products (no sparsity) of operands of the type with sums in f32, at the boost clock;
// f32: without tensor cores, or with them in tf32. `device` is a device's description, which holds the GPU's
// name. NAN for what is not in the table and for parts of a GPU (MIG).
double ptb_datasheet_flops(const char *device, ptb_dtype type, bool tf32);

#endif
