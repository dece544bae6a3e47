#include "arbitrate.h"

#include "grant.h"
#include "inject.h"
#include "parts/scheduler.h"
#include "parts/wires.h"
#include "wire.h"

/* No candidate is eligible: stall if one lacked only credit, and wake at the next credit return. */
static STATUS stall(clusim_sim *s, wire_state *w, uint32_t blocked_vcs) {
    wire_stall(s, w, UINT32_MAX);
    for (uint32_t vc = 0; vc < s->wires.nvc; vc++) {
        credit_pool *c = &w->credits[vc];
        if ((blocked_vcs >> vc & 1) && c->head < c->end) TRY(wire_wake(s, w, wire_credit_at(c)));
    }
    return CLUSIM_OK;
}

static inline STATUS after_grant(clusim_sim *s, wire_state *w, uint32_t candidate) {
    w->next_candidate = candidate + 1 == w->num_candidates ? 0 : candidate + 1;
    if (w->num_ready) {
        w->contended = 1;
        w->stall_arbitration_ps += w->free_at - s->scheduler.now_ps;
        TRY(wire_wake(s, w, w->free_at));
    } else if (w->soonest != NEVER) {
        TRY(wire_wake(s, w, base_max(w->free_at, w->soonest)));
    }
    return CLUSIM_OK;
}

static inline STATUS grant(clusim_sim *s, wire_state *w, uint32_t candidate) {
    TRY(grant_candidate(s, w, candidate));
    return after_grant(s, w, candidate);
}

/* Rank of a candidate of a wire with a dimension. */
static uint32_t rank_of(const clusim_sim *s, const wire_state *w, uint32_t candidate) {
    if (candidate >= w->num_voqs) return RANK_ENTERING;
    return s->wires.ranks[w->queues - s->wires.voqs + candidate];
}

uint32_t arbitrate_by_rank(const clusim_sim *s, const wire_state *w, uint32_t *blocked) {
    uint32_t first = grant_next(w->ready, w->num_words, w->next_candidate);
    uint32_t c = first, best = NONE, best_rank = RANK_ENTERING + 1, vc = 0;
    do {
        uint32_t bytes = grant_needs(s, w, c, &vc), rank = rank_of(s, w, c);
        if (!grant_credit(&w->credits[vc], bytes, s->scheduler.now_ps)) {
            if (blocked) *blocked |= 1u << vc;
        } else if (rank == RANK_STRAIGHT) {
            return c;
        } else if (rank < best_rank) {
            best = c;
            best_rank = rank;
        }
        c = grant_next(w->ready, w->num_words, c + 1 == w->num_candidates ? 0 : c + 1);
    } while (c != first);
    return best;
}

/* Grant, or schedule the next attempt. */
static inline STATUS search(clusim_sim *s, wire_state *w) {
    uint32_t blocked = 0, chosen = w->num_ready ? grant_choose(s, w, true, &blocked) : NONE;
    if (LIKELY(chosen != NONE)) return grant(s, w, chosen);
    if (w->soonest != NEVER) TRY(wire_wake(s, w, w->soonest));
    if (blocked) TRY(stall(s, w, blocked));
    return CLUSIM_OK;
}

STATUS arbitrate_wire(clusim_sim *s, wire_id wire) {
    wire_state *w = wire_at(s, wire);
    if (UNLIKELY(w->down)) return CLUSIM_OK;
    if (UNLIKELY(w->free_at >
                 s->scheduler.now_ps)) { /* woken by an event from before its last grant */
        if (w->soonest != NEVER || w->num_ready) TRY(wire_wake(s, w, w->free_at));
        return CLUSIM_OK;
    }
    inject_admit(w, s->scheduler.now_ps);
    return search(s, w);
}
