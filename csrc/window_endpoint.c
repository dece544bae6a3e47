#include "window_endpoint.h"

#include "batch.h"
#include "grant.h"
#include "inbox.h"
#include "inject.h"
#include "memory.h"
#include "node.h"
#include "parts/endpoints.h"
#include "parts/packets.h"
#include "parts/programs.h"
#include "parts/samples.h"
#include "parts/scheduler.h"
#include "parts/wires.h"
#include "parts/xfers.h"
#include "program.h"
#include "scheduler.h"
#include "slices.h"
#include "source.h"
#include "window_wire.h"
#include "wire.h"

static inline window_endpoint *end_of(clusim_sim *s, const window_node *n) {
    return &s->windows.ends[n->endpoint.i];
}

/* ---- arrivals of the window ------------------------------------------------------------------ */

/* Time of the next start; NEVER if there is none. */
static inline int64_t next_start(const window_endpoint *e) {
    return e->first_start == e->end_start ? NEVER : e->starts[e->first_start].at_ps;
}

/* Queue transfers that start in this window: their packets wait for their time. */
static STATUS start_all(clusim_sim *s, window_endpoint *e, int64_t end_ps) {
    while (next_start(e) < end_ps) {
        window_start first = e->starts[e->first_start++];
        s->scheduler.now_ps = first.at_ps;
        switch (first.cause) {
            case START_SLICE: TRY(program_move(s, ID(inst, first.id))); break;
            case START_AFTER: TRY(source_left(s, ID(source, first.id))); break;
            default: TRY(source_try(s, ID(source, first.id)));
        }
    }
    return CLUSIM_OK;
}

/* A response opens the in-flight window of the requesting flow. */
static STATUS answered(clusim_sim *s, window_node *n, const packet *p, int64_t at_ps) {
    const xfer *x = xfer_at(s, p->xfer);
    if (x->window == 0) return CLUSIM_OK;
    uint32_t flow = wire_at(s, p->first_wire)->num_voqs + x->slot;
    return inbox_arrives_at(s, n, p->first_wire, (window_arrival){at_ps, NO(packet), flow});
}

enum {
    ANSWERS = 1 << CLUSIM_KIND_READ_RESP | 1 << CLUSIM_KIND_RED_RESULT,
    REQUESTS = 1 << CLUSIM_KIND_READ_REQ | 1 << CLUSIM_KIND_RED_FETCH
};

/* Collect the arrivals over one wire. */
static inline STATUS gather(clusim_sim *s, window_node *n, wire_id wire, int64_t end_ps,
                            bool *more) {
    if (window_waits(s, wire, end_ps, more)) return CLUSIM_OK;
    window_way way = window_open_way(s, wire);
    window_packet next;
    while (window_arrives(s, &way, end_ps, &next)) {
        const packet *p = batch_at(s, next.packet);
        bool request = (1u << p->kind) & REQUESTS;
        uint32_t access = inbox_payload(p->payload, request ? ACCESS_READ : ACCESS_DELIVER);
        TRY(inbox_access(s, next.at_ps, next.packet, access));
        if ((1u << p->kind) & ANSWERS) TRY(answered(s, n, p, next.at_ps));
    }
    window_close_way(s, n, &way, more);
    return CLUSIM_OK;
}

/* Responses that are ready in this window were requested before it. */
static STATUS answer(clusim_sim *s, window_node *n, window_ring *replies, int64_t end_ps) {
    window_packet next;
    if (inbox_len(replies) == 0) return CLUSIM_OK;
    window_prefetch(s, replies);
    while (window_next(s, replies, end_ps, &next)) {
        TRY(batch_restore(s, &next.packet));
        uint32_t candidate = node_answer(s, packet_at(s, next.packet));
        wire_id out = packet_at(s, next.packet)->out;
        TRY(inbox_arrives_at(s, n, out, (window_arrival){next.at_ps, next.packet, candidate}));
        s->scheduler.event_count++;
    }
    if (inbox_len(replies)) inbox_due(s, inbox_entry(replies, 0)->at_ps);
    return CLUSIM_OK;
}

/* ---- a wire ------------------------------------------------------------------------------------
 */

