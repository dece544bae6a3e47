/* grant.h - start of a packet on a wire, as defined by the contract (section 4, grant): effects on
 * time, credit, control bytes, and the buffer that the packet leaves.
 *
 * Code that runs for every hop is inline here. Arbitration is in arbitrate.c, and in window.c for
 * wires without events. */
#ifndef CLUSIM_GRANT_H
#define CLUSIM_GRANT_H

#include "batch.h"
#include "inbox.h"
#include "inject.h"
#include "notice.h"
#include "parts/xfers.h"
#include "pool.h"
#include "repeat.h"
#include "route.h"
#include "spread.h"
#include "tree.h"
#include "wire.h"

/* ---- candidates and credit ---------------------------------------------------------------------
 */

/* Two-word version of grant_next, without a branch on ready bits, which are as good as random. */
static inline uint32_t grant_next_of_two(const uint64_t *words, uint32_t from) {
    uint64_t mask = ~UINT64_C(0) << (from & 63);
    uint64_t low = from < 64 ? words[0] & mask : 0, high = from < 64 ? words[1] : words[1] & mask;
    bool behind = (low | high) != 0;
    low = behind ? low : words[0];
    high = behind ? high : words[1];
    uint64_t bits = low ? low : high;
    return bits ? (low ? 0 : 64) + (uint32_t)__builtin_ctzll(bits) : NONE;
}

/* First set bit at or after `from`, cyclically; NONE if no bit is set. */
static inline uint32_t grant_next(const uint64_t *words, uint32_t num_words, uint32_t from) {
    if (LIKELY(num_words == 1)) {
        uint64_t behind = words[0] & (~UINT64_C(0) << from), any = behind ? behind : words[0];
        return any ? (uint32_t)__builtin_ctzll(any) : NONE;
    }
    if (LIKELY(num_words == 2)) return grant_next_of_two(words, from);
    uint32_t word = from >> 6;
    uint64_t bits = words[word] & (~UINT64_C(0) << (from & 63));
    for (uint32_t k = 0; k < num_words; k++) {
        if (bits) return (word << 6) + (uint32_t)__builtin_ctzll(bits);
        if (++word == num_words) word = 0;
        bits = words[word];
    }
    bits &= ~(~UINT64_C(0) << (from & 63));
    return bits ? (word << 6) + (uint32_t)__builtin_ctzll(bits) : NONE;
}

/* Count credit returned by now. */
static inline void grant_collect(credit_pool *c, int64_t now) {
    if (UNLIKELY(c->unsorted)) {
        wire_count_credit(c, now);
    } else {
        uint32_t head = c->head;
        for (; head < c->end && c->pending[head].at_ps <= now; head++)
            c->available += c->pending[head].bytes;
        c->head = head;
        if (head == c->end) c->head = c->end = FIRST_RETURN;
    }
    uint32_t left = c->end - c->head;
    c->look = c->head + (left > MOST_RETURNS / 2 ? 2 * left : MOST_RETURNS);
}

/* True if there is credit for `bytes` now. Returns are counted only when needed or when many are
 * pending: often they are not needed, and counting many at once is cheap. */
static inline bool grant_credit(credit_pool *c, uint32_t bytes, int64_t now) {
    if (c->available < (int64_t)bytes || c->end >= c->look) grant_collect(c, now);
    return c->available >= (int64_t)bytes;
}

/* ---- the start of a packet ---------------------------------------------------------------------
 */

/* Products of more than 63 bits: even so the time may be short, on a fast wire. */
static uint64_t occupy_long(wire_state *w, uint64_t bytes) {
    const rate_class *r = w->rate;
    base_u128 work = (base_u128)bytes * r->den + w->rem;
    base_u128 t = work / r->num;
    w->rem = (uint64_t)(work - t * r->num);
    return t < (base_u128)RANGE_TIME_END ? (uint64_t)t : (uint64_t)RANGE_TIME_END;
}

/* Time of occupying the wire with `bytes`; the remainder stays on the wire. Below 2^63 or, where
 * the product of bytes and rate has more, at most the end of time, at which the run is refused. */
