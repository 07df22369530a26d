// Whether other processes still live: those of this host by their number, and any that was written down.
#ifndef PTB_CORE_PROCESS_H
#define PTB_CORE_PROCESS_H

#include "core/text.h"

#include <stdbool.h>

// False when the process has ended, also one that its parent has not collected yet, which still answers
// kill(). Where /proc cannot be read, what kill() says holds.
bool ptb_process_lives(int pid);

// Appends this process as a line of text that it can be recognised by: host, machine id, boot id, name spaces
// of process numbers and clocks, process number, and when it started in clock ticks since boot. Nothing where
// /proc does not tell.
void ptb_process_append(ptb_text *text);

typedef enum {
    PTB_PROCESS_LIVES,
    PTB_PROCESS_ENDED,   // for certain: its number is free or another's, or its host was started anew since
    PTB_PROCESS_UNKNOWN, // of another host or container, or not to be read
} ptb_process_state;

// Looks for the process of such a line.
ptb_process_state ptb_process_look(const char *line);
// Whether a process has started others that still run; also true where the kernel does not tell.
bool ptb_process_has_children(int pid);

#endif
