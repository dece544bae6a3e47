#include "node.h"

#include "aggregate.h"
#include "congestion.h"
#include "inject.h"
#include "memory.h"
#include "unit.h"
#include "wire.h"

/* ---- routing --------------------------------------------------------------------------------- */

static uint32_t least_queued(const clusim_sim *s, const uint32_t *wires, uint32_t n,
                             bool skip_down) {
    uint32_t best = NONE;
    for (uint32_t k = 0; k < n; k++) {
        uint32_t w = wires[k];
        if (skip_down && s->wires[w].down) continue;
        uint64_t queued = s->wires[w].queued_bytes;
        if (best == NONE || queued < s->wires[best].queued_bytes ||
            (queued == s->wires[best].queued_bytes && w < best)) {
            best = w;
        }
    }
    return best;
}

/* The `number`-th wire of a group that is not down. */
static uint32_t nth_up(const clusim_sim *s, const uint32_t *wires, uint32_t number) {
    for (uint32_t k = 0;; k++) {
        if (!s->wires[wires[k]].down && number-- == 0) return wires[k];
    }
}

uint32_t node_route(clusim_sim *s, packet *p, uint32_t from, uint32_t endpoint) {
    const clusim_model *m = s->model;
    if (p->path_pos != NONE) return m->image.path_wires[p->path_pos++];
    uint32_t group = model_route(m, s->info[from].dst, endpoint);
    const uint32_t *wires = model_group(m, group);
    uint32_t n = model_group_size(m, group);
    if (n == 1) return wires[0];
    bool skip_down = false;
    uint32_t all = n;
    if (UNLIKELY(s->any_down)) {
        uint32_t up = 0;
        for (uint32_t k = 0; k < n; k++) up += !s->wires[wires[k]].down;
        skip_down = up > 0 && up < all;
        if (skip_down) n = up;
    }
    if (p->adaptive) return least_queued(s, wires, all, skip_down);
    if (n == 1) return nth_up(s, wires, 0);
    uint32_t number = (uint32_t)(((uint64_t)p->key + s->info[from].ordinal) % n);
    p->key /= n;
    return UNLIKELY(skip_down) ? nth_up(s, wires, number) : wires[number];
}

void node_next_target(const clusim_sim *s, packet *p, uint32_t node) {
    const xfer *x = &s->xfers[p->xfer];
    const clusim_target *targets = s->model->image.targets;
    while (p->leg != LEG_LAST && targets[p->dst].node == node) {
        bool second = p->leg == LEG_FIRST && x->via_last != NONE;
        p->leg = second ? LEG_SECOND : LEG_LAST;
        p->dst = second ? x->via_last : x->dst;
    }
}

static void set_wire_bytes(const clusim_sim *s, packet *p, uint32_t out) {
    const clusim_format *f = s->wires[out].rate->format;
    uint32_t limit = s->xfers[p->xfer].limit;
    p->out = out;
    p->exact = model_exact(f, p->kind, p->payload, limit);
    p->wire_bytes = model_wire_bytes(f, p->kind, p->payload, p->exact, limit);
}

void node_prepare(const clusim_sim *s, packet *p, uint32_t from, uint32_t out) {
    if (s->wires[out].rate->format == s->wires[from].rate->format) {
        p->out = out;
    } else {
        set_wire_bytes(s, p, out);
    }
    if (LIKELY(!s->model->has_dims)) return;
    const wire_info *a = &s->info[from], *b = &s->info[out];
    if (a->dim != b->dim) p->vc = p->first_vc;
    if (b->dateline) p->vc = (uint8_t)inject_first_vc(s, out, p->first_vc);
}

void node_restart(const clusim_sim *s, packet *p, uint32_t out, uint32_t vc) {
    set_wire_bytes(s, p, out);
    p->first_vc = (uint8_t)vc;
    p->vc = (uint8_t)inject_first_vc(s, out, vc);
}

/* ---- forwarding ------------------------------------------------------------------------------ */

static void forward(clusim_sim *s, uint32_t index, uint32_t from) {
    packet *p = &s->packets[index];
    node_hold(p, from);
    uint32_t candidate = s->wires[from].in_queue + p->vc;
    if (UNLIKELY(p->leg != LEG_LAST)) node_next_target(s, p, s->wires[from].far_node);
    bool fetched = p->kind == CLUSIM_KIND_FETCH && (s->wires[from].traits & BRIDGE);
    if (UNLIKELY(fetched)) p->kind = CLUSIM_KIND_WRITE;
    node_prepare(s, p, from, node_route(s, p, from, p->dst));
    if (UNLIKELY(fetched)) set_wire_bytes(s, p, p->out);
    node_enqueue(s, index, candidate);
}