/* Phase A of the wire up to `now_ps`. */
static inline STATUS take_in(clusim_sim *s, window_progress *g, int64_t now_ps) {
    while (g->arrival->at_ps <= now_ps) {
        const window_arrival *a = g->arrival++;
        s->scheduler.now_ps = a->at_ps;
        if (packet_none(a->packet)) {
            inject_opened(s, g->w, a->candidate - g->w->num_voqs);
        } else {
            wire_queue(s, g->w, a->packet, a->candidate);
        }
    }
    window_take_owed(s, g, now_ps);
    s->scheduler.now_ps = now_ps;
    inject_admit(g->w, now_ps);
    return CLUSIM_OK;
}

/* Phase A of the wire up to each time at which it is sampled before `end_ps`. */
static COLD STATUS split(clusim_sim *s, window_progress *g, int64_t end_ps) {
    while (g->sample_ps < end_ps) {
        TRY(take_in(s, g, g->sample_ps));
        window_sample(s, g);
    }
    return CLUSIM_OK;
}

/* Time of the wire's next possible action; NEVER if it depends on events not yet known. */
static inline int64_t next_look(const clusim_sim *s, const window_progress *g) {
    const wire_state *w = g->w;
    int64_t more_ps = base_min(g->arrival->at_ps, w->soonest);
    if (UNLIKELY(w->stalled)) return base_min(more_ps, window_credit_at(s, w));
    return base_max(w->free_at, w->num_ready ? 0 : more_ps);
}

/* Grant the packet of the only flow that could send, without making it a candidate; not if credit
 * is short. */
static inline STATUS send(clusim_sim *s, window_progress *g, int64_t now_ps, bool *sent) {
    wire_state *w = g->w;
    const flow_cursor *f = &w->flows[w->waits[w->first_wait].slot];
    *sent = grant_credit(&w->credits[f->vc], f->wire_bytes, now_ps);
    if (UNLIKELY(!*sent)) return CLUSIM_OK;
    uint32_t slot = inject_end_wait(w);
    window_take_owed(s, g, now_ps);
    s->scheduler.now_ps = now_ps;
    packet_id index;
    TRY(inject_make(s, w, g->wire, slot, &index));
    TRY(window_put(s, g, index));
    TRY(inject_granted(s, w, g->wire, slot, true));
    window_granted(s, w, w->num_voqs + slot);
    return CLUSIM_OK;
}

/* Grant the pending packet if it is the only one and has credit. */
static inline STATUS send_alone(clusim_sim *s, window_progress *g, int64_t now_ps, bool *sent) {
    const wire_state *w = g->w;
    bool flow = w->soonest <= now_ps, came = g->arrival->at_ps <= now_ps;
    *sent = false;
    if (w->num_ready || flow == came) return CLUSIM_OK;
    if (flow) {
        bool more = w->num_waits > 1 && w->waits[w->first_wait + 1].at_ps <= now_ps;
        return more ? CLUSIM_OK : send(s, g, now_ps, sent);
    }
    bool more = g->arrival[1].at_ps <= now_ps || packet_none(g->arrival->packet);
    return more ? CLUSIM_OK : window_pass_on(s, g, now_ps, sent);
}

static inline STATUS run_wire(clusim_sim *s, window_node *n, wire_id wire, int64_t end_ps,
                              bool *more) {
    window_progress g;
    const window_endpoint *e = end_of(s, n);
    TRY(window_begin(s, wire, &g));
    for (;;) {
        int64_t now_ps = next_look(s, &g);
        if (now_ps >= end_ps) break;
        if (UNLIKELY(g.sample_ps < now_ps)) TRY(split(s, &g, now_ps));
        bool sent;
        TRY(send_alone(s, &g, now_ps, &sent));
        if (UNLIKELY(!sent)) {
            TRY(take_in(s, &g, now_ps));
            if (g.w->num_ready) TRY(window_grant(s, &g, true));
        }
        if (UNLIKELY(next_start(e) < end_ps)) TRY(start_all(s, end_of(s, n), end_ps));
    }
    if (UNLIKELY(g.sample_ps < end_ps)) TRY(split(s, &g, end_ps));
    TRY(take_in(s, &g, end_ps - 1));
    TRY(window_wire_finish(s, &g, wire));
    *more = g.w->num_ready || g.w->soonest != NEVER;
    if (*more) inbox_due(s, next_look(s, &g));
    return CLUSIM_OK;
}

/* ---- memory ------------------------------------------------------------------------------------
 */

/* From here on, the memory clock or byte count may approach the end of its range; one window adds
 * less (model_windows.c). */
