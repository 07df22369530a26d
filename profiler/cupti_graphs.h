// Whose the nodes of CUDA graphs are. A record of what a graph ran names the launch and the node alone. CUPTI
// tells of each node when a capture makes it, on the thread that enqueues, and when an executable graph gets
// its clone (CUPTI's callbacks GRAPHNODE_CREATED and GRAPHNODE_CLONED; cuptiGetGraphNodeId gives the numbers
// that records have). So a node belongs to the work that was open when it, or the node that it is a clone of,
// was made. What was captured while nobody watched belongs to nobody.
#ifndef PTB_PROFILER_CUPTI_GRAPHS_H
#define PTB_PROFILER_CUPTI_GRAPHS_H

#include "core/text.h"
#include "profiler/capture.h"

#include <stdbool.h>

typedef struct ptb_cupti_graphs ptb_cupti_graphs;

// NO_MEMORY, logged. CUPTI must be loaded (cupti_api.h).
ptb_status ptb_cupti_graphs_new(ptb_open_work_fn *open, void *context, ptb_cupti_graphs **graphs);
void ptb_cupti_graphs_free(ptb_cupti_graphs *graphs); // NULL is allowed
// Watches from here on; what is known of nodes stays known. Where CUPTI does not let us, the reason is in why
// (appended, not logged) and nodes stay unknown.
ptb_status ptb_cupti_graphs_watch(ptb_cupti_graphs *graphs, ptb_text *why);
void ptb_cupti_graphs_rest(ptb_cupti_graphs *graphs);

// The work of a node (number of its record): the span that was open, NULL when it is unknown. *is_first: the
// first node of that work in this launch (correlation of the records) that was asked for.
const ptb_span *ptb_cupti_graphs_find(ptb_cupti_graphs *graphs, uint64_t node, uint32_t launch,
                                      bool *is_first);

#endif
