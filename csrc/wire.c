#include "wire.h"

#include <string.h>

#include "laws.h"
#include "lines.h"
#include "notice.h"
#include "parts/congestion.h"
#include "parts/spreads.h"
#include "pool.h"
#include "route.h"

/* ---- life ------------------------------------------------------------------------------------ */

static void init_wire(clusim_sim *s, wire_id wire) {
    const wire_info *info = info_at(s, wire);
    wire_state *w = wire_at(s, wire);
    memset(w, 0, sizeof *w);
    w->rate = &s->model->rates[info->rate];
    w->wake_at = NEVER;
    w->ready = s->wires.ready_bits + info->word_base;
    w->waits = s->wires.waits + 2 * (size_t)info->flow_base;
    w->queues = s->wires.voqs + info->voq_base;
    w->credits = s->wires.credits + (size_t)wire.i * s->wires.nvc;
    w->flows = s->wires.flows + info->flow_base;
    w->latency_ps = info->latency_ps;
    w->far_latency_ps = info->dst_latency_ps;
    w->far_endpoint = info->dst_endpoint;
    w->num_voqs = info->num_voqs;
    w->num_candidates = info->num_candidates;
    w->num_words = (uint16_t)info->num_words;
    w->soonest = NEVER;
    wire_set_traits(s, wire, info->traits);
    for (uint32_t vc = 0; vc < s->wires.nvc; vc++) {
        w->credits[vc].available = (int64_t)s->model->image.wires[wire.i].buffer_bytes;
        w->credits[vc].credit_ps = info->credit_ps;
        w->credits[vc].head = w->credits[vc].end = w->credits[vc].size = FIRST_RETURN;
        w->credits[vc].look = FIRST_RETURN + MOST_RETURNS;
    }
}

void wire_set_traits(const clusim_sim *s, wire_id wire, uint16_t traits) {
    wire_at(s, wire)->traits = traits;
    for (uint32_t vc = 0; vc < s->wires.nvc; vc++) wire_credit(s, wire, vc)->traits = traits;
}

/* Rank the queues of packets from wire `in`. */
static void rank_queues(const wires_part *w, const clusim_model *m, const wire_info *in) {
    if (!in->dim) return;
    for (uint32_t k = m->out_off[in->dst.i]; k < m->out_off[in->dst.i + 1]; k++) {
        const wire_info *out = &m->wires[m->out_wires[k]];
        uint8_t *first = w->ranks + out->voq_base + in->in_local * w->nvc;
        memset(first, out->dim == in->dim ? RANK_STRAIGHT : RANK_TURNING, w->nvc);
    }
}

/* The first class of each priority has the turn. */
static void init_classes(const clusim_sim *s, wire_id wire) {
    uint32_t row = s->model->image.wires[wire.i].schedule;
    for (uint32_t vc = s->wires.nvc; row && vc-- > 0;)
        s->wires.classes[wire.i].turn[s->model->image.schedules[row - 1].priority[vc]] = vc;
}

STATUS wire_init(clusim_sim *s) {
    const clusim_model *m = s->model;
    uint64_t count = m->image.num_wires;
    wires_part *w = &s->wires;
    w->info = m->wires;
    w->nvc = m->image.nvc;
    w->all = aligned_alloc(64, (count + 1) * sizeof *w->all);
    if (w->all == NULL) return CLUSIM_ERR_NO_MEMORY;
    w->credits = aligned_alloc(64, (count * w->nvc + 1) * sizeof *w->credits);
    if (w->credits == NULL) return CLUSIM_ERR_NO_MEMORY;
    memset(w->credits, 0, (count * w->nvc + 1) * sizeof *w->credits);
    ZEROED(w->voqs, m->num_voqs);
    ZEROED(w->ranks, m->num_voqs);
    ZEROED(w->ready_bits, m->num_words);
    ZEROED(w->waits, 2 * m->num_flows);
    ZEROED(w->flows, m->num_flows);
    for (uint64_t i = 0; i < m->num_voqs; i++) w->voqs[i] = (voq){NO(packet), NO(packet)};
    if (m->image.num_schedules) ZEROED(w->classes, count);
    for (uint32_t i = 0; i < count; i++) {
        init_wire(s, ID(wire, i));
        if (w->classes) init_classes(s, ID(wire, i));
    }
    if (!m->has_dims) return CLUSIM_OK;
    memset(w->ranks, RANK_ENTERING, m->num_voqs);
    for (uint32_t i = 0; i < count; i++) rank_queues(w, m, &m->wires[i]);
    return CLUSIM_OK;
}

void wire_free(clusim_sim *s) {
    wires_part *w = &s->wires;
    for (uint64_t i = 0; w->credits && i < s->model->image.num_wires * w->nvc; i++)
        free(w->credits[i].pending);
    free(w->all);
    free(w->credits);
    free(w->voqs);
    free(w->ranks);
    free(w->classes);
    free(w->ready_bits);
    free(w->waits);
    free(w->flows);
}

/* ---- credit and control bytes ------------------------------------------------------------------
 */

STATUS wire_grow_credit(credit_pool *c) {
    uint32_t moved = c->head - FIRST_RETURN;
    credit_return *all = c->pending;
    if (2 * moved < c->size) {
        uint32_t bigger = c->size > FIRST_RETURN ? 2 * c->size : 16;
        all = malloc(bigger * sizeof *all);
        if (all == NULL) return CLUSIM_ERR_NO_MEMORY;
        all[0] = (credit_return){.at_ps = -1};
        c->size = bigger;
    }
    if (c->end > c->head)
        memmove(all + FIRST_RETURN, c->pending + c->head, (c->end - c->head) * sizeof *all);
    if (all != c->pending) free(c->pending);
    c->pending = all;
    c->head -= moved;
    c->end -= moved;
    c->look -= moved;
    return CLUSIM_OK;
}

