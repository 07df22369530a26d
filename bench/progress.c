// The progress line: rewritten in place on a terminal, plain lines elsewhere.
#include "bench/progress.h"

#include "core/clock.h"
#include "core/text.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

static void put(const ptb_text *text)
{
    // One write, as messages are; nothing to be done when nobody reads.
    ssize_t ignored = write(STDERR_FILENO, ptb_text_string(text), text->length);
    (void)ignored;
}

void ptb_progress_init(ptb_progress *progress, bool quiet, bool terminal, int columns)
{
    const char *term = getenv("TERM"), *no_color = getenv("NO_COLOR");
    bool live = terminal || isatty(STDERR_FILENO);
    int width = columns > 0 ? columns : 80;
    struct winsize size;
    if (!term || strcmp(term, "dumb") == 0)
        live = false;
    if (!terminal && ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0)
        width = size.ws_col;
    memset(progress, 0, sizeof *progress);
    progress->style = quiet ? PTB_PROGRESS_NONE : live ? PTB_PROGRESS_LIVE : PTB_PROGRESS_LINES;
    progress->color = live && !(no_color && *no_color);
    progress->width = width < 40 ? 40 : width > 240 ? 240 : width;
    progress->begin_ns = ptb_clock_ns();
}

void ptb_progress_format_s(double seconds, char *out, size_t size)
{
    long s = lround(seconds);
    if (s < 60)
        snprintf(out, size, "%ld s", s);
    else if (s < 3600)
        snprintf(out, size, "%ld min %ld s", s / 60, s % 60);
    else
        snprintf(out, size, "%ld h %ld min", s / 3600, s % 3600 / 60);
}

// Estimates are corrected by how the cases done so far compare with theirs.
double ptb_progress_remaining_s(const ptb_progress *progress)
{
    double left_s = progress->planned_s - progress->planned_done_s;
    double factor = progress->planned_done_s > 0 ? progress->spent_s / progress->planned_done_s : 1;
    // Little has been seen at first: lean on the estimates until a tenth is done.
    double trust = fmin(1, progress->planned_done_s / fmax(0.1 * progress->planned_s, 1e-9));
    return fmax(0, left_s * (1 + trust * (factor - 1)));
}

static void draw(ptb_progress *progress)
{
    char elapsed[32], remaining[32], tail[96];
    ptb_progress_format_s((double)(ptb_clock_ns() - progress->begin_ns) * 1e-9, elapsed, sizeof elapsed);
    ptb_progress_format_s(ptb_progress_remaining_s(progress), remaining, sizeof remaining);
    snprintf(tail, sizeof tail, "  %s, about %s left", elapsed, remaining);
    ptb_text line = PTB_TEXT_INIT;
    char head[48];
    snprintf(head, sizeof head, "[%zu/%zu] ", progress->done + 1, progress->cases);
    int room = progress->width - 1 - (int)strlen(head) - (int)strlen(tail);
    ptb_text_printf(&line, "\r\033[K%s%.*s%s", head, room > 8 ? room : 8, progress->current, tail);
    put(&line);
    ptb_text_release(&line);
    progress->line_is_open = true;
    progress->drawn_ns = ptb_clock_ns();
}

void ptb_progress_begin(ptb_progress *progress, const char *name, double estimate_s)
{
    snprintf(progress->current, sizeof progress->current, "%s", name);
    progress->current_s = estimate_s;
    if (progress->style == PTB_PROGRESS_LIVE)
        draw(progress);
}

void ptb_progress_tick(void *arg)
{
    ptb_progress *progress = arg;
    if (progress->style == PTB_PROGRESS_LIVE && ptb_clock_ns() - progress->drawn_ns > 200000000)
        draw(progress);
}

void ptb_progress_clear(ptb_progress *progress)
{
    if (!progress->line_is_open)
        return;
    ptb_text text = PTB_TEXT_INIT;
    ptb_text_append(&text, "\r\033[K");
    put(&text);
    ptb_text_release(&text);
    progress->line_is_open = false;
}

void ptb_progress_end(ptb_progress *progress, const char *outcome, bool is_bad, bool is_measured,
                      double spent_s)
{
    progress->done++;
    if (is_measured) {
        progress->planned_done_s += progress->current_s;
        progress->spent_s += spent_s;
    } else {
        progress->planned_s = fmax(progress->planned_done_s, progress->planned_s - progress->current_s);
    }
    if (progress->style == PTB_PROGRESS_NONE)
        return;
    char elapsed[32], remaining[32];
    ptb_progress_format_s((double)(ptb_clock_ns() - progress->begin_ns) * 1e-9, elapsed, sizeof elapsed);
    ptb_progress_format_s(ptb_progress_remaining_s(progress), remaining, sizeof remaining);
    ptb_text line = PTB_TEXT_INIT;
    const char *on = progress->color && is_bad ? "\033[31m" : "", *off = *on ? "\033[0m" : "";
    ptb_text_printf(&line, "%s[%zu/%zu] %s  %s%s%s", progress->line_is_open ? "\r\033[K" : "", progress->done,
                    progress->cases, progress->current, on, outcome, off);
    // On a terminal the live line tells the time.
    if (progress->style == PTB_PROGRESS_LINES)
        ptb_text_printf(&line, "  (%s, about %s left)", elapsed, remaining);
    ptb_text_append(&line, "\n");
    put(&line);
    ptb_text_release(&line);
    progress->line_is_open = false;
}
