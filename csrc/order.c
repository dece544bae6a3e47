#include "order.h"

#include "inject.h"
#include "lines.h"
#include "memory.h"
#include "parts/packets.h"
#include "parts/results.h"
#include "parts/scheduler.h"
#include "parts/spreads.h"
#include "parts/wires.h"
#include "parts/xfers.h"
#include "pool.h"
#include "route.h"
#include "scheduler.h"
#include "spread.h"
#include "wire.h"

void order_forget(clusim_sim *s, xfer_id x) {
    if (--xfer_at(s, x)->refers == 0 && xfer_at(s, x)->complete) pool_free_xfer(s, x);
}

/* ---- queue pairs -------------------------------------------------------------------------------
 */

pair_id order_pair_of(const clusim_sim *s, const packet *p) {
    const order_line *line = line_at(s, xfer_at(s, p->xfer)->line);
    return ID(pair, line->pair.i + p->number % line->pairs);
}

/* Number of a packet in its line. */
static uint64_t number_of(const clusim_sim *s, packet_id p) {
    return xfer_at(s, packet_at(s, p)->xfer)->first + packet_at(s, p)->number;
}

/* The expected packet was accepted. */
static void advance(const clusim_sim *s, pair_id id) {
    order_pair *pair = pair_at(s, id);
    const order_line *line = line_at(s, pair->line);
    const xfer *x = xfer_at(s, pair->present);
    uint64_t i = pair->expected - x->first + line->pairs;
    while (i >= x->count) {
        pair->present = x->later;
        pair->expected = NO_NUMBER;
        if (xfer_none(pair->present)) return;
        x = xfer_at(s, pair->present);
        i = id.i - line->pair.i;
    }
    pair->expected = x->first + i;
}

/* True if no queue pair of a line needs a transfer: all its packets are accepted, and no refusal of
 * one is on its way. */
static bool passed(const clusim_sim *s, const order_line *line, const xfer *x) {
    for (uint32_t k = 0; k < line->pairs; k++) {
        const order_pair *pair = pair_at(s, ID(pair, line->pair.i + k));
        xfer_id needed = pair->refused ? pair->refused_in : pair->present;
        if (!xfer_none(needed) && xfer_at(s, needed)->first <= x->first) return false;
    }
    return true;
}

/* Forget the transfers that a line does not need. */
static void shorten(clusim_sim *s, order_line *line) {
    while (!xfer_none(line->oldest) && passed(s, line, xfer_at(s, line->oldest))) {
        xfer_id id = line->oldest;
        line->oldest = xfer_at(s, id)->later;
        if (xfer_none(line->oldest)) line->newest = NO(xfer);
        order_forget(s, id);
    }
}

/* ---- counters of NICs --------------------------------------------------------------------------
 */

/* The receiving NIC of a transfer, or its endpoint. */
static target_id receiver_of(const xfer *x) {
    return target_none(x->via_last) ? x->dst : x->via_last;
}

/* True if counters still change: they are those of the end of the run. */
static bool counts(const clusim_sim *s) { return !s->results.finished; }

bool order_arrived(clusim_sim *s, const packet *p) {
    const xfer *x = xfer_at(s, p->xfer);
    bool early = x->first + p->number != pair_at(s, order_pair_of(s, p))->expected;
    clusim_order_counters *c = &s->spreads.orders.counters[receiver_of(x).i];
    c->packets += counts(s);
    c->early += early && counts(s);
    return early;
}

/* The receiver keeps `bytes` more. */
static void count_kept(clusim_sim *s, const packet *p, int64_t bytes) {
    uint32_t receiver = receiver_of(xfer_at(s, p->xfer)).i;
    orders_part *o = &s->spreads.orders;
    clusim_order_counters *c = &o->counters[receiver];
    o->kept[receiver] += (uint64_t)bytes;
    if (counts(s)) c->kept_max = base_umax(c->kept_max, o->kept[receiver]);
}

static void count_repeat(clusim_sim *s, const xfer *x) {
    target_id sender = target_none(x->via_first) ? model_target(x->endpoint) : x->via_first;
    s->spreads.orders.counters[sender.i].repeats += counts(s);
}

/* ---- receiver ----------------------------------------------------------------------------------
 */

static STATUS refuse(clusim_sim *s, pair_id id) {
    order_pair *pair = pair_at(s, id);
    const xfer *x = xfer_at(s, pair->present);
    pair->refused = true;
    pair->lost = false;
    pair->refused_at = pair->expected;
    pair->refused_in = pair->present;
    int64_t at = s->scheduler.now_ps + spread_of(s, x)->nak_ps;
    return scheduler_event(s, at, EV_REPEAT, spread_flow(s, x).i, id.i);
}

STATUS order_early(clusim_sim *s, packet_id index) {
    packet *p = packet_at(s, index);
    pair_id id = order_pair_of(s, p);
    order_pair *pair = pair_at(s, id);
    uint64_t number = number_of(s, index);
    packet_id *link = &pair->kept;
    while (!packet_none(*link) && number_of(s, *link) < number) link = next_of(s, *link);
    bool known = number < pair->expected || (!packet_none(*link) && number_of(s, *link) == number);
    uint64_t room = spread_of(s, xfer_at(s, p->xfer))->reorder_bytes;
    if (!known && pair->kept_bytes + p->payload <= room) {
        pair->kept_bytes += p->payload;
        count_kept(s, p, p->payload);
        *next_of(s, index) = *link;
        *link = index;
        return CLUSIM_OK;
    }
    pool_free_packet(s, index);
    if (known || pair->refused) return CLUSIM_OK; /* a refusal on its way covers the packet */
    if (pair->refused_at != pair->expected) return refuse(s, id);
    pair->lost = true;
    return CLUSIM_OK;
}

