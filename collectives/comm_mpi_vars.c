// Control variables of the MPI library through its tool interface (MPI_T).
#include "collectives/comm_mpi.h"

#include <stdlib.h>
#include <string.h>

int ptb_mpi_vars_count(void)
{
    int count = 0;
    return MPI_T_cvar_get_num(&count) == MPI_SUCCESS ? count : 0;
}

typedef struct {
    MPI_Datatype type;
    MPI_T_enum items;
    char name[128];
} variable;

static bool describe(int i, variable *v)
{
    int length = sizeof v->name, no_text = 0, level, bind, scope;
    return MPI_T_cvar_get_info(i, v->name, &length, &level, &v->type, &v->items, NULL, &no_text, &bind,
                               &scope) == MPI_SUCCESS;
}

bool ptb_mpi_var_name(int i, char name[128])
{
    variable v;
    if (!describe(i, &v))
        return false;
    memcpy(name, v.name, sizeof v.name);
    return true;
}

// Finds a variable and opens it; `count` is its number of elements.
static bool open_variable(const char *name, variable *v, MPI_T_cvar_handle *handle, int *count)
{
    int i;
    return MPI_T_cvar_get_index(name, &i) == MPI_SUCCESS && describe(i, v) &&
           MPI_T_cvar_handle_alloc(i, NULL, handle, count) == MPI_SUCCESS;
}

static bool is_int(const variable *v)
{
    return v->type == MPI_INT || v->type == MPI_UNSIGNED || v->type == MPI_C_BOOL;
}

bool ptb_mpi_var_read_int(const char *name, int *value)
{
    variable v;
    MPI_T_cvar_handle handle;
    int count;
    union {
        int number;
        bool flag;
    } read = {0};
    if (!open_variable(name, &v, &handle, &count))
        return false;
    bool good = is_int(&v) && count == 1 && MPI_T_cvar_read(handle, &read) == MPI_SUCCESS;
    MPI_T_cvar_handle_free(&handle);
    if (good)
        *value = v.type == MPI_C_BOOL ? read.flag : read.number;
    return good;
}

bool ptb_mpi_var_read_text(const char *name, char *value, size_t size)
{
    variable v;
    MPI_T_cvar_handle handle;
    int count;
    if (!open_variable(name, &v, &handle, &count))
        return false;
    char *text = v.type == MPI_CHAR ? calloc((size_t)count + 1, 1) : NULL;
    bool good = text && MPI_T_cvar_read(handle, text) == MPI_SUCCESS;
    if (good) {
        size_t length = strnlen(text, size - 1);
        memcpy(value, text, length);
        value[length] = 0;
    }
    free(text);
    MPI_T_cvar_handle_free(&handle);
    return good;
}

bool ptb_mpi_var_write_int(const char *name, int value)
{
    variable v;
    MPI_T_cvar_handle handle;
    int count;
    unsigned long long wide = (unsigned)value; // Open MPI reads as many bytes as its widest type has
    if (!open_variable(name, &v, &handle, &count))
        return false;
    bool good = is_int(&v) && count == 1 && MPI_T_cvar_write(handle, &wide) == MPI_SUCCESS;
    MPI_T_cvar_handle_free(&handle);
    return good;
}

bool ptb_mpi_var_item(const char *name, int i, int *value, char text[40])
{
    int index, items, unused = 0, length = 40;
    variable v;
    if (MPI_T_cvar_get_index(name, &index) != MPI_SUCCESS || !describe(index, &v) ||
        v.items == MPI_T_ENUM_NULL || MPI_T_enum_get_info(v.items, &items, NULL, &unused) != MPI_SUCCESS ||
        i >= items || MPI_T_enum_get_item(v.items, i, value, text, &length) != MPI_SUCCESS)
        return false;
    for (char *at = text; *at; at++)
        if (*at == ' ')
            *at = '_';
    return true;
}
