/* window_wire.h - outgoing wire of a node that works in windows: its arrivals, and its progress
 * from grant to grant.
 *
 * Code that runs for every hop is inline here; window.c has plain nodes, window_endpoint.c
 * endpoints. */
#ifndef CLUSIM_WINDOW_WIRE_H
#define CLUSIM_WINDOW_WIRE_H

#include "batch.h"
#include "grant.h"
#include "inbox.h"
#include "parts/packets.h"
#include "parts/samples.h"
#include "parts/scheduler.h"
#include "parts/windows.h"
#include "parts/wires.h"
#include "samples.h"
#include "wire.h"

/* ---- arrivals of a window -------------------------------------------------------------------- */

/* A wire into a node. */
typedef struct window_way {
    window_in *x;
    const window_packet *all; /* its ring, with a copy of the numbers below */
    uint32_t mask, head, end;
    wire_id back;         /* wire that carries acknowledgements of the arrivals, or none */
    uint32_t control_256; /* bits of all control bytes that `back` owes in this window */
} window_way;

enum { WINDOW_AHEAD = 16 }; /* packets prefetched before use */

static inline void window_prefetch(const clusim_sim *s, const window_ring *ring) {
    for (uint32_t k = 0; k < WINDOW_AHEAD && k < inbox_len(ring); k++)
        __builtin_prefetch(batch_at(s, inbox_entry(ring, k)->packet), 1);
}

/* Next packet of a ring that arrives before `end_ps`. */
static inline bool window_next(const clusim_sim *s, window_ring *ring, int64_t end_ps,
                               window_packet *out) {
    if (ring->head == ring->end) return false;
    *out = *inbox_entry(ring, 0);
    if (out->at_ps >= end_ps) return false;
    if (inbox_len(ring) > WINDOW_AHEAD)
        __builtin_prefetch(batch_at(s, inbox_entry(ring, WINDOW_AHEAD)->packet), 1);
    ring->head++;
    return true;
}

/* True if no packet of a listed wire arrives before `end_ps`: it stays on the list. */
static inline bool window_waits(clusim_sim *s, wire_id wire, int64_t end_ps, bool *more) {
    const window_ring *ring = &s->windows.ins[wire.i].under_way;
    CLUSIM_ASSERT(inbox_len(ring) > 0);
    int64_t first_ps = inbox_entry(ring, 0)->at_ps;
    if (first_ps < end_ps) return false;
    inbox_due(s, first_ps);
    *more = true;
    return true;
}

static inline window_way window_open_way(const clusim_sim *s, wire_id wire) {
    window_in *x = &s->windows.ins[wire.i];
    x->taken = x->under_way.head;
    window_prefetch(s, &x->under_way);
    return (window_way){.x = x,
                        .all = x->under_way.all,
                        .mask = x->under_way.size - 1,
                        .head = x->under_way.head,
                        .end = x->under_way.end,
                        .back = end_at(s, wire)->reverse};
}

/* Next packet that arrives before `end_ps`. */
static inline bool window_arrives(const clusim_sim *s, window_way *way, int64_t end_ps,
                                  window_packet *out) {
    if (way->head == way->end) return false;
    *out = way->all[way->head & way->mask];
    if (out->at_ps >= end_ps) return false;
    if (way->end - way->head > WINDOW_AHEAD)
        __builtin_prefetch(batch_at(s, way->all[(way->head + WINDOW_AHEAD) & way->mask].packet), 1);
    way->head++;
    way->control_256 |= out->control_256;
    return true;
}

/* All packets of the window have arrived. Removed ring entries remain valid until the node has
 * processed the reverse wire. If that wire owes no bytes now or later, there is nothing to
 * drain. */
