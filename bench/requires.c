// Conditions of a suite's parts: "gpu, hosts>=2, ranks<=8", all of which must hold.
#include "bench/suite.h"

#include "core/log.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const names[] = {"ranks", "hosts", "cores", "gpu"};
enum { NAME_COUNT = sizeof names / sizeof names[0], MAX_CONDITIONS = 16 };

typedef struct {
    int name;   // index in names
    char op[3]; // ">=", "<=", ">", "<", "="
    int64_t value;
} condition;

// Reads "ranks>=2", or "gpu" alone, which means gpu>=1.
static bool read_condition(const char *text, condition *c)
{
    size_t length = strcspn(text, "<>= ");
    c->name = -1;
    for (int i = 0; i < NAME_COUNT; i++)
        if (strlen(names[i]) == length && strncmp(text, names[i], length) == 0)
            c->name = i;
    const char *op = text + length + strspn(text + length, " ");
    size_t op_length = strspn(op, "<>=");
    bool alone = !*op;
    if (c->name < 0 || op_length > 2 || (alone && strcmp(names[c->name], "gpu") != 0))
        return false;
    snprintf(c->op, sizeof c->op, "%.*s", alone ? 2 : (int)op_length, alone ? ">=" : op);
    c->value = 1;
    static const char *const ops[] = {">=", "<=", ">", "<", "=", "=="};
    bool known = false;
    for (size_t i = 0; i < sizeof ops / sizeof ops[0]; i++)
        known = known || strcmp(c->op, ops[i]) == 0;
    return known && (alone || ptb_text_parse_int(op + op_length + strspn(op + op_length, " "), &c->value));
}

ptb_status ptb_requires_check(const char *conditions, const char *where)
{
    char *storage = NULL;
    const char *items[MAX_CONDITIONS];
    size_t count = ptb_text_split(conditions, ',', &storage, items, MAX_CONDITIONS);
    ptb_status status = PTB_OK;
    if (ptb_text_pieces(conditions, ',') > MAX_CONDITIONS) {
        ptb_error("%s: requires has %zu conditions; at most %d are taken", where,
                  ptb_text_pieces(conditions, ','), MAX_CONDITIONS);
        status = PTB_USAGE;
    }
    for (size_t i = 0; i < count && status == PTB_OK; i++) {
        condition c;
        if (!*conditions || read_condition(items[i], &c))
            continue;
        ptb_error("%s: requires = '%s': expected conditions as gpu, ranks>=2, hosts>=2, cores<=8", where,
                  items[i]);
        status = PTB_USAGE;
    }
    free(storage);
    return status;
}

bool ptb_requires_asks(const char *conditions, const char *name)
{
    char *storage = NULL;
    const char *items[MAX_CONDITIONS];
    size_t count = *conditions ? ptb_text_split(conditions, ',', &storage, items, MAX_CONDITIONS) : 0;
    bool asks = false;
    for (size_t i = 0; i < count; i++) {
        condition c;
        asks = asks || (read_condition(items[i], &c) && strcmp(names[c.name], name) == 0);
    }
    free(storage);
    return asks;
}

static bool holds(const condition *c, int64_t have)
{
    if (strcmp(c->op, ">=") == 0)
        return have >= c->value;
    if (strcmp(c->op, "<=") == 0)
        return have <= c->value;
    if (strcmp(c->op, ">") == 0)
        return have > c->value;
    if (strcmp(c->op, "<") == 0)
        return have < c->value;
    return have == c->value;
}

bool ptb_requires_hold(const char *conditions, const ptb_offer *offer, char reason[PTB_REASON_BYTES])
{
    const int have[NAME_COUNT] = {offer->ranks, offer->hosts, offer->cores, offer->gpus};
    char *storage = NULL;
    const char *items[MAX_CONDITIONS];
    size_t count = *conditions ? ptb_text_split(conditions, ',', &storage, items, MAX_CONDITIONS) : 0;
    bool ok = true;
    for (size_t i = 0; i < count && ok; i++) {
        condition c;
        if (!read_condition(items[i], &c) || holds(&c, have[c.name]))
            continue;
        ok = false;
        if (strcmp(names[c.name], "gpu") == 0 && !offer->gpus)
            snprintf(reason, PTB_REASON_BYTES,
                     "needs %s; no GPU can be used here (`ptbench doctor` says why)", items[i]);
        else
            snprintf(reason, PTB_REASON_BYTES, "needs %s; this run has %d", items[i], have[c.name]);
    }
    free(storage);
    return ok;
}
