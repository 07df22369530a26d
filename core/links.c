// Readings of all kinds of links together.
#include "core/links.h"

#include "core/log.h"

#include <stdlib.h>
#include <string.h>

enum { SOURCES_MAX = 8 };

struct ptb_link_reader {
    const ptb_link_source *sources[SOURCES_MAX];
    void *states[SOURCES_MAX];
    size_t count;
    ptb_text why;
};

ptb_status ptb_links_open(const char *gpu, bool nics, ptb_link_reader **reader)
{
    ptb_link_reader *r = calloc(1, sizeof *r);
    if (!r) {
        ptb_error("no memory for the counters of links");
        return PTB_NO_MEMORY;
    }
    for (size_t i = 0; i < ptb_registry_count(PTB_KIND_LINK_SOURCE) && r->count < SOURCES_MAX; i++) {
        const ptb_link_source *source = (const ptb_link_source *)ptb_registry_at(PTB_KIND_LINK_SOURCE, i);
        ptb_status status = source->open(gpu ? gpu : "", nics, &r->why, &r->states[r->count]);
        if (status == PTB_OK)
            r->sources[r->count++] = source;
        else if (status != PTB_SKIPPED) {
            ptb_links_close(r);
            return status;
        }
    }
    *reader = r;
    return PTB_OK;
}

void ptb_links_read(ptb_link_reader *reader, ptb_links *links)
{
    links->count = 0;
    for (size_t i = 0; i < reader->count; i++)
        reader->sources[i]->read(reader->states[i], links);
}

void ptb_links_close(ptb_link_reader *reader)
{
    if (!reader)
        return;
    for (size_t i = 0; i < reader->count; i++)
        reader->sources[i]->close(reader->states[i]);
    ptb_text_release(&reader->why);
    free(reader);
}

const char *ptb_links_why(const ptb_link_reader *reader)
{
    return ptb_text_string(&reader->why);
}

void ptb_links_capacity(const ptb_link_reader *reader, ptb_link_capacity *capacity)
{
    *capacity = (ptb_link_capacity){.rails = 0};
    for (size_t i = 0; i < reader->count; i++)
        if (reader->sources[i]->capacity)
            reader->sources[i]->capacity(reader->states[i], capacity);
}

void ptb_links_difference(const ptb_links *before, const ptb_links *after, ptb_links *moved)
{
    moved->count = 0;
    for (size_t i = 0; i < after->count; i++) {
        const ptb_link *now = &after->items[i];
        for (size_t k = 0; k < before->count; k++) {
            const ptb_link *then = &before->items[k];
            if (strcmp(now->name, then->name) != 0)
                continue;
            ptb_link *link = &moved->items[moved->count++];
            *link = *now;
            link->sent_bytes -= then->sent_bytes;
            link->received_bytes -= then->received_bytes;
            break;
        }
    }
}
