#include "node.h"

#include "aggregate.h"
#include "batch.h"
#include "congestion.h"
#include "inbox.h"
#include "inject.h"
#include "lines.h"
#include "memory.h"
#include "notice.h"
#include "order.h"
#include "parts/endpoints.h"
#include "parts/packets.h"
#include "parts/scheduler.h"
#include "parts/units.h"
#include "parts/windows.h"
#include "parts/wires.h"
#include "parts/xfers.h"
#include "pool.h"
#include "route.h"
#include "scheduler.h"
#include "spread.h"
#include "tree.h"
#include "unit.h"
#include "wire.h"

/* ---- forwarding ------------------------------------------------------------------------------ */

static STATUS forward(clusim_sim *s, packet_id index, wire_id from) {
    uint32_t candidate = node_aim(s, packet_at(s, index), from);
    return wire_enqueue_marked(s, index, candidate);
}

/* A multicast write at its switch: one copy per member, all sharing the input buffer. */
static STATUS fan_out(clusim_sim *s, packet_id index, wire_id from) {
    const clusim_image *im = &s->model->image;
    model_span span = model_members(im, xfer_at(s, packet_at(s, index)->xfer)->mgroup);
    uint32_t candidate = end_at(s, from)->in_queue + packet_at(s, index)->vc;
    buffer_id shared;
    TRY(pool_buffer(s, &shared));
    packet original = *packet_at(s, index);
    wire_hold(&original, from);
    *buffer_at(s, shared) = (shared_buffer){.copies = span.hi - span.lo,
                                            .wire = from,
                                            .bytes = original.held_bytes,
                                            .vc = original.held_vc};
    original.copy = 1;
    original.shared = shared;
    for (uint32_t k = span.lo; k < span.hi; k++) {
        packet_id copy = index;
        if (k != span.lo) TRY(pool_packet(s, &copy));
        packet *p = packet_at(s, copy);
        *p = original;
        p->dst = ID(target, im->mgroup_members[k]);
        route_prepare(s, p, from, route_choose(s, p, from, p->dst));
        TRY(wire_enqueue_marked(s, copy, candidate));
    }
    return CLUSIM_OK;
}

/* ---- delivery -------------------------------------------------------------------------------- */

/* Remember the wire of the packet with the greatest time; the lowest of several. */
static void note_last(xfer *x, wire_id wire, int64_t time, int64_t greatest) {
    if (time > greatest || (time == greatest && wire.i < x->last_wire.i)) x->last_wire = wire;
}

STATUS node_delivered(clusim_sim *s, xfer_id id, uint32_t payload, int64_t visible, wire_id from) {
    xfer *x = xfer_at(s, id);
    x->delivered += payload;
    s->windows.undelivered -= xfer_awaited(x);
    if (!xfer_stores(x)) note_last(x, from, visible, x->visible);
    x->visible = base_max(x->visible, visible);
    if (--x->remaining == 0) TRY(scheduler_event(s, x->visible, EV_COMPLETE, 0, id.i));
    return CLUSIM_OK;
}

/* Deliveries to several endpoints cannot be counted by one thread. */
static inline STATUS count_delivery(clusim_sim *s, const packet *p, int64_t visible, wire_id from) {
    uint32_t several = 1u << XFER_MCAST | 1u << XFER_REDUCE_MCAST;
    if (UNLIKELY(s->windows.thread != NULL) && (several >> xfer_at(s, p->xfer)->type & 1))
        return inbox_delivery(s, from, p->xfer, p->payload, visible);
    return node_delivered(s, p->xfer, p->payload, visible, from);
}

/* Endpoints that work in windows keep their answers themselves. */
ALWAYS_INLINE STATUS answers(clusim_sim *s, wire_id from, window_packet taken, int64_t latency_ps) {
    const wire_state *w = wire_at(s, from);
    if (w->traits & TO_PLAIN) return inbox_reply(s, w->far_endpoint, taken, latency_ps);
    return scheduler_event(s, taken.at_ps + latency_ps, EV_RESPOND, from.i, taken.packet.i);
}

static bool responds(const packet *p) {
    return p->kind == CLUSIM_KIND_READ_RESP || p->kind == CLUSIM_KIND_RED_RESULT ||
           p->kind == CLUSIM_KIND_AGG_DOWN;
}

static bool requests(const packet *p) {
    return p->kind == CLUSIM_KIND_READ_REQ || p->kind == CLUSIM_KIND_RED_FETCH;
}

