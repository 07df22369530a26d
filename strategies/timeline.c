// See timeline.h.
#include "strategies/timeline.h"

ptb_status ptb_timeline_close(ptb_timeline *t)
{
    bool ends = t->open && !t->paused;
    t->open = t->paused = false;
    return ends ? ptb_mark_close(&t->mark, t->trace, t->stream) : PTB_OK;
}

ptb_status ptb_timeline_open(ptb_timeline *t, const ptb_span *span)
{
    PTB_TRY(ptb_timeline_close(t));
    t->span = *span;
    t->open = true;
    return ptb_mark_open(&t->mark, t->trace, t->stream, span);
}

ptb_status ptb_timeline_pause(ptb_timeline *t)
{
    if (!t->open || t->paused)
        return PTB_OK;
    t->paused = true;
    return ptb_mark_close(&t->mark, t->trace, t->stream);
}

ptb_status ptb_timeline_resume(ptb_timeline *t)
{
    if (!t->open || !t->paused)
        return PTB_OK;
    t->paused = false;
    return ptb_mark_open(&t->mark, t->trace, t->stream, &t->span);
}