static inline void window_close_way(clusim_sim *s, window_node *n, const window_way *way,
                                    bool *more) {
    window_ring *ring = &way->x->under_way;
    ring->head = way->head;
    inbox_removed(ring);
    s->scheduler.event_count += ring->head - way->x->taken;
    *more = inbox_len(ring) > 0;
    if (*more) inbox_due(s, inbox_entry(ring, 0)->at_ps);
    if (wire_none(way->back) || ring->head == way->x->taken) return;
    if (way->control_256 == 0 && wire_at(s, way->back)->owed_256 == 0) return;
    wire_at(s, way->back)->owes = 1;
    inbox_activate_at(s, n, way->back);
}

/* Sort by time; stable. All arrivals are in the present window. Long lists are moved: `all` then
 * points to the common buffer of sorted arrivals, which stays in the fastest cache and has room for
 * one more. */
STATUS window_wire_sort(clusim_sim *s, window_arrival **all, uint32_t n);

/* ---- from grant to grant -----------------------------------------------------------------------
 */

enum { OWED_SINCE = 0 }; /* it owes a flit, or may */

/* Progress of a wire in its window. */
typedef struct window_progress {
    wire_id wire;
    wire_state *w;
    window_in *x;    /* destination, if it works in windows */
    int64_t sent_ps; /* arrival of its first sent packet at a node that works in windows */
    const window_arrival *arrival; /* next arrival; the sentinel has time NEVER */
    int64_t owed_ps;               /* until then it owes less than a flit */
    const window_packet *back;     /* ring of packets received over the reverse wire */
    uint32_t back_mask;
    uint32_t owed, owed_end; /* the next one there that is not counted, and the last */
    uint32_t sample;         /* next time at which the wire is sampled, ... */
    int64_t sample_ps;       /* ... and that time; NEVER after the last one */
} window_progress;

/* Count control bytes up to the packet that completes a flit. */
static inline void window_look(window_progress *g) {
    wire_state *w = g->w;
    uint64_t sum_256 = w->owed_256, flit_256 = w->rate->flit_256;
    uint32_t k = g->owed, end = g->owed_end;
    g->owed_ps = NEVER;
    for (; k != end; k++) {
        const window_packet *taken = &g->back[k & g->back_mask];
        uint64_t more_256 = sum_256 + taken->control_256;
        if (more_256 >= flit_256) {
            g->owed_ps = taken->at_ps;
            break;
        }
        sum_256 = more_256;
    }
    g->owed = k;
    w->owed_256 = sum_256;
}

/* After flits have left. */
static inline void window_took_owed(window_progress *g) {
    if (UNLIKELY(g->owed_ps == OWED_SINCE) && g->w->owed_256 < g->w->rate->flit_256) window_look(g);
}

/* Precondition: all of the wire's arrivals of the window are collected. */
static inline STATUS window_begin(clusim_sim *s, wire_id wire, window_progress *out) {
    static const window_arrival no_arrival = {.at_ps = NEVER};
    wire_state *w = wire_at(s, wire);
    *out = (window_progress){.wire = wire,
                             .w = w,
                             .x = &s->windows.ins[wire.i],
                             .sent_ps = NEVER,
                             .arrival = &no_arrival,
                             .owed_ps = NEVER,
                             .sample = s->samples.turn,
                             .sample_ps = samples_at(s, s->samples.turn)};
    if (w->num_arrivals) {
        window_arrival *sorted = &s->windows.scratch.queued[w->first_arrival];
        if (w->unsorted) TRY(window_wire_sort(s, &sorted, w->num_arrivals));
        sorted[w->num_arrivals].at_ps = NEVER;
        out->arrival = sorted;
    }
    if (w->owes) {
        const window_in *back = &s->windows.ins[end_at(s, wire)->reverse.i];
        out->back = back->under_way.all;
        out->back_mask = back->under_way.size - 1;
        out->owed = back->taken;
        out->owed_end = back->under_way.head;
        out->owed_ps = OWED_SINCE;
        window_took_owed(out);
    }
    w->num_arrivals = w->room = 0;
    w->unsorted = w->owes = 0;
    return CLUSIM_OK;
}

