#include "repeat.h"

#include "grow.h"
#include "inject.h"
#include "lines.h"
#include "memory.h"
#include "order.h"
#include "parts/packets.h"
#include "parts/results.h"
#include "parts/scheduler.h"
#include "parts/senders.h"
#include "parts/spreads.h"
#include "parts/wires.h"
#include "parts/xfers.h"
#include "pool.h"
#include "route.h"
#include "scheduler.h"
#include "sender.h"
#include "spread.h"
#include "wire.h"

/* ---- packets -----------------------------------------------------------------------------------
 */

/* Counters of the sending NIC of a transfer, or of its endpoint. */
static clusim_order_counters *sender_of(const clusim_sim *s, const xfer *x) {
    target_id sender = target_none(x->via_first) ? model_target(x->endpoint) : x->via_first;
    return &s->spreads.orders.counters[sender.i];
}

static uint32_t payload_of(const xfer *x, uint32_t i) {
    return i + 1 == x->count ? (uint32_t)(x->bytes - (uint64_t)i * x->full) : x->full;
}

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
    sender_route(s, id);
    xfer *x = xfer_at(s, id);
    packet *p = packet_at(s, index);
    *p = x->made;
    p->number = i;
    p->key = inject_key(x, i);
    p->repeated = 1;
    p->payload = payload_of(x, i);
    wire_id out = first_wire(x, i);
    if (x->policy == CLUSIM_POLICY_ADAPTIVE) {
        node_id node = info_at(s, out)->src;
        spread_choice c = spread_among(s, x->group, x->group_size, node);
        out = spread_least(s, p, &c);
    }
    p->first_wire = out;
    route_restart(s, p, out, x->vc);
    sender_of(s, x)->repeats += !s->results.finished;
    sender_of(s, x)->repeated_bytes += s->results.finished ? 0 : p->payload;
    s->spreads.orders.repeated_bytes += p->payload;
    memory_inject(s, x->endpoint, p->payload);
    return wire_enqueue(s, index, info_at(s, out)->num_voqs - s->wires.nvc + x->vc);
}

/* ---- at once -----------------------------------------------------------------------------------
 */

