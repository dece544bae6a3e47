/* window_wire.h - a wire out of a node that works in windows: what a window brings to it, and how
 * it goes from grant to grant.
 *
 * What runs for every hop is inline here: window.c has plain nodes, window_end.c endpoints.
 */
#ifndef CLUSIM_WINDOW_WIRE_H
#define CLUSIM_WINDOW_WIRE_H

#include "grant.h"
#include "inbox.h"
#include "parts/agenda.h"
#include "parts/packets.h"
#include "parts/windows.h"
#include "parts/wires.h"
#include "wire.h"

/* ---- what a window brings ----------------------------------------------------------------------
 */

/* A packet that arrives over `from` is acknowledged over the wire back. Where nothing is owed and
 * nothing comes to it, there is nothing to drain either. */
static inline STATUS window_owes(clusim_sim *s, window_node *n, const wire_state *from,
                                 const packet *p, int64_t at_ps) {
    if (wire_none(from->reverse)) return CLUSIM_OK;
    uint64_t control = (uint64_t)p->exact * from->rate->format->control_256[p->kind];
    window_wire *x = &s->windows.wires[from->reverse.i];
    if (control == 0 && x->num_owed == 0 && wire_at(s, from->reverse)->owed_256 == 0)
        return CLUSIM_OK;
    if (UNLIKELY(x->num_owed + 1 >= x->size_owed)) /* and one that ends them */
        TRY(grow_array_from(&x->owed, &x->size_owed, sizeof *x->owed, 8));
    x->owed[x->num_owed++] = (window_owed){at_ps, control};
    inbox_activate_at(s, n, from->reverse);
    return CLUSIM_OK;
}

enum { WINDOW_AHEAD = 4 }; /* packets that are fetched before they are looked at */

static inline void window_prefetch(const clusim_sim *s, const window_ring *ring) {
    for (uint32_t k = 0; k < WINDOW_AHEAD && k < ring->len; k++)
        __builtin_prefetch(packet_at(s, inbox_entry(ring, k)->packet), 1);
}

/* The next of a ring that is there before `end_ps`. */
static inline bool window_next(const clusim_sim *s, window_ring *ring, int64_t end_ps,
                               window_packet *out) {
    if (ring->len == 0 || inbox_entry(ring, 0)->at_ps >= end_ps) return false;
    *out = *inbox_entry(ring, 0);
    if (ring->len > WINDOW_AHEAD)
        __builtin_prefetch(packet_at(s, inbox_entry(ring, WINDOW_AHEAD)->packet), 1);
    inbox_pop(ring);
    return true;
}

/* By time; equals stay in order. All are in the present window. The array may be another then. */
STATUS window_wire_sort(clusim_sim *s, window_arrival **all, uint32_t *size, uint32_t n);

static inline STATUS window_sorted(clusim_sim *s, window_wire *x) {
    if (LIKELY(!x->unsorted)) return CLUSIM_OK;
    x->unsorted = 0;
    return window_wire_sort(s, &x->arrivals, &x->size_arrivals, x->num_arrivals);
}

/* ---- from grant to grant -----------------------------------------------------------------------
 */

/* How far a wire has come in its window. */
typedef struct window_progress {
    wire_state *w;
    const window_arrival *arrival; /* the next one; the last comes NEVER, as below */
    const window_owed *owed;
} window_progress;

/* All that the window brings to a wire is there. */
static inline STATUS window_begin(clusim_sim *s, wire_id wire, window_progress *out) {
    static const window_arrival no_arrival = {.at_ps = NEVER};
    static const window_owed no_owed = {.at_ps = NEVER};
    window_wire *x = &s->windows.wires[wire.i];
    TRY(window_sorted(s, x));
    *out = (window_progress){wire_at(s, wire), &no_arrival, &no_owed};
    if (x->num_arrivals) {
        x->arrivals[x->num_arrivals].at_ps = NEVER;
        out->arrival = x->arrivals;
    }
    if (x->num_owed) {
        x->owed[x->num_owed].at_ps = NEVER;
        out->owed = x->owed;
    }
    x->num_arrivals = x->num_owed = 0;
    x->last_ps = 0;
    return CLUSIM_OK;
}

/* Of a wire that found too little: all that had come back by then has been counted. */
static inline int64_t window_credit_at(const clusim_sim *s, const wire_state *w) {
    int64_t at_ps = NEVER;
    for (uint32_t vc = 0; vc < s->wires.nvc; vc++) {
        credit_pool *c = &w->credits[vc];
        if (c->len) at_ps = base_min(at_ps, wire_credit_at(c));
    }
    return at_ps;
}

/* Control bytes that it comes to owe up to `now_ps`. */
static inline void window_take_owed(clusim_sim *s, window_progress *g, int64_t now_ps) {
    while (g->owed->at_ps <= now_ps) {
        const window_owed *o = g->owed++;
        s->agenda.now_ps = o->at_ps;
        if (o->control_256 | g->w->owed_256) wire_owe(s, g->w, o->control_256);
    }
}

/* Nothing has credit: count what has come back, so that only what comes later matters. */
static inline void window_stall(clusim_sim *s, wire_state *w) {
    for (uint32_t vc = 0; vc < s->wires.nvc; vc++) grant_collect(&w->credits[vc], s->agenda.now_ps);
    wire_stall(s, w);
}

/* The round robin goes on behind what was granted; others that are ready wait for it. */
static inline void window_granted(const clusim_sim *s, wire_state *w, uint32_t candidate) {
    w->next_candidate = candidate + 1 == w->num_candidates ? 0 : candidate + 1;
    if (w->num_ready == 0) return;
    w->contended = 1;
    w->stall_arbitration_ps += w->free_at - s->agenda.now_ps;
}

/* Phase B of the wire now: grant the next packet that has credit, if there is one. Of nodes without
 * `flows`, all candidates are queues. */
ALWAYS_INLINE STATUS window_grant(clusim_sim *s, wire_state *w, bool flows) {
    uint32_t first = grant_next(w->ready, w->num_words, w->next_candidate), c = first, vc;
    do {
        uint32_t bytes = flows ? grant_needs(s, w, c, &vc) : grant_head(s, w, c, &vc);
        if (LIKELY(grant_credit(&w->credits[vc], bytes, s->agenda.now_ps))) {
            TRY(flows ? grant_candidate(s, w, c) : grant_queue(s, w, c));
            window_granted(s, w, c);
            return CLUSIM_OK;
        }
        c = grant_next(w->ready, w->num_words, c + 1 == w->num_candidates ? 0 : c + 1);
    } while (c != first);
    window_stall(s, w);
    return CLUSIM_OK;
}

/* ---- the wires of a node -----------------------------------------------------------------------
 */

typedef STATUS (*window_work)(clusim_sim *s, window_node *n, wire_id wire, int64_t end_ps,
                              bool *more);

/* Work off a list of a node's wires; those with more to do stay on it. */
ALWAYS_INLINE STATUS window_walk(clusim_sim *s, window_node *n, enum window_list list,
                                 window_work work, int64_t end_ps) {
    wire_id *link = &n->first[list];
    while (!wire_none(*link)) {
        wire_id wire = *link;
        window_wire *x = &s->windows.wires[wire.i];
        bool more;
        TRY(work(s, n, wire, end_ps, &more));
        if (more) {
            link = &x->next[list];
        } else {
            x->listed[list] = 0;
            *link = x->next[list];
        }
    }
    return CLUSIM_OK;
}

#endif
