/* inject.h - flows: conversion of transfers into packets on the wires of their endpoint.
 *
 * Hardware  Thread blocks issue stores and loads; addresses are interleaved over a GPU's links.
 * Model     Contract, section 5: packets are created when a wire grants them, never before: memory
 *           does not grow with the size of a message.
 * Not modelled  Warps, the order of addresses inside a packet, partial writes. */
#ifndef CLUSIM_INJECT_H
#define CLUSIM_INJECT_H

#include "inbox.h"
#include "memory.h"
#include "parts/congestion.h"
#include "parts/packets.h"
#include "parts/scheduler.h"
#include "parts/wires.h"
#include "parts/xfers.h"
#include "pool.h"
#include "scheduler.h"
#include "sender.h"
#include "state.h"

/* Start injecting a fully described transfer at the present time. */
STATUS inject_start(clusim_sim *s, xfer_id xfer_index, group_id first_group, uint32_t key_base,
                    uint32_t window_bytes);

/* Handle a response: one packet less is outstanding. */
STATUS inject_response(clusim_sim *s, const packet *p);

/* The same of the flow in `slot` of a wire that works in windows. */
void inject_opened(clusim_sim *s, wire_state *w, uint32_t slot);

/* An adaptive transfer has sent a packet over `wire`: all its wires send the next one. */
STATUS inject_adaptive(clusim_sim *s, xfer *x, wire_id wire);

/* Flows of a transfer may send again on its wires but `except`, or may not. */
STATUS inject_reopen(clusim_sim *s, const xfer *x, wire_id except);

/* A notice or a timer may have changed the time of a flow's next packet. */
STATUS inject_resume(clusim_sim *s, flow_id flow);

/* All of a transfer is on its way. */
STATUS inject_done(clusim_sim *s, const xfer *x);

/* The group of wires from the endpoint of a transfer towards its first target. */
static inline group_id inject_first_group(const clusim_sim *s, const xfer *x) {
    target_id target = !target_none(x->via_first)  ? x->via_first
                       : !target_none(x->via_last) ? x->via_last
                                                   : x->dst;
    node_id node = ID(node, s->model->image.endpoints[x->endpoint.i].node);
    return model_route(s->model, node, target);
}

/* Number of packets of at most `full` bytes in `bytes`. */
static inline uint32_t inject_count(uint64_t bytes, uint64_t full) {
    return (uint32_t)base_ceil_div(bytes, full);
}

static inline uint32_t inject_number(const xfer *x, const flow_cursor *c) {
    return LIKELY(x->policy != CLUSIM_POLICY_ADAPTIVE) ? c->next : x->adaptive_next;
}

/* ---- the next packet ---------------------------------------------------------------------------
 */

/* Route key of packet i: the remainder of its number after the choice of the first wire. */
static inline uint32_t inject_key(const xfer *x, uint32_t i) {
    if (LIKELY(x->policy == CLUSIM_POLICY_STRIPE)) return (x->stripe + i) / x->group_size;
    if (x->policy != CLUSIM_POLICY_PINNED) return x->stripe + i;
    return (x->num_queues ? x->queues[i % x->num_queues] : x->stripe) / x->group_size;
}

/* Create the next packet of the flow in `slot` for `wire`. */
static inline STATUS inject_make(clusim_sim *s, const wire_state *w, wire_id wire, uint32_t slot,
                                 packet_id *out) {
    TRY(pool_packet(s, out));
    const flow_cursor *c = &w->flows[slot];
    const xfer *x = xfer_at(s, c->xfer);
    packet *p = packet_at(s, *out);
    *p = x->made;
    p->number = inject_number(x, c);
    p->key = inject_key(x, p->number);
    p->wire_bytes = c->wire_bytes;
    p->payload = c->payload;
    p->exact = c->exact;
    p->out = wire;
    p->vc = (uint8_t)c->vc;
    if (LIKELY(x->kind != CLUSIM_KIND_AGG_UP)) p->first_wire = wire;
    return CLUSIM_OK;
}

static inline int64_t inject_avail(const xfer *x, uint32_t i) {
    base_u128 work = (base_u128)((uint64_t)i * x->full) * x->cost16;
    return x->start_ps + (int64_t)(uint64_t)(work >> 16);
}

/* The last packet of a transfer may be shorter than the others. */
void inject_last(const wire_state *w, flow_cursor *c, const xfer *x);

/* ---- flows that wait for their pace ------------------------------------------------------------
 */

/* Move the waiting flows to the start of an area with room for all flows of the wire. */
void inject_pack_waits(wire_state *w);

static inline uint32_t inject_slots(const wire_state *w) { return w->num_candidates - w->num_voqs; }

/* Queue a flow until its next packet is available: after most others, as flows send in turns. */
static inline void inject_wait_for(wire_state *w, flow_cursor *c, uint32_t slot) {
    if (UNLIKELY(w->first_wait + w->num_waits == 2 * inject_slots(w))) inject_pack_waits(w);
    flow_wait *waits = w->waits + w->first_wait;
    uint32_t k = w->num_waits++;
    for (; k > 0 && waits[k - 1].at_ps > c->avail; k--) waits[k] = waits[k - 1];
    waits[k] = (flow_wait){.at_ps = c->avail, .slot = slot};
    c->waits = 1;
    w->soonest = waits[0].at_ps;
}

