// Runs gnuplot on scripts made from the templates reports/*.gp. No shell is involved and text from the
// database reaches a script only as a single-quoted string, in which gnuplot substitutes nothing.
//
// A template draws one figure; it is given
//   DATA           file with the points. LINES: one block a curve (select it with `index`), columns x y low
//                  high. BARS: one row a bar, columns: position from the top, the running sums 0, p1, p1+p2,
//                  ... of its parts, then total, low, high
//   N, NAMES[N]    curves, or bars, and their names
//   PARTS, PART[]  BARS: the parts' names; after the last, the name of the total
//   XMIN XMAX YMIN YMAX MOST   ranges over points and intervals, most points in a curve
//   SUMMAX         BARS: the largest sum of a bar's parts
//   KEYCOLS, KEYROWS           a layout of the legend that fits the width
// and what reports/common.gp defines (line styles, the size axis). It sets neither terminal nor title.
#include "reports/gnuplot.h"

#include "core/log.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

extern const char ptb_gp_common[];
extern char **environ;

enum {
    WORKERS = 2,
    WIDTH = 840,
    NAME_MAX_CHARS = 88,
    BAR_NAME_CHARS = 52,
    WRAP_CHARS = 104,
    PATH_BYTES = 4096
};

// A single-quoted gnuplot string: no escapes, no substitution. A quote would end it and a backquote starts a
// command in other kinds of string, so both become typographic quotes and no text can leave the string.
static void append_string(ptb_text *out, const char *text, size_t length)
{
    ptb_text_append(out, "'");
    for (size_t i = 0; i < length && text[i]; i++) {
        char c = text[i];
        if (c == '\'' || c == '`')
            ptb_text_append(out, "\xE2\x80\x99");
        else
            ptb_text_append_bytes(out, (unsigned char)c < 0x20 || c == 0x7F ? " " : &c, 1);
    }
    ptb_text_append(out, "'");
}

// Bytes of at most `chars` UTF-8 characters of text.
static size_t clip_utf8(const char *text, size_t chars)
{
    size_t i = 0;
    for (; text[i]; i++)
        if (((unsigned char)text[i] & 0xC0) != 0x80 && chars-- == 0)
            break;
    return i;
}

static size_t utf8_width(const char *text)
{
    size_t n = 0;
    for (; *text; text++)
        n += ((unsigned char)*text & 0xC0) != 0x80;
    return n;
}

// 'first line'."\n".'second line', of at most so many characters, broken at blanks. Returns the number of
// lines.
static size_t append_wrapped(ptb_text *out, const char *text, size_t chars)
{
    for (size_t lines = 1;; lines++) {
        size_t length = clip_utf8(text, chars);
        if (text[length])
            for (size_t i = length; i > length / 2; i--)
                if (text[i] == ' ') {
                    length = i;
                    break;
                }
        append_string(out, text, length);
        text += length + (text[length] == ' ');
        if (!*text)
            return lines;
        ptb_text_append(out, ".\"\\n\".");
    }
}

static void append_names(ptb_text *out, const char *array, const char *const *names, size_t count)
{
    ptb_text_printf(out, "array %s[%zu]\n", array, count ? count : 1);
    for (size_t i = 0; i < count; i++) {
        ptb_text_printf(out, "%s[%zu] = ", array, i + 1);
        size_t length = clip_utf8(names[i], NAME_MAX_CHARS);
        append_string(out, names[i], length);
        ptb_text_append(out, names[i][length] ? ".'...'\n" : "\n");
    }
}

// Names beside bars, which leave the bars more than half of the width: in two lines where they are long.
static void append_bar_names(ptb_text *out, const char *const *names, size_t count)
{
    ptb_text_printf(out, "array NAMES[%zu]\n", count ? count : 1);
    for (size_t i = 0; i < count; i++) {
        size_t length = clip_utf8(names[i], NAME_MAX_CHARS);
        ptb_text name = PTB_TEXT_INIT;
        ptb_text_append_bytes(&name, names[i], length);
        ptb_text_append(&name, names[i][length] ? "..." : "");
        ptb_text_printf(out, "NAMES[%zu] = ", i + 1);
        append_wrapped(out, ptb_text_string(&name), BAR_NAME_CHARS);
        ptb_text_append(out, "\n");
        ptb_text_release(&name);
    }
}

