#include "inject.h"

#include <string.h>

#include "agenda.h"
#include "congestion.h"
#include "inbox.h"
#include "memory.h"
#include "parts/agenda.h"
#include "parts/congestion.h"
#include "parts/packets.h"
#include "parts/programs.h"
#include "parts/wires.h"
#include "parts/xfers.h"
#include "pool.h"
#include "route.h"
#include "tree.h"

static inline uint32_t packet_number(const xfer *x, const flow_cursor *c) {
    return x->policy == CLUSIM_POLICY_ADAPTIVE ? x->adaptive_next : c->next;
}

static inline uint32_t payload_of(const xfer *x, uint32_t i) {
    if (LIKELY(i + 1 < x->count)) return x->full;
    return (uint32_t)(x->bytes - (uint64_t)i * x->full);
}

/* Route key of packet i: what is left of its number after the choice of the first wire. */
static uint32_t key_of(const xfer *x, uint32_t i) {
    if (x->policy == CLUSIM_POLICY_STRIPE) return (x->stripe + i) / x->group_size;
    return x->policy == CLUSIM_POLICY_PINNED ? x->stripe / x->group_size : x->stripe + i;
}

STATUS inject_make(clusim_sim *s, wire_id wire, uint32_t slot, packet_id *out) {
    packet_id index;
    TRY(pool_packet(s, &index));
    const flow_cursor *c = &wire_at(s, wire)->flows[slot];
    const xfer *x = xfer_at(s, c->xfer);
    packet *p = packet_at(s, index);
    uint32_t i = packet_number(x, c);
    p->xfer = c->xfer;
    p->key = key_of(x, i);
    p->payload = payload_of(x, i);
    p->exact = model_exact(wire_at(s, wire)->rate->format, x->kind, p->payload, x->limit);
    p->out = wire;
    p->kind = x->kind;
    p->wire_bytes = c->wire_bytes;
    p->held_wire = NO(wire);
    p->dst = x->dst;
    p->leg = LEG_LAST;
    bool first = !target_none(x->via_first);
    if (UNLIKELY(first || !target_none(x->via_last))) {
        p->leg = first ? LEG_FIRST : LEG_SECOND;
        p->dst = first ? x->via_first : x->via_last;
    }
    p->shared = NO(buffer);
    p->path_pos = path_none(x->path) ? NONE : s->model->image.path_off[x->path.i] + 1;
    p->first_wire = wire;
    if (UNLIKELY(x->kind == CLUSIM_KIND_AGG_UP)) p->vertex = x->vertex;
    p->first_vc = x->vc;
    p->vc = (uint8_t)c->vc;
    p->copy = 0;
    p->adaptive = x->policy == CLUSIM_POLICY_ADAPTIVE;
    p->marked = 0;
    *out = index;
    return CLUSIM_OK;
}

static inline int64_t avail_of(const xfer *x, uint32_t i) {
    base_u128 work = (base_u128)((uint64_t)i * x->full) * x->cost16;
    return x->start_ps + (int64_t)(uint64_t)(work >> 16);
}

static uint32_t wire_bytes_of(const clusim_sim *s, wire_id wire, const xfer *x, uint32_t i) {
    const clusim_format *f = wire_at(s, wire)->rate->format;
    uint32_t payload = payload_of(x, i);
    uint32_t exact = model_exact(f, x->kind, payload, x->limit);
    return model_wire_bytes(f, x->kind, payload, exact, x->limit);
}

static bool window_open(const xfer *x, const flow_cursor *c) {
    return x->window == 0 ||
           (x->policy == CLUSIM_POLICY_ADAPTIVE ? x->outstanding : c->outstanding) < x->window;
}

/* A flow no longer waits for its pace. */
static void leave_waits(wire_state *w, uint32_t slot) {
    uint32_t k = 0;
    if (!w->flows[slot].waits) return;
    w->flows[slot].waits = 0;
    while (w->waits[k].slot != slot) k++;
    w->num_waits--;
    for (; k < w->num_waits; k++) w->waits[k] = w->waits[k + 1];
    w->soonest = w->num_waits ? w->waits[0].at_ps : NEVER;
}

