// Help and the manual page, from the tables of options and the registry.
#include "bench/help.h"

#include "bench/measure.h"

#include <stdio.h>
#include <string.h>

static void append_list(ptb_kind kind, ptb_text *out)
{
    for (size_t i = 0; i < ptb_registry_count(kind); i++) {
        const ptb_plugin *plugin = ptb_registry_at(kind, i);
        ptb_text_printf(out, "  %-15s %s\n", plugin->name, plugin->summary);
    }
}

void ptb_help_overview(ptb_text *out)
{
    ptb_text_append(out,
                    "ptbench measures how fast a machine or cluster can train in parallel, and says why.\n\n"
                    "usage: ptbench COMMAND [OPTION...]\n\ncommands:\n");
    append_list(PTB_KIND_COMMAND, out);
    ptb_text_append(
        out, "\n`ptbench run quick` measures this machine; `ptbench help COMMAND` and `ptbench help BENCH` "
             "explain one.\n");
}

// Appends `paragraphs` wrapped at `width`.
static void append_wrapped(const char *paragraphs, int width, ptb_text *out)
{
    int column = 0;
    for (const char *at = paragraphs; *at;) {
        if (*at == '\n') {
            ptb_text_append(out, "\n");
            column = 0;
            at++;
            continue;
        }
        int length = (int)strcspn(at, " \n");
        if (column > 0 && column + 1 + length > width) {
            ptb_text_append(out, "\n");
            column = 0;
        }
        if (column > 0) {
            ptb_text_append(out, " ");
            column++;
        }
        ptb_text_append_bytes(out, at, (size_t)length);
        column += length;
        at += length;
        if (*at == ' ')
            at++;
    }
    if (column > 0)
        ptb_text_append(out, "\n");
}

void ptb_help_command(const ptb_command *command, int width, ptb_text *out)
{
    ptb_text_printf(out, "ptbench %s: %s\n\nusage: ptbench %s%s%s%s\n", command->plugin.name,
                    command->plugin.summary, command->plugin.name, command->usage ? " " : "",
                    command->usage ? command->usage : "", command->opt_count ? " [OPTION...]" : "");
    if (command->about) {
        ptb_text_append(out, "\n");
        append_wrapped(command->about, width, out);
    }
    if (command->opt_count) {
        ptb_text_append(out, "\n");
        ptb_opt_set set = {command->opts, command->opt_count, NULL, command->plugin.name};
        ptb_opts_help(&set, width, out);
    }
    if (command->parses_itself) {
        ptb_text_append(out, "\n");
        ptb_opt_set set = {ptb_measure_opts, ptb_measure_opt_count, NULL, "measurement"};
        ptb_opts_help(&set, width, out);
        ptb_text_append(out, "\nEach benchmark has options of its own: `ptbench help BENCH`. Benchmarks:\n");
        append_list(PTB_KIND_BENCH, out);
    }
}

void ptb_help_bench(const ptb_bench *bench, int width, ptb_text *out)
{
    ptb_text_printf(out, "ptbench run %s: %s\n\nusage: ptbench run %s [OPTION...]\n\n", bench->plugin.name,
                    bench->plugin.summary, bench->plugin.name);
    ptb_opt_set set = {bench->opts, bench->opt_count, NULL, bench->plugin.name};
    ptb_opts_help(&set, width, out);
    ptb_text_append(out, "\nHow it is measured and where results go: `ptbench help run`.\n");
}

// man(7): backslashes and leading dots mean something there, and a plain '-' may become a typographic hyphen.
static void append_roff(const char *text, ptb_text *out)
{
    bool line_start = true;
    for (const char *c = text; *c; c++) {
        if (line_start && (*c == '.' || *c == '\''))
            ptb_text_append(out, "\\&");
        if (*c == '\\')
            ptb_text_append(out, "\\e");
        else if (*c == '"')
            ptb_text_append(out, "\\(dq"); // a quote would group a macro's arguments
        else if (*c == '-')
            ptb_text_append(out, "\\-");
        else
            ptb_text_append_bytes(out, c, 1);
        line_start = *c == '\n';
    }
}

static void append_roff_item(const char *name, const char *text, ptb_text *out)
{
    ptb_text_append(out, ".TP\n.B ");
    append_roff(name, out);
    ptb_text_append(out, "\n");
    append_roff(text, out);
    ptb_text_append(out, "\n");
}

static void append_roff_heading(const char *heading, ptb_text *out)
{
    ptb_text_append(out, ".SS ");
    append_roff(heading, out);
    ptb_text_append(out, "\n");
}

