#include "congestion.h"

#include "parts/congestion.h"
#include "parts/packets.h"
#include "parts/scheduler.h"
#include "parts/wires.h"
#include "parts/xfers.h"
#include "queue_policy.h"
#include "scheduler.h"

/* FREE and PAUSE events carry the VC above the bytes. */
enum { VC_SHIFT = 29, BYTES_MASK = (1 << VC_SHIFT) - 1 };

/* Credit with which a wire with pauses never stalls; a stop subtracts it twice. */
#define ENDLESS (INT64_C(1) << 60)

/* ---- pauses ------------------------------------------------------------------------------------
 */

STATUS congestion_held(clusim_sim *s, wire_id wire, const packet *p) {
    wire_state *w = wire_at(s, wire);
    const clusim_wire *image = &s->model->image.wires[wire.i];
    pause_state *state = &s->congestion.pauses[(uint64_t)wire.i * s->wires.nvc + p->vc];
    congestion_counters *count = &s->congestion.counters[wire.i];
    state->held += p->wire_bytes;
    count->held_max = base_umax(count->held_max, state->held);
    count->overflows += state->held > image->buffer_bytes;
    if (state->held <= image->xoff_bytes || state->asked) return CLUSIM_OK;
    state->asked = 1;
    return scheduler_event(s, s->scheduler.now_ps + w->credits[p->vc].credit_ps, EV_PAUSE, wire.i,
                           (uint32_t)p->vc << 1 | 1);
}

STATUS congestion_free_at(clusim_sim *s, wire_state *w, uint32_t vc, uint32_t bytes,
                          int64_t free_ps) {
    CLUSIM_ASSERT(bytes <= BYTES_MASK);
    return scheduler_event(s, free_ps, EV_FREE, wire_of(s, w).i, vc << VC_SHIFT | bytes);
}

STATUS congestion_free_event(clusim_sim *s, wire_id wire, uint32_t payload) {
    uint32_t vc = payload >> VC_SHIFT;
    pause_state *state = &s->congestion.pauses[(uint64_t)wire.i * s->wires.nvc + vc];
    state->held -= payload & BYTES_MASK;
    wire_at(s, wire)->credits[vc].available +=
        payload & BYTES_MASK; /* or it would end after 2^60 */
    if (!state->asked || state->held > s->model->image.wires[wire.i].xon_bytes) return CLUSIM_OK;
    state->asked = 0;
    return scheduler_event(s, s->scheduler.now_ps + wire_at(s, wire)->credits[vc].credit_ps,
                           EV_PAUSE, wire.i, vc << 1);
}

/* A PAUSE (bit 0 of the payload) or RESUME reaches the sender. */
STATUS congestion_pause_event(clusim_sim *s, wire_id wire, uint32_t payload) {
    uint32_t vc = payload >> 1;
    wire_state *w = wire_at(s, wire);
    pause_state *state = &s->congestion.pauses[(uint64_t)wire.i * s->wires.nvc + vc];
    bool pause = payload & 1, stopped = state->stopped > 0;
    state->stopped += pause ? 1 : -1;
    s->congestion.counters[wire.i].pauses += pause;
    if ((state->stopped > 0) == stopped) return CLUSIM_OK;
    w->credits[vc].available += stopped ? 2 * ENDLESS : -2 * ENDLESS;
    if (stopped) TRY(scheduler_arbitrate(s, wire));
    return CLUSIM_OK;
}

/* ---- marks -------------------------------------------------------------------------------------
 */

/* True if a packet that is the end of `queued` bytes is marked. */
static bool marks(clusim_sim *s, wire_id wire, uint64_t queued) {
    const clusim_wire *image = &s->model->image.wires[wire.i];
    if (image->ecn_max_bytes == 0) return false;
    uint64_t n = s->congestion.counters[wire.i].entered++;
    if (queued >= image->ecn_max_bytes) return true;
    if (queued <= image->ecn_min_bytes) return false;
    base_u128 odds = (base_u128)image->ecn_threshold * (queued - image->ecn_min_bytes);
    odds /= image->ecn_max_bytes - image->ecn_min_bytes;
    return base_hash32(s->model->image.seed, wire.i ^ (UINT32_C(1) << 31), n) < odds;
}

/* ---- drops -------------------------------------------------------------------------------------
 */