/* Remove the first waiting flow; returns its slot. */
static inline uint32_t inject_end_wait(wire_state *w) {
    uint32_t slot = w->waits[w->first_wait++].slot;
    w->flows[slot].waits = 0;
    w->soonest = NEVER;
    if (--w->num_waits == 0) {
        w->first_wait = 0;
    } else {
        w->soonest = w->waits[w->first_wait].at_ps;
    }
    return slot;
}

/* A flow that was not ready joins the candidates of a wire. */
static inline void inject_join(wire_state *w, uint32_t slot) {
    uint32_t bit = w->num_voqs + slot;
    w->ready[bit >> 6] |= UINT64_C(1) << (bit & 63);
    w->num_ready++;
}

static inline void inject_leave(wire_state *w, uint32_t slot) {
    uint32_t bit = w->num_voqs + slot;
    w->ready[bit >> 6] &= ~(UINT64_C(1) << (bit & 63));
    w->num_ready--;
}

/* Admit flows whose next packet is available by now. */
static inline void inject_admit(wire_state *w, int64_t now_ps) {
    while (w->soonest <= now_ps) inject_join(w, inject_end_wait(w));
}

/* ---- after a grant -----------------------------------------------------------------------------
 */

static inline bool inject_open(const xfer *x, const flow_cursor *c) {
    return x->window == 0 ||
           (x->repeats == 0 &&
            (x->policy == CLUSIM_POLICY_ADAPTIVE ? x->outstanding : c->outstanding) < x->window);
}

/* Time at which the next packet is available; its description is then in the cursor. */
static inline void inject_next(const clusim_sim *s, const wire_state *w, flow_cursor *c,
                               const xfer *x, uint32_t i) {
    if (UNLIKELY(i + 1 == x->count)) inject_last(w, c, x);
    c->avail = inject_avail(x, i);
    if (UNLIKELY(!flow_none(x->flow))) c->avail = base_max(c->avail, flow_at(s, x->flow)->next_at);
}

/* A flow that is not adaptive has sent a packet on this wire. True if its next one is available. */
static inline bool inject_go_on(const clusim_sim *s, wire_state *w, flow_cursor *c, const xfer *x,
                                uint32_t slot) {
    uint32_t step = LIKELY(x->policy == CLUSIM_POLICY_STRIPE) ? x->group_size : 1;
    uint64_t next = (uint64_t)c->next + step;
    c->next = next < x->count ? (uint32_t)next : x->count;
    c->outstanding++;
    bool left = c->next < x->count, open = inject_open(x, c);
    c->window_closed = left && !open;
    if (LIKELY(left && open)) {
        inject_next(s, w, c, x, c->next);
        if (c->avail <= s->scheduler.now_ps) return true;
        inject_wait_for(w, c, slot);
    }
    return false;
}

/* Remember the wire of the packet that ends last; the lowest of several. */
static inline void inject_note_end(xfer *x, wire_id wire, int64_t end) {
    if (end < x->max_end || (end == x->max_end && wire.i >= x->last_wire.i)) return;
    x->max_end = end;
    if (xfer_stores(x)) x->last_wire = wire;
}

/* In a window, memory is accessed after all wires are done. */
static inline STATUS inject_read_memory(clusim_sim *s, const wire_state *w, const xfer *x,
                                        uint32_t payload) {
    if (LIKELY(w->traits & FROM_PLAIN))
        return inbox_access(s, s->scheduler.now_ps, NO(packet),
                            inbox_payload(payload, ACCESS_INJECT));
    memory_inject(s, x->endpoint, payload);
    return CLUSIM_OK;
}

/* The next packet of the flow in `slot` was granted, and its serialisation is done at `free_at`;
 * `alone`: it was not even one of the candidates. */
ALWAYS_INLINE STATUS inject_granted(clusim_sim *s, wire_state *w, wire_id wire, uint32_t slot,
                                    bool alone) {
    flow_cursor *c = &w->flows[slot];
    xfer *x = xfer_at(s, c->xfer);
    if ((KINDS_INJECTED >> x->kind) & 1) TRY(inject_read_memory(s, w, x, c->payload));
    if (UNLIKELY(!flow_none(x->flow)))
        TRY(sender_granted(s, c->xfer, inject_number(x, c), c->payload));
    inject_note_end(x, wire, w->free_at);
    x->ungranted--;
    if (UNLIKELY(x->policy == CLUSIM_POLICY_ADAPTIVE)) {
        TRY(inject_adaptive(s, x, wire));
    } else {
        bool ready = inject_go_on(s, w, c, x, slot);
        if (alone && ready) inject_join(w, slot);
        if (!alone && !ready) inject_leave(w, slot);
        /* The pace of the flow is that of all its wires. */
        if (UNLIKELY(!flow_none(x->flow))) TRY(inject_reopen(s, x, wire));
    }
    return LIKELY(x->ungranted) ? CLUSIM_OK : inject_done(s, x);
}

#endif
