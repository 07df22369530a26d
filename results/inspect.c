// What can be said of a path before SQLite sees it: is it a file, ours, writable, on a network.
#include "results/store_internal.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

void ptb_store_fault_set(ptb_store_fault *fault, ptb_status status, const char *advice, const char *format,
                         ...)
{
    va_list args;
    va_start(args, format);
    fault->status = status;
    vsnprintf(fault->why, sizeof fault->why, format, args);
    snprintf(fault->advice, sizeof fault->advice, "%s", advice);
    va_end(args);
}

void ptb_store_fault_sqlite(ptb_store_fault *fault, sqlite3 *db, int rc)
{
    int os_error = db ? sqlite3_system_errno(db) : 0;
    const char *os = os_error ? strerror(os_error) : "no further detail from the operating system";
    switch (rc & 0xff) {
    case SQLITE_BUSY:
    case SQLITE_LOCKED:
        ptb_store_fault_set(fault, PTB_STORE, "let the other process finish, or name another file with --db",
                            "another process holds it locked");
        return;
    case SQLITE_READONLY:
    case SQLITE_PERM:
        ptb_store_fault_set(fault, PTB_STORE,
                            "make the file and its folder writable, or name another file with --db",
                            "it became read-only (%s)", sqlite3_errstr(rc));
        return;
    case SQLITE_FULL:
        ptb_store_fault_set(fault, PTB_STORE, "free some space, or name a file on another disk with --db",
                            "the disk is full");
        return;
    case SQLITE_CANTOPEN:
        ptb_store_fault_set(fault, PTB_STORE,
                            "check the folder and its permissions, or name another file with --db",
                            "it cannot be opened (%s)", os);
        return;
    case SQLITE_IOERR:
        ptb_store_fault_set(fault, PTB_STORE,
                            "check the disk and the system log, or name a file on another disk with --db",
                            "reading or writing it failed (%s; %s)", sqlite3_errstr(rc), os);
        return;
    case SQLITE_CORRUPT:
    case SQLITE_NOTADB:
        ptb_store_fault_set(fault, PTB_STORE, "move it away; `sqlite3 FILE .recover` may save what is left",
                            "the database is damaged (%s)", db ? sqlite3_errmsg(db) : sqlite3_errstr(rc));
        return;
    default:
        ptb_store_fault_set(fault, PTB_STORE, "name another file with --db", "SQLite says: %s",
                            db ? sqlite3_errmsg(db) : sqlite3_errstr(rc));
    }
}

char *ptb_store_folder_of(const char *path)
{
    const char *slash = strrchr(path, '/');
    if (!slash)
        return strdup(".");
    return slash == path ? strdup("/") : strndup(path, (size_t)(slash - path));
}

bool ptb_store_is_writable(const char *path)
{
    struct stat st;
    if (stat(path, &st) != 0)
        return false;
    if (!(st.st_mode & (S_IWUSR | S_IWGRP | S_IWOTH))) {
        errno = EACCES; // what everybody but root would get
        return false;
    }
    return access(path, W_OK) == 0;
}

bool ptb_store_is_network(const char *path, const char **name)
{
    // Magic numbers of statfs(2).
    static const struct {
        unsigned long magic;
        const char *name;
    } known[] = {
        {0x6969, "NFS"},        {0x517b, "SMB"},       {0xfe534d42, "SMB2"}, {0xff534d42, "CIFS"},
        {0x0bd00bd0, "Lustre"}, {0x47504653, "GPFS"},  {0x00c36400, "Ceph"}, {0x5346414f, "AFS"},
        {0x19830326, "BeeGFS"}, {0xaad7aaea, "PanFS"}, {0x01021997, "9P"},   {0x65735546, "FUSE"},
    };
    struct statfs fs;
    if (statfs(path, &fs) != 0)
        return false;
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (((unsigned long)fs.f_type & 0xffffffffUL) == known[i].magic) {
            *name = known[i].name;
            return true;
        }
    return false;
}

