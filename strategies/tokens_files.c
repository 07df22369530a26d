// Finds, checks and maps the files of a token source; see tokens_files.h. Formats are llm.c's
// (github.com/karpathy/llm.c, dev/data/data_common.py); add one by adding a row to `formats`.
#include "strategies/tokens_files.h"

#include "core/device.h"
#include "core/log.h"

#include <errno.h>
#include <fcntl.h>
#include <fts.h>
#include <glob.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

// A mapping costs a page table and one of the 65530 that Linux gives a process; below this, copying is
// cheaper.
enum { SMALL_BYTES = 32 * 1024, HEADER_BYTES = 256 * sizeof(int32_t) };

static const ptb_token_format bytes_format = {NULL, 0, 0, 1, -1};
static const ptb_token_format formats[] = {
    {"GPT-2", 20240520, 1, 2, 50256},
    {"Llama 3", 20240801, 7, 4, 128000},
};
enum { FORMATS = sizeof formats / sizeof *formats };

// ---- finding

static ptb_status add(ptb_token_files *files, const char *path, uint64_t bytes)
{
    if (files->count == files->capacity) {
        size_t capacity = files->capacity ? 2 * files->capacity : 16;
        ptb_token_file *more = realloc(files->file, capacity * sizeof *more);
        if (!more) {
            ptb_error("no memory for the names of more than %zu files of --data", files->count);
            return PTB_NO_MEMORY;
        }
        files->file = more;
        files->capacity = capacity;
    }
    char *copy = strdup(path);
    if (!copy) {
        ptb_error("no memory for the names of more than %zu files of --data", files->count);
        return PTB_NO_MEMORY;
    }
    files->file[files->count++] = (ptb_token_file){.path = copy, .bytes = bytes};
    return PTB_OK;
}

static int by_name(const FTSENT **a, const FTSENT **b)
{
    return strcmp((*a)->fts_name, (*b)->fts_name);
}

typedef struct {
    size_t empty, special;
    char first_empty[512];
} left_out;

static ptb_status visit(const FTSENT *entry, ptb_token_files *files, left_out *left)
{
    switch (entry->fts_info) {
    case FTS_F:
        if (entry->fts_statp->st_size > 0)
            return add(files, entry->fts_path, (uint64_t)entry->fts_statp->st_size);
        if (!left->empty++)
            snprintf(left->first_empty, sizeof left->first_empty, "%s", entry->fts_path);
        return PTB_OK;
    case FTS_DC:
        ptb_warn("--data: '%s' links back to a folder that it is in; it is left out", entry->fts_path);
        return PTB_OK;
    case FTS_DNR:
    case FTS_ERR:
    case FTS_NS:
        ptb_error("--data: '%s' cannot be read: %s", entry->fts_path, strerror(entry->fts_errno));
        return PTB_USAGE;
    case FTS_SLNONE:
        ptb_error("--data: the link '%s' leads nowhere; remove it", entry->fts_path);
        return PTB_USAGE;
    case FTS_DEFAULT: // a device, pipe or socket
        left->special++;
        return PTB_OK;
    default:
        return PTB_OK;
    }
}

static ptb_status walk(char *const *paths, ptb_token_files *files, left_out *left)
{
    FTS *tree = fts_open(paths, FTS_LOGICAL | FTS_NOCHDIR, by_name);
    if (!tree) {
        ptb_error("--data '%s' cannot be looked at: %s", paths[0], strerror(errno));
        return PTB_SYSTEM;
    }
    ptb_status status = PTB_OK;
    const FTSENT *entry;
    while (status == PTB_OK && (errno = 0, entry = fts_read(tree)) != NULL)
        status = visit(entry, files, left);
    if (status == PTB_OK && errno) {
        ptb_error("--data '%s' cannot be looked at: %s", paths[0], strerror(errno));
        status = PTB_SYSTEM;
    }
    fts_close(tree);
    return status;
}

