// Help, written from the option tables.
#include "core/option.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { HELP_COLUMN = 26 };

const char *ptb_opt_metavar(const ptb_opt *opt)
{
    if (opt->metavar)
        return opt->metavar;
    switch (opt->type) {
    case PTB_OPT_BOOL:
        return NULL;
    case PTB_OPT_INT:
        return "N";
    case PTB_OPT_SIZE:
        return "SIZE";
    case PTB_OPT_DOUBLE:
        return "X";
    case PTB_OPT_PERCENT:
        return "SHARE";
    case PTB_OPT_SECONDS:
        return "TIME";
    case PTB_OPT_STRING:
        return "TEXT";
    case PTB_OPT_CHOICE:
        return "WORD";
    case PTB_OPT_LIST:
        return "LIST";
    }
    return NULL;
}

const char *ptb_opt_minus_one(const ptb_opt *opt, size_t *begin)
{
    static const char mark[] = "; -1: ";
    const char *found =
        opt->min == -1 && opt->def && strcmp(opt->def, "-1") == 0 ? strstr(opt->help, mark) : NULL;
    if (!found)
        return NULL;
    *begin = (size_t)(found - opt->help);
    return found + strlen(mark);
}

// Appends `text` broken at blanks; the first line starts at `column`, further ones are indented by `indent`.
static void append_wrapped(ptb_text *out, const char *text, int column, int indent, int width)
{
    while (*text) {
        int length = (int)strcspn(text, " ");
        if (column + 1 + length > width && column > indent) {
            ptb_text_printf(out, "\n%*s", indent, "");
            column = indent;
        } else if (column > indent) {
            ptb_text_append(out, " ");
            column++;
        }
        ptb_text_append_bytes(out, text, (size_t)length);
        column += length;
        text += length;
        text += strspn(text, " ");
    }
    ptb_text_append(out, "\n");
}

// A bound of a range as the option's values are written.
static void append_bound(const ptb_opt *opt, double bound, ptb_text *out)
{
    char size[32];
    if (opt->type == PTB_OPT_SIZE && bound >= 0) {
        ptb_text_format_size((uint64_t)bound, size, sizeof size);
        ptb_text_append(out, size);
        return;
    }
    // In percent to nine places, since 100 times a bound such as 0.000001 is not 0.0001 to the last bit.
    ptb_text_append_number(out, opt->type == PTB_OPT_PERCENT ? rint(1e11 * bound) / 1e9 : bound, -1);
    ptb_text_append(out, opt->type == PTB_OPT_PERCENT ? "%" : opt->type == PTB_OPT_SECONDS ? "s" : "");
}

static void append_details(const ptb_opt *opt, ptb_text *line)
{
    if (opt->choices) {
        ptb_text_append(line, " One of: ");
        for (size_t i = 0; opt->choices[i]; i++)
            ptb_text_printf(line, "%s%s", i ? ", " : "", opt->choices[i]);
        ptb_text_append(line, ".");
    }
    size_t begin;
    const char *minus_one = ptb_opt_minus_one(opt, &begin);
    if (opt->min != 0 || opt->max != 0) {
        ptb_text_append(line, " From ");
        append_bound(opt, minus_one ? 0 : opt->min, line);
        ptb_text_append(line, " to ");
        append_bound(opt, opt->max, line);
        ptb_text_append(line, ".");
    }
    if (minus_one)
        ptb_text_printf(line, " Default: -1 (%s).", minus_one);
    else if (opt->def && *opt->def)
        ptb_text_printf(line, " Default: %s.", opt->def);
}

void ptb_opt_describe(const ptb_opt *opt, ptb_text *out)
{
    size_t length = strlen(opt->help);
    ptb_opt_minus_one(opt, &length);
    ptb_text_append_bytes(out, opt->help, length);
    if (out->length && out->data[out->length - 1] != '.')
        ptb_text_append(out, ".");
    append_details(opt, out);
}

void ptb_opts_help(const ptb_opt_set *set, int width, ptb_text *out)
{
    for (size_t i = 0; i < set->count; i++) {
        const ptb_opt *opt = &set->opts[i];
        char letter[8] = "    ", head[96];
        const char *metavar = ptb_opt_metavar(opt);
        if (opt->letter)
            snprintf(letter, sizeof letter, "-%c, ", opt->letter);
        snprintf(head, sizeof head, "  %s--%s%s%s", letter, opt->name, metavar ? " " : "",
                 metavar ? metavar : "");
        ptb_text line = PTB_TEXT_INIT;
        ptb_opt_describe(opt, &line);
        ptb_text_printf(out, "%-*s", HELP_COLUMN, head);
        if (strlen(head) >= HELP_COLUMN)
            ptb_text_printf(out, "\n%*s", HELP_COLUMN, "");
        append_wrapped(out, ptb_text_string(&line), HELP_COLUMN, HELP_COLUMN, width);
        ptb_text_release(&line);
    }
}
