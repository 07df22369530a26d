// Opens the file, lets the exporter write, and sees to it that everything has arrived.
#include "bench/export_file.h"

#include "core/log.h"

#include <errno.h>
#include <limits.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

ptb_status ptb_export_file(ptb_store *store, const int64_t *runs, size_t run_count, const char *format,
                           const ptb_export_options *options, const char *path)
{
    const ptb_exporter *exporter = (const ptb_exporter *)ptb_registry_need(PTB_KIND_EXPORTER, format);
    if (!exporter)
        return PTB_USAGE;
    bool is_stdout = strcmp(path, "-") == 0;
    FILE *out = is_stdout ? stdout : fopen(path, "we");
    if (!out) {
        ptb_error("%s cannot be written: %s", path, strerror(errno));
        return PTB_STORE;
    }
    ptb_status status = exporter->write(store, runs, run_count, options, out);
    if (!is_stdout && fclose(out) != 0 && status == PTB_OK) {
        ptb_error("%s cannot be written: %s", path, strerror(errno));
        status = PTB_STORE;
    }
    return status;
}

ptb_status ptb_export_check(const char *path)
{
    char folder[PATH_MAX];
    struct stat info;
    if (strcmp(path, "-") == 0)
        return PTB_OK;
    snprintf(folder, sizeof folder, "%s", path);
    char *slash = strrchr(folder, '/');
    if (slash)
        slash[slash == folder] = '\0';
    bool exists = stat(path, &info) == 0;
    int error = 0;
    if (exists && S_ISDIR(info.st_mode))
        error = EISDIR;
    else if (exists ? access(path, W_OK) != 0 : access(slash ? folder : ".", W_OK | X_OK) != 0)
        error = errno;
    if (!error)
        return PTB_OK;
    ptb_error("%s cannot be written: %s", path, strerror(error));
    return PTB_STORE;
}