STATUS order_next(clusim_sim *s, pair_id id, packet_id *out) {
    order_pair *pair = pair_at(s, id);
    advance(s, id);
    *out = NO(packet);
    if (packet_none(pair->kept) || number_of(s, pair->kept) != pair->expected) {
        if (pair->lost) TRY(refuse(s, id));
        shorten(s, line_at(s, pair->line));
        return CLUSIM_OK;
    }
    *out = pair->kept;
    pair->kept = *next_of(s, *out);
    const packet *p = packet_at(s, *out);
    pair->kept_bytes -= p->payload;
    count_kept(s, p, -(int64_t)p->payload);
    return CLUSIM_OK;
}

/* ---- sender ------------------------------------------------------------------------------------
 */

/* The wire of packet `i` among the first wires, or over which it leaves next. */
static wire_id first_wire(const xfer *x, uint32_t i) {
    uint32_t n = x->group_size;
    if (x->policy == CLUSIM_POLICY_PINNED) return ID(wire, x->group[x->stripe % n]);
    return ID(wire, x->group[((uint64_t)x->stripe + i) % n]);
}

/* True if packet `i` was granted. */
static bool was_granted(const clusim_sim *s, const xfer *x, uint32_t i) {
    if (x->ungranted == 0) return true;
    if (x->policy == CLUSIM_POLICY_ADAPTIVE) return i < x->adaptive_next;
    return i < wire_at(s, first_wire(x, i))->flows[x->slot].next;
}

/* One more than the highest number that may have been granted. */
static uint32_t granted_end(const clusim_sim *s, const xfer *x) {
    uint64_t end = 0;
    if (x->ungranted == 0) return x->count;
    if (x->policy == CLUSIM_POLICY_ADAPTIVE) return x->adaptive_next;
    for (uint32_t k = 0; k < x->group_size; k++)
        end = base_umax(end, wire_at(s, ID(wire, x->group[k]))->flows[x->slot].next);
    return (uint32_t)base_umin(end, x->count);
}

static STATUS send_again(clusim_sim *s, xfer_id id, uint32_t i) {
    packet_id index;
    TRY(pool_packet(s, &index));
    xfer *x = xfer_at(s, id);
    packet *p = packet_at(s, index);
    *p = x->made;
    p->number = i;
    p->key = inject_key(x, i);
    p->repeated = 1;
    bool last = i + 1 == x->count;
    p->payload = last ? (uint32_t)(x->bytes - (uint64_t)i * x->full) : x->full;
    wire_id out = first_wire(x, i);
    if (x->policy == CLUSIM_POLICY_ADAPTIVE) {
        node_id node = info_at(s, out)->src;
        spread_choice c = spread_among(s, x->group, x->group_size, node);
        out = spread_least(s, p, &c);
    }
    p->first_wire = out;
    route_restart(s, p, out, x->vc);
    x->refers++;
    line_at(s, x->line)->repeats++;
    count_repeat(s, x);
    memory_inject(s, x->endpoint, p->payload);
    return wire_enqueue(s, index, info_at(s, out)->num_voqs - s->wires.nvc + x->vc);
}

/* Send the granted packets of a queue pair again, from its refused one on. */
static STATUS send_all(clusim_sim *s, const order_pair *pair, uint32_t step) {
    uint64_t i = pair->refused_at - xfer_at(s, pair->refused_in)->first;
    for (xfer_id id = pair->refused_in; !xfer_none(id); id = xfer_at(s, id)->later) {
        uint32_t end = granted_end(s, xfer_at(s, id));
        for (; i < end; i += step) {
            if (was_granted(s, xfer_at(s, id), (uint32_t)i)) TRY(send_again(s, id, (uint32_t)i));
        }
        i %= step;
    }
    return CLUSIM_OK;
}

/* The last transfer of a line waits for repeats, or continues. */
static STATUS reopen(clusim_sim *s, const order_line *line) {
    if (xfer_none(line->newest)) return CLUSIM_OK;
    xfer *x = xfer_at(s, line->newest);
    x->repeats = line->repeats;
    return x->ungranted ? inject_reopen(s, x, NO(wire)) : CLUSIM_OK;
}

STATUS order_repeat(clusim_sim *s, pair_id id) {
    order_pair *pair = pair_at(s, id);
    order_line *line = line_at(s, pair->line);
    pair->refused = false;
    if (!xfer_none(pair->present)) {
        TRY(send_all(s, pair, line->pairs));
        TRY(reopen(s, line));
    }
    shorten(s, line);
    return CLUSIM_OK;
}

STATUS order_repeated(clusim_sim *s, packet *p) {
    order_line *line = line_at(s, xfer_at(s, p->xfer)->line);
    p->repeated = 0;
    if (--line->repeats == 0) return reopen(s, line);
    if (!xfer_none(line->newest)) xfer_at(s, line->newest)->repeats = line->repeats;
    return CLUSIM_OK;
}