static void append_value(ptb_text *out, double value)
{
    if (isfinite(value))
        ptb_text_printf(out, " %.17g", value);
    else
        ptb_text_append(out, " NaN");
}

static void append_line_data(const ptb_figure *figure, ptb_text *out)
{
    for (size_t c = 0; c < figure->curve_count; c++) {
        for (size_t i = 0; i < figure->curves[c].point_count; i++) {
            const ptb_point *p = &figure->curves[c].points[i];
            // Without an interval its bar shrinks to the point.
            const double values[] = {p->x, p->y, isfinite(p->low) ? p->low : p->y,
                                     isfinite(p->high) ? p->high : p->y};
            for (size_t k = 0; k < 4; k++)
                append_value(out, values[k]);
            ptb_text_append(out, "\n");
        }
        ptb_text_append(out, "\n\n");
    }
}

static void append_bar_data(const ptb_figure *figure, size_t parts, ptb_text *out)
{
    for (size_t c = 0; c < figure->curve_count; c++) {
        const ptb_curve *curve = &figure->curves[c];
        double sum = 0;
        ptb_text_printf(out, "%zu 0", c + 1);
        for (size_t i = 0; i < parts; i++) {
            sum += isfinite(curve->parts[i]) ? curve->parts[i] : 0;
            append_value(out, sum);
        }
        const ptb_point *whole = &curve->points[0];
        append_value(out, whole->y);
        append_value(out, isfinite(whole->low) ? whole->low : whole->y);
        append_value(out, isfinite(whole->high) ? whole->high : whole->y);
        ptb_text_append(out, "\n");
    }
}

typedef struct {
    size_t columns, rows;
} key_layout;

static const char total_name[] = "whole step, median and 95 % interval";

// The legend stands below the plot, where it never covers data; gnuplot does not wrap it by itself.
static key_layout plan_key(const char *const *names, size_t count)
{
    size_t widest = 1;
    for (size_t i = 0; i < count; i++) {
        size_t width = utf8_width(names[i]);
        width = width > NAME_MAX_CHARS ? NAME_MAX_CHARS + 3 : width;
        widest = width > widest ? width : widest;
    }
    // As gnuplot reckons: 0.6 of the font's size a character, and the sample line beside each name.
    size_t columns = (WIDTH - 40) * 10 / (widest * 78 + 750);
    columns = columns < 1 ? 1 : columns > count ? count : columns;
    return (key_layout){columns, (count + columns - 1) / columns};
}

// The longest bar: the largest sum of parts of a bar. 0 for curves.
static double longest_bar(const ptb_figure *figure, size_t parts)
{
    double longest = 0;
    for (size_t c = 0; c < figure->curve_count; c++) {
        double sum = 0;
        for (size_t i = 0; figure->curves[c].parts && i < parts; i++)
            sum += isfinite(figure->curves[c].parts[i]) ? figure->curves[c].parts[i] : 0;
        longest = fmax(longest, sum);
    }
    return longest;
}

// Titles of a figure's parts, "" for those that no bar has, which need no place in the legend, and the
// legend's own total behind them. Returns how many of them it shows.
static size_t name_parts(const ptb_drawing *d, const char **names, const char **shown)
{
    size_t count = 0;
    for (size_t i = 0; i < d->report->part_count; i++) {
        bool used = false;
        for (size_t c = 0; c < d->figure->curve_count; c++)
            used = used || (d->figure->curves[c].parts && isfinite(d->figure->curves[c].parts[i]));
        names[i] = used ? d->report->parts[i].title : "";
        if (used)
            shown[count++] = names[i];
    }
    shown[count++] = names[d->report->part_count] = total_name;
    return count;
}

