// Reading suites (inih) and their conditions.
#include "bench/suite.h"

#include "core/log.h"
#include "core/registry.h"

#include <errno.h>
#include <ini.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

// The built-in suites; the table is generated from bench/suites/*.ini by CMakeLists.txt.
typedef struct {
    const char *name, *text;
} builtin_suite;
#define PTB_SUITE(symbol, name) extern const char ptb_suite_##symbol[];
#include "ptb_suites.inc"
#undef PTB_SUITE
static const builtin_suite builtins[] = {
#define PTB_SUITE(symbol, name) {name, ptb_suite_##symbol},
#include "ptb_suites.inc"
#undef PTB_SUITE
};
enum { BUILTIN_COUNT = sizeof builtins / sizeof builtins[0] };

const char *ptb_suite_name(size_t i)
{
    return i < BUILTIN_COUNT ? builtins[i].name : NULL;
}

static const builtin_suite *find_builtin(const char *name)
{
    for (size_t i = 0; i < BUILTIN_COUNT; i++)
        if (strcmp(builtins[i].name, name) == 0)
            return &builtins[i];
    return NULL;
}

bool ptb_suite_exists(const char *name_or_path)
{
    bool is_path = strchr(name_or_path, '/') || strstr(name_or_path, ".ini");
    return find_builtin(name_or_path) || (is_path && access(name_or_path, R_OK) == 0);
}

// What inih calls while it reads.
typedef struct {
    const char *next; // unread text
    int line;
    int suite_line; // of [suite]; 0: not seen
    ptb_suite *suite;
    ptb_status status;
} reader;

enum { MAX_LINE = 190, MAX_SECTION = 49 }; // inih's own buffers hold 200 and 50

