#include "wire.h"

#include <string.h>

#include "inject.h"
#include "laws.h"
#include "parts/congestion.h"
#include "parts/xfers.h"
#include "route.h"
#include "tree.h"

/* ---- life ------------------------------------------------------------------------------------ */

static void init_wire(clusim_sim *s, wire_id wire) {
    const wire_info *info = info_at(s, wire);
    wire_state *w = wire_at(s, wire);
    memset(w, 0, sizeof *w);
    w->rate = &s->model->rates[info->rate];
    w->wake_at = NEVER;
    w->stall_since = -1;
    w->ready = s->wires.ready_bits + info->word_base;
    w->waits = s->wires.wait_bits + info->word_base;
    w->queues = s->wires.voqs + info->voq_base;
    w->credits = s->wires.credits + (size_t)wire.i * s->wires.nvc;
    w->flows = s->wires.flows + info->flow_base;
    w->latency_ps = info->latency_ps;
    w->far_latency_ps = info->dst_latency_ps;
    w->far_endpoint = info->dst_endpoint;
    w->far_node = info->dst;
    w->reverse = info->reverse;
    w->credit_ps = info->credit_ps;
    w->in_queue = info->in_local * s->wires.nvc;
    w->num_voqs = info->num_voqs;
    w->num_candidates = info->num_candidates;
    w->num_words = (uint16_t)info->num_words;
    w->soonest = NEVER;
    w->traits = info->traits;
    for (uint32_t vc = 0; vc < s->wires.nvc; vc++)
        w->credits[vc].available = (int64_t)s->model->image.wires[wire.i].buffer_bytes;
}

STATUS wire_init(clusim_sim *s) {
    const clusim_model *m = s->model;
    uint64_t count = m->image.num_wires;
    wires_part *w = &s->wires;
    w->info = m->wires;
    w->nvc = m->image.nvc;
    w->all = aligned_alloc(64, (count + 1) * sizeof *w->all);
    if (w->all == NULL) return CLUSIM_ERR_NO_MEMORY;
    ZEROED(w->credits, count * w->nvc);
    ZEROED(w->voqs, m->num_voqs);
    ZEROED(w->ready_bits, m->num_words);
    ZEROED(w->wait_bits, m->num_words);
    ZEROED(w->flows, m->num_flows);
    for (uint64_t i = 0; i < m->num_voqs; i++) w->voqs[i] = (voq){NO(packet), NO(packet)};
    for (uint32_t i = 0; i < count; i++) init_wire(s, ID(wire, i));
    return CLUSIM_OK;
}

void wire_free(clusim_sim *s) {
    wires_part *w = &s->wires;
    for (uint64_t i = 0; w->credits && i < s->model->image.num_wires * w->nvc; i++)
        free(w->credits[i].ring);
    free(w->all);
    free(w->credits);
    free(w->voqs);
    free(w->ready_bits);
    free(w->wait_bits);
    free(w->flows);
}

/* ---- credit and control bytes ------------------------------------------------------------------
 */

static inline void collect_credit(credit_pool *c, int64_t now) {
    while (c->len && c->ring[c->head].at_ps <= now) {
        c->available += c->ring[c->head].bytes;
        c->head = (c->head + 1) & (c->size - 1);
        c->len--;
    }
}

static STATUS grow_ring(credit_pool *c) {
    uint32_t bigger = c->size ? 2 * c->size : 16;
    credit_return *ring = malloc(bigger * sizeof *ring);
    if (ring == NULL) return CLUSIM_ERR_NO_MEMORY;
    for (uint32_t i = 0; i < c->len; i++) ring[i] = c->ring[(c->head + i) & (c->size - 1)];
    free(c->ring);
    c->ring = ring;
    c->head = 0;
    c->size = bigger;
    return CLUSIM_OK;
}

/* The uncommon cases of wire_return_credit: a full ring, or a return that overtakes others. */
STATUS wire_return_late(credit_pool *c, uint32_t bytes, int64_t at_ps) {
    if (c->len == c->size) TRY(grow_ring(c));
    uint32_t mask = c->size - 1, i = c->len++;
    while (i > 0 && c->ring[(c->head + i - 1) & mask].at_ps > at_ps) {
        c->ring[(c->head + i) & mask] = c->ring[(c->head + i - 1) & mask];
        i--;
    }
    c->ring[(c->head + i) & mask] = (credit_return){at_ps, bytes};
    return CLUSIM_OK;
}