static ptb_status find(const char *path, ptb_token_files *files, left_out *left)
{
    struct stat info;
    if (stat(path, &info) == 0) {
        char *const paths[] = {(char *)path, NULL};
        return walk(paths, files, left);
    }
    int error = errno;
    if (!strpbrk(path, "*?[")) {
        ptb_error("--data '%s' cannot be read: %s", path, strerror(error));
        return PTB_USAGE;
    }
    glob_t match;
    int failed = glob(path, GLOB_ERR, NULL, &match);
    if (failed == GLOB_NOMATCH || failed == GLOB_ABORTED) {
        ptb_error(failed == GLOB_NOMATCH ? "--data '%s': no file has such a name"
                                         : "--data '%s': a folder of the pattern cannot be read",
                  path);
        return PTB_USAGE;
    }
    if (failed) {
        ptb_error("no memory for the names that --data '%s' matches", path);
        return PTB_NO_MEMORY;
    }
    ptb_status status = walk(match.gl_pathv, files, left);
    globfree(&match);
    return status;
}

static ptb_status find_some(const char *path, ptb_token_files *files)
{
    left_out left = {0};
    PTB_TRY(find(path, files, &left));
    if (!files->count && left.empty + left.special == 1) {
        ptb_error("--data '%s': there is nothing to read: %s", path,
                  left.empty ? "the only file is empty" : "it is not a regular file");
        return PTB_USAGE;
    }
    if (!files->count) {
        ptb_error("--data '%s': there is nothing to read (%zu empty files, %zu that are not regular files)",
                  path, left.empty, left.special);
        return PTB_USAGE;
    }
    if (left.empty)
        ptb_warn("--data '%s': %zu empty files are left out, the first is '%s'", path, left.empty,
                 left.first_empty);
    return PTB_OK;
}

// ---- checking and mapping

// The format of a file by its name and its first bytes; NULL, logged, for a *.bin of none.
static const ptb_token_format *recognise(const ptb_token_file *file, const int32_t *header, size_t bytes)
{
    size_t length = strlen(file->path);
    bool is_named = length >= 4 && strcmp(file->path + length - 4, ".bin") == 0;
    for (size_t i = 0; i < FORMATS && bytes >= sizeof *header; i++)
        if (header[0] == formats[i].magic)
            return &formats[i];
    if (!is_named)
        return &bytes_format;
    if (bytes < sizeof *header)
        ptb_error("--data: '%s' has %" PRIu64 " bytes, less than the header of a token file (%zu)",
                  file->path, file->bytes, (size_t)HEADER_BYTES);
    else
        ptb_error("--data: '%s' is no token file: it begins with %" PRId32 ", and wanted is %" PRId32
                  " (GPT-2) or %" PRId32 " (Llama 3). To train on its bytes, name it otherwise than *.bin",
                  file->path, header[0], formats[0].magic, formats[1].magic);
    return NULL;
}

static ptb_status check_header(ptb_token_file *file, const ptb_token_format *format, const int32_t *header)
{
    if (file->bytes < HEADER_BYTES) {
        ptb_error("--data: '%s' has %" PRIu64 " bytes, less than the header of a token file (%zu)",
                  file->path, file->bytes, (size_t)HEADER_BYTES);
        return PTB_USAGE;
    }
    if (header[1] != format->version) {
        ptb_error("--data: '%s' is a %s token file of version %" PRId32 "; version %" PRId32
                  " can be read. Write it again with llm.c's current scripts",
                  file->path, format->name, header[1], format->version);
        return PTB_USAGE;
    }
    int64_t count = header[2];
    uint64_t wanted = HEADER_BYTES + (count > 0 ? (uint64_t)count * format->width : 0);
    if (count <= 0 || file->bytes != wanted) {
        ptb_error("--data: the header of '%s' says %" PRId64 " tokens, which would be %" PRIu64
                  " bytes (%zu of header and %u a token); it has %" PRIu64 ". %s",
                  file->path, count, wanted, (size_t)HEADER_BYTES, format->width, file->bytes,
                  count <= 0             ? "A token file has at least one token"
                  : file->bytes < wanted ? "It was cut short: fetch or write it again"
                                         : "Write it again");
        return PTB_USAGE;
    }
    file->tokens = (uint64_t)count;
    return PTB_OK;
}

static ptb_status check_format(ptb_token_files *files, size_t i, const int32_t *header, size_t bytes)
{
    ptb_token_file *file = &files->file[i];
    const ptb_token_format *format = recognise(file, header, bytes);
    if (!format)
        return PTB_USAGE;
    if (!files->format)
        files->format = format;
    if (files->format != format) {
        const char *first = files->format->name, *this = format->name;
        ptb_error("--data: '%s' is a file of %s and '%s' of %s; give a pattern that chooses one kind",
                  files->file[0].path, first ? first : "bytes", file->path, this ? this : "bytes");
        return PTB_USAGE;
    }
    if (format->name)
        return check_header(file, format, header);
    file->tokens = file->bytes;
    return PTB_OK;
}

