// Options: one table a plug-in drives the command line, suite files, --help, the manual page and the
// configuration stored with each run. A table describes the fields of a plain config struct; nothing is said
// twice.
#ifndef PTB_CORE_OPTION_H
#define PTB_CORE_OPTION_H

#include "core/status.h"
#include "core/text.h"

#include <stddef.h>
#include <stdint.h>

typedef enum {
    PTB_OPT_BOOL,    // bool: "yes/no/true/false/on/off/1/0"; on the command line `--name` alone means yes,
                     // `--no-name` no
    PTB_OPT_INT,     // int64_t
    PTB_OPT_SIZE,    // uint64_t bytes or counts, "64K"
    PTB_OPT_DOUBLE,  // double
    PTB_OPT_PERCENT, // double as a fraction; "2%" or "0.02"
    PTB_OPT_SECONDS, // double seconds; "500ms", "10s", "2m", plain number = seconds
    PTB_OPT_STRING,  // char *, heap, owned by the config
    PTB_OPT_CHOICE,  // char *, one of `choices`
    PTB_OPT_LIST,    // char *, comma-separated; each item one of `choices` when given
} ptb_opt_type;

typedef struct {
    const char *name; // long name without dashes, words joined by '-': "min-iters"
    char letter;      // short letter or 0
    ptb_opt_type type;
    size_t offset;              // offsetof(config struct, field)
    const char *def;            // default as text; NULL: zero / NULL
    double min, max;            // inclusive range for numeric types; both 0 = no range; -1: see help
    const char *const *choices; // NULL-terminated; CHOICE and LIST
    const char *metavar;        // "SIZE" in help; NULL derives it from the type
    // One or two sentences, no trailing full stop needed. Where min and def are -1 and it ends in
    // "; -1: the preset's", -1 is a word and other values are from 0 on; help shows what it stands for.
    const char *help;
} ptb_opt;

// A table together with the struct it fills.
typedef struct {
    const ptb_opt *opts;
    size_t count;
    void *config;
    const char *owner; // shown in help as a heading: "all_reduce", "measurement"
} ptb_opt_set;

// Fills every field with its default. A default that does not parse aborts (a defect).
void ptb_opts_defaults(const ptb_opt_set *set);
// The default again, in one field that has a value.
void ptb_opts_reset(const ptb_opt_set *set, const ptb_opt *opt);
// The option of that long name; NULL if there is none.
const ptb_opt *ptb_opts_find(const ptb_opt_set *set, const char *name);
// Sets one option by long name. USAGE with a message naming `where` ("--algo", "suite quick.ini, line 12")
// when the name is unknown (nearest names are given) or the value is out of range; the field is unchanged
// then.
ptb_status ptb_opts_assign(const ptb_opt_set *set, const char *name, const char *value, const char *where);
// Parses argv[first..argc) GNU style (`--name value`, `--name=value`, `-xVALUE`, `-x VALUE`, `--`) against
// several sets at once; an option that stands in more than one set is assigned in all of them. Words that are
// not options are stored in `words` (at most max_words; pointers into argv) and counted. Unknown options:
// USAGE with the nearest valid ones.
ptb_status ptb_opts_parse(const ptb_opt_set *sets, size_t set_count, int argc, char **argv, int first,
                          const char **words, size_t max_words, size_t *word_count);
// The value of field i as canonical text, as it would be typed. Appends to `out`.
void ptb_opts_render(const ptb_opt_set *set, size_t i, ptb_text *out);
// The field has the value that ptb_opts_defaults gives it.
bool ptb_opts_is_default(const ptb_opt_set *set, const ptb_opt *opt);
// An option that not every combination of the others looks at: its name, with the value in words where that
// is its meaning ("reshard no"), what it needs to mean something, and whether that is there.
typedef struct {
    const char *option, *needs;
    bool used;
} ptb_opt_use;
// USAGE, logged, when one of them has another value than its default and would change nothing: whoever gives
// it believes that it matters. Options that are not in the table are left out.
ptb_status ptb_opts_check_used(const ptb_opt_set *set, const ptb_opt_use *uses, size_t count);
// What -1 stands for ("the preset's"), and where its "; -1: " begins in the help; NULL: -1 is no word.
const char *ptb_opt_minus_one(const ptb_opt *opt, size_t *begin);
// What stands for the value in help, such as "N"; NULL for a yes or no.
const char *ptb_opt_metavar(const ptb_opt *opt);
// Appends what the option means: its help, choices, range and default.
void ptb_opt_describe(const ptb_opt *opt, ptb_text *out);
// Appends help, one option a paragraph, wrapped at `width` columns.
void ptb_opts_help(const ptb_opt_set *set, int width, ptb_text *out);
// Deep copy of the config behind `set` into `copy` (same struct type).
void ptb_opts_copy(const ptb_opt_set *set, void *copy);
// Frees the strings and zeroes the config.
void ptb_opts_release(const ptb_opt_set *set);

#endif