static inline uint64_t occupy(wire_state *w, uint64_t bytes) {
    const rate_class *r = w->rate;
    uint64_t work;
    if (UNLIKELY(__builtin_mul_overflow(bytes, r->den, &work) || work >> 63))
        return occupy_long(w, bytes);
    if (LIKELY(r->num == 1)) return work;
    work += w->rem;
    uint64_t t = work / r->num;
    w->rem = work - t * r->num;
    return t;
}

/* Bound on cut-through: the tail must have arrived when the next wire is ready to send it. */
static int64_t tail_bound(const clusim_sim *s, const packet *p, const wire_state *w, int64_t tail) {
    const wire_state *q = wire_at(s, route_onward(s, p, end_at(s, wire_of(s, w))->node));
    const clusim_format *f = q->rate->format;
    uint32_t kind =
        p->kind == CLUSIM_KIND_FETCH && (w->traits & BRIDGE) ? CLUSIM_KIND_WRITE : p->kind;
    uint32_t limit = xfer_at(s, p->xfer)->limit;
    uint32_t exact = model_exact(f, kind, p->payload, limit);
    uint32_t bytes = model_wire_bytes(f, kind, p->payload, exact, limit);
    return tail + w->far_latency_ps - model_est(q->rate, model_occupancy(f, kind, bytes));
}

/* Time at which the packet is handled at the far end of its wire: `ready` if it cuts through. */
static inline int64_t arrival_at(const clusim_sim *s, const packet *p, const wire_state *w,
                                 int64_t ready, int64_t tail) {
    if (!endpoint_none(w->far_endpoint))
        return target_is(model_target(w->far_endpoint), p->dst) ? tail : tail + w->far_latency_ps;
    if ((1u << p->kind) & KINDS_REDUCED) {
        if (p->kind != CLUSIM_KIND_AGG_UP || tree_at_end(s, p)) return tail;
    }
    if (w->traits & STORE_FORWARD) return tail + w->far_latency_ps;
    if (LIKELY((w->traits & PLAIN_CUT) && !s->wires.rates_changed)) return ready;
    if (UNLIKELY((uint64_t)ready >= (uint64_t)RANGE_TIME_END)) return ready; /* may have wrapped */
    return base_max(ready, tail_bound(s, p, w, tail));
}

/* Extra time if this packet is hit by an error and sent again. */
static uint64_t replay(const clusim_sim *s, wire_state *w, uint64_t t) {
    uint32_t wire = wire_of(s, w).i;
    const clusim_wire *image = &s->model->image.wires[wire];
    if (base_hash32(s->model->image.seed, wire, w->grants) >= image->error_threshold) return 0;
    w->replays++;
    return base_umin(t + (uint64_t)image->replay_ps, (uint64_t)RANGE_TIME_END);
}

/* Below 2^62 + 2^63 + 2^62, so it has not wrapped; later computations respect the end of time. */
static inline int64_t end_of_packet(clusim_sim *s, const wire_state *w, uint64_t end) {
    if (LIKELY(end < (uint64_t)RANGE_TIME_END)) return (int64_t)end;
    scheduler_beyond(s, CLUSIM_BEYOND_WIRE, wire_of(s, w).i);
    return RANGE_TIME_END;
}

typedef struct grant_flits {
    uint64_t bytes, time_ps;
} grant_flits;

/* Send complete control flits that the wire owes before the packet. */
static inline grant_flits grant_owed(clusim_sim *s, wire_state *w) {
    const rate_class *rate = w->rate;
    wire_drain(s, w);
    uint64_t flits = w->owed_256 / rate->flit_256, bytes = flits * rate->format->flit_bytes;
    w->owed_256 -= flits * rate->flit_256;
    w->control_bytes += bytes;
    return (grant_flits){bytes, flits * (uint64_t)rate->flit_ps};
}