static ptb_status map(ptb_token_file *file, int descriptor, size_t skip)
{
    void *data = mmap(NULL, file->bytes, PROT_READ, MAP_SHARED, descriptor, 0);
    if (data == MAP_FAILED) {
        ptb_error("--data: '%s' cannot be mapped: %s%s", file->path, strerror(errno),
                  errno == ENOMEM ? " (a process has at most vm.max_map_count mappings; join small files)"
                                  : "");
        return PTB_SYSTEM;
    }
    file->map = data;
    file->data = (const uint8_t *)data + skip;
    return PTB_OK;
}

// The whole file into memory at `to`.
static ptb_status copy(ptb_token_file *file, int descriptor, size_t skip, uint8_t *to)
{
    for (size_t done = 0; done < file->bytes;) {
        ssize_t got = pread(descriptor, to + done, file->bytes - done, (off_t)done);
        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0) {
            ptb_error("--data: '%s' cannot be read: %s", file->path,
                      got ? strerror(errno) : "it became shorter meanwhile");
            return PTB_SYSTEM;
        }
        done += (size_t)got;
    }
    file->data = to + skip;
    return PTB_OK;
}

static ptb_status take(ptb_token_files *files, size_t i, int descriptor, bool unread, size_t *arena_used)
{
    ptb_token_file *file = &files->file[i];
    struct stat info;
    int32_t header[3] = {0};
    ssize_t got = -1;
    if (fstat(descriptor, &info) == 0)
        got = pread(descriptor, header, sizeof header, 0);
    if (got < 0) {
        ptb_error("--data: '%s' cannot be read: %s", file->path, strerror(errno));
        return PTB_USAGE;
    }
    if ((uint64_t)info.st_size != file->bytes) {
        ptb_error("--data: '%s' had %" PRIu64 " bytes a moment ago and has %" PRIdMAX
                  " now; wait until nobody writes to it",
                  file->path, file->bytes, (intmax_t)info.st_size);
        return PTB_USAGE;
    }
    PTB_TRY(check_format(files, i, header, (size_t)got));
    file->first = files->tokens;
    files->tokens += file->tokens;
    files->bytes += file->bytes;
    size_t skip = files->format->name ? HEADER_BYTES : 0;
    if (unread)
        return PTB_OK;
    if (file->bytes >= SMALL_BYTES)
        return map(file, descriptor, skip);
    uint8_t *to = files->arena + *arena_used;
    *arena_used += (file->bytes + 15) & ~(size_t)15;
    return copy(file, descriptor, skip, to);
}

static ptb_status open_arena(ptb_token_files *files)
{
    for (size_t i = 0; i < files->count; i++)
        if (files->file[i].bytes < SMALL_BYTES)
            files->arena_bytes += (files->file[i].bytes + 15) & ~(size_t)15;
    void *memory = NULL;
    if (files->arena_bytes)
        PTB_TRY(ptb_memory_map(files->arena_bytes, &memory));
    files->arena = memory;
    return PTB_OK;
}

ptb_status ptb_token_files_open(const char *path, bool unread, ptb_token_files *files)
{
    PTB_TRY(find_some(path, files));
    if (!unread)
        PTB_TRY(open_arena(files));
    size_t arena_used = 0;
    for (size_t i = 0; i < files->count; i++) {
        int descriptor = open(files->file[i].path, O_RDONLY | O_CLOEXEC);
        if (descriptor < 0) {
            ptb_error("--data: '%s' cannot be read: %s", files->file[i].path, strerror(errno));
            return PTB_USAGE;
        }
        ptb_status status = take(files, i, descriptor, unread, &arena_used);
        close(descriptor);
        PTB_TRY(status);
    }
    return PTB_OK;
}

void ptb_token_files_release(ptb_token_files *files)
{
    for (size_t i = 0; i < files->count; i++) {
        if (files->file[i].map)
            munmap(files->file[i].map, files->file[i].bytes);
        free(files->file[i].path);
    }
    if (files->arena)
        ptb_memory_unmap(files->arena, files->arena_bytes);
    free(files->file);
    *files = (ptb_token_files){0};
}