static void complain(reader *r, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void complain(reader *r, const char *format, ...)
{
    char message[1024];
    va_list args;
    va_start(args, format);
    vsnprintf(message, sizeof message, format, args);
    va_end(args);
    if (r->status == PTB_OK)
        ptb_error("suite %s, line %d: %s", r->suite->file, r->line, message);
    r->status = PTB_USAGE;
}

// inih reads on after a bad line and takes an indented one as the continuation of a value.
static bool is_well_formed(const char *line, size_t length)
{
    size_t indent = strspn(line, " \t\r");
    if (indent >= length || strchr(";#", line[indent]))
        return true;
    if (indent > 0)
        return false;
    const char *end = line + length;
    return memchr(line, line[0] == '[' ? ']' : '=', (size_t)(end - line)) != NULL;
}

static ptb_suite_part *find_part(ptb_suite *suite, const char *name)
{
    for (size_t i = 0; i < suite->part_count; i++)
        if (strcmp(suite->parts[i].name, name) == 0)
            return &suite->parts[i];
    return NULL;
}

static void *grow(void *array, size_t count, size_t item)
{
    void *larger = realloc(array, (count + 1) * item);
    if (!larger) {
        fputs("ptbench: out of memory for a suite\n", stderr);
        abort();
    }
    memset((char *)larger + count * item, 0, item);
    return larger;
}

// Each section once: inih would merge two of one name, and says nothing of one without keys.
static void open_section(reader *r, const char *header)
{
    char name[MAX_SECTION + 1];
    size_t length = strcspn(header + 1, "]");
    if (length > MAX_SECTION) {
        complain(r, "the name of the section has %zu characters; at most %d are allowed", length,
                 MAX_SECTION);
        return;
    }
    snprintf(name, sizeof name, "%.*s", (int)length, header + 1);
    ptb_suite *suite = r->suite;
    bool is_suite = strcmp(name, "suite") == 0;
    const ptb_suite_part *part = find_part(suite, name);
    int before = is_suite ? r->suite_line : part ? part->line : 0;
    if (before) {
        complain(r, "there is a section [%s] already, on line %d%s", name, before,
                 is_suite ? ""
                          : "; for a second part with the same benchmark, give it another name and say "
                            "bench = ...");
    } else if (is_suite) {
        r->suite_line = r->line;
    } else {
        suite->parts = grow(suite->parts, suite->part_count, sizeof *suite->parts);
        suite->parts[suite->part_count++] = (ptb_suite_part){.name = strdup(name), .line = r->line};
    }
}

// fgets for inih, which cuts long lines silently otherwise.
static char *read_line(char *line, int size, void *stream)
{
    reader *r = stream;
    if (!*r->next)
        return NULL;
    size_t length = strcspn(r->next, "\n");
    r->line++;
    if (length > MAX_LINE || length + 2 > (size_t)size) {
        complain(r, "the line is %zu characters long; at most %d are allowed", length, MAX_LINE);
        return NULL;
    }
    if (!is_well_formed(r->next, length)) {
        complain(r, "expected [section], key = value or a comment that starts with ';', not indented");
        return NULL;
    }
    memcpy(line, r->next, length);
    line[length] = '\0';
    r->next += length + (r->next[length] == '\n');
    if (line[0] == '[')
        open_section(r, line);
    return r->status == PTB_OK ? line : NULL;
}

static void set_suite_key(reader *r, const char *key, const char *value)
{
    static const char *const keys[] = {"name", "summary"};
    ptb_suite *suite = r->suite;
    char **field = strcmp(key, "name") == 0      ? &suite->name
                   : strcmp(key, "summary") == 0 ? &suite->summary
                                                 : NULL;
    if (!field) {
        char near[256];
        ptb_text_nearest(key, keys, 2, near, sizeof near);
        complain(r, "[suite] has no key '%s'; did you mean %s?", key, near);
        return;
    }
    if (*field)
        complain(r, "'%s' is given twice", key);
    free(*field);
    *field = strdup(value);
}

static void complain_key(reader *r, const ptb_suite_part *part, const char *key)
{
    complain(r, "[%s]: '%s' is given twice (a value has to fit on one line)", part->name, key);
}

static void set_part_key(reader *r, ptb_suite_part *part, const char *key, const char *value)
{
    if (strcmp(key, "bench") == 0) {
        if (part->bench)
            complain_key(r, part, key);
        free(part->bench);
        part->bench = strdup(value);
        part->bench_line = r->line;
        return;
    }
    if (strcmp(key, "requires") == 0) {
        char where[256];
        snprintf(where, sizeof where, "suite %s, line %d: [%s]", r->suite->file, r->line, part->name);
        if (part->requires)
            complain_key(r, part, key);
        else if (ptb_requires_check(value, where) != PTB_OK)
            r->status = PTB_USAGE;
        free(part->requires);
        part->requires = strdup(value);
        return;
    }
    for (size_t i = 0; i < part->pair_count; i++)
        if (strcmp(part->pairs[i].key, key) == 0) {
            complain_key(r, part, key);
            return;
        }
    part->pairs = grow(part->pairs, part->pair_count, sizeof *part->pairs);
    part->pairs[part->pair_count++] = (ptb_suite_pair){strdup(key), strdup(value), r->line};
}

static int handle(void *user, const char *section, const char *key, const char *value)
{
    reader *r = user;
    if (r->status != PTB_OK)
        return 0;
    if (!*section) {
        complain(r, "'%s' stands before the first section; begin with a section, such as [suite]", key);
    } else if (strcmp(section, "suite") == 0) {
        set_suite_key(r, key, value);
    } else {
        ptb_suite_part *part = find_part(r->suite, section);
        if (part)
            set_part_key(r, part, key, value);
        else
            complain(r, "the section '%s' is not understood", section);
    }
    return r->status == PTB_OK;
}

// "a/mine.ini": "mine"
static char *name_of_file(const char *path)
{
    const char *slash = strrchr(path, '/'), *base = slash ? slash + 1 : path;
    size_t length = strlen(base);
    if (length > 4 && strcmp(base + length - 4, ".ini") == 0)
        length -= 4;
    return strndup(base, length);
}

static ptb_status check_complete(ptb_suite *suite)
{
    if (!suite->part_count) {
        ptb_error("suite %s: there is no part; add a section [BENCH], or [NAME] with bench = ...",
                  suite->file);
        return PTB_USAGE;
    }
    if (!suite->name)
        suite->name = name_of_file(suite->file);
    for (size_t i = 0; i < suite->part_count; i++) {
        ptb_suite_part *part = &suite->parts[i];
        if (!part->bench && ptb_registry_find(PTB_KIND_BENCH, part->name)) {
            part->bench = strdup(part->name);
            part->bench_line = part->line;
        }
        if (!part->bench) {
            ptb_error("suite %s, line %d: [%s] is no benchmark and does not say bench = ...", suite->file,
                      part->line, part->name);
            return PTB_USAGE;
        }
        if (!part->requires)
        part->requires = strdup("");
    }
    if (!suite->summary)
        suite->summary = strdup("");
    return PTB_OK;
}

ptb_status ptb_suite_parse(const char *file, const char *text, ptb_suite **out)
{
    ptb_suite *suite = calloc(1, sizeof *suite);
    if (!suite) {
        ptb_error("no memory for the suite %s", file);
        return PTB_NO_MEMORY;
    }
    suite->file = strdup(file);
    size_t mark = strncmp(text, "\xef\xbb\xbf", 3) == 0 ? 3 : 0; // editors on Windows begin with U+FEFF
    reader r = {.next = text + mark, .suite = suite};
    int bad_line = ini_parse_stream(read_line, &r, handle, &r);
    if (r.status == PTB_OK && bad_line) {
        r.line = bad_line;
        complain(&r, "this is no INI file");
    }
    if (r.status == PTB_OK)
        r.status = check_complete(suite);
    if (r.status != PTB_OK) {
        ptb_suite_free(suite);
        return r.status;
    }
    *out = suite;
    return PTB_OK;
}

// The text of a file of at most 1 MiB, on the heap.
static char *read_file(const char *path)
{
    enum { LIMIT = 1 << 20 };
    FILE *file = fopen(path, "r");
    char *text = file ? malloc(LIMIT + 1) : NULL;
    if (!text) {
        ptb_error("suite %s cannot be read: %s", path, strerror(errno));
    } else {
        size_t length = fread(text, 1, LIMIT + 1, file);
        const char *fault = length > LIMIT               ? "it is larger than 1 MiB"
                            : ferror(file)               ? "it is no plain file"
                            : memchr(text, '\0', length) ? "it holds a byte 0; a suite is plain text"
                                                         : NULL;
        if (fault) {
            ptb_error("suite %s cannot be read: %s", path, fault);
            free(text);
            text = NULL;
        } else {
            text[length] = '\0';
        }
    }
    if (file)
        fclose(file);
    return text;
}

ptb_status ptb_suite_load(const char *name_or_path, ptb_suite **suite)
{
    const builtin_suite *builtin = find_builtin(name_or_path);
    if (builtin) {
        char file[128];
        snprintf(file, sizeof file, "%s.ini", name_or_path);
        return ptb_suite_parse(file, builtin->text, suite);
    }
    char *text = read_file(name_or_path);
    if (!text)
        return PTB_USAGE;
    ptb_status status = ptb_suite_parse(name_or_path, text, suite);
    free(text);
    return status;
}

void ptb_suite_free(ptb_suite *suite)
{
    for (size_t i = 0; suite && i < suite->part_count; i++) {
        ptb_suite_part *part = &suite->parts[i];
        for (size_t p = 0; p < part->pair_count; p++) {
            free(part->pairs[p].key);
            free(part->pairs[p].value);
        }
        free(part->pairs);
        free(part->bench);
        free(part->requires);
        free(part->name);
    }
    if (suite) {
        free(suite->parts);
        free(suite->name);
        free(suite->summary);
        free(suite->file);
    }
    free(suite);
}