/* Put a packet on the wire now. Returns when it is handled at the far end. */
ALWAYS_INLINE int64_t grant_put(clusim_sim *s, wire_state *w, const packet *p,
                                const rate_kind *of_kind) {
    uint64_t now = (uint64_t)s->scheduler.now_ps, later = 0;
    uint64_t t = of_kind->full_ps;
    if (UNLIKELY(p->wire_bytes != of_kind->full_bytes))
        t = occupy(w, model_occupancy(w->rate->format, p->kind, p->wire_bytes));
    if (UNLIKELY(w->owed_256 >= w->rate->flit_256)) {
        grant_flits flits = grant_owed(s, w);
        t = base_umin(t + occupy(w, flits.bytes), RANGE_TIME_END);
        later = flits.time_ps;
    }
    if (UNLIKELY(w->traits & HAS_ERRORS)) {
        if (w->traits & TELLS) notice_hop(s, w, p);
        if (w->traits & (SHARES | LATE)) congestion_left(s, w, p);
        if (w->traits & TIMED)
            s->wires.class_bytes[(uint64_t)p->out.i * s->wires.nvc + p->vc] -= p->wire_bytes;
        uint64_t extra = replay(s, w, t);
        t += extra;
        later += extra;
    }
    int64_t end = end_of_packet(s, w, now + t);
    w->free_at = end;
    w->contended = 0;
    w->credits[p->vc].available -= p->wire_bytes;
    wire_end_stall(s, w);
    w->packets += p->exact;
    w->grants++;
    w->bytes += p->wire_bytes;
    w->payload += p->payload & -(~KINDS_BARE >> p->kind & 1);
    w->busy_ps += end - (int64_t)now;
    uint64_t head = now + later + (uint64_t)w->latency_ps;
    int64_t ready = (int64_t)(head + (uint64_t)of_kind->header_ps + (uint64_t)w->far_latency_ps);
    return arrival_at(s, p, w, ready, end + w->latency_ps);
}

/* A packet that was put on its wire is handled at the far end at `at_ps`. */
static inline STATUS grant_send(clusim_sim *s, const wire_state *w, packet_id index,
                                int64_t at_ps) {
    wire_id wire = packet_at(s, index)->out;
    if (UNLIKELY(w->traits & CROSSES)) return inbox_cross(s, wire, index, at_ps);
    if (w->traits & TO_PLAIN) return inbox_put(s, wire, index, at_ps);
    return scheduler_event(s, at_ps, EV_ARRIVE, wire.i, index.i);
}

/* The receive buffer is free at `end`; no action of phase B takes effect at the same time. */
static inline STATUS give_back(clusim_sim *s, wire_id from, uint32_t vc, uint32_t bytes,
                               int64_t end) {
    const credit_pool *c = wire_credit(s, from, vc);
    if (UNLIKELY(!wire_credit_plain(c))) {
        if (c->traits & PAUSES) end = base_max(end, s->scheduler.now_ps + 1);
        if (!wire_credit_simple(c, end)) return wire_return_otherwise(s, from, vc, bytes, end);
    }
    return wire_add_credit(s, from, vc, bytes, end);
}

/* The input buffer the packet sat in is free at `end`. */
static inline STATUS grant_release(clusim_sim *s, packet *p, int64_t end) {
    wire_id from = p->held_wire;
    if (wire_none(from)) return UNLIKELY(p->repeated) ? repeat_granted(s, p, end) : CLUSIM_OK;
    p->held_wire = NO(wire);
    if (UNLIKELY(p->copy && !buffer_none(p->shared))) {
        buffer_id shared = p->shared;
        shared_buffer *b = buffer_at(s, shared);
        p->shared = NO(buffer); /* from here on it holds separate buffers */
        b->max_end = base_max(b->max_end, end);
        if (--b->copies) return CLUSIM_OK;
        TRY(give_back(s, from, b->vc, b->bytes, b->max_end));
        pool_free_buffer(s, shared);
        return CLUSIM_OK;
    }
    return give_back(s, from, p->held_vc, p->held_bytes, end);
}

/* True if the members of a batch that the wire takes stay in the batch: only the thread of both its
 * nodes uses that. */
static inline bool grant_together(const wire_state *w) {
    return (w->traits & (FROM_PLAIN | TO_PLAIN | CROSSES)) == (FROM_PLAIN | TO_PLAIN);
}

/* Remove the first packet of a batch, which is the head of a VOQ. True if it was the last. */
static inline STATUS grant_of_batch(clusim_sim *s, const wire_state *w, packet_id batch,
                                    packet_id *out, bool *last) {
    const packet *b = packet_at(s, batch);
    *out = batch_take(s, batch);
    *last = b->held_vc == b->num_ops;
    return LIKELY(grant_together(w)) ? CLUSIM_OK : batch_restore(s, out);
}

