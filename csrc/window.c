#include "window.h"

#include <string.h>

#include "batch.h"
#include "inbox.h"
#include "node.h"
#include "partition.h"
#include "parts/packets.h"
#include "parts/results.h"
#include "parts/scheduler.h"
#include "parts/units.h"
#include "parts/windows.h"
#include "parts/wires.h"
#include "samples.h"
#include "scheduler.h"
#include "unit.h"
#include "window_endpoint.h"
#include "window_wire.h"
#include "wire.h"

/* ---- life ------------------------------------------------------------------------------------ */

static void use_windows(clusim_sim *s, bool use) {
    s->windows.on = use && s->model->window_ps > 0;
    s->windows.leading = s->windows.on && s->model->ends_window;
    for (uint32_t i = 0; i < s->model->image.num_wires; i++) {
        uint16_t traits = info_at(s, ID(wire, i))->traits;
        if (!s->windows.on) traits &= (uint16_t)~(FROM_PLAIN | TO_PLAIN);
        wire_set_traits(s, ID(wire, i), traits);
    }
    if (s->windows.partition) partition_mark(s);
}

int clusim_sim_use_windows(clusim_sim *s, int use) {
    if (s->scheduler.event_count == 0 && use >= 0) use_windows(s, use != 0);
    return s->windows.on + s->windows.leading + (s->windows.leading && s->model->has_pairs);
}

int clusim_sim_use_threads(clusim_sim *s, uint32_t threads, uint32_t pays) {
    if (s->scheduler.event_count || s->windows.partition || !s->windows.on)
        return (int)partition_threads(s);
    enum clusim_status status = partition_create(s, threads, pays);
    if (status != CLUSIM_OK) partition_free(s);
    return status == CLUSIM_OK ? (int)partition_threads(s) : (int)status;
}

static STATUS make_wires(clusim_sim *s) {
    uint32_t count = (uint32_t)s->model->image.num_wires;
    s->windows.ins = aligned_alloc(64, (count + 1) * sizeof *s->windows.ins);
    if (s->windows.ins == NULL) return CLUSIM_ERR_NO_MEMORY;
    for (uint32_t w = 0; w < count; w++) {
        const wire_info *info = info_at(s, ID(wire, w));
        s->windows.ins[w] = (window_in){.end = {.node = info->dst,
                                                .in_queue = info->in_local * s->wires.nvc,
                                                .ordinal = info->ordinal,
                                                .reverse = info->reverse}};
    }
    return CLUSIM_OK;
}

STATUS window_init(clusim_sim *s) {
    s->windows.due_ps = NEVER;
    use_windows(s, s->model->windows_pay);
    TRY(make_wires(s));
    if (s->model->window_ps == 0) return CLUSIM_OK;
    ZEROED(s->windows.nodes, s->model->image.num_nodes);
    for (uint64_t n = 0; n < s->model->image.num_nodes; n++) {
        window_node *node = &s->windows.nodes[n];
        node->first[INBOXES] = node->first[ACTIVE] = NO(wire);
        node->endpoint = ID(endpoint, s->model->image.nodes[n].endpoint);
        node_id pair = s->model->pairs[n];
        bool guest = !endpoint_none(node->endpoint) && !node_none(pair);
        node->turn = guest ? pair : ID(node, (uint32_t)n);
        node->end = guest ? NO(node) : pair;
    }
    if (s->model->ends_window) ZEROED(s->windows.ends, s->model->image.num_endpoints);
    return CLUSIM_OK;
}

void window_free(clusim_sim *s) {
    windows_part *p = &s->windows;
    partition_free(s);
    for (uint64_t i = 0; p->ins && i < s->model->image.num_wires; i++)
        free(p->ins[i].under_way.all);
    for (uint64_t i = 0; p->ends && i < s->model->image.num_endpoints; i++) {
        free(p->ends[i].starts);
        free(p->ends[i].replies[0].all);
        free(p->ends[i].replies[1].all);
    }
    for (uint64_t i = 0; p->nodes && i < s->model->image.num_nodes; i++)
        free(p->nodes[i].results.all);
    free(p->ins);
    free(p->nodes);
    free(p->ends);
    free(p->busy.ids);
    inbox_free(&p->scratch);
}