/* A flow waits until its next packet is available: behind most others, as they send in turns. */
static void enter_waits(wire_state *w, uint32_t slot) {
    flow_cursor *c = &w->flows[slot];
    leave_waits(w, slot);
    uint32_t k = w->num_waits++;
    for (; k > 0 && w->waits[k - 1].at_ps > c->avail; k--) w->waits[k] = w->waits[k - 1];
    w->waits[k] = (flow_wait){.at_ps = c->avail, .slot = slot};
    c->waits = 1;
    w->soonest = w->waits[0].at_ps;
}

/* Set the candidate bits of one (wire, slot) and what arbitration reads, from the cursor. */
static void update_candidate(clusim_sim *s, wire_id wire, uint32_t slot) {
    wire_state *w = wire_at(s, wire);
    flow_cursor *c = &w->flows[slot];
    const xfer *x = xfer_at(s, c->xfer);
    uint32_t i = packet_number(x, c);
    uint32_t bit = w->num_voqs + slot;
    uint64_t mask = UINT64_C(1) << (bit & 63);
    bool left = i < x->count, open = window_open(x, c);
    c->window_closed = left && !open;
    if (LIKELY(left && open)) {
        c->wire_bytes = LIKELY(i + 1 < x->count) ? c->full_bytes : wire_bytes_of(s, wire, x, i);
        c->avail = avail_of(x, i);
        if (UNLIKELY(!flow_none(x->flow)))
            c->avail = base_max(c->avail, flow_at(s, x->flow)->next_at);
        if (LIKELY(c->avail <= s->agenda.now_ps)) {
            w->num_ready += (w->ready[bit >> 6] & mask) == 0;
            w->ready[bit >> 6] |= mask;
            leave_waits(w, slot);
            return;
        }
        enter_waits(w, slot);
    } else {
        leave_waits(w, slot);
    }
    w->num_ready -= (w->ready[bit >> 6] & mask) != 0;
    w->ready[bit >> 6] &= ~mask;
}

static STATUS update_adaptive(clusim_sim *s, const xfer *x, wire_id except) {
    for (uint32_t k = 0; k < x->group_size; k++) {
        wire_id wire = ID(wire, x->group[k]);
        update_candidate(s, wire, x->slot);
        if (!wire_is(wire, except)) TRY(agenda_arbitrate(s, wire));
    }
    return CLUSIM_OK;
}

/* Remember the wire of the packet that ends last; the lowest of several. */
static inline void note_end(xfer *x, wire_id wire, int64_t end) {
    if (end < x->max_end || (end == x->max_end && wire.i >= x->last_wire.i)) return;
    x->max_end = end;
    if (x->type == XFER_WRITE || x->type == XFER_MCAST) x->last_wire = wire;
}

/* All of a transfer is on its way: a source may send its next message when the last packet has
 * left, a slice that writes is done then, or when its pace has it so. */
static STATUS tell_owner(clusim_sim *s, const xfer *x) {
    if (x->owner_kind == OWNER_SOURCE) {
        if (!inbox_leading(s)) return agenda_event(s, x->max_end, EV_SOURCE, 1, x->source.i);
        window_start start = {x->max_end, x->source.i, START_AFTER};
        return inbox_start(s, x->endpoint, start);
    }
    if (x->type != XFER_WRITE && x->type != XFER_MCAST) return CLUSIM_OK;
    inst_at(s, x->inst)->wire = x->last_wire;
    return agenda_event(s, base_max(x->max_end, x->pace_ps), EV_READY, 0, x->inst.i);
}

