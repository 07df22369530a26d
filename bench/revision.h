// The git commit of a folder, read from its files: no git program is needed.
#ifndef PTB_BENCH_REVISION_H
#define PTB_BENCH_REVISION_H

#include <stdbool.h>
#include <stddef.h>

// Looks in `folder` and above for a repository; false when there is none or it has no commit. Whether files
// are changed since is not looked at.
bool ptb_revision_read(const char *folder, char *out, size_t size);

#endif