/* ---- plain nodes -------------------------------------------------------------------------------
 */

enum {
    RESULT = 1, /* in the arrivals of a unit */
    SPECIAL = 1 << CLUSIM_KIND_MCAST | 1 << CLUSIM_KIND_RED_REQ | 1 << CLUSIM_KIND_RED_DATA
};

/* Handle a packet that a switch copies or that its unit reduces. */
static STATUS take_special(clusim_sim *s, window_packet next) {
    if (batch_at(s, next.packet)->kind == CLUSIM_KIND_MCAST) {
        s->scheduler.now_ps = next.at_ps;
        return node_copy(s, next.packet);
    }
    return inbox_work(s, (window_arrival){next.at_ps, next.packet, 0});
}

/* Collect the arrivals over one wire. */
static inline STATUS gather(clusim_sim *s, window_node *n, wire_id wire, int64_t end_ps,
                            bool *more) {
    if (window_waits(s, wire, end_ps, more)) return CLUSIM_OK;
    window_way way = window_open_way(s, wire);
    window_packet next;
    while (window_arrives(s, &way, end_ps, &next)) {
        packet *p = batch_at(s, next.packet);
        if (((1u << p->kind) & SPECIAL) && !p->copy) {
            TRY(take_special(s, next));
            continue;
        }
        uint32_t candidate = node_aim(s, p, wire);
        TRY(inbox_arrives_at(s, n, p->out, (window_arrival){next.at_ps, next.packet, candidate}));
    }
    window_close_way(s, n, &way, more);
    return CLUSIM_OK;
}

/* Phase A of the wire up to `now_ps`. */
static inline void take_in(clusim_sim *s, window_progress *g, int64_t now_ps) {
    while (g->arrival->at_ps <= now_ps) {
        const window_arrival *a = g->arrival++;
        s->scheduler.now_ps = a->at_ps;
        wire_queue(s, g->w, a->packet, a->candidate);
    }
    window_take_owed(s, g, now_ps);
    s->scheduler.now_ps = now_ps;
}

/* Phase A of the wire up to each time at which it is sampled before `end_ps`. */
static COLD void split(clusim_sim *s, window_progress *g, int64_t end_ps) {
    while (g->sample_ps < end_ps) {
        take_in(s, g, g->sample_ps);
        window_sample(s, g);
    }
}

/* Time of the wire's next possible grant; NEVER if it depends on events not yet known. */
static inline int64_t next_grant(const clusim_sim *s, const window_progress *g) {
    const wire_state *w = g->w;
    if (UNLIKELY(w->stalled)) return base_min(g->arrival->at_ps, window_credit_at(s, w));
    return base_max(w->free_at, w->num_ready ? 0 : g->arrival->at_ps);
}

/* True if all queues of the packet's wire are empty and nothing arrives until it can leave. */
static inline bool alone(const window_progress *g, int64_t now_ps) {
    return g->w->num_ready == 0 && g->arrival[1].at_ps > now_ps;
}

/* From grant to grant up to `end_ps`. */
static inline STATUS run_wire(clusim_sim *s, window_node *n, wire_id wire, int64_t end_ps,
                              bool *more) {
    window_progress g;
    (void)n;
    TRY(window_begin(s, wire, &g));
    for (;;) {
        int64_t now_ps = next_grant(s, &g);
        if (now_ps >= end_ps) break;
        if (UNLIKELY(g.sample_ps < now_ps)) split(s, &g, now_ps);
        bool passed = false;
        if (alone(&g, now_ps)) TRY(window_pass_on(s, &g, now_ps, &passed));
        if (passed) continue;
        take_in(s, &g, now_ps);
        TRY(window_grant(s, &g, false));
    }
    if (UNLIKELY(g.sample_ps < end_ps)) split(s, &g, end_ps);
    take_in(s, &g, end_ps - 1);
    TRY(window_wire_finish(s, &g, wire));
    *more = g.w->num_ready > 0;
    if (*more) inbox_due(s, next_grant(s, &g));
    return CLUSIM_OK;
}