/* Bytes that are free for the queues of a wire. */
static uint64_t free_bytes(const clusim_sim *s, const clusim_wire *image, uint64_t queued) {
    uint64_t all = s->model->image.nodes[image->src].shared_bytes;
    if (all) return all - base_umin(all, s->congestion.shared[image->src]);
    if (image->queue_bytes == 0) return UINT64_C(1) << 62;
    return image->queue_bytes - base_umin(queued, image->queue_bytes);
}

/* True if a packet does not fit into the queues of a wire, or the memory that it shares. */
static bool is_full(const clusim_sim *s, const packet *p, uint64_t queued) {
    const clusim_wire *image = &s->model->image.wires[p->out.i];
    if (queued + p->wire_bytes > image->queue_bytes) return true;
    bool shares = s->model->image.nodes[image->src].shared_bytes > 0;
    return shares && p->wire_bytes > free_bytes(s, image, queued);
}

/* True if a queue has its part of the shared memory. */
static bool exceeds_part(const clusim_sim *s, const clusim_wire *image, uint64_t queued) {
    if (!image->alpha_1024 || !s->model->image.nodes[image->src].shared_bytes) return false;
    return queued >= (image->alpha_1024 * free_bytes(s, image, queued)) >> 10;
}

/* True if a lost packet would be sent again. */
static bool is_repeated(const clusim_sim *s, const packet *p) {
    return p->ordered && s->model->image.spreads[xfer_at(s, p->xfer)->spread].timeout_ps > 0;
}

/* A trimmed packet enters the queue of headers, which may be full. */
static bool header_drops(clusim_sim *s, const packet *p) {
    const clusim_wire *image = &s->model->image.wires[p->out.i];
    congestion_counters *count = &s->congestion.counters[p->out.i];
    uint64_t all = s->model->image.nodes[image->src].shared_bytes;
    uint64_t *used = &s->congestion.shared[image->src];
    if (!image->queue_bytes) return false;
    if (count->header_bytes + p->wire_bytes > image->queue_bytes) return true;
    if (all && *used + p->wire_bytes > all) return true;
    count->header_bytes += p->wire_bytes;
    *used += p->wire_bytes;
    return false;
}

/* True if the policy of a queue, or its size before that, drops or trims a packet. */
static bool policy_drops(clusim_sim *s, const packet *p, uint64_t queued, bool *marked) {
    const clusim_wire *image = &s->model->image.wires[p->out.i];
    bool may_drop = image->queue_bytes && is_repeated(s, p);
    congestion_counters *count = &s->congestion.counters[p->out.i];
    count->whole = false;
    if (may_drop && is_full(s, p, queued)) return true;
    uint64_t room = free_bytes(s, image, queued);
    enum queue_answer answer = queue_policy_judge(s, p, (int64_t)queued, (int64_t)room);
    count->whole = answer == QUEUE_DROPS;
    *marked = answer == QUEUE_MARKS;
    return may_drop && answer >= QUEUE_TRIMS;
}

/* True if the queue of a wire without a policy drops a packet. */
static bool queue_drops(const clusim_sim *s, const packet *p, uint64_t queued, bool marked) {
    const clusim_wire *image = &s->model->image.wires[p->out.i];
    if (!image->queue_bytes || !is_repeated(s, p)) return false;
    return is_full(s, p, queued) || exceeds_part(s, image, queued) || (marked && image->red);
}

bool congestion_drops(clusim_sim *s, packet *p) {
    const clusim_wire *image = &s->model->image.wires[p->out.i];
    congestion_counters *count = &s->congestion.counters[p->out.i];
    if (UNLIKELY(p->kind == CLUSIM_KIND_TRIMMED)) return header_drops(s, p);
    uint64_t queued = wire_at(s, p->out)->queued_bytes - count->header_bytes;
    bool marked = false;
    if (UNLIKELY(image->policy)) {
        if (policy_drops(s, p, queued, &marked)) return true;
    } else {
        marked = !image->ecn_departure && marks(s, p->out, queued + p->wire_bytes);
        if (queue_drops(s, p, queued, marked)) return true;
    }
    p->marked |= marked;
    count->marks += marked;
    if (wire_at(s, p->out)->traits & SHARES) s->congestion.shared[image->src] += p->wire_bytes;
    return false;
}

bool congestion_trims(clusim_sim *s, const packet *p) {
    const clusim_image *im = &s->model->image;
    congestion_counters *count = &s->congestion.counters[p->out.i];
    bool whole = count->whole;
    count->whole = false;
    if (!im->wires[p->out.i].trim_vc || p->kind == CLUSIM_KIND_TRIMMED || whole) return false;
    if (!im->spreads[xfer_at(s, p->xfer)->spread].trimmed) return false;
    count->trims++;
    count->trimmed_bytes += p->payload;
    return true;
}