static const char another_file[] = "name another file with --db or PTBENCH_DB";

static bool check_folder(const char *path, ptb_store_fault *fault)
{
    char *folder = ptb_store_folder_of(path);
    struct stat st;
    bool good = false;
    if (!folder)
        ptb_store_fault_set(fault, PTB_STORE, "free some memory", "there is not enough memory");
    else if (stat(folder, &st) != 0 || !S_ISDIR(st.st_mode))
        ptb_store_fault_set(fault, PTB_STORE, "create the folder, or name another file with --db",
                            "there is no folder '%s'", folder);
    else if (!ptb_store_is_writable(folder))
        ptb_store_fault_set(fault, PTB_STORE, "make the folder writable, or name another file with --db",
                            "its folder '%s' is read-only (%s); SQLite keeps its journal there", folder,
                            strerror(errno));
    else
        good = true;
    free(folder);
    return good;
}

// The first 100 bytes of a SQLite file hold a magic string and, at byte 68, the application id. Ours is
// always in the file itself, not only in a journal, because the schema is created before WAL is switched on.
static bool check_header(const char *path, ptb_store_fault *fault)
{
    unsigned char head[100];
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) {
        ptb_store_fault_set(fault, PTB_STORE, "make the file readable, or name another one with --db",
                            "it cannot be read (%s)", strerror(errno));
        return false;
    }
    ssize_t got = read(fd, head, sizeof head);
    close(fd);
    if (got != (ssize_t)sizeof head || memcmp(head, "SQLite format 3", 16) != 0) {
        ptb_store_fault_set(fault, PTB_STORE, another_file,
                            "it is not a SQLite database; it is left as it is");
        return false;
    }
    unsigned id = (unsigned)head[68] << 24 | (unsigned)head[69] << 16 | (unsigned)head[70] << 8 | head[71];
    if (id != PTB_APPLICATION_ID) {
        ptb_store_fault_set(fault, PTB_STORE, another_file,
                            "it is a SQLite database, but not one of ptbench (application id 0x%08x, not "
                            "0x%08x); it is left as it is",
                            id, (unsigned)PTB_APPLICATION_ID);
        return false;
    }
    return true;
}

bool ptb_store_inspect(const char *path, ptb_store_mode mode, bool *is_new, ptb_store_fault *fault)
{
    struct stat st;
    if (!*path) {
        ptb_store_fault_set(fault, PTB_USAGE, "name a file with --db or PTBENCH_DB", "its name is empty");
        return false;
    }
    if (stat(path, &st) != 0) {
        if (errno == ENOENT && mode == PTB_STORE_WRITE) {
            *is_new = true;
            return check_folder(path, fault);
        }
        ptb_store_fault_set(fault, errno == ENOENT ? PTB_USAGE : PTB_STORE,
                            "measure first with `ptbench run`, or name another file with --db",
                            "it cannot be opened (%s)", strerror(errno));
        return false;
    }
    if (!S_ISREG(st.st_mode)) {
        ptb_store_fault_set(fault, PTB_STORE, another_file,
                            S_ISDIR(st.st_mode) ? "it is a folder" : "it is not a regular file");
        return false;
    }
    if (mode == PTB_STORE_READ && st.st_size == 0) {
        ptb_store_fault_set(fault, PTB_STORE, "measure first with `ptbench run`", "the file is empty");
        return false;
    }
    if (st.st_size > 0 && !check_header(path, fault))
        return false;
    if (mode == PTB_STORE_WRITE && !ptb_store_is_writable(path)) {
        ptb_store_fault_set(fault, PTB_STORE, "make it writable (chmod u+w), or name another file with --db",
                            "it is read-only (%s)", strerror(errno));
        return false;
    }
    *is_new = st.st_size == 0;
    return mode == PTB_STORE_READ || check_folder(path, fault);
}
