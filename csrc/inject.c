#include "inject.h"

#include <string.h>

#include "congestion.h"
#include "inbox.h"
#include "lines.h"
#include "memory.h"
#include "parts/congestion.h"
#include "parts/packets.h"
#include "parts/programs.h"
#include "parts/scheduler.h"
#include "parts/wires.h"
#include "parts/xfers.h"
#include "pool.h"
#include "route.h"
#include "scheduler.h"
#include "spread.h"
#include "tree.h"

/* Common fields of a transfer's packets. */
static packet make_like(const clusim_sim *s, const xfer *x, xfer_id id) {
    packet p = {.xfer = id,
                .held_wire = NO(wire),
                .dst = x->dst,
                .shared = NO(buffer),
                .path_pos = NONE,
                .kind = x->kind,
                .first_vc = x->vc,
                .adaptive = x->policy == CLUSIM_POLICY_ADAPTIVE,
                .leg = LEG_LAST};
    bool first = !target_none(x->via_first);
    if (first || !target_none(x->via_last)) {
        p.leg = first ? LEG_FIRST : LEG_SECOND;
        p.dst = first ? x->via_first : x->via_last;
    }
    const clusim_spread *spread = spread_of(s, x);
    if (UNLIKELY(spread != NULL)) {
        p.adaptive |= spread->gap_ps > 0;
        p.ordered = spread->ordered != 0;
        if (p.adaptive && spread->detour_lo < spread->detour_hi) {
            p.after = p.leg;
            p.leg = LEG_FREE;
        }
    }
    if (!path_none(x->path)) p.path_pos = s->model->image.path_off[x->path.i] + 1;
    if (x->kind == CLUSIM_KIND_AGG_UP) p.vertex = x->vertex;
    if (!flow_none(x->flow)) p.acknowledged = sender_acknowledged(s, x->flow);
    return p;
}

/* The next packet of a flow represents `payload` bytes. */
static void size_packet(const wire_state *w, flow_cursor *c, const xfer *x, uint64_t payload) {
    const clusim_format *f = w->rate->format;
    c->payload = (uint32_t)payload;
    c->exact = model_exact(f, x->kind, c->payload, x->limit);
    c->wire_bytes = model_wire_bytes(f, x->kind, c->payload, c->exact, x->limit);
}

void inject_last(const wire_state *w, flow_cursor *c, const xfer *x) {
    size_packet(w, c, x, x->bytes - (uint64_t)(x->count - 1) * x->full);
}

void inject_pack_waits(wire_state *w) {
    memmove(w->waits, w->waits + w->first_wait, w->num_waits * sizeof *w->waits);
    w->first_wait = 0;
}

/* A flow no longer waits for its pace. */
static void leave_waits(wire_state *w, uint32_t slot) {
    flow_wait *waits = w->waits + w->first_wait;
    uint32_t k = 0;
    if (!w->flows[slot].waits) return;
    w->flows[slot].waits = 0;
    while (waits[k].slot != slot) k++;
    w->num_waits--;
    for (; k < w->num_waits; k++) waits[k] = waits[k + 1];
    w->soonest = w->num_waits ? waits[0].at_ps : NEVER;
}

/* Set the candidate bits of one (wire, slot) and the arbitration fields from the cursor. */
static void update_candidate(clusim_sim *s, wire_id wire, uint32_t slot) {
    wire_state *w = wire_at(s, wire);
    flow_cursor *c = &w->flows[slot];
    const xfer *x = xfer_at(s, c->xfer);
    uint32_t i = inject_number(x, c);
    uint32_t bit = w->num_voqs + slot;
    uint64_t mask = UINT64_C(1) << (bit & 63);
    bool left = i < x->count, open = inject_open(x, c);
    leave_waits(w, slot);
    c->window_closed = left && !open;
    if (left && open) {
        inject_next(s, w, c, x, i);
        if (c->avail <= s->scheduler.now_ps) {
            w->num_ready += (w->ready[bit >> 6] & mask) == 0;
            w->ready[bit >> 6] |= mask;
            return;
        }
        inject_wait_for(w, c, slot);
    }
    w->num_ready -= (w->ready[bit >> 6] & mask) != 0;
    w->ready[bit >> 6] &= ~mask;
}

static STATUS update_adaptive(clusim_sim *s, const xfer *x, wire_id except) {
    for (uint32_t k = 0; k < x->group_size; k++) {
        wire_id wire = ID(wire, x->group[k]);
        update_candidate(s, wire, x->slot);
        if (!wire_is(wire, except)) TRY(scheduler_arbitrate(s, wire));
    }
    return CLUSIM_OK;
}

static bool has_sender(const clusim_sim *s, const xfer *x) {
    return !flow_none(x->flow) && congestion_control(s, x->flow)->sender;
}

/* All of a transfer is on its way: a source may send its next message when the last packet has
 * left, a slice that writes is done then, or when its pace has it so. */