/* Memory accepts a packet at `at`. */
ALWAYS_INLINE STATUS accept(clusim_sim *s, packet_id index, const clusim_endpoint *e, int64_t at) {
    packet *p = batch_at(s, index);
    wire_id from = p->out;
    TRY(wire_return_credit(s, from, p->vc, p->wire_bytes, at));
    if (requests(p)) {
        if (!p->batch) p->in_wire = from;
        return answers(s, from, (window_packet){at, index, 0}, e->read_latency_ps);
    }
    if (p->kind == CLUSIM_KIND_RED_RESULT && xfer_at(s, p->xfer)->type == XFER_REDUCE_MCAST) {
        p->in_wire = from;
        return answers(s, from, (window_packet){at, index, 0}, e->response_latency_ps);
    }
    bool write = p->kind != CLUSIM_KIND_READ_RESP && p->kind != CLUSIM_KIND_RED_RESULT;
    int64_t visible = at + (write ? e->write_latency_ps : e->response_latency_ps);
    TRY(count_delivery(s, p, visible, from));
    pool_free_packet(s, index);
    return CLUSIM_OK;
}

/* Memory accepts a packet that was kept, now. */
static STATUS accept_kept(clusim_sim *s, packet_id index) {
    const packet *p = packet_at(s, index);
    endpoint_id endpoint = wire_at(s, p->out)->far_endpoint;
    const clusim_endpoint *e = &s->model->image.endpoints[endpoint.i];
    int64_t at = memory_access(s, endpoint, p->payload * (uint64_t)e->deliver_256);
    TRY(node_delivered(s, p->xfer, p->payload, at + e->write_latency_ps, p->out));
    pool_free_packet(s, index);
    return CLUSIM_OK;
}

/* A trimmed packet ends at its receiver. */
static STATUS take_header(clusim_sim *s, packet_id index, wire_id from) {
    const packet *p = packet_at(s, index);
    xfer_id id = p->xfer;
    TRY(wire_return_credit(s, from, p->vc, p->wire_bytes, s->scheduler.now_ps));
    TRY(order_trimmed(s, p));
    TRY(notice_trimmed(s, p));
    pool_free_packet(s, index);
    lines_forget(s, id);
    return CLUSIM_OK;
}

/* Accept the expected packet and kept packets that follow it. */
static STATUS deliver_in_order(clusim_sim *s, packet_id index, wire_id from) {
    packet *p = packet_at(s, index);
    xfer_id id = p->xfer;
    if (UNLIKELY(p->kind == CLUSIM_KIND_TRIMMED)) return take_header(s, index, from);
    if (spread_of(s, xfer_at(s, id))->timeout_ps) p->acknowledged &= order_takes(s, p);
    if (UNLIKELY(p->marked || p->acknowledged)) TRY(notice_delivered(s, p));
    notice_forget_hops(s, p);
    pair_id pair = order_pair_of(s, p);
    if (order_arrived(s, p)) {
        TRY(wire_return_credit(s, from, p->vc, p->wire_bytes, s->scheduler.now_ps));
        TRY(order_early(s, index));
    } else {
        endpoint_id endpoint = wire_at(s, from)->far_endpoint;
        const clusim_endpoint *e = &s->model->image.endpoints[endpoint.i];
        int64_t at = memory_access(s, endpoint, p->payload * (uint64_t)e->deliver_256);
        TRY(accept(s, index, e, at));
        for (;;) {
            TRY(order_next(s, pair, &index));
            if (packet_none(index)) break;
            TRY(accept_kept(s, index));
        }
    }
    lines_forget(s, id);
    return CLUSIM_OK;
}

static STATUS deliver(clusim_sim *s, packet_id index, wire_id from) {
    packet *p = packet_at(s, index);
    if (UNLIKELY(p->ordered)) return deliver_in_order(s, index, from);
    endpoint_id endpoint = wire_at(s, from)->far_endpoint;
    const clusim_endpoint *e = &s->model->image.endpoints[endpoint.i];
    uint64_t factor = requests(p) ? e->read_256 : e->deliver_256;
    int64_t at = memory_access(s, endpoint, p->payload * factor);
    if (responds(p)) TRY(inject_response(s, p));
    if (UNLIKELY(p->marked || p->acknowledged) && !requests(p)) TRY(notice_delivered(s, p));
    return accept(s, index, e, at);
}

enum { AHEAD = 4 }; /* packets prefetched before use */

STATUS node_deliver(clusim_sim *s, endpoint_id endpoint, const window_arrival *all,
                    uint32_t count) {
    const clusim_endpoint *e = &s->model->image.endpoints[endpoint.i];
    for (uint32_t k = 0; k < count; k++) {
        if (k + AHEAD < count) __builtin_prefetch(batch_at(s, all[k + AHEAD].packet), 1);
        TRY(accept(s, all[k].packet, e, all[k].at_ps));
    }
    return CLUSIM_OK;
}

STATUS node_copy(clusim_sim *s, packet_id index) {
    return fan_out(s, index, packet_at(s, index)->out);
}

