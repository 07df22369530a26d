// What names of NCCL's kernels tell of a call: those of its libraries, as CUPTI and the driver give them.
#include "collectives/comm_nccl.h"
#include "profiler/cupti_names.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#define ARGUMENTS "24ncclDevKernelArgsStorageILm4096EE"

typedef struct {
    const char *mangled;
    ptb_coll_kind kind;
    ptb_nccl_kernel_kind tells;
} kernel_case;

static void assert_tells(const kernel_case *c)
{
    char name[PTB_KERNEL_NAME_BYTES];
    ptb_cupti_short_name(c->mangled, name, sizeof name);
    ptb_nccl_kernel_kind tells = ptb_nccl_kernel_tells(c->kind, name);
    if (tells != c->tells)
        fail_msg("%s (%s) of %s tells %d, not %d", name, c->mangled, ptb_coll_name(c->kind), (int)tells,
                 (int)c->tells);
}

static void names_of_each_version_are_known(void **state)
{
    (void)state;
    static const kernel_case cases[] = {
        // 2.27
        {"_Z29ncclSymDevKernel_AllGather_ST14ncclSymDevArgs", PTB_ALL_GATHER, PTB_NCCL_KERNEL_SYMMETRIC},
        {"_Z42ncclSymDevKernel_AllReduce_AGxLL_R_sum_f3214ncclSymDevArgs", PTB_ALL_REDUCE,
         PTB_NCCL_KERNEL_SYMMETRIC},
        {"_Z43ncclSymDevKernel_ReduceScatter_LDMC_sum_f3214ncclSymDevArgs", PTB_REDUCE_SCATTER,
         PTB_NCCL_KERNEL_SYMMETRIC},
        // 2.28 and later
        {"_Z32ncclSymkDevKernel_AllGather_STMC21ncclSymkDevWorkArgs4K", PTB_ALL_GATHER,
         PTB_NCCL_KERNEL_SYMMETRIC},
        {"_Z51ncclSymkDevKernel_AllReduce_RSxLDMC_AGxSTMC_sum_f3221ncclSymkDevWorkArgs4K", PTB_ALL_REDUCE,
         PTB_NCCL_KERNEL_SYMMETRIC},
        {"_Z55ncclSymkDevKernel_ReduceScatter_RailA2A_LsaLDMC_avg_f3221ncclSymkDevWorkArgs4K",
         PTB_REDUCE_SCATTER, PTB_NCCL_KERNEL_SYMMETRIC},
        {"_Z51ncclSymkDevKernel_AllReduce_AGxLL_R_sum_f32_profile21ncclSymkDevWorkArgs4K", PTB_ALL_REDUCE,
         PTB_NCCL_KERNEL_SYMMETRIC}, // 2.32
        // All others run whatever they are told to.
        {"_Z39ncclDevKernel_AllReduce_Sum_f32_RING_LL" ARGUMENTS, PTB_ALL_REDUCE, PTB_NCCL_KERNEL_OTHER},
        {"_Z39ncclDevKernel_AllReduce_Sum_f32_TREE_LL" ARGUMENTS, PTB_REDUCE_SCATTER, PTB_NCCL_KERNEL_OTHER},
        {"_Z31ncclDevKernel_Broadcast_RING_LL" ARGUMENTS, PTB_ALL_GATHER, PTB_NCCL_KERNEL_OTHER},
        {"_Z21ncclDevKernel_Generic" ARGUMENTS, PTB_ALL_GATHER, PTB_NCCL_KERNEL_OTHER},
        {"_Z32ncclDevKernel_AllReduce_f32_RING" ARGUMENTS, PTB_ALL_REDUCE, PTB_NCCL_KERNEL_OTHER}, // 2.32
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        assert_tells(&cases[i]);
}

static void of_other_names_nothing_is_known(void **state)
{
    (void)state;
    static const kernel_case cases[] = {
        // Of another collective; of one that has none of them; of nobody that is known.
        {"_Z32ncclSymkDevKernel_AllGather_STMC21ncclSymkDevWorkArgs4K", PTB_ALL_REDUCE,
         PTB_NCCL_KERNEL_UNKNOWN},
        {"_Z33ncclSymkDevKernel_AllGatherV_STMC21ncclSymkDevWorkArgs4K", PTB_ALL_GATHER,
         PTB_NCCL_KERNEL_UNKNOWN},
        {"_Z31ncclDevKernel_Broadcast_RING_LL" ARGUMENTS, PTB_BROADCAST, PTB_NCCL_KERNEL_UNKNOWN},
        {"_Z13oneRankReducePvS_mmbb", PTB_ALL_REDUCE, PTB_NCCL_KERNEL_UNKNOWN},
        {"ncclNextKernel_AllReduce", PTB_ALL_REDUCE, PTB_NCCL_KERNEL_UNKNOWN},
        {"", PTB_ALL_REDUCE, PTB_NCCL_KERNEL_UNKNOWN},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        assert_tells(&cases[i]);
}

// A communicator of which no call is known yet.
static const ptb_nccl_kernel *kernel_of(ptb_comm_nccl *c, const char *first, const char *second, size_t count)
{
    static const ptb_coll call = {.kind = PTB_ALL_REDUCE, .count = 8, .dtype = PTB_F32, .op = PTB_SUM};
    const char *kernels[] = {first, second};
    ptb_nccl_recorded(&c->comm, &call, kernels, count, "here");
    const ptb_nccl_seen *seen = ptb_nccl_find_seen(c, &call);
    assert_non_null(seen);
    return &seen->kernel;
}

static void all_kernels_of_a_call_have_to_agree(void **state)
{
    (void)state;
    static ptb_comm_nccl c;
    static const char symmetric[] = "ncclSymkDevKernel_AllReduce_AGxLL_R_sum_f32",
                      more[] = "ncclSymkDevKernel_AllReduce_RSxLD_AGxST_sum_f32",
                      other[] = "ncclDevKernel_AllReduce_Sum_f32_RING_LL";
    const ptb_nccl_kernel *kernel = kernel_of(&c, symmetric, more, 2);
    assert_int_equal(kernel->kind, PTB_NCCL_KERNEL_SYMMETRIC);
    assert_string_equal(kernel->name, symmetric);
    assert_string_equal(kernel->from, "here");
    assert_int_equal(kernel_of(&c, symmetric, other, 2)->kind, PTB_NCCL_KERNEL_UNKNOWN);
    assert_int_equal(kernel_of(&c, other, other, 2)->kind, PTB_NCCL_KERNEL_OTHER);
    assert_int_equal(kernel_of(&c, other, "something", 2)->kind, PTB_NCCL_KERNEL_UNKNOWN);
    assert_int_equal(kernel_of(&c, "something", symmetric, 2)->kind, PTB_NCCL_KERNEL_UNKNOWN);
    assert_int_equal(c.seen_count, 1);
    // Of what has no symmetric kernels nothing is kept.
    const ptb_coll broadcast = {.kind = PTB_BROADCAST, .count = 8, .dtype = PTB_F32};
    const char *const kernels[] = {other};
    ptb_nccl_recorded(&c.comm, &broadcast, kernels, 1, "here");
    assert_null(ptb_nccl_find_seen(&c, &broadcast));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(names_of_each_version_are_known),
        cmocka_unit_test(of_other_names_nothing_is_known),
        cmocka_unit_test(all_kernels_of_a_call_have_to_agree),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