static void append_figure(const ptb_drawing *d, ptb_text *out)
{
    const ptb_figure *f = d->figure;
    bool bars = d->report->style == PTB_FIGURE_BARS;
    size_t parts = d->report->part_count;
    const char **names = malloc((f->curve_count + 2 * (parts + 2)) * sizeof *names);
    if (!names)
        abort();
    const char **part_names = names + f->curve_count, **shown = part_names + parts + 2;
    for (size_t i = 0; i < f->curve_count; i++)
        names[i] = f->curves[i].name;
    size_t shown_count = name_parts(d, part_names, shown);
    key_layout key = bars ? plan_key(shown, shown_count) : plan_key(names, f->curve_count);
    size_t height = (bars ? 90 + 46 * f->curve_count : 400) + 20 * key.rows;

    ptb_text_printf(out, "reset\nDATA = '%s.dat'\nN = %zu\nPARTS = %zu\n", d->name, f->curve_count, parts);
    if (bars)
        append_bar_names(out, names, f->curve_count);
    else
        append_names(out, "NAMES", names, f->curve_count);
    append_names(out, "PART", part_names, parts + 1);
    ptb_text_printf(out, "XMIN = %.17g\nXMAX = %.17g\nYMIN = %.17g\nYMAX = %.17g\n", f->x_min, f->x_max,
                    f->y_min, f->y_max);
    ptb_text_printf(out, "MOST = %zu\nSUMMAX = %.17g\nKEYCOLS = %zu\nKEYROWS = %zu\n", f->most_points,
                    longest_bar(f, parts), key.columns, key.rows);
    ptb_text_append(out, ptb_gp_common);
    ptb_text_printf(out,
                    "set terminal svg size %d,%zu dynamic noenhanced font 'sans-serif,13' "
                    "background '#ffffff'\nset output '%s.svg'\n",
                    WIDTH, height, d->name);
    ptb_text_append(out, d->report->gnuplot);
    // The picture file travels alone, so it carries its title and conditions itself.
    ptb_text_append(out, "\nset label 1000 ");
    size_t lines = append_wrapped(out, f->title, WRAP_CHARS);
    ptb_text_append(out, ".\"\\n\".");
    lines += append_wrapped(out, f->conditions, WRAP_CHARS);
    ptb_text_printf(out,
                    " at screen 0.5, screen 1 center offset 0,-1 textcolor rgb '#2b333b'\nset tmargin %zu\n"
                    "set terminal pngcairo size %d,%zu noenhanced font 'sans-serif,10' fontscale 1.5 "
                    "linewidth 1.5 pointscale 1.5 background '#ffffff'\nset output '%s.png'\nreplot\n"
                    "set output\n",
                    lines + 1, WIDTH * 3 / 2, (height + 17 * lines) * 3 / 2, d->name);
    free(names);
}

// FOLDER/NAME.ENDING, "" when that is too long (ptb_gnuplot_draw has checked that it is not).
static void make_path(const char *folder, const char *name, const char *ending, char path[PATH_BYTES])
{
    if (snprintf(path, PATH_BYTES, "%s/%s.%s", folder, name, ending) >= PATH_BYTES)
        path[0] = '\0';
}

static ptb_status write_file(const char *folder, const char *name, const char *ending, const char *text)
{
    char path[PATH_BYTES];
    make_path(folder, name, ending, path);
    FILE *file = fopen(path, "we");
    bool written = file && fputs(text, file) >= 0;
    if (file && fclose(file) != 0)
        written = false;
    if (written)
        return PTB_OK;
    ptb_error("cannot write %s: %s", path, strerror(errno));
    return PTB_STORE;
}

// Heap text of a whole file; NULL when it cannot be read or is empty.
static char *read_file(const char *folder, const char *name, const char *ending)
{
    char path[PATH_BYTES];
    make_path(folder, name, ending, path);
    FILE *file = fopen(path, "re");
    if (!file)
        return NULL;
    ptb_text text = PTB_TEXT_INIT;
    char block[16384];
    size_t n;
    while ((n = fread(block, 1, sizeof block, file)) > 0)
        ptb_text_append_bytes(&text, block, n);
    fclose(file);
    return text.data;
}

