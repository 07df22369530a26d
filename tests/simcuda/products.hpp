// What products of warp groups (wgmma) are checked for, that show on hardware and not in the order in which
// the simulated device works.
//
// Registers: a thread must not touch sums and left operands of a product between its wgmma.fence and the wait
// for the product. A fence keeps a copy of the stack of the thread, where these registers are; they are
// compared with it when a product is asked for and when it is computed. A write of the same value passes.
//
// Operands in shared memory, in kernels whose accesses are checked (check.hpp): tensor cores read through
// another proxy than threads write. Of each byte, the thread that has written it last has executed
// fence.proxy.async afterwards, then a barrier of the block came, then the product; and nobody writes it
// until the product is waited for.
//
// Groups: all four warps of one ask for the same products in the same order.
#ifndef PTB_SIMCUDA_PRODUCTS_HPP
#define PTB_SIMCUDA_PRODUCTS_HPP

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

// wgmma.fence of the running thread.
void sim_registers_keep(void);
// Thread `thread` of the block has left the registers as they were at its wgmma.fence; ends the kernel with
// an error that names `what` otherwise.
void sim_registers_check(unsigned thread, const void *registers, size_t bytes, const char *what);
// A product has written the registers.
void sim_registers_written(unsigned thread, const void *registers, size_t bytes);

// fence.proxy.async of the running thread.
void sim_proxy_fence(void);
// A warp asks for a product with these operands: its number, in order.
uint64_t sim_product_number(unsigned warp, uint64_t a, uint64_t b, bool add);
// The block has ended.
void sim_products_end(void);
// The product reads these bytes; computed: now, else it has just been asked for. Ends the kernel with an
// error when it may not.
void sim_product_reads(uint64_t number, const void *shared, size_t bytes, bool computed);

#endif