/* In a window, memory is asked when all wires are done. */
static inline STATUS read_memory(clusim_sim *s, wire_id wire, endpoint_id endpoint,
                                 uint32_t payload) {
    if (!(wire_at(s, wire)->traits & FROM_PLAIN)) {
        memory_inject(s, endpoint, payload);
        return CLUSIM_OK;
    }
    return inbox_access(s, endpoint, (window_arrival){s->agenda.now_ps, NO(packet), payload});
}

STATUS inject_grant(clusim_sim *s, wire_id wire, uint32_t slot, int64_t end) {
    flow_cursor *c = &wire_at(s, wire)->flows[slot];
    xfer_id xfer_index = c->xfer;
    xfer *x = xfer_at(s, xfer_index);
    uint32_t i = packet_number(x, c);
    if ((KINDS_INJECTED >> x->kind) & 1) TRY(read_memory(s, wire, x->endpoint, payload_of(x, i)));
    if (UNLIKELY(!flow_none(x->flow))) congestion_granted(s, x->flow, payload_of(x, i));
    note_end(x, wire, end);
    x->ungranted--;
    if (x->policy == CLUSIM_POLICY_ADAPTIVE) {
        x->adaptive_next++;
        x->outstanding++;
        TRY(update_adaptive(s, x, wire));
    } else {
        uint64_t next =
            (uint64_t)i + (LIKELY(x->policy == CLUSIM_POLICY_STRIPE) ? x->group_size : 1);
        c->next = next < x->count ? (uint32_t)next : x->count;
        c->outstanding++;
        update_candidate(s, wire, slot);
    }
    return x->ungranted ? CLUSIM_OK : tell_owner(s, x);
}

STATUS inject_response(clusim_sim *s, const packet *p) {
    xfer *x = xfer_at(s, p->xfer);
    if (x->window == 0) return CLUSIM_OK;
    if (x->policy == CLUSIM_POLICY_ADAPTIVE) {
        x->outstanding--;
        if (x->adaptive_next < x->count) TRY(update_adaptive(s, x, NO(wire)));
        return CLUSIM_OK;
    }
    wire_id wire = p->first_wire;
    if (UNLIKELY(p->kind == CLUSIM_KIND_AGG_DOWN)) wire = tree_first_wire(s, p->vertex);
    flow_cursor *c = &wire_at(s, wire)->flows[x->slot];
    c->outstanding--;
    if (c->window_closed) {
        update_candidate(s, wire, x->slot);
        TRY(agenda_arbitrate(s, wire));
    }
    return CLUSIM_OK;
}

void inject_opened(clusim_sim *s, wire_state *w, uint32_t slot) {
    flow_cursor *c = &w->flows[slot];
    c->outstanding--;
    if (c->window_closed) update_candidate(s, wire_of(s, w), slot);
}

void inject_admit(const clusim_sim *s, wire_state *w) {
    uint32_t due = 0;
    for (; due < w->num_waits && w->waits[due].at_ps <= s->agenda.now_ps; due++) {
        uint32_t bit = w->num_voqs + w->waits[due].slot;
        w->flows[w->waits[due].slot].waits = 0;
        w->num_ready += (w->ready[bit >> 6] >> (bit & 63) & 1) == 0;
        w->ready[bit >> 6] |= UINT64_C(1) << (bit & 63);
    }
    w->num_waits = (uint16_t)(w->num_waits - due);
    memmove(w->waits, w->waits + due, w->num_waits * sizeof *w->waits);
    w->soonest = w->num_waits ? w->waits[0].at_ps : NEVER;
}