/* It leaves over the wire back, or the first one of its path. */
uint32_t node_answer(clusim_sim *s, packet *p) {
    const xfer *x = xfer_at(s, p->xfer);
    wire_id from = p->in_wire;
    uint32_t candidate = end_at(s, from)->in_queue + p->vc;
    wire_id out = end_at(s, from)->reverse;
    uint32_t vc = x->vc_response;
    p->held_wire = NO(wire);
    p->path_pos = NONE;
    p->marked = 0;
    if (p->kind == CLUSIM_KIND_READ_REQ) {
        p->kind = CLUSIM_KIND_READ_RESP;
        p->dst = model_target(x->endpoint);
        if (!path_none(x->path_back)) {
            uint32_t at = s->model->image.path_off[x->path_back.i];
            out = ID(wire, s->model->image.path_wires[at]);
            p->path_pos = at + 1;
        }
    } else if (p->kind == CLUSIM_KIND_RED_FETCH) {
        p->kind = CLUSIM_KIND_RED_DATA;
        p->dst = NO(target);
    } else {
        p->kind = CLUSIM_KIND_MCAST;
        p->dst = NO(target);
        p->copy = 0;
        vc = x->vc;
    }
    route_restart(s, p, out, vc);
    return candidate;
}

STATUS node_respond(clusim_sim *s, packet_id index) {
    return wire_enqueue(s, index, node_answer(s, packet_at(s, index)));
}

/* Link a packet into a list sorted by the id of its incoming wire, after its equals. */
static void insert_by_wire(clusim_sim *s, packet_id *list, packet_id index) {
    packet_id *link = list;
    while (!packet_none(*link) && packet_at(s, *link)->out.i <= packet_at(s, index)->out.i) {
        link = next_of(s, *link);
    }
    *next_of(s, index) = *link;
    *link = index;
}

/* A packet ends at this node: handle it when all of the timestamp have arrived, by wire id. */
static STATUS defer(clusim_sim *s, packet_id index, node_id node, packet_id *list) {
    if (packet_none(*list)) TRY(node_push(&s->scheduler.deferred, node));
    insert_by_wire(s, list, index);
    return CLUSIM_OK;
}

static STATUS consume(clusim_sim *s, packet_id index, wire_id from) {
    uint32_t kind = batch_at(s, index)->kind;
    if (kind == CLUSIM_KIND_RED_REQ) return unit_request(s, index, from);
    if (kind == CLUSIM_KIND_RED_DATA) return unit_data(s, index, from);
    if (kind == CLUSIM_KIND_AGG_UP) return aggregate_up(s, index);
    return deliver(s, index, from);
}

STATUS node_reduce(clusim_sim *s, packet_id index) {
    return consume(s, index, batch_at(s, index)->out);
}

STATUS node_settle(clusim_sim *s) {
    const clusim_image *im = &s->model->image;
    for (uint32_t i = 0; i < s->scheduler.deferred.len; i++) {
        const clusim_node *node = &im->nodes[s->scheduler.deferred.ids[i].i];
        packet_id *list = node->endpoint == NONE
                              ? &unit_at(s, ID(unit, node->unit))->deferred
                              : &endpoint_at(s, ID(endpoint, node->endpoint))->deferred;
        packet_id index = *list;
        *list = NO(packet);
        while (!packet_none(index)) {
            packet_id next = *next_of(s, index);
            TRY(consume(s, index, packet_at(s, index)->out));
            index = next;
        }
    }
    s->scheduler.deferred.len = 0;
    return CLUSIM_OK;
}

static bool ends_at_unit(const packet *p, bool ends) {
    if (p->kind == CLUSIM_KIND_AGG_UP) return ends;
    return p->kind == CLUSIM_KIND_RED_REQ || p->kind == CLUSIM_KIND_RED_DATA;
}

/* The packet ends here: at an endpoint, or in a reduction unit. */
static STATUS take_in(clusim_sim *s, packet_id index, wire_id from, packet_id *list) {
    if (UNLIKELY(s->model->is_ordered))
        return consume(s, index, from); /* events arrive in the contract's order */
    return defer(s, index, end_at(s, from)->node, list);
}

STATUS node_arrive(clusim_sim *s, packet_id index) {
    packet *p = packet_at(s, index);
    wire_id from = p->out;
    const wire_state *w = wire_at(s, from);
    wire_id reverse = end_at(s, from)->reverse;
    if (!wire_none(reverse)) {
        wire_state *back = wire_at(s, reverse);
        uint64_t control = (uint64_t)p->exact * w->rate->format->control_256[p->kind];
        if (control | back->owed_256) wire_owe(s, back, control);
    }
    if (UNLIKELY(w->traits & PAUSES)) TRY(congestion_held(s, from, p));
    bool ends =
        p->kind >= CLUSIM_KIND_AGG_UP && p->kind != CLUSIM_KIND_TRIMMED && tree_at_end(s, p);
    if (!endpoint_none(w->far_endpoint) && target_is(model_target(w->far_endpoint), p->dst))
        return take_in(s, index, from, &endpoint_at(s, w->far_endpoint)->deferred);
    if (ends_at_unit(p, ends))
        return take_in(s, index, from, &unit_at(s, info_at(s, from)->dst_unit)->deferred);
    if (p->kind == CLUSIM_KIND_MCAST && !p->copy) return fan_out(s, index, from);
    if (UNLIKELY(ends)) return aggregate_down(s, index, from);
    return forward(s, index, from);
}
