#include "arbitrate.h"

#include "grant.h"
#include "inject.h"
#include "parts/agenda.h"
#include "parts/packets.h"
#include "parts/wires.h"
#include "wire.h"

/* Flows whose next packet has become available join the candidates. */
static STATUS admit_waiting(const clusim_sim *s, wire_state *w) {
    int64_t soonest = NEVER;
    for (uint32_t i = w->num_voqs >> 6; i < w->num_words; i++) {
        for (uint64_t bits = w->waits[i]; bits; bits &= bits - 1) {
            uint32_t bit = (uint32_t)__builtin_ctzll(bits);
            int64_t avail = w->flows[i * 64 + bit - w->num_voqs].avail;
            if (avail <= s->agenda.now_ps) {
                w->waits[i] &= ~(UINT64_C(1) << bit);
                w->ready[i] |= UINT64_C(1) << bit;
                w->num_ready++;
            } else {
                soonest = base_min(soonest, avail);
            }
        }
    }
    w->soonest = soonest;
    return CLUSIM_OK;
}

/* No candidate is eligible: stall if one lacked only credit, and wake when more comes back. */
static STATUS stall(clusim_sim *s, wire_state *w, uint32_t blocked_vcs) {
    if (w->stall_since < 0) w->stall_since = s->agenda.now_ps;
    for (uint32_t vc = 0; vc < s->wires.nvc; vc++) {
        const credit_pool *c = &w->credits[vc];
        if ((blocked_vcs >> vc & 1) && c->len) TRY(wire_wake(s, w, c->ring[c->head].at_ps));
    }
    return CLUSIM_OK;
}

static inline STATUS grant_flow(clusim_sim *s, wire_state *w, uint32_t slot) {
    wire_id wire = wire_of(s, w);
    packet_id packet_index;
    TRY(inject_make(s, wire, slot, &packet_index));
    TRY(grant_start(s, w, packet_index));
    return inject_grant(s, wire, slot, w->free_at);
}

static inline STATUS after_grant(clusim_sim *s, wire_state *w, uint32_t candidate) {
    w->next_candidate = candidate + 1 == w->num_candidates ? 0 : candidate + 1;
    if (w->num_ready) {
        w->contended = 1;
        w->stall_arbitration_ps += w->free_at - s->agenda.now_ps;
        TRY(wire_wake(s, w, w->free_at));
    } else if (w->soonest != NEVER) {
        TRY(wire_wake(s, w, base_max(w->free_at, w->soonest)));
    }
    return CLUSIM_OK;
}

/* What the next packet of a candidate needs: its bytes of credit on its VC. */
static inline uint32_t needed(const clusim_sim *s, const wire_state *w, uint32_t candidate,
                              uint32_t *vc) {
    if (candidate < w->num_voqs) {
        const packet *p = packet_at(s, w->queues[candidate].head);
        *vc = p->vc;
        return p->wire_bytes;
    }
    const flow_cursor *f = &w->flows[candidate - w->num_voqs];
    *vc = f->vc;
    return f->wire_bytes;
}

static inline STATUS grant(clusim_sim *s, wire_state *w, uint32_t candidate) {
    if (candidate < w->num_voqs) {
        TRY(grant_queue(s, w, candidate));
    } else {
        TRY(grant_flow(s, w, candidate - w->num_voqs));
    }
    return after_grant(s, w, candidate);
}

/* Round robin from the candidate after the last one granted. */
static inline STATUS search(clusim_sim *s, wire_state *w) {
    uint32_t blocked = 0, vc = 0;
    uint32_t first = w->num_ready ? grant_next(w->ready, w->num_words, w->next_candidate) : NONE;
    for (uint32_t c = first; c != NONE;) {
        uint32_t bytes = needed(s, w, c, &vc);
        if (LIKELY(grant_credit(&w->credits[vc], bytes, s->agenda.now_ps))) {
            return grant(s, w, c);
        }
        blocked |= 1u << vc;
        c = grant_next(w->ready, w->num_words, c + 1 == w->num_candidates ? 0 : c + 1);
        if (c == first) break;
    }
    if (w->soonest != NEVER) TRY(wire_wake(s, w, w->soonest));
    if (blocked) TRY(stall(s, w, blocked));
    return CLUSIM_OK;
}

STATUS arbitrate_wire(clusim_sim *s, wire_id wire) {
    wire_state *w = wire_at(s, wire);
    if (UNLIKELY(w->down)) return CLUSIM_OK;
    if (UNLIKELY(w->free_at >
                 s->agenda.now_ps)) { /* woken by an event from before its last grant */
        if (w->soonest != NEVER || w->num_ready) TRY(wire_wake(s, w, w->free_at));
        return CLUSIM_OK;
    }
    if (w->soonest <= s->agenda.now_ps) TRY(admit_waiting(s, w));
    return search(s, w);
}