/* A multicast write at its switch: one copy per member, all sharing the input buffer. */
static void fan_out(clusim_sim *s, uint32_t index, uint32_t from) {
    const clusim_image *im = &s->model->image;
    uint32_t group = s->xfers[s->packets[index].xfer].mgroup;
    uint32_t lo = im->mgroup_off[group], hi = im->mgroup_off[group + 1];
    uint32_t candidate = s->wires[from].in_queue + s->packets[index].vc;
    uint32_t shared = sim_pool_buffer(s);
    if (UNLIKELY(shared == NONE)) return;
    packet original = s->packets[index];
    node_hold(&original, from);
    s->buffers[shared] = (shared_buffer){
        .copies = hi - lo, .wire = from, .bytes = original.held_bytes, .vc = original.held_vc};
    original.copy = 1;
    original.ref = shared;
    for (uint32_t k = lo; k < hi; k++) {
        uint32_t copy = k == lo ? index : sim_pool_packet(s);
        if (UNLIKELY(copy == NONE)) return;
        packet *p = &s->packets[copy];
        *p = original;
        p->dst = im->mgroup_members[k];
        node_prepare(s, p, from, node_route(s, p, from, p->dst));
        node_enqueue(s, copy, candidate);
    }
}

/* ---- delivery -------------------------------------------------------------------------------- */

/* Remember the wire of the packet with the greatest time; the lowest of several. */
static void note_last(xfer *x, uint32_t wire, int64_t time, int64_t greatest) {
    if (time > greatest || (time == greatest && wire < x->last_wire)) x->last_wire = wire;
}

static void count_delivery(clusim_sim *s, const packet *p, int64_t visible, uint32_t from) {
    xfer *x = &s->xfers[p->xfer];
    x->delivered += p->payload;
    if (x->type != XFER_WRITE && x->type != XFER_MCAST) note_last(x, from, visible, x->visible);
    x->visible = base_max(x->visible, visible);
    if (--x->remaining == 0) sim_event(s, x->visible, EV_COMPLETE, 0, p->xfer);
}

static void accept_credit(clusim_sim *s, const packet *p, uint32_t from, int64_t at) {
    wire_return_credit(s, &s->wires[from], p->vc, p->wire_bytes, at);
}

static void deliver(clusim_sim *s, uint32_t index, uint32_t from) {
    packet *p = &s->packets[index];
    uint32_t endpoint = s->wires[from].far_endpoint;
    const clusim_endpoint *e = &s->model->image.endpoints[endpoint];
    bool request = p->kind == CLUSIM_KIND_READ_REQ || p->kind == CLUSIM_KIND_RED_FETCH;
    uint64_t factor = request ? e->read_256 : e->deliver_256;
    int64_t at = memory_access(s, endpoint, p->payload * factor);
    accept_credit(s, p, from, at);
    if (request) {
        p->in_wire = from;
        sim_event(s, at + e->read_latency_ps, EV_RESPOND, from, index);
        return;
    }
    if (p->kind == CLUSIM_KIND_READ_RESP || p->kind == CLUSIM_KIND_RED_RESULT ||
        p->kind == CLUSIM_KIND_AGG_DOWN)
        inject_response(s, p);
    if (UNLIKELY(p->marked)) congestion_notify(s, p);
    if (p->kind == CLUSIM_KIND_RED_RESULT && s->xfers[p->xfer].type == XFER_REDUCE_MCAST) {
        p->in_wire = from;
        sim_event(s, at + e->response_latency_ps, EV_RESPOND, from, index);
        return;
    }
    bool write = p->kind != CLUSIM_KIND_READ_RESP && p->kind != CLUSIM_KIND_RED_RESULT;
    int64_t visible = at + (write ? e->write_latency_ps : e->response_latency_ps);
    count_delivery(s, p, visible, from);
    sim_free_packet(s, index);
}

