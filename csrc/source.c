#include "source.h"

#include "inbox.h"
#include "inject.h"
#include "parts/endpoints.h"
#include "parts/scheduler.h"
#include "parts/sources.h"
#include "parts/windows.h"
#include "parts/xfers.h"
#include "pool.h"
#include "result.h"
#include "scheduler.h"

/* Sources hold the lowest slots of their endpoints. */
STATUS source_init(clusim_sim *s) {
    const clusim_image *im = &s->model->image;
    ZEROED(s->sources.all, im->num_sources);
    ZEROED(s->sources.message_end, im->num_messages);
    for (uint32_t m = 0; m < im->num_messages; m++) s->sources.message_end[m] = -1;
    for (uint32_t i = 0; i < im->num_sources; i++) {
        const clusim_source *image = &im->sources[i];
        endpoint_state *e = endpoint_at(s, ID(endpoint, image->endpoint));
        uint32_t slot = 0;
        while (e->slots[slot >> 6] >> (slot & 63) & 1) slot++;
        e->slots[slot >> 6] |= UINT64_C(1) << (slot & 63);
        s->sources.all[i].slot = slot;
        s->sources.all[i].next_message = ID(message, image->msg_lo);
        s->sources.messages_left += image->msg_hi - image->msg_lo;
        for (uint32_t m = image->msg_lo; m < image->msg_hi; m++)
            s->windows.undelivered +=
                inject_count(im->messages[m].bytes, image->packet_bytes * image->burst);
        TRY(scheduler_event(s, 0, EV_SOURCE, 0, i));
    }
    return CLUSIM_OK;
}

void source_free(clusim_sim *s) {
    free(s->sources.all);
    free(s->sources.message_end);
}

static STATUS start_message(clusim_sim *s, source_id source, message_id message) {
    const clusim_image *im = &s->model->image;
    const clusim_source *image = &im->sources[source.i];
    const clusim_message *m = &im->messages[message.i];
    xfer_id index;
    TRY(pool_xfer(s, &index));
    xfer *x = xfer_at(s, index);
    x->bytes = m->bytes;
    x->limit = image->packet_bytes;
    x->full = image->packet_bytes * image->burst;
    x->count = inject_count(x->bytes, x->full);
    x->type = XFER_WRITE;
    x->kind = CLUSIM_KIND_WRITE;
    x->policy = (uint8_t)image->policy;
    x->vc = (uint8_t)image->vc;
    x->vc_response = x->vc;
    x->owner_kind = OWNER_SOURCE;
    x->source = source;
    x->slot = source_at(s, source)->slot;
    x->endpoint = ID(endpoint, image->endpoint);
    x->dst = ID(target, m->dst);
    x->via_first = ID(target, m->via_first);
    x->via_last = ID(target, m->via_last);
    if (m->via_first != NONE) x->kind = CLUSIM_KIND_FETCH;
    x->flow = NO(flow);
    if (image->control != NONE) x->flow = ID(flow, (uint32_t)im->num_conns + source.i);
    x->spread = image->spread;
    x->path = x->path_back = NO(path);
    x->message = message;
    x->remaining = x->count;
    source_at(s, source)->injecting = 1;
    source_at(s, source)->in_flight = 1;
    return inject_start(s, index, inject_first_group(s, x), m->key, 0);
}

static STATUS try_at(clusim_sim *s, source_id source, int64_t at_ps) {
    if (!s->windows.leading) return scheduler_event(s, at_ps, EV_SOURCE, 0, source.i);
    window_start start = {at_ps, source.i, START_NEXT};
    return inbox_start(s, ID(endpoint, s->model->image.sources[source.i].endpoint), start);
}

STATUS source_try(clusim_sim *s, source_id source) {
    const clusim_source *image = &s->model->image.sources[source.i];
    source_state *st = source_at(s, source);
    if (st->injecting || st->next_message.i == image->msg_hi) return CLUSIM_OK;
    if ((image->flags & CLUSIM_SOURCE_FLAG_SERIAL) && st->in_flight) return CLUSIM_OK;
    int64_t start = s->model->image.messages[st->next_message.i].start_ps;
    if (start > s->scheduler.now_ps) return try_at(s, source, start);
    message_id message = ID(message, st->next_message.i++);
    return start_message(s, source, message);
}

STATUS source_left(clusim_sim *s, source_id source) {
    source_at(s, source)->injecting = 0;
    return source_try(s, source);
}

/* Only where messages wait for each other may the next one start now that it could not before. */
STATUS source_complete(clusim_sim *s, xfer_id xfer_index) {
    const xfer *x = xfer_at(s, xfer_index);
    message_id message = x->message;
    source_id source = x->source;
    s->sources.message_end[message.i] = s->scheduler.now_ps;
    s->sources.messages_left--;
    result_hash(s, 3, s->scheduler.now_ps, message.i, 0);
    if (!(s->model->image.sources[source.i].flags & CLUSIM_SOURCE_FLAG_SERIAL)) return CLUSIM_OK;
    if (message.i + 1 == source_at(s, source)->next_message.i) source_at(s, source)->in_flight = 0;
    return source_try(s, source);
}