/* Send the granted packets of a queue pair again, from its refused one on. */
static STATUS send_all(clusim_sim *s, const order_pair *pair, uint32_t step) {
    uint64_t i = pair->refused_at - xfer_at(s, pair->refused_in)->first;
    for (xfer_id id = pair->refused_in; !xfer_none(id); id = xfer_at(s, id)->later) {
        uint32_t end = granted_end(s, xfer_at(s, id));
        for (; i < end; i += step) {
            if (!was_granted(s, xfer_at(s, id), (uint32_t)i)) continue;
            xfer_at(s, id)->refers++;
            line_at(s, xfer_at(s, id)->line)->repeats++;
            TRY(send_again(s, id, (uint32_t)i));
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

/* ---- singly, with retransmission ---------------------------------------------------------------
 */

/* Let the first packet of the backlog enter its queue, or wait for the rate control. */
static STATUS send_next(clusim_sim *s, line_id id) {
    order_line *line = line_at(s, id);
    backlog_list *list = &line->backlog;
    if (line->busy || line->blocked || list->first == list->len) return CLUSIM_OK;
    backlog_item item = list->items[list->first];
    flow_id flow = xfer_at(s, item.xfer)->flow;
    int64_t at_ps = sender_ready_at(s, xfer_at(s, item.xfer));
    if (at_ps == NEVER) {
        sender_state *f = sender_at(s, flow);
        line->blocked = true;
        if (line_none(f->blocked)) {
            f->blocked = id;
        } else {
            line_at(s, f->blocked_last)->next_blocked = id;
        }
        f->blocked_last = id;
        return CLUSIM_OK;
    }
    line->busy = true;
    if (at_ps > s->scheduler.now_ps)
        return scheduler_event(s, at_ps, EV_RESEND, pair_at(s, item.pair)->flow.i, id.i);
    if (++list->first == list->len) list->first = list->len = 0;
    return send_again(s, item.xfer, item.number);
}

/* Remove the packets of a queue pair from the backlog; returns their payload. */
static int64_t clear(clusim_sim *s, order_line *line, pair_id pair) {
    backlog_list *list = &line->backlog;
    int64_t bytes = 0;
    uint32_t kept = list->first;
    for (uint32_t k = list->first; k < list->len; k++) {
        backlog_item item = list->items[k];
        if (!pair_is(item.pair, pair)) {
            list->items[kept++] = item;
            continue;
        }
        line->repeats--;
        bytes += payload_of(xfer_at(s, item.xfer), item.number);
        lines_forget(s, item.xfer);
    }
    list->len = kept;
    return bytes;
}

/* A lost packet joins the backlog; returns its payload if it was in flight. */
static STATUS add(clusim_sim *s, order_line *line, backlog_item item, int64_t *lost_bytes) {
    QUEUE_ROOM(&line->backlog);
    line->backlog.items[line->backlog.len++] = item;
    line->repeats++;
    xfer *x = xfer_at(s, item.xfer);
    x->refers++;
    uint32_t payload = payload_of(x, item.number);
    if (sender_in_flight(s, &item, payload)) *lost_bytes += payload;
    return CLUSIM_OK;
}

/* Packets of a queue pair, from the expected one on. */
typedef struct lost_walk {
    order_span span;
    packet_id kept; /* the next one that is kept and thus not missing, or NONE */
    backlog_item at;
    bool moved;
} lost_walk;

static lost_walk walk_lost(const clusim_sim *s, pair_id id, order_span span) {
    const order_pair *pair = pair_at(s, id);
    lost_walk walk = {.span = span, .kept = NO(packet), .at = {.xfer = pair->present, .pair = id}};
    if (xfer_none(pair->present)) return walk;
    const xfer *x = xfer_at(s, pair->present);
    if (spread_of(s, x)->selective) walk.kept = pair->kept;
    walk.at.number = (uint32_t)(pair->expected - x->first);
    return walk;
}

/* True if the packet at which a walk is was granted, is in its span and is not kept. */
static bool is_lost(const clusim_sim *s, lost_walk *walk) {
    const xfer *x = xfer_at(s, walk->at.xfer);
    uint64_t number = x->first + walk->at.number;
    if (!packet_none(walk->kept) && order_number(s, packet_at(s, walk->kept)) == number) {
        walk->kept = *next_of(s, walk->kept);
        return false;
    }
    return number >= walk->span.from && number < walk->span.to &&
           was_granted(s, x, walk->at.number);
}

/* Move on to a packet that is lost; false after the last. */
static bool next_lost(const clusim_sim *s, lost_walk *walk) {
    const order_line *line = line_at(s, pair_at(s, walk->at.pair)->line);
    while (!xfer_none(walk->at.xfer)) {
        const xfer *x = xfer_at(s, walk->at.xfer);
        if (walk->moved) walk->at.number += line->pairs;
        walk->moved = walk->at.number < granted_end(s, x);
        if (!walk->moved) {
            walk->at.xfer = x->later;
            walk->at.number = walk->at.pair.i - line->pair.i;
        } else if (is_lost(s, walk)) {
            return true;
        }
    }
    return false;
}

/* Packets of a queue pair that are lost join the backlog, and its rate control is notified. */
static STATUS lose(clusim_sim *s, pair_id id, order_span span, bool all) {
    order_pair *pair = pair_at(s, id);
    order_line *line = line_at(s, pair->line);
    int64_t lost_bytes = 0, more_bytes = 0;
    if (all) more_bytes -= clear(s, line, id);
    lost_walk walk = walk_lost(s, id, span);
    while (next_lost(s, &walk)) {
        pair->progress_ps = s->scheduler.now_ps;
        more_bytes += payload_of(xfer_at(s, walk.at.xfer), walk.at.number);
        TRY(add(s, line, walk.at, &lost_bytes));
    }
    if (more_bytes > 0) TRY(sender_repeats(s, xfer_at(s, pair->present), more_bytes));
    TRY(reopen(s, line));
    if (lost_bytes) {
        TRY(sender_lost(s, pair->flow, lost_bytes));
        TRY(repeat_resume(s, pair->flow));
    }
    return send_next(s, pair->line);
}

/* ---- events ------------------------------------------------------------------------------------
 */

STATUS repeat_refused(clusim_sim *s, pair_id id) {
    order_pair *pair = pair_at(s, id);
    order_line *line = line_at(s, pair->line);
    order_span span = {0, NO_NUMBER};
    bool selective = pair->missing.first < pair->missing.len;
    pair->refused = false;
    if (selective) span = pair->missing.items[pair->missing.first++];
    if (line->timeout_ps) {
        TRY(lose(s, id, span, !selective));
    } else if (!xfer_none(pair->present)) {
        TRY(send_all(s, pair, line->pairs));
        TRY(reopen(s, line));
    }
    order_shorten(s, line);
    return CLUSIM_OK;
}

static void count_timeout(clusim_sim *s, const xfer *x, int64_t timeout_ps) {
    clusim_order_counters *c = sender_of(s, x);
    int64_t *last_ps = &s->spreads.orders.timeout_at[c - s->spreads.orders.counters];
    int64_t now_ps = s->scheduler.now_ps;
    if (s->results.finished) return;
    c->timeouts++;
    c->timeout_ps += now_ps - base_max(now_ps - timeout_ps, *last_ps);
    *last_ps = now_ps;
}

STATUS repeat_timeout(clusim_sim *s, pair_id id) {
    order_pair *pair = pair_at(s, id);
    order_line *line = line_at(s, pair->line);
    order_span all = {0, NO_NUMBER};
    lost_walk walk = walk_lost(s, id, all);
    int64_t now_ps = s->scheduler.now_ps;
    pair->timing = false;
    if (!next_lost(s, &walk)) return CLUSIM_OK;
    if (pair->progress_ps + line->timeout_ps > now_ps)
        return lines_time(s, id, pair->progress_ps + line->timeout_ps);
    const xfer *x = xfer_at(s, pair->present);
    if (pair->tries++ == spread_of(s, x)->retries) {
        scheduler_flow_beyond(s, pair->flow);
        return CLUSIM_OK;
    }
    count_timeout(s, x, line->timeout_ps);
    TRY(lose(s, id, all, true));
    return lines_time(s, id, now_ps + line->timeout_ps);
}

STATUS repeat_next(clusim_sim *s, line_id id) {
    line_at(s, id)->busy = false;
    return send_next(s, id);
}

/* A repeat delays the next packet of its flow, which may be of another line. */
static STATUS share_pace(clusim_sim *s, packet *p) {
    flow_id flow = xfer_at(s, p->xfer)->flow;
    if (order_knows(s, p)) p->acknowledged = 0;
    TRY(sender_repeated(s, p));
    const xfer *x = xfer_at(s, s->spreads.orders.starting[flow.i]);
    return flow_is(x->flow, flow) && x->ungranted ? inject_reopen(s, x, NO(wire)) : CLUSIM_OK;
}

STATUS repeat_granted(clusim_sim *s, packet *p, int64_t end_ps) {
    const xfer *x = xfer_at(s, p->xfer);
    line_id id = x->line;
    order_line *line = line_at(s, id);
    p->repeated = 0;
    line->repeats--;
    if (spread_of(s, x)->timeout_ps) {
        if (!flow_none(x->flow)) TRY(share_pace(s, p));
        TRY(scheduler_event(s, end_ps, EV_RESEND, spread_flow(s, x).i, id.i));
    }
    if (line->repeats == 0) return reopen(s, line);
    if (!xfer_none(line->newest)) xfer_at(s, line->newest)->repeats = line->repeats;
    return CLUSIM_OK;
}

STATUS repeat_resume(clusim_sim *s, flow_id flow) {
    TRY(inject_resume(s, flow));
    if (!s->model->has_order || s->senders.all == NULL) return CLUSIM_OK;
    line_id id = sender_at(s, flow)->blocked;
    sender_at(s, flow)->blocked = sender_at(s, flow)->blocked_last = NO(line);
    while (!line_none(id)) {
        line_id next = line_at(s, id)->next_blocked;
        line_at(s, id)->next_blocked = NO(line);
        line_at(s, id)->blocked = false;
        TRY(send_next(s, id));
        id = next;
    }
    return CLUSIM_OK;
}
