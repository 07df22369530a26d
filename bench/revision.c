// Follows .git, HEAD and refs (gitrepository-layout(5)).
#include "bench/revision.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static bool read_first_line(const char *path, char *line, size_t size)
{
    FILE *file = fopen(path, "re");
    if (!file)
        return false;
    bool got = fgets(line, (int)size, file) != NULL;
    fclose(file);
    if (got)
        line[strcspn(line, "\r\n")] = '\0';
    return got;
}

static bool is_hash(const char *text)
{
    size_t length = strspn(text, "0123456789abcdef");
    return (length == 40 || length == 64) && !text[length];
}

// "base/name" without "base/" when name is absolute.
static bool join(const char *base, const char *name, char *out, size_t size)
{
    int length = name[0] == '/' ? snprintf(out, size, "%s", name) : snprintf(out, size, "%s/%s", base, name);
    return length > 0 && (size_t)length < size;
}

static bool find_packed(const char *folder, const char *ref, char *out, size_t size)
{
    char path[PATH_MAX], line[1024];
    FILE *file = join(folder, "packed-refs", path, sizeof path) ? fopen(path, "re") : NULL;
    bool found = false;
    while (file && !found && fgets(line, sizeof line, file)) {
        line[strcspn(line, "\r\n")] = '\0';
        char *space = strchr(line, ' ');
        if (!space || strcmp(space + 1, ref) != 0)
            continue;
        *space = '\0';
        found = is_hash(line);
        if (found)
            snprintf(out, size, "%s", line);
    }
    if (file)
        fclose(file);
    return found;
}

// `git` is the repository folder, or that of a work tree with a `commondir` file.
static bool read_head(const char *git, char *out, size_t size)
{
    char path[PATH_MAX], line[1024], common[PATH_MAX];
    if (!join(git, "HEAD", path, sizeof path) || !read_first_line(path, line, sizeof line))
        return false;
    if (is_hash(line)) {
        snprintf(out, size, "%s", line);
        return true;
    }
    if (strncmp(line, "ref: ", 5) != 0)
        return false;
    const char *ref = line + 5;
    char hash[256], relative[1024];
    snprintf(common, sizeof common, "%s", git);
    if (join(git, "commondir", path, sizeof path) && read_first_line(path, relative, sizeof relative) &&
        !join(git, relative, common, sizeof common))
        return false;
    if (join(common, ref, path, sizeof path) && read_first_line(path, hash, sizeof hash) && is_hash(hash)) {
        snprintf(out, size, "%s", hash);
        return true;
    }
    return find_packed(common, ref, out, size);
}

bool ptb_revision_read(const char *folder, char *out, size_t size)
{
    char at[PATH_MAX], git[PATH_MAX], line[1024];
    if (!realpath(folder, at))
        return false;
    for (;;) {
        struct stat info;
        if (!join(at, ".git", git, sizeof git))
            return false;
        if (stat(git, &info) == 0) {
            if (S_ISDIR(info.st_mode))
                return read_head(git, out, size);
            char target[PATH_MAX];
            return read_first_line(git, line, sizeof line) && strncmp(line, "gitdir: ", 8) == 0 &&
                   join(at, line + 8, target, sizeof target) && read_head(target, out, size);
        }
        char *slash = strrchr(at, '/');
        if (!slash || !at[1])
            return false;
        slash[slash == at ? 1 : 0] = '\0';
    }
}
