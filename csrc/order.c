#include "order.h"

#include "inject.h"
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

/* ---- counters of NICs --------------------------------------------------------------------------
 */

/* The receiving NIC of a transfer, or its endpoint. */
static target_id receiver_of(const xfer *x) {
    return target_none(x->via_last) ? x->dst : x->via_last;
}

/* True if counters still change: they are those of the end of the run. */
static bool counts(const clusim_sim *s) { return !s->results.finished; }

void order_arrived(clusim_sim *s, const packet *p) {
    const xfer *x = xfer_at(s, p->xfer);
    clusim_order_counters *c = &s->spreads.orders[receiver_of(x).i];
    if (!counts(s)) return;
    c->packets++;
    c->early += p->number != x->expected;
}

/* The receiver keeps `bytes` more. */
static void count_kept(clusim_sim *s, const xfer *x, int64_t bytes) {
    uint32_t receiver = receiver_of(x).i;
    clusim_order_counters *c = &s->spreads.orders[receiver];
    s->spreads.kept[receiver] += (uint64_t)bytes;
    if (counts(s)) c->kept_max = base_umax(c->kept_max, s->spreads.kept[receiver]);
}

static void count_repeat(clusim_sim *s, const xfer *x) {
    target_id sender = target_none(x->via_first) ? model_target(x->endpoint) : x->via_first;
    s->spreads.orders[sender.i].repeats += counts(s);
}

/* ---- receiver ----------------------------------------------------------------------------------
 */

static STATUS refuse(clusim_sim *s, xfer_id id) {
    xfer *x = xfer_at(s, id);
    const clusim_spread *spread = spread_of(s, x);
    x->refused = true;
    x->lost = false;
    x->refused_at = x->expected;
    x->refers++;
    return scheduler_event(s, s->scheduler.now_ps + spread->nak_ps, EV_REPEAT, spread_flow(s, x).i,
                           id.i);
}

STATUS order_early(clusim_sim *s, packet_id index) {
    packet *p = packet_at(s, index);
    xfer_id id = p->xfer;
    xfer *x = xfer_at(s, id);
    packet_id *link = &x->kept;
    while (!packet_none(*link) && packet_at(s, *link)->number < p->number) link = next_of(s, *link);
    bool known = p->number < x->expected ||
                 (!packet_none(*link) && packet_at(s, *link)->number == p->number);
    if (!known && x->kept_bytes + p->payload <= spread_of(s, x)->reorder_bytes) {
        x->kept_bytes += p->payload;
        count_kept(s, x, p->payload);
        *next_of(s, index) = *link;
        *link = index;
        return CLUSIM_OK;
    }
    pool_free_packet(s, index);
    if (known || x->refused) return CLUSIM_OK; /* a refusal on its way covers the packet */
    if (x->refused_at != x->expected) return refuse(s, id);
    x->lost = true;
    return CLUSIM_OK;
}

STATUS order_next(clusim_sim *s, xfer_id id, packet_id *out) {
    xfer *x = xfer_at(s, id);
    *out = NO(packet);
    if (packet_none(x->kept) || packet_at(s, x->kept)->number != x->expected)
        return x->lost ? refuse(s, id) : CLUSIM_OK;
    *out = x->kept;
    x->kept = *next_of(s, *out);
    x->kept_bytes -= packet_at(s, *out)->payload;
    count_kept(s, x, -(int64_t)packet_at(s, *out)->payload);
    x->expected++;
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
    x->repeats++;
    count_repeat(s, x);
    memory_inject(s, x->endpoint, p->payload);
    return wire_enqueue(s, index, info_at(s, out)->num_voqs - s->wires.nvc + x->vc);
}

STATUS order_repeat(clusim_sim *s, xfer_id id) {
    xfer *x = xfer_at(s, id);
    x->refused = false;
    if (x->expected < x->count) {
        uint32_t end = granted_end(s, x);
        for (uint32_t i = x->refused_at; i < end; i++) {
            if (was_granted(s, xfer_at(s, id), i)) TRY(send_again(s, id, i));
        }
        x = xfer_at(s, id);
        if (x->ungranted) TRY(inject_reopen(s, x));
    }
    order_forget(s, id);
    return CLUSIM_OK;
}

STATUS order_repeated(clusim_sim *s, packet *p) {
    xfer *x = xfer_at(s, p->xfer);
    p->repeated = 0;
    if (--x->repeats == 0 && x->ungranted) return inject_reopen(s, x);
    return CLUSIM_OK;
}
