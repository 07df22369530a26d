// Chooses the importer by what is in the file.
#include "results/import.h"

#include "core/log.h"
#include "core/text.h"
#include "results/store_internal.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

static ptb_status read_head(const char *path, unsigned char *head, size_t size, size_t *bytes)
{
    struct stat st;
    if (stat(path, &st) == 0 && !S_ISREG(st.st_mode)) {
        ptb_error("cannot import '%s': it is not a regular file", path);
        return PTB_USAGE;
    }
    FILE *file = fopen(path, "rb");
    if (!file) {
        ptb_error("cannot import '%s': %s", path, strerror(errno));
        return PTB_USAGE;
    }
    *bytes = fread(head, 1, size, file);
    bool good = !ferror(file);
    fclose(file);
    if (!good)
        ptb_error("cannot import '%s': reading it failed", path);
    return good ? PTB_OK : PTB_SYSTEM;
}

ptb_status ptb_store_import(ptb_store *store, const char *path, size_t *runs, size_t *cases)
{
    unsigned char head[4096];
    size_t bytes = 0;
    if (ptb_store_spill_path(store)) {
        ptb_error("cannot import into '%s', which cannot be written; make it well first", store->path);
        return PTB_STORE;
    }
    PTB_TRY(read_head(path, head, sizeof head, &bytes));
    ptb_text expected = PTB_TEXT_INIT;
    for (size_t i = 0; i < ptb_registry_count(PTB_KIND_IMPORTER); i++) {
        const ptb_importer *importer = (const ptb_importer *)ptb_registry_at(PTB_KIND_IMPORTER, i);
        if (importer->detect(head, bytes)) {
            ptb_text_release(&expected);
            return importer->import(store, path, runs, cases);
        }
        ptb_text_printf(&expected, "%s%s", i ? " or " : "", importer->expects);
    }
    ptb_error("cannot import '%s': its content is of no known kind (expected %s)", path,
              ptb_text_string(&expected));
    ptb_text_release(&expected);
    return PTB_USAGE;
}