/* Remove the head of a VOQ. */
static inline STATUS grant_dequeue(clusim_sim *s, wire_state *w, uint32_t candidate,
                                   packet_id *out) {
    voq *q = &w->queues[candidate];
    packet_id index = q->head;
    w->queued_bytes -= packet_at(s, index)->wire_bytes;
    *out = index;
    if (UNLIKELY(packet_at(s, index)->batch | packet_at(s, index)->promised)) {
        bool last = true;
        if (packet_at(s, index)->batch) {
            TRY(grant_of_batch(s, w, index, out, &last));
        } else {
            spread_granted(s, packet_at(s, index));
        }
        if (!last) return CLUSIM_OK;
    }
    if (!packet_is(index, q->tail)) {
        q->head = *next_of(s, index);
        pool_fetch(s, q->head, q->tail);
    } else {
        q->head = NO(packet);
        w->ready[candidate >> 6] &= ~(UINT64_C(1) << (candidate & 63));
        w->num_ready--;
    }
    return CLUSIM_OK;
}

/* Credit needed by the head of a VOQ: bytes on its VC. */
static inline uint32_t grant_head(const clusim_sim *s, const wire_state *w, uint32_t candidate,
                                  uint32_t *vc) {
    const packet *p = packet_at(s, w->queues[candidate].head);
    *vc = p->vc;
    return p->wire_bytes;
}

/* The same of any candidate. */
static inline uint32_t grant_needs(const clusim_sim *s, const wire_state *w, uint32_t candidate,
                                   uint32_t *vc) {
    if (candidate < w->num_voqs) return grant_head(s, w, candidate, vc);
    const flow_cursor *f = &w->flows[candidate - w->num_voqs];
    *vc = f->vc;
    return f->wire_bytes;
}

/* Candidate of a wire with a dimension that is granted now, or NONE: of the ready ones with credit
 * the first of the lowest rank, in round robin. `blocked`, if any, collects the VCs without
 * credit. */
uint32_t arbitrate_by_rank(clusim_sim *s, const wire_state *w, uint32_t *blocked);

/* The same of any wire, on others the first with credit. Of nodes without `flows`, all candidates
 * are queues. */
ALWAYS_INLINE uint32_t grant_choose(clusim_sim *s, const wire_state *w, bool flows,
                                    uint32_t *blocked) {
    if (UNLIKELY(w->traits & RANKED)) return arbitrate_by_rank(s, w, blocked);
    uint32_t first = grant_next(w->ready, w->num_words, w->next_candidate), c = first, vc = 0;
    do {
        uint32_t bytes = flows ? grant_needs(s, w, c, &vc) : grant_head(s, w, c, &vc);
        if (LIKELY(grant_credit(&w->credits[vc], bytes, s->scheduler.now_ps))) return c;
        if (blocked) *blocked |= 1u << vc;
        c = grant_next(w->ready, w->num_words, c + 1 == w->num_candidates ? 0 : c + 1);
    } while (c != first);
    return NONE;
}

/* Remove the next packet of a candidate. */
static inline STATUS grant_take(clusim_sim *s, wire_state *w, uint32_t candidate, packet_id *out) {
    if (LIKELY(candidate >= w->num_voqs))
        return inject_make(s, w, wire_of(s, w), candidate - w->num_voqs, out);
    return grant_dequeue(s, w, candidate, out);
}

/* It was put on its wire. */
static inline STATUS grant_done(clusim_sim *s, wire_state *w, uint32_t candidate, packet *p) {
    if (LIKELY(candidate >= w->num_voqs))
        return inject_granted(s, w, wire_of(s, w), candidate - w->num_voqs, false);
    return UNLIKELY(p->batch) ? CLUSIM_OK : grant_release(s, p, w->free_at);
}

/* Grant the next packet of a candidate. */
static inline STATUS grant_candidate(clusim_sim *s, wire_state *w, uint32_t candidate) {
    packet_id index;
    TRY(grant_take(s, w, candidate, &index));
    packet *p = packet_at(s, index);
    int64_t at_ps = grant_put(s, w, p, &w->rate->kinds[p->kind]);
    TRY(grant_send(s, w, index, at_ps));
    return grant_done(s, w, candidate, p);
}

#endif
