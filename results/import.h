// Importers bring results of another file into the store. Each is a plug-in in results/importer_NAME.c that
// recognises its files by content.
#ifndef PTB_RESULTS_IMPORT_H
#define PTB_RESULTS_IMPORT_H

#include "core/registry.h"
#include "results/store.h"

typedef struct {
    ptb_plugin plugin;
    const char
        *expects; // what its files are, for "expected ..." messages: "a ptbench database or spill file"
    // Whether the file is of this kind, from its first bytes (at most 4096). Logs nothing.
    bool (*detect)(const unsigned char *head, size_t bytes);
    // Merges every run of the file; what the store holds already is kept and doing it again changes nothing.
    // All or nothing. *runs: runs that gained something; *cases: cases that were added.
    ptb_status (*import)(ptb_store *store, const char *path, size_t *runs, size_t *cases);
} ptb_importer;

#endif
