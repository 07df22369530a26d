// Whether other processes of this host still live.
#ifndef PTB_COLLECTIVES_PROCESS_H
#define PTB_COLLECTIVES_PROCESS_H

#include <stdbool.h>

// False when the process has ended, also one that its parent has not collected yet, which still answers
// kill(). Where /proc cannot be read, what kill() says holds.
bool ptb_process_lives(int pid);

#endif
