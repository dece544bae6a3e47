#include "order.h"

#include "grow.h"
#include "lines.h"
#include "parts/packets.h"
#include "parts/results.h"
#include "parts/scheduler.h"
#include "parts/spreads.h"
#include "parts/xfers.h"
#include "pool.h"
#include "scheduler.h"
#include "spread.h"

/* ---- queue pairs -------------------------------------------------------------------------------
 */

pair_id order_pair_of(const clusim_sim *s, const packet *p) {
    return lines_pair(s, xfer_at(s, p->xfer), p->number);
}

/* Number of a packet in its line. */
static uint64_t number_of(const clusim_sim *s, packet_id p) {
    return order_number(s, packet_at(s, p));
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

void order_shorten(clusim_sim *s, order_line *line) {
    while (!xfer_none(line->oldest) && passed(s, line, xfer_at(s, line->oldest))) {
        xfer_id id = line->oldest;
        line->oldest = xfer_at(s, id)->later;
        if (xfer_none(line->oldest)) line->newest = NO(xfer);
        lines_forget(s, id);
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
    s->spreads.orders.arrived_bytes += p->payload;
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

/* Place of a packet in the kept list: the link to it, or to its successor. */
static packet_id *place_of(const clusim_sim *s, order_pair *pair, uint64_t number) {
    packet_id *link = &pair->kept;
    while (!packet_none(*link) && number_of(s, *link) < number) link = next_of(s, *link);
    return link;
}

/* A packet that was accepted, or is kept. */
static bool is_known(const clusim_sim *s, order_pair *pair, uint64_t number) {
    packet_id at = *place_of(s, pair, number);
    return number < pair->expected || (!packet_none(at) && number_of(s, at) == number);
}

bool order_knows(const clusim_sim *s, const packet *p) {
    return is_known(s, pair_at(s, order_pair_of(s, p)), order_number(s, p));
}

/* True if an early packet is kept. */
static bool has_room(const clusim_sim *s, const packet *p) {
    const clusim_spread *spread = spread_of(s, xfer_at(s, p->xfer));
    const order_pair *pair = pair_at(s, order_pair_of(s, p));
    return spread->selective || pair->kept_bytes + p->payload <= spread->reorder_bytes;
}

bool order_takes(const clusim_sim *s, const packet *p) {
    bool expected = order_number(s, p) == pair_at(s, order_pair_of(s, p))->expected;
    return expected || (!order_knows(s, p) && has_room(s, p));
}

static STATUS ask(clusim_sim *s, pair_id id, const xfer *x, order_span span) {
    order_pair *pair = pair_at(s, id);
    QUEUE_ROOM(&pair->missing);
    pair->missing.items[pair->missing.len++] = span;
    int64_t at = s->scheduler.now_ps + spread_of(s, x)->nak_ps;
    return scheduler_event(s, at, EV_REPEAT, pair->flow.i, id.i);
}

/* Request the packets that an early packet has overtaken, unless headers report losses. */
static STATUS ask_overtaken(clusim_sim *s, pair_id id, const xfer *x, uint64_t number) {
    order_pair *pair = pair_at(s, id);
    const clusim_spread *spread = spread_of(s, x);
    uint64_t from = pair->seen;
    pair->seen = base_umax(from, number + 1);
    if (!spread->selective || spread->trimmed || from >= number) return CLUSIM_OK;
    return ask(s, id, x, (order_span){from, number});
}

STATUS order_trimmed(clusim_sim *s, const packet *p) {
    const xfer *x = xfer_at(s, p->xfer);
    uint64_t number = order_number(s, p);
    s->spreads.orders.counters[receiver_of(x).i].trimmed += counts(s);
    if (order_knows(s, p)) return CLUSIM_OK;
    return ask(s, order_pair_of(s, p), x, (order_span){number, number + 1});
}

STATUS order_early(clusim_sim *s, packet_id index) {
    packet *p = packet_at(s, index);
    const xfer *x = xfer_at(s, p->xfer);
    pair_id id = order_pair_of(s, p);
    order_pair *pair = pair_at(s, id);
    uint64_t number = number_of(s, index);
    bool known = is_known(s, pair, number);
    if (!known && has_room(s, p)) {
        packet_id *link = place_of(s, pair, number);
        pair->kept_bytes += p->payload;
        count_kept(s, p, p->payload);
        *next_of(s, index) = *link;
        *link = index;
        return ask_overtaken(s, id, x, number);
    }
    pool_free_packet(s, index);
    if (known || pair->refused) return CLUSIM_OK; /* a refusal on its way covers the packet */
    if (pair->refused_at != pair->expected) return refuse(s, id);
    pair->lost = true;
    return CLUSIM_OK;
}

STATUS order_next(clusim_sim *s, pair_id id, packet_id *out) {
    order_pair *pair = pair_at(s, id);
    pair->seen = base_umax(pair->seen, pair->expected + 1);
    pair->progress_ps = s->scheduler.now_ps;
    pair->tries = 0;
    advance(s, id);
    *out = NO(packet);
    if (packet_none(pair->kept) || number_of(s, pair->kept) != pair->expected) {
        if (pair->lost) TRY(refuse(s, id));
        order_shorten(s, line_at(s, pair->line));
        return CLUSIM_OK;
    }
    *out = pair->kept;
    pair->kept = *next_of(s, *out);
    const packet *p = packet_at(s, *out);
    pair->kept_bytes -= p->payload;
    count_kept(s, p, -(int64_t)p->payload);
    return CLUSIM_OK;
}
