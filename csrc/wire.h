/* wire.h - wires: credits, control bytes, VOQs.
 *
 * Hardware  A serial link: flow control per virtual channel; acknowledgements share it with data.
 * Model     Contract, sections 3 and 4. Credit returns are timestamps read when needed, and a wire
 *           that waits for no packet or credit has no event: a hop over an idle network costs one
 *           event.
 * Not modelled  Lane skew, link training, the distance at which a receiver stops a sender.
 * Parameters    Image arrays `wires` and `formats`.
 *
 * Code that runs for every hop is inline here. */
#ifndef CLUSIM_WIRE_H
#define CLUSIM_WIRE_H

#include "batch.h"
#include "congestion.h"
#include "inbox.h"
#include "parts/packets.h"
#include "parts/scheduler.h"
#include "parts/windows.h"
#include "parts/wires.h"
#include "scheduler.h"
#include "state.h"

STATUS wire_init(clusim_sim *s);
void wire_free(clusim_sim *s);

STATUS wire_set_rate(clusim_sim *s, wire_id wire, uint32_t rate); /* NONE: down */
void wire_read(const clusim_sim *s, wire_id wire, clusim_wire_counters *out);

/* Let complete owed flits leave while the wire idles, up to now. */
void wire_drain(clusim_sim *s, wire_state *w);

/* Update the traits of a wire: its present deviations from the common case. */
void wire_set_traits(const clusim_sim *s, wire_id wire, uint16_t traits);

STATUS wire_grow_credit(credit_pool *c);

enum { MOST_RETURNS = 32, FIRST_RETURN = 1 };

/* Count credit returned by `now_ps`, for returns that are not sorted by time. */
void wire_count_credit(credit_pool *c, int64_t now_ps);

void wire_sort_credit(credit_pool *c);

/* Time of the next credit return; there must be one. */
static inline int64_t wire_credit_at(credit_pool *c) {
    if (UNLIKELY(c->unsorted)) wire_sort_credit(c);
    return c->pending[c->head].at_ps;
}

static inline credit_pool *wire_credit(const clusim_sim *s, wire_id wire, uint32_t vc) {
    return &s->wires.credits[(size_t)wire.i * s->wires.nvc + vc];
}

/* A wire has something to send and no credit, from now on: it looks at returns on some VCs. */
static inline void wire_stall(const clusim_sim *s, wire_state *w, uint32_t vcs) {
    if (!w->stalled) w->stall_since = s->scheduler.now_ps;
    w->stalled = 1;
    for (uint32_t vc = 0; vc < s->wires.nvc; vc++) w->credits[vc].stalled = vcs >> vc & 1;
}

static inline void wire_end_stall(const clusim_sim *s, wire_state *w) {
    if (LIKELY(!w->stalled)) return;
    w->stall_credit_ps += s->scheduler.now_ps - w->stall_since;
    w->stalled = 0;
    for (uint32_t vc = 0; vc < s->wires.nvc; vc++) w->credits[vc].stalled = 0;
}

static inline STATUS wire_wake(clusim_sim *s, wire_state *w, int64_t at_ps) {
    if (w->wake_at <= at_ps) return CLUSIM_OK;
    if (w->traits & FROM_PLAIN) {
        inbox_due(s, at_ps);
        return CLUSIM_OK;
    }
    w->wake_at = at_ps;
    wire_id wire = wire_of(s, w);
    return scheduler_event(s, at_ps, EV_WAKE, wire.i, wire.i);
}

/* The sender gets credit for bytes that are free at `free_ps`. Returns need no order until credit
 * runs short. */
ALWAYS_INLINE STATUS wire_add_credit(clusim_sim *s, wire_id wire, uint32_t vc, uint32_t bytes,
                                     int64_t free_ps) {
    credit_pool *c = wire_credit(s, wire, vc);
    int64_t at_ps = free_ps + c->credit_ps;
    if (UNLIKELY(c->end == c->size)) TRY(wire_grow_credit(c));
    credit_return *last = &c->pending[c->end++];
    c->unsorted |= at_ps < last[-1].at_ps;
    last->at_ps = at_ps;
    last->bytes = bytes;
    if (UNLIKELY(c->stalled)) TRY(wire_wake(s, wire_at(s, wire), at_ps));
    return CLUSIM_OK;
}

/* True if only the sender acts on returned credit, in a window far from the end of time. */
static inline bool wire_credit_plain(const credit_pool *c) {
    return (c->traits & (PAUSES | CROSSES | TO_PLAIN)) == TO_PLAIN;
}