void wire_drain(clusim_sim *s, wire_state *w) {
    if (UNLIKELY(w->owed_256 >= RANGE_OWED_256_END))
        agenda_beyond(s, CLUSIM_BEYOND_WIRE, wire_of(s, w).i);
    int64_t idle = s->agenda.now_ps - base_max(w->free_at, w->drained_at);
    w->drained_at = s->agenda.now_ps;
    if (idle <= 0 || w->down) return;
    uint32_t flit = w->rate->format->flit_bytes;
    uint64_t flits = w->owed_256 / w->rate->flit_256;
    base_u128 room = (base_u128)(uint64_t)idle * w->rate->num;
    if (room < (base_u128)(flits * flit) * w->rate->den)
        flits = (uint64_t)(room / w->rate->den / flit);
    w->owed_256 -= flits * w->rate->flit_256;
    w->control_bytes += flits * flit;
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

/* A bound on cut-through: the tail may not be missing when the next wire wants to send it. */
static int64_t tail_bound(const clusim_sim *s, const packet *p, const wire_state *w, int64_t tail) {
    const wire_state *q = wire_at(s, route_onward(s, p, w->far_node));
    const clusim_format *f = q->rate->format;
    uint32_t kind =
        p->kind == CLUSIM_KIND_FETCH && (w->traits & BRIDGE) ? CLUSIM_KIND_WRITE : p->kind;
    uint32_t limit = xfer_at(s, p->xfer)->limit;
    uint32_t exact = model_exact(f, kind, p->payload, limit);
    uint32_t bytes = model_wire_bytes(f, kind, p->payload, exact, limit);
    return tail + w->far_latency_ps - model_est(q->rate, model_occupancy(f, kind, bytes));
}

/* When the packet is handled at the far end of its wire. */
static inline int64_t arrival_at(const clusim_sim *s, const packet *p, const wire_state *w,
                                 int64_t head, int64_t tail) {
    if (!endpoint_none(w->far_endpoint))
        return target_is(model_target(w->far_endpoint), p->dst) ? tail : tail + w->far_latency_ps;
    if ((1u << p->kind) & ((1u << CLUSIM_KIND_RED_REQ) | (1u << CLUSIM_KIND_RED_DATA))) return tail;
    if (UNLIKELY(p->kind == CLUSIM_KIND_AGG_UP) && tree_at_end(s, p)) return tail;
    if (w->traits & STORE_FORWARD) return tail + w->far_latency_ps;
    int64_t ready = (int64_t)((uint64_t)head + (uint64_t)w->rate->header_ps[p->kind] +
                              (uint64_t)w->far_latency_ps);
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

/* Below 2^62 + 2^63 + 2^62, so it has not wrapped; what follows counts with the end of time. */
static inline int64_t end_of_packet(clusim_sim *s, const wire_state *w, uint64_t end) {
    if (LIKELY(end < (uint64_t)RANGE_TIME_END)) return (int64_t)end;
    agenda_beyond(s, CLUSIM_BEYOND_WIRE, wire_of(s, w).i);
    return RANGE_TIME_END;
}

/* Put a packet on the wire now. */
static inline STATUS start_packet(clusim_sim *s, wire_state *w, packet_id packet_index) {
    const rate_class *rate = w->rate;
    packet *p = packet_at(s, packet_index);
    uint64_t now = (uint64_t)s->agenda.now_ps, prefix = 0, extra = 0;
    uint64_t occupancy = model_occupancy(rate->format, p->kind, p->wire_bytes);
    if (w->owed_256 >= rate->flit_256) {
        wire_drain(s, w);
        uint64_t flits = w->owed_256 / rate->flit_256;
        w->owed_256 -= flits * rate->flit_256;
        w->control_bytes += flits * rate->format->flit_bytes;
        occupancy += flits * rate->format->flit_bytes;
        prefix = flits * (uint64_t)rate->flit_ps;
    }
    uint64_t t = occupy(w, occupancy);
    if (UNLIKELY(w->traits & HAS_ERRORS)) extra = replay(s, w, t);
    int64_t end = end_of_packet(s, w, now + t + extra);
    w->free_at = end;
    w->contended = 0;
    w->credits[p->vc].available -= p->wire_bytes;
    if (UNLIKELY(w->stall_since >= 0)) {
        w->stall_credit_ps += s->agenda.now_ps - w->stall_since;
        w->stall_since = -1;
    }
    w->packets += p->exact;
    w->grants++;
    w->bytes += p->wire_bytes;
    if (!((KINDS_BARE >> p->kind) & 1)) w->payload += p->payload;
    w->busy_ps += end - s->agenda.now_ps;
    int64_t head = (int64_t)(now + extra + prefix + (uint64_t)w->latency_ps);
    return agenda_event(s, arrival_at(s, p, w, head, end + w->latency_ps), EV_ARRIVE, p->out.i,
                        packet_index.i);
}

/* Room in a receive buffer is free at `end`; nothing done in phase B acts at the same time. */
static inline STATUS give_back(clusim_sim *s, wire_state *from, uint32_t vc, uint32_t bytes,
                               int64_t end) {
    if (UNLIKELY(from->traits & PAUSES)) end = base_max(end, s->agenda.now_ps + 1);
    return wire_return_credit(s, from, vc, bytes, end);
}

/* The input buffer the packet sat in is free at `end`. */
static inline STATUS release_buffer(clusim_sim *s, packet *p, int64_t end) {
    if (wire_none(p->held_wire)) return CLUSIM_OK;
    wire_state *from = wire_at(s, p->held_wire);
    p->held_wire = NO(wire);
    if (UNLIKELY(p->copy && !buffer_none(p->shared))) {
        buffer_id shared = p->shared;
        shared_buffer *b = buffer_at(s, shared);
        p->shared = NO(buffer); /* from here on it holds buffers of its own */
        b->max_end = base_max(b->max_end, end);
        if (--b->copies) return CLUSIM_OK;
        TRY(give_back(s, from, b->vc, b->bytes, b->max_end));
        b->copies = s->buffers.free.i;
        s->buffers.free = shared;
        s->buffers.live--;
        return CLUSIM_OK;
    }
    return give_back(s, from, p->held_vc, p->held_bytes, end);
}

/* ---- arbitration
 * --------------------------------------------------------------------------------- */

/* First set bit at or after `from`, cyclically; NONE if there is none. */
static inline uint32_t next_bit(const uint64_t *words, uint32_t num_words, uint32_t from) {
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

static inline STATUS grant_queue(clusim_sim *s, wire_state *w, uint32_t candidate) {
    voq *q = &w->queues[candidate];
    packet_id packet_index = q->head;
    packet *p = packet_at(s, packet_index);
    q->head = p->next;
    if (!packet_none(q->head)) {
        __builtin_prefetch(packet_at(s, q->head));
    } else {
        w->ready[candidate >> 6] &= ~(UINT64_C(1) << (candidate & 63));
        w->num_ready--;
    }
    w->queued_bytes -= p->wire_bytes;
    TRY(start_packet(s, w, packet_index));
    return release_buffer(s, p, w->free_at);
}

static inline STATUS grant_flow(clusim_sim *s, wire_state *w, uint32_t slot) {
    wire_id wire = wire_of(s, w);
    packet_id packet_index;
    TRY(inject_make(s, wire, slot, &packet_index));
    TRY(start_packet(s, w, packet_index));
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
    uint32_t first = w->num_ready ? next_bit(w->ready, w->num_words, w->next_candidate) : NONE;
    for (uint32_t c = first; c != NONE;) {
        uint32_t bytes = needed(s, w, c, &vc);
        credit_pool *credit = &w->credits[vc];
        collect_credit(credit, s->agenda.now_ps);
        if (LIKELY(credit->available >= (int64_t)bytes)) {
            return grant(s, w, c);
        }
        blocked |= 1u << vc;
        c = next_bit(w->ready, w->num_words, c + 1 == w->num_candidates ? 0 : c + 1);
        if (c == first) break;
    }
    if (w->soonest != NEVER) TRY(wire_wake(s, w, w->soonest));
    if (blocked) TRY(stall(s, w, blocked));
    return CLUSIM_OK;
}

STATUS wire_arbitrate(clusim_sim *s, wire_id wire) {
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

/* ---- faults and reading
 * ---------------------------------------------------------------------------- */

STATUS wire_set_rate(clusim_sim *s, wire_id wire, uint32_t rate) {
    wire_state *w = wire_at(s, wire);
    laws_rate_changes(s, wire);
    s->wires.rates_changed = true;
    s->wires.down += (rate == NONE) - (uint32_t)w->down;
    w->rem = 0;
    w->down = rate == NONE;
    w->rate = &s->model->rates[rate == NONE ? info_at(s, wire)->rate : rate];
    if (!w->down) {
        return agenda_arbitrate(s, wire);
    }
    s->wires.any_down = true;
    if (w->stall_since >= 0) {
        w->stall_credit_ps += s->agenda.now_ps - w->stall_since;
        w->stall_since = -1;
    }
    return CLUSIM_OK;
}

void wire_read(const clusim_sim *s, wire_id wire, clusim_wire_counters *out) {
    const wire_state *w = wire_at(s, wire);
    *out = (clusim_wire_counters){.packets = w->packets,
                                  .grants = w->grants,
                                  .bytes = w->bytes,
                                  .payload = w->payload,
                                  .control_bytes = w->control_bytes,
                                  .busy_ps = w->busy_ps,
                                  .stall_credit_ps = w->stall_credit_ps,
                                  .stall_arbitration_ps = w->stall_arbitration_ps,
                                  .queued_bytes = w->queued_bytes,
                                  .queued_max = w->queued_max,
                                  .replays = w->replays};
    if (s->congestion.counters) congestion_read(s, wire, out);
    int64_t beyond = base_max(0, w->free_at - s->agenda.now_ps);
    out->busy_ps -= beyond;
    if (w->contended) out->stall_arbitration_ps -= beyond;
    if (w->stall_since >= 0) out->stall_credit_ps += s->agenda.now_ps - w->stall_since;
}