/* For a wire that found too little credit: all credit returned by that time has been counted. */
static inline int64_t window_credit_at(const clusim_sim *s, const wire_state *w) {
    int64_t at_ps = NEVER;
    for (uint32_t vc = 0; vc < s->wires.nvc; vc++) {
        credit_pool *c = &w->credits[vc];
        if (c->stalled && c->head < c->end) at_ps = base_min(at_ps, wire_credit_at(c));
    }
    return at_ps;
}

/* Add control bytes that become owed up to `now_ps`, as wire_owe does. */
static inline void window_count_owed(clusim_sim *s, window_progress *g, int64_t now_ps) {
    wire_state *w = g->w;
    while (g->owed != g->owed_end) {
        const window_packet *taken = &g->back[g->owed & g->back_mask];
        if (taken->at_ps > now_ps) return;
        if (w->owed_256 >= w->rate->flit_256) {
            s->scheduler.now_ps = taken->at_ps;
            wire_drain(s, w);
        }
        w->drained_at = taken->at_ps;
        w->owed_256 += taken->control_256;
        g->owed++;
    }
}

/* The same before a packet with complete flits, and at the end. */
static inline void window_take_owed(clusim_sim *s, window_progress *g, int64_t now_ps) {
    if (LIKELY(g->owed_ps > now_ps)) return;
    window_count_owed(s, g, now_ps);
    g->owed_ps = OWED_SINCE;
}

/* The round robin continues after the granted VOQ; other ready VOQs wait for it. */
static inline void window_granted(const clusim_sim *s, wire_state *w, uint32_t candidate) {
    w->next_candidate = candidate + 1 == w->num_candidates ? 0 : candidate + 1;
    if (w->num_ready == 0) return;
    w->contended = 1;
    w->stall_arbitration_ps += w->free_at - s->scheduler.now_ps;
}

/* Put a packet on the wire now. */
ALWAYS_INLINE STATUS window_put(clusim_sim *s, window_progress *g, packet_id index) {
    const packet *p = batch_at(s, index);
    const rate_kind *of_kind = &g->w->rate->kinds[p->kind];
    uint32_t control_256 = p->exact * of_kind->control_256;
    int64_t at_ps = grant_put(s, g->w, p, of_kind);
    window_took_owed(g);
    if (UNLIKELY((g->w->traits & (TO_PLAIN | CROSSES)) != TO_PLAIN))
        return grant_send(s, g->w, index, at_ps);
    g->sent_ps = base_min(g->sent_ps, at_ps);
    return inbox_append(&g->x->under_way, (window_packet){at_ps, index, control_256});
}

/* Phase A of the wire is done up to `sample_ps`. */
static inline void window_sample(clusim_sim *s, window_progress *g) {
    samples_wire(s, g->wire, g->sample++);
    g->sample_ps = samples_at(s, g->sample);
}

/* End the wire's window. */
static inline STATUS window_wire_finish(clusim_sim *s, const window_progress *g, wire_id wire) {
    if (UNLIKELY(g->sample_ps != NEVER)) samples_wire_rest(s, wire, g->sample);
    if (g->sent_ps == NEVER) return CLUSIM_OK;
    inbox_due(s, g->sent_ps);
    return LIKELY(g->x->listed) ? CLUSIM_OK : inbox_list(s, wire);
}

/* Grant the next arrival directly, as if it had been queued until now; requires that no other
 * packet precedes or accompanies it. Does not grant if credit is short. */
static inline STATUS window_pass_on(clusim_sim *s, window_progress *g, int64_t now_ps,
                                    bool *passed) {
    wire_state *w = g->w;
    const window_arrival *a = g->arrival;
    packet *p = packet_at(s, a->packet);
    *passed = grant_credit(&w->credits[p->vc], p->wire_bytes, now_ps);
    if (UNLIKELY(!*passed)) return CLUSIM_OK;
    g->arrival++;
    w->queued_max = base_umax(w->queued_max, p->wire_bytes);
    if (w->free_at > a->at_ps) w->stall_arbitration_ps += w->free_at - a->at_ps;
    window_take_owed(s, g, now_ps);
    s->scheduler.now_ps = now_ps;
    TRY(window_put(s, g, a->packet));
    w->next_candidate = a->candidate + 1 == w->num_candidates ? 0 : a->candidate + 1;
    return grant_release(s, p, w->free_at);
}