static void append_roff_options(const char *heading, const ptb_opt *opts, size_t count, ptb_text *out)
{
    ptb_text_append(out, ".SS Options of ");
    append_roff(heading, out);
    ptb_text_append(out, "\n");
    for (size_t i = 0; i < count; i++) {
        ptb_text name = PTB_TEXT_INIT, text = PTB_TEXT_INIT;
        if (opts[i].letter)
            ptb_text_printf(&name, "-%c, ", opts[i].letter);
        ptb_text_printf(&name, "--%s", opts[i].name);
        if (ptb_opt_metavar(&opts[i]))
            ptb_text_printf(&name, " %s", ptb_opt_metavar(&opts[i]));
        ptb_opt_describe(&opts[i], &text);
        append_roff_item(ptb_text_string(&name), ptb_text_string(&text), out);
        ptb_text_release(&name);
        ptb_text_release(&text);
    }
}

static void append_manual_end(ptb_text *out)
{
    ptb_text_append(out, ".SH SUITES\n");
    append_roff(
        "A suite is an INI file. Each section is a part: the key `bench` (without it, the section's name) is "
        "the "
        "benchmark, `requires` names conditions such as gpu, ranks>=2, hosts>=2, and every other key is an "
        "option "
        "of the benchmark or of the measurement. A section [suite] may give `name` and `summary`. Those that "
        "are built "
        "in: `ptbench list suites`.\n",
        out);
    ptb_text_append(out, ".PP\n.nf\n");
    append_roff(
        "    [all_reduce]\n    comm = host\n    algo = ring,tree\n    bytes = 8,64K,1M\n\n    [step]\n"
        "    ranks = 1,2\n    layers = 4\n",
        out);
    ptb_text_append(out, ".fi\n.SH EXAMPLES\n.nf\n");
    append_roff("ptbench run quick\nptbench run all_reduce -b 8 -e 64M -f 2 -n 20 -w 5\n"
                "ptbench run mine.ini --np 4 --label try\nptbench show try\nptbench report last last~1\n"
                "ptbench export --format csv --output last.csv\n",
                out);
    ptb_text_append(out, ".fi\n");
}

void ptb_help_manual(ptb_text *out)
{
    ptb_text_append(out,
                    ".TH PTBENCH 1 \"\" \"ptbench " PTB_VERSION "\" \"User Commands\"\n.SH NAME\n"
                    "ptbench \\- measure how fast a machine or cluster can train in parallel\n.SH SYNOPSIS\n"
                    ".B ptbench\n.I COMMAND\n[\\fIOPTION\\fR...]\n.SH DESCRIPTION\n"
                    "Runs communication collectives and training steps of a small transformer through one "
                    "measuring loop, checks\nevery result, keeps every sample in a database, and draws the "
                    "report.\n.SH COMMANDS\n");
    for (size_t i = 0; i < ptb_registry_count(PTB_KIND_COMMAND); i++) {
        const ptb_command *command = (const ptb_command *)ptb_registry_at(PTB_KIND_COMMAND, i);
        append_roff_item(command->plugin.name, command->plugin.summary, out);
    }
    for (size_t i = 0; i < ptb_registry_count(PTB_KIND_COMMAND); i++) {
        const ptb_command *command = (const ptb_command *)ptb_registry_at(PTB_KIND_COMMAND, i);
        if (command->opt_count)
            append_roff_options(command->plugin.name, command->opts, command->opt_count, out);
        else if (command->about)
            append_roff_heading(command->plugin.name, out);
        if (command->about) {
            ptb_text_append(out, ".PP\n");
            append_roff(command->about, out);
            ptb_text_append(out, "\n");
        }
        if (command->parses_itself)
            append_roff_options("the measurement", ptb_measure_opts, ptb_measure_opt_count, out);
    }
    ptb_text_append(out, ".SH BENCHMARKS\n");
    for (size_t i = 0; i < ptb_registry_count(PTB_KIND_BENCH); i++) {
        const ptb_plugin *plugin = ptb_registry_at(PTB_KIND_BENCH, i);
        append_roff_item(plugin->name, plugin->summary, out);
    }
    for (size_t i = 0; i < ptb_registry_count(PTB_KIND_BENCH); i++) {
        const ptb_bench *bench = (const ptb_bench *)ptb_registry_at(PTB_KIND_BENCH, i);
        if (bench->opt_count)
            append_roff_options(bench->plugin.name, bench->opts, bench->opt_count, out);
    }
    ptb_text_append(out, ".SH EXIT STATUS\n");
    for (int code = 0; code <= 6; code++) {
        char name[8];
        ptb_text text = PTB_TEXT_INIT;
        snprintf(name, sizeof name, "%d", code);
        for (int s = 0; s < PTB_STATUS_COUNT; s++)
            if (ptb_status_exit_code((ptb_status)s) == code)
                ptb_text_printf(&text, "%s%s", text.length ? "; " : "", ptb_status_meaning((ptb_status)s));
        ptb_text_append(&text, ".");
        append_roff_item(name, ptb_text_string(&text), out);
        ptb_text_release(&text);
    }
    ptb_text_append(out, ".SH ENVIRONMENT\n");
    append_roff_item("PTBENCH_DB", "The results database, where --db does not name one.", out);
    append_roff_item("NO_COLOR, TERM=dumb", "Plain lines instead of a progress line that rewrites itself.",
                     out);
    append_manual_end(out);
}