enum { NEAR_BITS = 61 };

/* At equal times, deliveries precede grants, in order of their wires. */
static STATUS use_memory(clusim_sim *s, endpoint_id endpoint) {
    window_scratch *d = &s->windows.scratch;
    window_arrival *all = d->work;
    TRY(window_wire_sort(s, &all, d->num_work));
    if (UNLIKELY(s->samples.turn < s->samples.next[SAMPLES_WINDOWS]))
        memory_sample(s, endpoint, all, d->num_work);
    uint32_t delivered = memory_work_off(s, endpoint, all, d->num_work);
    d->num_work = 0;
    TRY(node_deliver(s, endpoint, all, delivered));
    const endpoint_state *state = endpoint_at(s, endpoint);
    if (UNLIKELY(state->memory.ps >> NEAR_BITS || state->mem_bytes_256 >> NEAR_BITS))
        s->windows.near_end = true;
    return CLUSIM_OK;
}

/* ---- a window ----------------------------------------------------------------------------------
 */

/* Save the host's memory requests while its router is processed, ... */
static void put_aside(window_scratch *d) {
    window_arrival *asked = d->work;
    uint32_t size = d->size_work;
    d->work = d->sent;
    d->size_work = d->size_sent;
    d->sent = asked;
    d->size_sent = size;
    d->num_sent = d->num_work;
    d->num_work = 0;
}

/* ... and append them to the deliveries of the same time. */
static STATUS bring_back(clusim_sim *s) {
    window_scratch *d = &s->windows.scratch;
    for (uint32_t k = 0; k < d->num_sent; k++) TRY(inbox_work(s, d->sent[k]));
    d->num_sent = 0;
    return CLUSIM_OK;
}

/* Record the endpoint's remaining work. */
static inline void note_left(clusim_sim *s, window_node *n, const window_endpoint *e) {
    int64_t start_ps = next_start(e);
    if (start_ps != NEVER) inbox_due(s, start_ps);
    n->listed = !wire_none(n->first[INBOXES]) || !wire_none(n->first[ACTIVE]) ||
                start_ps != NEVER || inbox_len(&e->replies[0]) || inbox_len(&e->replies[1]);
}

STATUS window_endpoint_run(clusim_sim *s, window_node *n, enum window_side side, int64_t end_ps) {
    window_endpoint *e = end_of(s, n);
    if (side != WINDOW_TAKES) TRY(start_all(s, e, end_ps));
    if (side != WINDOW_SENDS) {
        TRY(window_walk(s, n, INBOXES, gather, end_ps));
        TRY(answer(s, n, &e->replies[0], end_ps));
        TRY(answer(s, n, &e->replies[1], end_ps));
    }
    if (side != WINDOW_TAKES) TRY(window_walk(s, n, ACTIVE, run_wire, end_ps));
    s->windows.scratch.num_queued = 0;
    if (side == WINDOW_SENDS) {
        put_aside(&s->windows.scratch);
        return CLUSIM_OK;
    }
    if (side == WINDOW_TAKES) TRY(bring_back(s));
    if (s->windows.scratch.num_work) TRY(use_memory(s, n->endpoint));
    note_left(s, n, e);
    return CLUSIM_OK;
}

/* True if at least `count` packets are on their last wire: on the listed wires into endpoints. */
static bool arriving(const clusim_sim *s, uint64_t count) {
    uint64_t found = 0;
    for (uint64_t e = 0; e < s->model->image.num_endpoints && found < count; e++) {
        uint32_t node = s->model->image.endpoints[e].node;
        wire_id wire = s->windows.nodes[node].first[INBOXES];
        for (; !wire_none(wire); wire = s->windows.ins[wire.i].next)
            found += inbox_len(&s->windows.ins[wire.i].under_way);
    }
    return found >= count;
}

/* True if an awaited packet still has to cross to another router than the one that it is at or
 * heading for: its hop between them is longer than a window. */
static bool some_far(const clusim_sim *s) {
    for (uint32_t w = 0; w < s->model->image.num_wires; w++) {
        const window_ring *ring = &s->windows.ins[w].under_way;
        const window_node *node = &s->windows.nodes[end_at(s, ID(wire, w))->node.i];
        if (node_none(node->end)) continue;
        endpoint_id here = s->windows.nodes[node->end.i].endpoint;
        for (uint32_t k = 0; k < inbox_len(ring); k++) {
            packet_id index = inbox_entry(ring, k)->packet;
            const packet *p = packet_at(s, batch_member(index) ? batch_op(s, index) : index);
            const xfer *x = xfer_at(s, p->xfer);
            if (xfer_awaited(x) && !target_is(x->dst, model_target(here))) return true;
        }
    }
    return false;
}

