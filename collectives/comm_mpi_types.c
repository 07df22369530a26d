// MPI datatypes and operations of each element type. MPI has no 16-bit floats: these are two bytes, with
// operations made from ptbench's own reduction functions.
#include "collectives/comm_mpi.h"
#include "collectives/world_mpi.h"

// name of the C function, dtype, operation
#define PTB_HALF_OP_LIST(X)                                                                                  \
    X(f16_sum, F16, SUM)                                                                                     \
    X(f16_prod, F16, PROD)                                                                                   \
    X(f16_min, F16, MIN)                                                                                     \
    X(f16_max, F16, MAX)                                                                                     \
    X(bf16_sum, BF16, SUM)                                                                                   \
    X(bf16_prod, BF16, PROD)                                                                                 \
    X(bf16_min, BF16, MIN)                                                                                   \
    X(bf16_max, BF16, MAX)

#define X(name, dtype, op)                                                                                   \
    static void name(void *in, void *inout, int *count, MPI_Datatype *type)                                  \
    {                                                                                                        \
        (void)type;                                                                                          \
        ptb_reduce_function(PTB_##dtype, PTB_##op)(inout, in, inout, (size_t)*count);                        \
    }
PTB_HALF_OP_LIST(X)
#undef X

static ptb_status half_types(ptb_comm_mpi *c)
{
    static const struct {
        MPI_User_function *function;
        ptb_dtype dtype;
        ptb_redop op;
    } rows[] = {
#define X(name, dtype, op) {name, PTB_##dtype, PTB_##op},
        PTB_HALF_OP_LIST(X)
#undef X
    };
    const ptb_dtype halves[] = {PTB_F16, PTB_BF16};
    for (int i = 0; i < 2; i++) {
        MPI_Datatype *type = &c->type[halves[i]];
        PTB_TRY(ptb_mpi_check(MPI_Type_contiguous(2, MPI_BYTE, type), "MPI_Type_contiguous"));
        PTB_TRY(ptb_mpi_check(MPI_Type_commit(type), "MPI_Type_commit"));
    }
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        PTB_TRY(ptb_mpi_check(MPI_Op_create(rows[i].function, 1, &c->op[rows[i].dtype][rows[i].op]),
                              "MPI_Op_create"));
    for (int i = 0; i < 2; i++)
        c->op[halves[i]][PTB_AVG] = c->op[halves[i]][PTB_SUM];
    return PTB_OK;
}

ptb_status ptb_mpi_types_new(ptb_comm_mpi *c)
{
    const MPI_Datatype types[PTB_DTYPE_COUNT] = {
        [PTB_F64] = MPI_DOUBLE,         [PTB_F32] = MPI_FLOAT,   [PTB_F16] = MPI_DATATYPE_NULL,
        [PTB_BF16] = MPI_DATATYPE_NULL, [PTB_I64] = MPI_INT64_T, [PTB_I32] = MPI_INT32_T,
        [PTB_I8] = MPI_INT8_T,          [PTB_U8] = MPI_UINT8_T,
    };
    // The average is a sum that each rank then divides.
    const MPI_Op ops[PTB_REDOP_COUNT] = {[PTB_SUM] = MPI_SUM,
                                         [PTB_PROD] = MPI_PROD,
                                         [PTB_MIN] = MPI_MIN,
                                         [PTB_MAX] = MPI_MAX,
                                         [PTB_AVG] = MPI_SUM};
    for (int d = 0; d < PTB_DTYPE_COUNT; d++) {
        c->type[d] = types[d];
        for (int o = 0; o < PTB_REDOP_COUNT; o++)
            c->op[d][o] = types[d] == MPI_DATATYPE_NULL ? MPI_OP_NULL : ops[o];
    }
    c->block = MPI_DATATYPE_NULL;
    return half_types(c);
}

void ptb_mpi_types_free(ptb_comm_mpi *c)
{
    const ptb_dtype halves[] = {PTB_F16, PTB_BF16};
    for (int i = 0; i < 2; i++) {
        if (c->type[halves[i]] != MPI_DATATYPE_NULL)
            MPI_Type_free(&c->type[halves[i]]);
        for (int o = 0; o < PTB_AVG; o++)
            if (c->op[halves[i]][o] != MPI_OP_NULL)
                MPI_Op_free(&c->op[halves[i]][o]);
    }
    if (c->block != MPI_DATATYPE_NULL)
        MPI_Type_free(&c->block);
}