// Writes the data files and the scripts; worker w draws figures w, w + WORKERS, ...
static ptb_status write_inputs(const ptb_drawing *drawings, size_t count, const char *folder)
{
    ptb_status status = PTB_OK;
    for (size_t w = 0; w < WORKERS && status == PTB_OK; w++) {
        ptb_text script = PTB_TEXT_INIT;
        ptb_text_append(&script, "set encoding utf8\n");
        for (size_t i = w; i < count && status == PTB_OK; i += WORKERS) {
            ptb_text data = PTB_TEXT_INIT;
            if (drawings[i].report->style == PTB_FIGURE_BARS)
                append_bar_data(drawings[i].figure, drawings[i].report->part_count, &data);
            else
                append_line_data(drawings[i].figure, &data);
            status = write_file(folder, drawings[i].name, "dat", ptb_text_string(&data));
            ptb_text_release(&data);
            append_figure(&drawings[i], &script);
        }
        char name[32];
        snprintf(name, sizeof name, "worker%zu", w);
        if (status == PTB_OK)
            status = write_file(folder, name, "gp", ptb_text_string(&script));
        ptb_text_release(&script);
    }
    return status;
}

// The environment with LC_ALL=C.UTF-8, so that gnuplot writes decimal points and reads UTF-8. Heap array; its
// strings are the caller's own environment.
static char **gnuplot_environment(void)
{
    static char locale[] = "LC_ALL=C.UTF-8";
    size_t n = 0;
    while (environ[n])
        n++;
    char **copy = malloc((n + 2) * sizeof *copy);
    if (!copy)
        return NULL;
    size_t kept = 0;
    for (size_t i = 0; i < n; i++)
        if (strncmp(environ[i], "LC_ALL=", 7) != 0 && strncmp(environ[i], "GNUTERM=", 8) != 0)
            copy[kept++] = environ[i];
    copy[kept++] = locale;
    copy[kept] = NULL;
    return copy;
}

// Starts gnuplot on workerW.gp inside `folder`; its messages go to workerW.err. Returns an errno.
static int start_worker(const char *folder, size_t w, pid_t *pid)
{
    char script[32], messages[32];
    snprintf(script, sizeof script, "worker%zu.gp", w);
    snprintf(messages, sizeof messages, "worker%zu.err", w);
    char gnuplot[] = "gnuplot", defaults[] = "-d";
    char *argv[] = {gnuplot, defaults, script, NULL};
    char **env = gnuplot_environment();
    if (!env)
        return ENOMEM;
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_addchdir_np(&actions, folder);
    posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
    posix_spawn_file_actions_addopen(&actions, 1, "/dev/null", O_WRONLY, 0);
    posix_spawn_file_actions_addopen(&actions, 2, messages, O_WRONLY | O_CREAT | O_TRUNC, 0644);
    int error = posix_spawnp(pid, "gnuplot", &actions, NULL, argv, env);
    posix_spawn_file_actions_destroy(&actions);
    free(env);
    return error;
}

static ptb_status finish_worker(const char *folder, size_t w, pid_t pid)
{
    int wait_status = 0;
    while (waitpid(pid, &wait_status, 0) < 0)
        if (errno != EINTR)
            break;
    char name[32];
    snprintf(name, sizeof name, "worker%zu", w);
    char *messages = read_file(folder, name, "err");
    bool failed = !WIFEXITED(wait_status) || WEXITSTATUS(wait_status) != 0;
    if (failed)
        ptb_error("gnuplot failed (%s %d): %s", WIFEXITED(wait_status) ? "exit code" : "signal",
                  WIFEXITED(wait_status) ? WEXITSTATUS(wait_status) : WTERMSIG(wait_status),
                  messages ? messages : "it said nothing");
    else if (messages)
        ptb_warn("gnuplot said: %s", messages);
    free(messages);
    return failed ? PTB_SYSTEM : PTB_OK;
}

static ptb_status run_workers(const char *folder, size_t count)
{
    size_t workers = count < WORKERS ? count : WORKERS;
    pid_t pids[WORKERS];
    size_t started = 0;
    ptb_status status = PTB_OK;
    for (; started < workers && status == PTB_OK; started++) {
        int error = start_worker(folder, started, &pids[started]);
        if (error == 0)
            continue;
        if (error == ENOENT)
            ptb_error("gnuplot was not found in PATH, and the report's figures need it. Install the package "
                      "gnuplot-nox (RHEL: gnuplot)");
        else
            ptb_error("cannot start gnuplot: %s", strerror(error));
        status = error == ENOENT ? PTB_UNSUPPORTED : PTB_SYSTEM;
        break;
    }
    for (size_t w = 0; w < started; w++) {
        ptb_status ended = finish_worker(folder, w, pids[w]);
        status = status == PTB_OK ? ended : status;
    }
    return status;
}