/* Lower bound on the time until the last packet that is yet to be granted has left. */
static int64_t least_left(const clusim_sim *s, const xfer *x) {
    int64_t least = NEVER;
    for (uint32_t k = 0; k < x->group_size; k++) {
        const wire_state *w = wire_at(s, ID(wire, x->group[k]));
        uint32_t bytes = w->flows[x->slot].full_bytes;
        uint64_t occupancy = model_occupancy(w->rate->format, x->kind, bytes);
        least = base_min(least, model_est(w->rate, occupancy) - 1);
    }
    return (int64_t)((x->ungranted - 1) / x->group_size) * least;
}

/* True if ungranted packets of an instance's transfer, or its responses, end after `end_ps`. */
static bool keeps_sending(const clusim_sim *s, inst_id id, int64_t end_ps) {
    const inst_state *st = inst_at(s, id);
    if (xfer_none(st->xfer)) return false;
    const xfer *x = xfer_at(s, st->xfer);
    bool its_own = x->owner_kind == OWNER_INSTANCE && inst_is(x->inst, id); /* still there */
    if (!its_own || x->ungranted == 0) return false;
    if (xfer_awaited(x)) return true; /* responses arrive later */
    return s->windows.due_ps + least_left(s, x) >= end_ps;
}

/* True if the remaining work of an instance cannot end before `end_ps`. */
static bool keeps_going(clusim_sim *s, inst_id id, int64_t end_ps) {
    const inst_state *st = inst_at(s, id);
    if (st->phase == PH_GATE && st->has_slice) return true; /* its fixed time is still due */
    if (st->phase == PH_FIXED && st->start_ps >= end_ps) return true;
    if (st->phase < PH_FIXED || st->phase > PH_FENCE) return false;
    if (!slices_last(s, id)) return true; /* so is that of the next slice */
    return st->phase != PH_FIXED && keeps_sending(s, id, end_ps);
}

static bool programs_go_on(clusim_sim *s, int64_t end_ps) {
    uint32_t count = (uint32_t)s->model->image.num_instances, at = s->windows.witness.i;
    for (uint32_t k = 0; k < count; k++, at++) {
        if (at >= count) at = 0;
        if (!keeps_going(s, ID(inst, at), end_ps)) continue;
        s->windows.witness = ID(inst, at);
        return true;
    }
    return false;
}

bool window_endpoint_goes_on(clusim_sim *s, int64_t end_ps) {
    return s->windows.undelivered > s->packets.live || programs_go_on(s, end_ps);
}

bool window_endpoint_near(const clusim_sim *s) {
    if (s->model->has_pairs) return !some_far(s);
    return arriving(s, s->windows.undelivered);
}

static STATUS close_replies(clusim_sim *s, window_ring *replies) {
    for (uint32_t k = 0; k < inbox_len(replies); k++) {
        window_packet *p = inbox_entry(replies, k);
        TRY(batch_restore(s, &p->packet));
        uint32_t wire = packet_at(s, p->packet)->in_wire.i;
        TRY(scheduler_event(s, p->at_ps, EV_RESPOND, wire, p->packet.i));
    }
    replies->head = replies->end;
    return CLUSIM_OK;
}

static STATUS close_end(clusim_sim *s, window_endpoint *e) {
    for (uint32_t k = e->first_start; k < e->end_start; k++) {
        const window_start *x = &e->starts[k];
        if (x->cause == START_SLICE) {
            TRY(scheduler_event(s, x->at_ps, EV_READY, 0, x->id));
        } else {
            TRY(scheduler_event(s, x->at_ps, EV_SOURCE, x->cause == START_AFTER, x->id));
        }
    }
    e->first_start = e->end_start = 0;
    TRY(close_replies(s, &e->replies[0]));
    return close_replies(s, &e->replies[1]);
}

STATUS window_endpoint_close(clusim_sim *s) {
    for (uint32_t k = 0; k < s->model->image.num_endpoints; k++)
        TRY(close_end(s, &s->windows.ends[k]));
    return CLUSIM_OK;
}