STATUS wire_return_otherwise(clusim_sim *s, wire_id wire, uint32_t vc, uint32_t bytes,
                             int64_t free_ps) {
    const credit_pool *c = wire_credit(s, wire, vc);
    if (c->traits & PAUSES) return congestion_free_at(s, wire_at(s, wire), vc, bytes, free_ps);
    if ((c->traits & CROSSES) && s->windows.thread)
        return inbox_credit(s, wire, vc, bytes, free_ps);
    if (UNLIKELY(free_ps + c->credit_ps >= RANGE_TIME_END))
        scheduler_beyond(s, CLUSIM_BEYOND_WIRE, wire.i);
    return wire_add_credit(s, wire, vc, bytes, free_ps);
}

void wire_count_credit(credit_pool *c, int64_t now_ps) {
    const credit_return *at = c->pending + c->head, *end = c->pending + c->end;
    credit_return *to = c->pending + FIRST_RETURN;
    int64_t sum = 0;
    bool unsorted = false;
    for (; at < end; at++) {
        credit_return r = *at;
        if (r.at_ps > now_ps) {
            unsorted |= r.at_ps < to[-1].at_ps;
            *to++ = r;
        } else {
            sum += r.bytes;
        }
    }
    c->available += sum;
    c->head = FIRST_RETURN;
    c->end = (uint32_t)(to - c->pending);
    c->unsorted = unsorted;
}

void wire_sort_credit(credit_pool *c) {
    for (uint32_t i = c->head + 1; i < c->end; i++) {
        credit_return r = c->pending[i];
        uint32_t k = i;
        for (; k > c->head && c->pending[k - 1].at_ps > r.at_ps; k--)
            c->pending[k] = c->pending[k - 1];
        c->pending[k] = r;
    }
    c->unsorted = 0;
}

void wire_drain(clusim_sim *s, wire_state *w) {
    if (UNLIKELY(w->owed_256 >= RANGE_OWED_256_END))
        scheduler_beyond(s, CLUSIM_BEYOND_WIRE, wire_of(s, w).i);
    int64_t idle = s->scheduler.now_ps - base_max(w->free_at, w->drained_at);
    w->drained_at = s->scheduler.now_ps;
    if (idle <= 0 || w->down) return;
    uint32_t flit = w->rate->format->flit_bytes;
    uint64_t flits = w->owed_256 / w->rate->flit_256;
    base_u128 room = (base_u128)(uint64_t)idle * w->rate->num;
    if (room < (base_u128)(flits * flit) * w->rate->den)
        flits = (uint64_t)(room / w->rate->den / flit);
    w->owed_256 -= flits * w->rate->flit_256;
    w->control_bytes += flits * flit;
}

STATUS wire_note_entry(clusim_sim *s, packet_id index) {
    const packet *p = packet_at(s, index);
    wires_part *w = &s->wires;
    if (w->num_entered < s->packets.size) {
        int64_t *all = realloc(w->entered, s->packets.size * sizeof *all);
        if (all == NULL) return CLUSIM_ERR_NO_MEMORY;
        w->entered = all;
        w->num_entered = s->packets.size;
    }
    w->entered[index.i] = s->scheduler.now_ps;
    w->class_bytes[(uint64_t)p->out.i * w->nvc + p->vc] += p->wire_bytes;
    return CLUSIM_OK;
}

static void forget_promise(const clusim_sim *s, packet *p) {
    if (p->promised) s->spreads.promised[p->out.i * s->wires.nvc + p->vc] -= p->wire_bytes;
    p->promised = 0;
}

/* A packet loses its payload. */
static void trim(clusim_sim *s, packet *p) {
    forget_promise(s, p);
    notice_forget_hops(s, p);
    s->spreads.orders.trimmed_bytes += p->payload;
    p->acknowledged = 0;
    p->kind = CLUSIM_KIND_TRIMMED;
    p->first_vc = p->vc = (uint8_t)s->model->image.wires[p->out.i].trim_vc;
    route_cut(s, p, p->out);
}

STATUS wire_refuse(clusim_sim *s, packet_id index, uint32_t candidate) {
    packet *p = packet_at(s, index);
    if (congestion_trims(s, p)) {
        trim(s, p);
        if (!congestion_drops(s, p)) return wire_enqueue(s, index, candidate + p->vc - p->held_vc);
    }
    congestion_count_drop(s, p);
    TRY(wire_return_credit(s, p->held_wire, p->held_vc, p->held_bytes, s->scheduler.now_ps));
    forget_promise(s, p);
    notice_forget_hops(s, p);
    TRY(lines_dropped(s, p));
    pool_free_packet(s, index);
    return CLUSIM_OK;
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
        return scheduler_arbitrate(s, wire);
    }
    s->wires.any_down = s->wires.any_choice = true;
    wire_end_stall(s, w);
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
    int64_t beyond = base_max(0, w->free_at - s->scheduler.now_ps);
    out->busy_ps -= beyond;
    if (w->contended) out->stall_arbitration_ps -= beyond;
    if (w->stalled) out->stall_credit_ps += s->scheduler.now_ps - w->stall_since;
}