void congestion_count_drop(clusim_sim *s, const packet *p) {
    congestion_counters *count = &s->congestion.counters[p->out.i];
    count->drops++;
    count->dropped_bytes += p->kind == CLUSIM_KIND_TRIMMED ? 0 : p->payload;
}

/* Release memory that a packet shared. */
static void leave_memory(clusim_sim *s, const wire_state *w, const packet *p) {
    wire_id wire = wire_of(s, w);
    s->congestion.shared[info_at(s, wire)->src.i] -= p->wire_bytes;
    if (p->kind == CLUSIM_KIND_TRIMMED)
        s->congestion.counters[wire.i].header_bytes -= p->wire_bytes;
}

void congestion_left(clusim_sim *s, const wire_state *w, const packet *p) {
    congestion_counters *count = &s->congestion.counters[wire_of(s, w).i];
    if (w->traits & SHARES) leave_memory(s, w, p);
    bool arrived = !wire_none(p->held_wire) && p->kind != CLUSIM_KIND_TRIMMED;
    if (!(w->traits & LATE) || !arrived) return;
    bool marked = marks(s, wire_of(s, w), w->queued_bytes - count->header_bytes);
    s->packets.all[p - s->packets.all].marked |= marked;
    count->marks += marked;
}

/* ---- rate control: DCQCN -----------------------------------------------------------------------
 */

static void increase(const clusim_control *c, flow_control *f) {
    uint64_t least = base_umin(f->timer_count, f->byte_count);
    if (base_umax(f->timer_count, f->byte_count) >= c->fast_recovery) {
        uint64_t over = least > c->fast_recovery ? least - c->fast_recovery : 0;
        base_u128 target = f->target + (over ? (base_u128)c->hyper * over : c->additive);
        f->target = target < c->line_rate ? (uint64_t)target : c->line_rate;
    }
    f->rate = (f->rate + f->target + 1) / 2;
}

static uint32_t decayed(const clusim_control *c, uint32_t alpha) {
    return (uint32_t)(((uint64_t)alpha * (65536 - c->g_65536)) >> 16);
}

/* Number of expiries by now of a timer that is next due at `at`. */
static uint64_t times_due(int64_t at, int64_t timer_ps, int64_t now) {
    return at > now ? 0 : (uint64_t)(now - at) / (uint64_t)timer_ps + 1;
}

/* Alpha decays until it does no more, in at most 2^16 steps; a flow may have been silent for days.
 */
static void advance_alpha(const clusim_control *c, flow_control *f, int64_t now) {
    uint64_t due = times_due(f->alpha_at, c->alpha_timer_ps, now);
    f->alpha_at += (int64_t)due * c->alpha_timer_ps;
    for (; due > 0; due--) {
        uint32_t next = decayed(c, f->alpha);
        if (next == f->alpha) return;
        f->alpha = next;
    }
}

/* Number of `due` further steps that repeat the last one, which adds `up` to rate and target: 0 if
 * the way of counting changes, or if the target meets the line rate. */
static uint64_t steady_steps(const clusim_control *c, const flow_control *f, uint64_t up,
                             uint64_t due) {
    if (f->timer_count < f->byte_count) return 0;
    if (f->timer_count < c->fast_recovery)
        due = base_umin(due, c->fast_recovery - 1 - f->timer_count);
    return up ? base_umin(due, (c->line_rate - f->target) / up) : due;
}

/* Rate and target soon climb by the same step each time; such steps are taken together. */
static void advance_rate(const clusim_control *c, flow_control *f, int64_t now) {
    uint64_t due = times_due(f->increase_at, c->increase_timer_ps, now);
    f->increase_at += (int64_t)due * c->increase_timer_ps;
    while (due > 0) {
        uint64_t rate = f->rate, target = f->target;
        f->timer_count++;
        due--;
        increase(c, f);
        uint64_t up = f->target - target;
        if (f->rate - rate != up) continue;
        uint64_t steps = steady_steps(c, f, up, due);
        f->rate += steps * up;
        f->target += steps * up;
        f->timer_count += steps;
        due -= steps;
    }
}

/* The two timers do not read each other's results, so their order does not matter. */
static void advance(const clusim_control *c, flow_control *f, int64_t now) {
    advance_alpha(c, f, now);
    advance_rate(c, f, now);
}