/* Grant the next packet of a candidate: of nodes without `flows`, the head of a queue. */
ALWAYS_INLINE STATUS window_take(clusim_sim *s, window_progress *g, uint32_t candidate,
                                 bool flows) {
    packet_id index;
    if (flows) {
        TRY(grant_take(s, g->w, candidate, &index));
    } else {
        TRY(grant_dequeue(s, g->w, candidate, &index));
    }
    TRY(window_put(s, g, index));
    packet *p = batch_at(s, index); /* members of batches hold no buffer */
    if (flows) {
        TRY(grant_done(s, g->w, candidate, p));
    } else if (LIKELY(!p->batch)) {
        TRY(grant_release(s, p, g->w->free_at));
    }
    window_granted(s, g->w, candidate);
    return CLUSIM_OK;
}

/* Phase B of the wire now: grant the next packet that has credit, if there is one. Of nodes without
 * `flows`, all candidates are queues. */
ALWAYS_INLINE STATUS window_grant(clusim_sim *s, window_progress *g, bool flows) {
    uint32_t blocked = 0, chosen = grant_choose(s, g->w, flows, &blocked);
    if (LIKELY(chosen != NONE)) return window_take(s, g, chosen, flows);
    /* Their credit was counted: only later returns matter. */
    wire_stall(s, g->w, blocked);
    return CLUSIM_OK;
}

/* ---- the wires of a node -----------------------------------------------------------------------
 */

typedef STATUS (*window_work)(clusim_sim *s, window_node *n, wire_id wire, int64_t end_ps,
                              bool *more);

/* Heads of the first queues of a wire: they have waited there since a former window. */
ALWAYS_INLINE void window_fetch_heads(const clusim_sim *s, const wire_state *w) {
    if (w->num_ready == 0) return;
    uint64_t flows = w->num_voqs < 64 ? ~UINT64_C(0) << w->num_voqs : 0;
    for (uint64_t bits = w->ready[0] & ~flows; bits; bits &= bits - 1)
        __builtin_prefetch(packet_at(s, w->queues[__builtin_ctzll(bits)].head), 1);
}

/* Prefetch the first data that the next wire of a list needs. */
ALWAYS_INLINE void window_fetch(const clusim_sim *s, enum window_list list, wire_id next) {
    const window_in *x = &s->windows.ins[next.i];
    __builtin_prefetch(wire_credit(s, next, 0), 1);
    if (list == INBOXES) {
        window_prefetch(s, &x->under_way);
        return;
    }
    __builtin_prefetch(x, 1);
    __builtin_prefetch(wire_at(s, next), 1);
    __builtin_prefetch(&wire_at(s, next)->packets, 1);
    window_fetch_heads(s, wire_at(s, next));
}

/* Process a list of a node's wires; wires with more to do stay on it. */
ALWAYS_INLINE STATUS window_walk(clusim_sim *s, window_node *n, enum window_list list,
                                 window_work work, int64_t end_ps) {
    wire_id *link = &n->first[list];
    while (!wire_none(*link)) {
        wire_id wire = *link;
        window_in *x = &s->windows.ins[wire.i];
        wire_state *w = wire_at(s, wire);
        wire_id *next = list == INBOXES ? &x->next : &w->next_active;
        bool more;
        if (!wire_none(*next)) window_fetch(s, list, *next);
        TRY(work(s, n, wire, end_ps, &more));
        if (more) {
            link = next;
            continue;
        }
        *link = *next;
        if (list == INBOXES) {
            x->listed = false;
        } else {
            w->active = 0;
        }
    }
    return CLUSIM_OK;
}

#endif
