// Open MPI frames its messages between rulers of 74 hyphens.
#include "bench/relay.h"

#include <stdio.h>
#include <string.h>

void ptb_relay_init(ptb_relay *relay)
{
    memset(relay, 0, sizeof *relay);
    relay->lost_rank = -1;
}

void ptb_relay_release(ptb_relay *relay)
{
    ptb_text_release(&relay->line);
    ptb_text_release(&relay->box);
}

static bool is_ruler(const char *line)
{
    size_t hyphens = strspn(line, "-");
    return hyphens >= 70 && (line[hyphens] == '\0' || line[hyphens] == '\n' || line[hyphens] == '\r');
}

// "mpirun noticed that process rank 1 with PID 0 on node h exited on signal 9 (Killed)."
static void learn(ptb_relay *relay, const char *box)
{
    const char *at = strstr(box, "noticed that process rank ");
    const char *signal = strstr(box, "exited on signal ");
    int rank, number = 0;
    if (!at || sscanf(at, "noticed that process rank %d", &rank) != 1)
        return;
    relay->lost_rank = rank;
    if (signal && sscanf(signal, "exited on signal %d", &number) == 1)
        relay->lost_signal = number;
    const char *node = strstr(at, " on node ");
    if (node)
        sscanf(node, " on node %127s", relay->lost_host);
}

// What ptbench says itself, in its own words.
static bool is_known(const char *box)
{
    static const char *const marks[] = {
        "noticed that process rank ",
        "Primary job  terminated normally, but",
        "detected that one or more processes exited with non-zero status",
        "MPI_ABORT was invoked on rank",
    };
    for (size_t i = 0; i < sizeof marks / sizeof *marks; i++)
        if (strstr(box, marks[i]))
            return true;
    return false;
}

static void close_box(ptb_relay *relay, const char *ruler, ptb_text *out)
{
    const char *box = ptb_text_string(&relay->box);
    learn(relay, box);
    if (!is_known(box)) {
        ptb_text_append(out, box);
        ptb_text_append(out, ruler);
    }
    ptb_text_clear(&relay->box);
    relay->in_box = false;
}

// mpirun's words about others' messages, and about having been ended while it passed them on.
static bool is_noise(const char *line)
{
    return strncmp(line, "mpirun: Forwarding signal", 25) == 0 || // we have sent it
           strstr(line, "help-mpi-api.txt / mpi-abort") || strstr(line, "orte_base_help_aggregate") ||
           (strstr(line, "ORTE_ERROR_LOG: ") && strstr(line, "/show_help.c at line "));
}

static void take_line(ptb_relay *relay, ptb_text *out)
{
    const char *line = ptb_text_string(&relay->line);
    relay->ranks_spoke |= strncmp(line, "ptbench: ", 9) == 0;
    learn(relay, line); // also when a ruler went by unseen behind a progress line
    if (relay->line_is_out) {
        ptb_text_append(out, line);
    } else if (is_noise(line)) {
        ;
    } else if (is_ruler(line)) {
        if (relay->in_box) {
            close_box(relay, line, out);
        } else {
            relay->in_box = true;
            ptb_text_append(&relay->box, line);
        }
    } else if (relay->in_box) {
        // A rank's own message may fall into a box that is being printed.
        ptb_text_append(strncmp(line, "ptbench", 7) == 0 ? out : &relay->box, line);
    } else {
        ptb_text_append(out, line);
    }
    ptb_text_clear(&relay->line);
    relay->line_is_out = false;
}

void ptb_relay_feed(ptb_relay *relay, const char *bytes, size_t count, ptb_text *out)
{
    for (size_t i = 0; i < count; i++) {
        ptb_text_append_bytes(&relay->line, &bytes[i], 1);
        if (bytes[i] == '\n')
            take_line(relay, out);
    }
    // The progress line has no end; only what may become a ruler, a word of mpirun or a message of ours is
    // worth waiting for.
    const char *line = ptb_text_string(&relay->line);
    if (!relay->in_box && *line && *line != '-' && *line != 'm' && *line != 'p') {
        ptb_text_append(out, line);
        ptb_text_clear(&relay->line);
        relay->line_is_out = true;
    }
}

void ptb_relay_end(ptb_relay *relay, ptb_text *out)
{
    if (relay->line.length)
        take_line(relay, out);
    if (relay->in_box)
        close_box(relay, "", out);
}