/* The wires of the first hop: the group without wires that are down, unless all are. */
static STATUS choose_wires(clusim_sim *s, xfer *x, group_id first_group) {
    const clusim_model *m = s->model;
    if (!path_none(x->path)) {
        x->group = m->image.path_wires + m->image.path_off[x->path.i];
        x->group_size = 1;
        return CLUSIM_OK;
    }
    x->group = model_group(m, first_group);
    x->group_size = model_group_size(m, first_group);
    if (LIKELY(!s->wires.any_down)) return CLUSIM_OK;
    uint32_t up = 0;
    for (uint32_t k = 0; k < x->group_size; k++) up += !wire_at(s, ID(wire, x->group[k]))->down;
    if (up == 0 || up == x->group_size) return CLUSIM_OK;
    x->own_group = malloc(up * sizeof *x->own_group);
    if (x->own_group == NULL) {
        return CLUSIM_ERR_NO_MEMORY;
    }
    uint32_t n = 0;
    for (uint32_t k = 0; k < x->group_size; k++) {
        if (!wire_at(s, ID(wire, x->group[k]))->down) x->own_group[n++] = x->group[k];
    }
    x->group = x->own_group;
    x->group_size = n;
    return CLUSIM_OK;
}

/* In a window the wire has not come as far as the start of the transfer: its flow waits for it. */
static STATUS await_start(clusim_sim *s, wire_id wire, uint32_t slot) {
    wire_state *w = wire_at(s, wire);
    flow_cursor *c = &w->flows[slot];
    const xfer *x = xfer_at(s, c->xfer);
    c->window_closed = 0;
    c->wire_bytes = c->next + 1 < x->count ? c->full_bytes : wire_bytes_of(s, wire, x, c->next);
    c->avail = avail_of(x, c->next);
    enter_waits(w, slot);
    inbox_activate(s, wire);
    inbox_due(s, c->avail);
    return inbox_busy(s, info_at(s, wire)->src);
}

static STATUS start_cursor(clusim_sim *s, xfer_id xfer_index, wire_id wire, uint32_t first_packet) {
    const xfer *x = xfer_at(s, xfer_index);
    flow_cursor *c = &wire_at(s, wire)->flows[x->slot];
    const clusim_format *f = wire_at(s, wire)->rate->format;
    uint32_t exact = model_exact(f, x->kind, x->full, x->limit);
    c->full_bytes = model_wire_bytes(f, x->kind, x->full, exact, x->limit);
    c->vc = (uint16_t)route_first_vc(s, wire, x->vc);
    c->xfer = xfer_index;
    c->next = first_packet < x->count ? first_packet : x->count;
    c->outstanding = 0;
    if (wire_at(s, wire)->traits & FROM_PLAIN) return await_start(s, wire, x->slot);
    update_candidate(s, wire, x->slot);
    return agenda_arbitrate(s, wire);
}

STATUS inject_start(clusim_sim *s, xfer_id xfer_index, group_id first_group, uint32_t key_base,
                    uint32_t window_bytes) {
    xfer *x = xfer_at(s, xfer_index);
    x->start_ps = s->agenda.now_ps;
    x->max_end = 0;
    x->last_wire = NO(wire);
    x->stripe = key_base;
    x->ungranted = x->count;
    TRY(choose_wires(s, x, first_group));
    uint32_t n = x->group_size;
    if (window_bytes && x->type != XFER_WRITE && x->type != XFER_MCAST) {
        uint64_t per_wire = (uint64_t)x->full * (x->policy == CLUSIM_POLICY_STRIPE ? n : 1);
        x->window = (uint32_t)base_umax(1, window_bytes / per_wire);
    }
    if (x->policy == CLUSIM_POLICY_PINNED) {
        return start_cursor(s, xfer_index, ID(wire, x->group[key_base % n]), 0);
    }
    /* STRIPE: packet i leaves on wire (stripe + i) mod n. On wires without a packet nothing is left
     * of the flow's last transfer, all of which has been granted. */
    bool adaptive = x->policy == CLUSIM_POLICY_ADAPTIVE;
    uint32_t wires = adaptive || n < x->count ? n : x->count, k = key_base % n;
    for (uint32_t i = 0; i < wires; i++) {
        TRY(start_cursor(s, xfer_index, ID(wire, x->group[k]), adaptive ? 0 : i));
        if (++k == n) k = 0;
    }
    return CLUSIM_OK;
}
