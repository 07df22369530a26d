// Suites: INI files that name what to run. A [suite] section gives name (else that of the file) and summary;
// every further section is one part: `bench` (else the section's name), options of the benchmark or of the
// measurement as key = value, and `requires`, conditions without which the part is skipped by name. Suites in
// bench/suites are built in; to add one, add a file there.
#ifndef PTB_BENCH_SUITE_H
#define PTB_BENCH_SUITE_H

#include "core/bench.h"

typedef struct {
    char *key, *value;
    int line;
} ptb_suite_pair;

typedef struct {
    char *name;
    int line;    // of its header
    char *bench; // as written; whether there is such a benchmark is asked when a plan is made
    int bench_line;
    char *requires;        // "" when there are no conditions
    ptb_suite_pair *pairs; // the options, in order
    size_t pair_count;
} ptb_suite_part;

typedef struct {
    char *name, *summary;
    char *file; // as shown in messages
    ptb_suite_part *parts;
    size_t part_count;
} ptb_suite;

// What a machine offers to `requires`. gpus: that each process sees, the least of all.
typedef struct {
    int ranks, hosts, cores, gpus;
} ptb_offer;

// Built-in suites in order of name; NULL past the last.
const char *ptb_suite_name(size_t i);
// Reads a built-in suite or, when there is none of this name, the file. USAGE with file, line, key and the
// nearest valid names. The options' values are not looked at here.
ptb_status ptb_suite_load(const char *name_or_path, ptb_suite **suite);
// As above from text; `file` is used in messages.
ptb_status ptb_suite_parse(const char *file, const char *text, ptb_suite **suite);
// Whether `name` is a built-in suite or a readable file.
bool ptb_suite_exists(const char *name_or_path);
void ptb_suite_free(ptb_suite *suite);

// Checks the form of a condition list ("gpu, ranks>=2"); USAGE with a message naming `where`.
ptb_status ptb_requires_check(const char *conditions, const char *where);
// Whether one of the (checked) conditions is on `name`.
bool ptb_requires_asks(const char *conditions, const char *name);
// Whether they hold; else the reason.
bool ptb_requires_hold(const char *conditions, const ptb_offer *offer, char reason[PTB_REASON_BYTES]);

#endif