enum { AHEAD = 6 }; /* packets prefetched before their turn */

/* Prefetch the operation that a response names: it was opened long ago and may be out of cache. */
static void fetch_operation(const clusim_sim *s, const window_arrival *a) {
    if (a->candidate != RESULT && batch_at(s, a->packet)->kind == CLUSIM_KIND_RED_DATA)
        __builtin_prefetch(packet_at(s, batch_op(s, a->packet)), 1);
}

/* Process a unit in order of time; at equal times, arrivals precede results. All results of this
 * window belong to operations that began before it. */
static STATUS run_unit(clusim_sim *s, window_node *n, int64_t end_ps) {
    windows_part *p = &s->windows;
    window_packet next;
    while (window_next(s, &n->results, end_ps, &next)) {
        TRY(inbox_work(s, (window_arrival){next.at_ps, next.packet, RESULT}));
        s->scheduler.event_count++;
    }
    window_arrival *work = p->scratch.work;
    TRY(window_wire_sort(s, &work, p->scratch.num_work));
    for (uint32_t k = 0; k < p->scratch.num_work; k++) {
        window_arrival a = work[k];
        if (k + AHEAD < p->scratch.num_work) fetch_operation(s, &work[k + AHEAD]);
        s->scheduler.now_ps = a.at_ps;
        if (a.candidate == RESULT) {
            TRY(unit_result(s, a.packet));
        } else {
            TRY(node_reduce(s, a.packet));
        }
    }
    p->scratch.num_work = 0;
    const clusim_node *node = &s->model->image.nodes[n - p->nodes];
    p->near_end |= unit_at(s, ID(unit, node->unit))->clock.ps >> WINDOW_LAST_BITS != 0;
    return CLUSIM_OK;
}

/* Of a switch or NIC. */
static STATUS run_plain(clusim_sim *s, window_node *n, int64_t end_ps) {
    TRY(window_walk(s, n, INBOXES, gather, end_ps));
    if (s->windows.scratch.num_work || inbox_len(&n->results)) TRY(run_unit(s, n, end_ps));
    TRY(window_walk(s, n, ACTIVE, run_wire, end_ps));
    s->windows.scratch.num_queued = 0;
    if (inbox_len(&n->results)) inbox_due(s, inbox_entry(&n->results, 0)->at_ps);
    n->listed =
        !wire_none(n->first[INBOXES]) || !wire_none(n->first[ACTIVE]) || inbox_len(&n->results);
    return CLUSIM_OK;
}

/* ---- a host and its router -------------------------------------------------------------------
 */

/* Longest window of the pair for one of its wires: unlimited if credit covers all bytes that it
 * could send in one. */
static int64_t reach(const clusim_sim *s, wire_id wire) {
    const wire_state *w = wire_at(s, wire);
    const wire_info *info = info_at(s, wire);
    if (w->stalled) return info->lacking_ps;
    for (uint32_t vc = 0; vc < s->wires.nvc; vc++) {
        credit_pool *c = &w->credits[vc];
        if (c->available < info->window_bytes) grant_collect(c, s->windows.begin_ps);
        if (c->available < info->window_bytes) return info->lacking_ps;
    }
    return NEVER;
}

/* The host's sends reach the router in the same window, and vice versa. */
static STATUS run_both(clusim_sim *s, window_node *n, int64_t end_ps) {
    window_node *end = &s->windows.nodes[n->end.i];
    TRY(window_endpoint_run(s, end, WINDOW_SENDS, end_ps));
    TRY(run_plain(s, n, end_ps));
    TRY(window_endpoint_run(s, end, WINDOW_TAKES, end_ps));
    n->listed |= end->listed;
    return CLUSIM_OK;
}