/* An endpoint's answer is ready: it leaves over the wire back, or the first one of its path. */
void node_respond(clusim_sim *s, uint32_t index) {
    packet *p = &s->packets[index];
    const xfer *x = &s->xfers[p->xfer];
    uint32_t from = p->in_wire;
    uint32_t candidate = s->wires[from].in_queue + p->vc;
    uint32_t out = s->wires[from].reverse;
    uint32_t vc = x->vc_response;
    p->held_wire = NONE;
    p->path_pos = NONE;
    p->marked = 0;
    if (p->kind == CLUSIM_KIND_READ_REQ) {
        p->kind = CLUSIM_KIND_READ_RESP;
        p->dst = x->back;
        if (x->path_back != NONE) {
            uint32_t at = s->model->image.path_off[x->path_back];
            out = s->model->image.path_wires[at];
            p->path_pos = at + 1;
        }
    } else if (p->kind == CLUSIM_KIND_RED_FETCH) {
        p->kind = CLUSIM_KIND_RED_DATA;
        p->dst = NONE;
    } else {
        p->kind = CLUSIM_KIND_MCAST;
        p->dst = NONE;
        p->copy = 0;
        vc = x->vc;
    }
    node_restart(s, p, out, vc);
    wire_enqueue(s, index, candidate);
}

/* Link a packet into a list by the id of the wire it came over, behind its equals. */
static void insert_by_wire(clusim_sim *s, uint32_t *list, uint32_t index) {
    uint32_t *link = list;
    while (*link != NONE && s->packets[*link].out <= s->packets[index].out) {
        link = &s->packets[*link].next;
    }
    s->packets[index].next = *link;
    *link = index;
}

/* A packet ends at this node: handle it when all of the timestamp have arrived, by wire id. */
static void defer(clusim_sim *s, uint32_t index, uint32_t node, uint32_t *list) {
    if (*list == NONE) sim_pool_list(s, &s->deferred, node);
    insert_by_wire(s, list, index);
}

static void consume(clusim_sim *s, uint32_t index, uint32_t from) {
    uint32_t kind = s->packets[index].kind;
    if (kind == CLUSIM_KIND_RED_REQ) {
        unit_request(s, index, from);
    } else if (kind == CLUSIM_KIND_RED_DATA) {
        unit_data(s, index, from);
    } else if (kind == CLUSIM_KIND_AGG_UP) {
        aggregate_up(s, index);
    } else {
        deliver(s, index, from);
    }
}

void node_settle(clusim_sim *s) {
    const clusim_image *im = &s->model->image;
    for (uint32_t i = 0; i < s->deferred.len; i++) {
        const clusim_node *node = &im->nodes[s->deferred.ids[i]];
        uint32_t *list = node->endpoint == NONE ? &s->units[node->unit].deferred
                                                : &s->endpoints[node->endpoint].deferred;
        uint32_t index = *list;
        *list = NONE;
        while (index != NONE) {
            uint32_t next = s->packets[index].next;
            consume(s, index, s->packets[index].out);
            index = next;
        }
    }
    s->deferred.len = 0;
}

static bool ends_at_unit(const packet *p, bool ends) {
    if (p->kind == CLUSIM_KIND_AGG_UP) return ends;
    return p->kind == CLUSIM_KIND_RED_REQ || p->kind == CLUSIM_KIND_RED_DATA;
}

/* The packet ends here: at an endpoint, or in a reduction unit. */
static void take_in(clusim_sim *s, uint32_t index, uint32_t from, uint32_t *list) {
    if (UNLIKELY(s->model->is_ordered)) {
        consume(s, index, from); /* events come in the contract's order */
    } else {
        defer(s, index, s->wires[from].far_node, list);
    }
}

void node_arrive(clusim_sim *s, uint32_t index) {
    packet *p = &s->packets[index];
    uint32_t from = p->out;
    const wire_state *w = &s->wires[from];
    if (w->reverse != NONE) {
        wire_state *back = &s->wires[w->reverse];
        uint64_t control = (uint64_t)p->exact * w->rate->format->control_256[p->kind];
        if (control | back->owed_256) wire_owe(s, back, control);
    }
    if (UNLIKELY(w->traits & PAUSES)) congestion_held(s, from, p);
    bool ends = p->kind >= CLUSIM_KIND_AGG_UP && aggregate_at_end(s, p);
    if (w->far_endpoint != NONE && w->far_endpoint == p->dst) {
        take_in(s, index, from, &s->endpoints[w->far_endpoint].deferred);
    } else if (ends_at_unit(p, ends)) {
        take_in(s, index, from, &s->units[s->info[from].dst_unit].deferred);
    } else if (p->kind == CLUSIM_KIND_MCAST && !p->copy) {
        fan_out(s, index, from);
    } else if (UNLIKELY(ends)) {
        aggregate_down(s, index, from);
    } else {
        forward(s, index, from);
    }
}