void congestion_granted(clusim_sim *s, flow_id flow, uint32_t payload) {
    const clusim_control *c = congestion_control(s, flow);
    flow_control *f = flow_at(s, flow);
    advance(c, f, s->scheduler.now_ps);
    f->sent += payload;
    while (f->sent >= c->byte_counter) {
        f->sent -= c->byte_counter;
        f->byte_count++;
        increase(c, f);
    }
    int64_t gap = (int64_t)base_ceil_div((uint64_t)payload << 30, f->rate);
    f->next_at = base_max(f->next_at, s->scheduler.now_ps) + gap; /* below 2^62 + 2^58 */
    if (UNLIKELY(f->next_at >= RANGE_TIME_END)) scheduler_flow_beyond(s, flow);
}

bool congestion_notifies(clusim_sim *s, flow_id flow) {
    const clusim_control *c = congestion_control(s, flow);
    flow_control *f = flow_at(s, flow);
    if (f->notified_at >= 0 && s->scheduler.now_ps - f->notified_at < c->cnp_interval_ps)
        return false;
    f->notified_at = s->scheduler.now_ps;
    return true;
}

STATUS congestion_notify(clusim_sim *s, flow_id flow) {
    const clusim_control *c = congestion_control(s, flow);
    if (!congestion_notifies(s, flow)) return CLUSIM_OK;
    return scheduler_event(s, s->scheduler.now_ps + c->cnp_delay_ps, EV_NOTIFY, 0, flow.i);
}

void congestion_notify_event(clusim_sim *s, flow_id flow) {
    const clusim_control *c = congestion_control(s, flow);
    flow_control *f = flow_at(s, flow);
    advance(c, f, s->scheduler.now_ps);
    if (c->clamp || f->timer_count > 0) f->target = f->rate;
    uint64_t cut = (uint64_t)(((base_u128)f->rate * f->alpha) >> 17);
    uint64_t kept = (uint64_t)(((base_u128)f->rate * c->kept_65536) >> 16);
    f->rate = base_umax(c->min_rate, base_umax(kept, f->rate - cut));
    f->alpha = (uint32_t)base_umin(65536, decayed(c, f->alpha) + c->g_65536);
    f->timer_count = f->byte_count = 0;
    f->sent = 0;
    f->alpha_at = s->scheduler.now_ps + c->alpha_timer_ps;
    f->increase_at = s->scheduler.now_ps + c->increase_timer_ps;
}

/* ---- life and reading --------------------------------------------------------------------------
 */

/* Sets the credit of wires with pauses to ENDLESS: call after the initialisation of wires. */
STATUS congestion_init(clusim_sim *s) {
    const clusim_image *im = &s->model->image;
    if (s->model->has_congestion) {
        ZEROED(s->congestion.pauses, im->num_wires * s->wires.nvc);
        ZEROED(s->congestion.counters, im->num_wires);
        ZEROED(s->congestion.shared, im->num_nodes);
        if (s->model->has_senders) ZEROED(s->congestion.records, im->num_wires);
    }
    if (s->model->has_controls) ZEROED(s->congestion.controls, im->num_conns + im->num_sources);
    for (uint64_t i = 0; s->congestion.pauses && i < im->num_wires * s->wires.nvc; i++) {
        if (im->wires[i / s->wires.nvc].xoff_bytes) s->wires.credits[i].available = ENDLESS;
    }
    for (uint32_t flow = 0; s->congestion.controls && flow < im->num_conns + im->num_sources;
         flow++) {
        uint32_t row = congestion_row(im, flow);
        if (row == NONE) continue;
        *flow_at(s, ID(flow, flow)) = (flow_control){.rate = im->controls[row].line_rate,
                                                     .target = im->controls[row].line_rate,
                                                     .alpha = 65536,
                                                     .alpha_at = NEVER,
                                                     .increase_at = NEVER,
                                                     .notified_at = -1};
    }
    return CLUSIM_OK;
}

void congestion_free(clusim_sim *s) {
    free(s->congestion.pauses);
    free(s->congestion.counters);
    free(s->congestion.shared);
    queue_policy_free(s);
    free(s->congestion.controls);
}

void congestion_read(const clusim_sim *s, wire_id wire, clusim_wire_counters *out) {
    const congestion_counters *c = &s->congestion.counters[wire.i];
    out->overflows = c->overflows;
    out->pauses = c->pauses;
    out->marks = c->marks;
    out->held_max = c->held_max;
    out->drops = c->drops;
    out->dropped_bytes = c->dropped_bytes;
    out->trims = c->trims;
    out->trimmed_bytes = c->trimmed_bytes;
}