/* Process a pair, in parts if credit between the two may run short. Everything due within the
 * window is done in it. */
static STATUS run_pair(clusim_sim *s, window_node *n, int64_t end_ps) {
    windows_part *p = &s->windows;
    wire_id in = ID(wire, s->model->out_wires[s->model->out_off[n->end.i]]);
    int64_t part_ps = base_min(reach(s, in), reach(s, end_at(s, in)->reverse));
    int64_t due_ps = p->due_ps, at_ps = p->begin_ps;
    while (at_ps < end_ps) {
        int64_t until_ps = part_ps < end_ps - at_ps ? at_ps + part_ps : end_ps;
        p->due_ps = NEVER;
        samples_turn(s, at_ps);
        TRY(run_both(s, n, until_ps));
        due_ps = base_min(due_ps, base_max(p->due_ps, end_ps));
        at_ps = base_max(until_ps, p->due_ps);
    }
    p->due_ps = due_ps;
    samples_turn(s, p->begin_ps);
    return CLUSIM_OK;
}

/* ---- windows ----------------------------------------------------------------------------------
 */

/* In large systems a node's data are not in a near cache at its turn: prefetch its outgoing wires
 * while other nodes are processed, ... */
static void fetch_out(const clusim_sim *s, node_id node) {
    const clusim_model *m = s->model;
    for (uint32_t k = m->out_off[node.i]; k < m->out_off[node.i + 1]; k++) {
        const char *w = (const char *)wire_at(s, ID(wire, m->out_wires[k]));
        for (uint32_t line = 0; line < 3; line++) __builtin_prefetch(w + 64 * line, 1);
        __builtin_prefetch(&s->windows.ins[m->out_wires[k]], 1);
    }
}

/* ... and then its incoming wires, ... */
static void fetch_in(const clusim_sim *s, node_id node) {
    const clusim_model *m = s->model;
    for (uint32_t k = m->in_off[node.i]; k < m->in_off[node.i + 1]; k++) {
        wire_id wire = ID(wire, m->in_wires[k]);
        __builtin_prefetch(wire_credit(s, wire, 0), 1);
        __builtin_prefetch(&s->windows.ins[wire.i], 1);
    }
}

/* ... then the places where the first packets on these are listed ... */
static void fetch_listed(const clusim_sim *s, node_id node) {
    const clusim_model *m = s->model;
    for (uint32_t k = m->in_off[node.i]; k < m->in_off[node.i + 1]; k++) {
        const window_ring *ring = &s->windows.ins[m->in_wires[k]].under_way;
        if (inbox_len(ring)) __builtin_prefetch(inbox_entry(ring, 0));
    }
}

/* ... and these packets. */
static void fetch_packets(const clusim_sim *s, node_id node) {
    enum { MOST = 3 };
    const clusim_model *m = s->model;
    for (uint32_t k = m->in_off[node.i]; k < m->in_off[node.i + 1]; k++) {
        const window_ring *ring = &s->windows.ins[m->in_wires[k]].under_way;
        for (uint32_t first = 0; first < MOST && first < inbox_len(ring); first++)
            __builtin_prefetch(batch_at(s, inbox_entry(ring, first)->packet), 1);
    }
}

enum { FAR = 512 }; /* nodes that do not fit into near caches */

static void fetch_ahead(const clusim_sim *s, const node_list *list, uint32_t at) {
    if (at + 4 < list->len) fetch_out(s, list->ids[at + 4]);
    if (at + 3 < list->len) fetch_in(s, list->ids[at + 3]);
    if (at + 2 < list->len) fetch_listed(s, list->ids[at + 2]);
    if (at + 1 < list->len) fetch_packets(s, list->ids[at + 1]);
}

/* Recompute the due time from packets in flight, from wires, and from the packets sent on. Nodes
 * activated during the loop are appended to the list and find nothing due yet. */
