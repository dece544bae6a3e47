#include "source.h"

#include "inject.h"

static void start_message(clusim_sim *s, uint32_t source, uint32_t message) {
    const clusim_image *im = &s->model->image;
    const clusim_source *image = &im->sources[source];
    const clusim_message *m = &im->messages[message];
    uint32_t index = sim_pool_xfer(s);
    if (UNLIKELY(index == NONE)) return;
    xfer *x = &s->xfers[index];
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
    x->owner = source;
    x->slot = s->sources[source].slot;
    x->endpoint = image->endpoint;
    x->back = image->endpoint;
    x->dst = m->dst;
    x->via_first = m->via_first;
    x->via_last = m->via_last;
    if (m->via_first != NONE) x->kind = CLUSIM_KIND_FETCH;
    x->flow = image->control == NONE ? NONE : (uint32_t)im->num_conns + source;
    x->path = x->path_back = NONE;
    x->conn = message;
    x->remaining = x->count;
    uint32_t target = m->via_first != NONE ? m->via_first : m->via_last;
    if (target == NONE) target = m->dst;
    uint32_t group = model_route(s->model, im->endpoints[image->endpoint].node, target);
    s->sources[source].injecting = 1;
    s->sources[source].in_flight = 1;
    inject_start(s, index, group, m->key, 0);
}

void source_try(clusim_sim *s, uint32_t source) {
    const clusim_source *image = &s->model->image.sources[source];
    source_state *st = &s->sources[source];
    if (st->injecting || st->next_message == image->msg_hi) return;
    if ((image->flags & CLUSIM_SOURCE_FLAG_SERIAL) && st->in_flight) return;
    int64_t start = s->model->image.messages[st->next_message].start_ps;
    if (start > s->now_ps) {
        sim_event(s, start, EV_SOURCE, 0, source);
        return;
    }
    start_message(s, source, st->next_message++);
}

void source_injected(clusim_sim *s, uint32_t source, int64_t end) {
    sim_event(s, end, EV_SOURCE, 1, source);
}

void source_complete(clusim_sim *s, uint32_t xfer_index) {
    const xfer *x = &s->xfers[xfer_index];
    uint32_t message = x->conn, source = x->owner;
    s->message_end[message] = s->now_ps;
    s->messages_left--;
    sim_hash(s, 3, s->now_ps, message, 0);
    if (message + 1 == s->sources[source].next_message) s->sources[source].in_flight = 0;
    source_try(s, source);
}