/* The same with events, unless credit is due near the end of time. */
static inline bool wire_credit_simple(const credit_pool *c, int64_t free_ps) {
    return !(c->traits & (PAUSES | CROSSES)) && free_ps + c->credit_ps < RANGE_TIME_END;
}

STATUS wire_return_otherwise(clusim_sim *s, wire_id wire, uint32_t vc, uint32_t bytes,
                             int64_t free_ps);

/* Bytes of the receive buffer of (wire, vc) are free at `free_ps`: the sender gets credit, or the
 * receiver may let it resume. */
ALWAYS_INLINE STATUS wire_return_credit(clusim_sim *s, wire_id wire, uint32_t vc, uint32_t bytes,
                                        int64_t free_ps) {
    const credit_pool *c = wire_credit(s, wire, vc);
    if (UNLIKELY(!wire_credit_plain(c)) && UNLIKELY(!wire_credit_simple(c, free_ps)))
        return wire_return_otherwise(s, wire, vc, bytes, free_ps);
    return wire_add_credit(s, wire, vc, bytes, free_ps);
}

/* A packet with `control_256` owed bytes arrived in the opposite direction. Less than a flit never
 * leaves, so the time of the last drain does not matter then. */
static inline void wire_owe(clusim_sim *s, wire_state *w, uint64_t control_256) {
    if (UNLIKELY(w->owed_256 >= w->rate->flit_256)) wire_drain(s, w);
    w->drained_at = s->scheduler.now_ps;
    w->owed_256 += control_256;
}

/* Put a packet into VOQ `candidate` of a wire. Whether the wire is idle now. */
static inline bool wire_queue(clusim_sim *s, wire_state *w, packet_id packet_index,
                              uint32_t candidate) {
    const packet *p = packet_at(s, packet_index);
    voq *q = &w->queues[candidate];
    w->queued_bytes += p->wire_bytes;
    if (LIKELY(packet_none(q->head))) {
        q->head = packet_index;
        w->ready[candidate >> 6] |= UINT64_C(1) << (candidate & 63);
        w->num_ready++;
    } else if (UNLIKELY(batch_suits(p)) && !(w->traits & TIMED) &&
               batch_join(s, q->tail, packet_index)) {
        packet_index = q->tail;
    } else {
        *next_of(s, q->tail) = packet_index;
    }
    q->tail = packet_index;
    if (w->queued_bytes > w->queued_max) w->queued_max = w->queued_bytes;
    if (w->free_at <= s->scheduler.now_ps) return true;
    if (!w->contended) {
        w->contended = 1;
        w->stall_arbitration_ps += w->free_at - s->scheduler.now_ps;
    }
    return false;
}

/* A packet enters a VOQ of a wire that is TIMED now. */
__attribute__((cold)) STATUS wire_note_entry(clusim_sim *s, packet_id index);

/* Put a packet into VOQ `candidate` of the wire `packet.out`; its other fields are set. */
static inline STATUS wire_enqueue(clusim_sim *s, packet_id index, uint32_t candidate) {
    wire_id out = packet_at(s, index)->out;
    wire_state *w = wire_at(s, out);
    if (w->traits & (FROM_PLAIN | TIMED)) { /* never both */
        if (w->traits & FROM_PLAIN)
            return inbox_arrives(s, out, (window_arrival){s->scheduler.now_ps, index, candidate});
        TRY(wire_note_entry(s, index));
    }
    if (wire_queue(s, w, index, candidate)) return scheduler_arbitrate(s, out);
    return wire_wake(s, w, w->free_at);
}

/* A packet does not fit into a queue: it is trimmed, or vanishes. */
__attribute__((cold)) STATUS wire_refuse(clusim_sim *s, packet_id index, uint32_t candidate);

/* Put a packet received over a wire into a VOQ of the wire `packet.out`. */
static inline STATUS wire_enqueue_marked(clusim_sim *s, packet_id index, uint32_t candidate) {
    packet *p = packet_at(s, index);
    if (UNLIKELY(wire_at(s, p->out)->traits & MARKS) && congestion_drops(s, p))
        return wire_refuse(s, index, candidate);
    return wire_enqueue(s, index, candidate);
}

/* The packet holds the receive buffer of its last wire until it leaves. */
static inline void wire_hold(packet *p, wire_id from) {
    p->held_wire = from;
    p->held_bytes = p->wire_bytes;
    p->held_vc = p->vc;
}

#endif