static enum clusim_status run_nodes(clusim_sim *s, int64_t end_ps) {
    node_list *list = &s->windows.busy;
    uint32_t kept = 0;
    for (uint32_t i = 0; i < list->len; i++) {
        node_id node = list->ids[i];
        window_node *n = &s->windows.nodes[node.i];
        if (list->len >= FAR) fetch_ahead(s, list, i);
        CLUSIM_ASSERT(s->windows.scratch.num_queued == 0); /* used only in a node's turn */
        if (!node_none(n->end)) {
            TRY(run_pair(s, n, end_ps));
        } else if (endpoint_none(n->endpoint)) {
            TRY(run_plain(s, n, end_ps));
        } else {
            TRY(window_endpoint_run(s, n, WINDOW_BOTH, end_ps));
        }
        if (n->listed) list->ids[kept++] = node;
    }
    list->len = kept;
    return CLUSIM_OK;
}

STATUS window_run(clusim_sim *s, int64_t end_ps) {
    int64_t now_ps = s->scheduler.now_ps;
    CLUSIM_ASSERT(s->windows.due_ps >= s->windows.done_ps);
    s->windows.begin_ps = s->windows.due_ps;
    s->windows.end_ps = end_ps;
    s->windows.due_ps = NEVER;
    samples_open(s, s->windows.begin_ps, end_ps);
    TRY(s->windows.partition ? partition_run(s, end_ps, run_nodes) : run_nodes(s, end_ps));
    s->windows.done_ps = end_ps;
    s->windows.due_ps = base_max(s->windows.due_ps, end_ps); /* everything due earlier is done */
    s->scheduler.now_ps = now_ps;
    return CLUSIM_OK;
}

STATUS window_catch_up(clusim_sim *s) {
    while (s->windows.due_ps <= s->scheduler.now_ps)
        TRY(window_run(s, base_min(window_horizon(s), s->scheduler.now_ps + 1)));
    return partition_flush(s);
}

/* If endpoints lead, the first due action must precede the end of all tasks and messages. */
STATUS window_end_ps(clusim_sim *s, int64_t until_ps, int64_t *end_ps) {
    *end_ps = base_min(window_horizon(s), until_ps + (until_ps != NEVER));
    if (s->results.draining || window_endpoint_goes_on(s, *end_ps)) return CLUSIM_OK;
    TRY(partition_flush(s));
    if (window_endpoint_near(s)) *end_ps = s->windows.due_ps + 1;
    return CLUSIM_OK;
}

static STATUS close_units(clusim_sim *s) {
    for (uint32_t n = 0; n < s->model->image.num_nodes; n++) {
        window_ring *results = &s->windows.nodes[n].results;
        uint32_t unit = s->model->image.nodes[n].unit;
        for (uint32_t k = 0; k < inbox_len(results); k++) {
            const window_packet *op = inbox_entry(results, k);
            TRY(scheduler_event(s, op->at_ps, EV_RESULT, unit, op->packet.i));
        }
        results->head = results->end;
    }
    return CLUSIM_OK;
}

STATUS window_close(clusim_sim *s) {
    windows_part *p = &s->windows;
    if (!p->on) return CLUSIM_OK;
    TRY(window_catch_up(s));
    int64_t next_ps = base_max(s->scheduler.now_ps + 1, p->done_ps);
    samples_close(s, next_ps);
    if (p->leading) TRY(window_endpoint_close(s));
    TRY(close_units(s));
    use_windows(s, false);
    p->due_ps = NEVER;
    p->done_ps = 0;
    for (uint32_t i = 0; i < s->model->image.num_wires; i++) {
        const window_in *x = &p->ins[i];
        wire_state *w = wire_at(s, ID(wire, i));
        for (uint32_t k = 0; k < inbox_len(&x->under_way); k++) {
            window_packet *q = inbox_entry(&x->under_way, k);
            TRY(batch_restore(s, &q->packet));
            TRY(scheduler_event(s, q->at_ps, EV_ARRIVE, i, q->packet.i));
        }
        if (w->active) TRY(wire_wake(s, w, base_max(w->free_at, next_ps)));
    }
    return CLUSIM_OK;
}