// gnuplot names its markers alike in every picture (gpPt1, ...); inside one page ids must differ, so each id
// and each reference to one gets the figure's name in front. Prolog, title and desc are left out.
static char *inline_svg(const char *svg, const char *prefix)
{
    static const char *const marks[] = {" id='", " id=\"", "href='#", "href=\"#", "url(#"};
    ptb_text out = PTB_TEXT_INIT;
    const char *at = strstr(svg, "<svg");
    while (at && *at) {
        const char *cut = strncmp(at, "<title>", 7) == 0  ? "</title>"
                          : strncmp(at, "<desc>", 6) == 0 ? "</desc>"
                                                          : NULL;
        const char *end = cut ? strstr(at, cut) : NULL;
        if (end) {
            at = end + strlen(cut);
            continue;
        }
        size_t mark = 0;
        while (mark < 5 && strncmp(at, marks[mark], strlen(marks[mark])) != 0)
            mark++;
        if (mark < 5) {
            ptb_text_printf(&out, "%s%s-", marks[mark], prefix);
            at += strlen(marks[mark]);
            continue;
        }
        size_t plain = 1 + strcspn(at + 1, " <hu");
        ptb_text_append_bytes(&out, at, plain);
        at += plain;
    }
    return out.data;
}

static ptb_status collect(ptb_drawing *drawings, size_t count, const char *from, const char *folder)
{
    for (size_t i = 0; i < count; i++) {
        char source[PATH_BYTES], target[PATH_BYTES];
        char *svg = read_file(from, drawings[i].name, "svg");
        drawings[i].svg = svg ? inline_svg(svg, drawings[i].name) : NULL;
        free(svg);
        if (!drawings[i].svg) {
            ptb_error("gnuplot drew nothing for figure %s (%s)", drawings[i].name, drawings[i].figure->title);
            return PTB_SYSTEM;
        }
        make_path(from, drawings[i].name, "png", source);
        make_path(folder, drawings[i].name, "png", target);
        if (rename(source, target) != 0) {
            ptb_error("cannot put the picture %s in place: %s", target, strerror(errno));
            return PTB_STORE;
        }
    }
    return PTB_OK;
}

static void remove_inputs(const ptb_drawing *drawings, size_t count, const char *folder)
{
    static const char *const endings[] = {"dat", "svg", "png"};
    char path[PATH_BYTES];
    for (size_t i = 0; i < count; i++)
        for (size_t k = 0; k < 3; k++) {
            make_path(folder, drawings[i].name, endings[k], path);
            unlink(path);
        }
    for (size_t w = 0; w < WORKERS; w++) {
        char name[32];
        snprintf(name, sizeof name, "worker%zu", w);
        make_path(folder, name, "gp", path);
        unlink(path);
        make_path(folder, name, "err", path);
        unlink(path);
    }
    rmdir(folder);
}

ptb_status ptb_gnuplot_draw(ptb_drawing *drawings, size_t count, const char *folder)
{
    if (count == 0)
        return PTB_OK;
    // Inside the target, so that finished pictures are renamed into place and never copied.
    char temporary[PATH_BYTES];
    int length = snprintf(temporary, sizeof temporary, "%s/.drawing-XXXXXX", folder);
    if (length >= (int)sizeof temporary - 80 || !mkdtemp(temporary)) {
        ptb_error("cannot make a temporary folder in %s: %s", folder,
                  length >= (int)sizeof temporary - 80 ? "the path is too long" : strerror(errno));
        return PTB_STORE;
    }
    ptb_status status = write_inputs(drawings, count, temporary);
    if (status == PTB_OK)
        status = run_workers(temporary, count);
    if (status == PTB_OK)
        status = collect(drawings, count, temporary, folder);
    remove_inputs(drawings, count, temporary);
    return status;
}