STATUS inject_done(clusim_sim *s, const xfer *x) {
    if (has_sender(s, x)) sender_idle(s, x->flow);
    if (x->owner_kind == OWNER_SOURCE) {
        if (!inbox_leading(s)) return scheduler_event(s, x->max_end, EV_SOURCE, 1, x->source.i);
        window_start start = {x->max_end, x->source.i, START_AFTER};
        return inbox_start(s, x->endpoint, start);
    }
    if (!xfer_stores(x)) return CLUSIM_OK;
    inst_at(s, x->inst)->wire = x->last_wire;
    return scheduler_event(s, base_max(x->max_end, x->pace_ps), EV_READY, 0, x->inst.i);
}

STATUS inject_reopen(clusim_sim *s, const xfer *x, wire_id except) {
    if (x->policy == CLUSIM_POLICY_ADAPTIVE) return update_adaptive(s, x, except);
    bool one = x->policy == CLUSIM_POLICY_PINNED;
    uint32_t n = x->group_size, wires = one ? 1 : n < x->count ? n : x->count;
    for (uint32_t i = 0; i < wires; i++) {
        wire_id wire = ID(wire, x->group[((uint64_t)x->stripe + i) % n]);
        if (wire_is(wire, except)) continue;
        update_candidate(s, wire, x->slot);
        TRY(scheduler_arbitrate(s, wire));
    }
    return CLUSIM_OK;
}

STATUS inject_resume(clusim_sim *s, flow_id flow) {
    xfer_id id;
    return sender_changed(s, flow, &id) ? inject_reopen(s, xfer_at(s, id), NO(wire)) : CLUSIM_OK;
}

STATUS inject_adaptive(clusim_sim *s, xfer *x, wire_id wire) {
    x->adaptive_next++;
    x->outstanding++;
    return update_adaptive(s, x, wire);
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
        TRY(scheduler_arbitrate(s, wire));
    }
    return CLUSIM_OK;
}

void inject_opened(clusim_sim *s, wire_state *w, uint32_t slot) {
    flow_cursor *c = &w->flows[slot];
    c->outstanding--;
    if (c->window_closed) update_candidate(s, wire_of(s, w), slot);
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

/* In a window the wire has not reached the start of the transfer: its flow waits for it. */
static STATUS await_start(clusim_sim *s, wire_id wire, uint32_t slot) {
    wire_state *w = wire_at(s, wire);
    flow_cursor *c = &w->flows[slot];
    const xfer *x = xfer_at(s, c->xfer);
    c->window_closed = 0;
    inject_next(s, w, c, x, c->next);
    inject_wait_for(w, c, slot);
    inbox_activate(s, wire);
    inbox_due(s, c->avail);
    return inbox_busy(s, info_at(s, wire)->src);
}

static STATUS start_cursor(clusim_sim *s, xfer_id xfer_index, wire_id wire, uint32_t first_packet) {
    const xfer *x = xfer_at(s, xfer_index);
    flow_cursor *c = &wire_at(s, wire)->flows[x->slot];
    size_packet(wire_at(s, wire), c, x, x->full);
    c->full_bytes = c->wire_bytes;
    c->vc = (uint16_t)route_first_vc(s, wire, x->vc);
    c->xfer = xfer_index;
    c->next = first_packet < x->count ? first_packet : x->count;
    c->outstanding = 0;
    if (wire_at(s, wire)->traits & FROM_PLAIN) return await_start(s, wire, x->slot);
    update_candidate(s, wire, x->slot);
    return scheduler_arbitrate(s, wire);
}

/* The queue pair of a transfer has it next: inform receivers in order and sender policies. */
static STATUS join_flow(clusim_sim *s, xfer_id id) {
    const xfer *x = xfer_at(s, id);
    if (UNLIKELY(x->made.ordered)) lines_start(s, id, spread_flow(s, x));
    return has_sender(s, x) ? sender_transfer(s, x->flow, id) : CLUSIM_OK;
}

STATUS inject_start(clusim_sim *s, xfer_id xfer_index, group_id first_group, uint32_t key_base,
                    uint32_t window_bytes) {
    xfer *x = xfer_at(s, xfer_index);
    x->start_ps = s->scheduler.now_ps;
    x->max_end = 0;
    x->last_wire = NO(wire);
    x->stripe = key_base;
    x->ungranted = x->count;
    x->made = make_like(s, x, xfer_index);
    TRY(choose_wires(s, x, first_group));
    uint32_t n = x->group_size;
    if (window_bytes && !xfer_stores(x)) {
        uint64_t per_wire = (uint64_t)x->full * (x->policy == CLUSIM_POLICY_STRIPE ? n : 1);
        x->window = (uint32_t)base_umax(1, window_bytes / per_wire);
    }
    TRY(join_flow(s, xfer_index));
    if (x->policy == CLUSIM_POLICY_PINNED) {
        return start_cursor(s, xfer_index, ID(wire, x->group[key_base % n]), 0);
    }
    /* STRIPE: packet i leaves on wire (stripe + i) mod n. Wires without a packet hold no state of
     * the flow's last transfer, which has been granted completely. */
    bool adaptive = x->policy == CLUSIM_POLICY_ADAPTIVE;
    uint32_t wires = adaptive || n < x->count ? n : x->count, k = key_base % n;
    for (uint32_t i = 0; i < wires; i++) {
        TRY(start_cursor(s, xfer_index, ID(wire, x->group[k]), adaptive ? 0 : i));
        if (++k == n) k = 0;
    }
    return CLUSIM_OK;
}
