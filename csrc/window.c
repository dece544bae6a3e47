#include "window.h"

#include <string.h>

#include "agenda.h"
#include "grant.h"
#include "inbox.h"
#include "node.h"
#include "parts/agenda.h"
#include "parts/packets.h"
#include "parts/wires.h"
#include "wire.h"

/* ---- life ------------------------------------------------------------------------------------ */

static void use_windows(clusim_sim *s, bool use) {
    s->windows.on = use && s->model->window_ps > 0;
    for (uint32_t i = 0; i < s->model->image.num_wires; i++) {
        wire_state *w = wire_at(s, ID(wire, i));
        w->traits = info_at(s, ID(wire, i))->traits;
        if (!s->windows.on) w->traits &= (uint8_t)~(FROM_PLAIN | TO_PLAIN);
    }
}

void clusim_sim_use_windows(clusim_sim *s, int use) {
    if (s->agenda.event_count == 0) use_windows(s, use != 0);
}

STATUS window_init(clusim_sim *s) {
    s->windows.due_ps = NEVER;
    use_windows(s, s->model->windows_pay);
    if (s->model->window_ps == 0) return CLUSIM_OK;
    uint64_t count = s->model->image.num_wires;
    ZEROED(s->windows.wires, count);
    ZEROED(s->windows.nodes, s->model->image.num_nodes);
    for (uint64_t n = 0; n < s->model->image.num_nodes; n++)
        s->windows.nodes[n].inboxes = s->windows.nodes[n].active = NO(wire);
    return CLUSIM_OK;
}

void window_free(clusim_sim *s) {
    windows_part *p = &s->windows;
    for (uint64_t i = 0; p->wires && i < s->model->image.num_wires; i++) {
        free(p->wires[i].under_way);
        free(p->wires[i].arrivals);
        free(p->wires[i].owed);
    }
    free(p->wires);
    free(p->nodes);
    free(p->busy.ids);
    free(p->spare);
}

/* ---- what a window brings to the wires --------------------------------------------------------
 */

/* Room for one more element: few wires ever need more than some. */
static STATUS make_room(void *array, uint32_t *size, uint32_t len, size_t element) {
    if (LIKELY(len < *size)) return CLUSIM_OK;
    return grow_array_from(array, size, element, 8);
}

/* A wire out of the node that is worked on. */
static void activate(clusim_sim *s, wire_id wire) {
    window_wire *x = &s->windows.wires[wire.i];
    if (x->active) return;
    window_node *n = &s->windows.nodes[info_at(s, wire)->src.i];
    x->active = 1;
    x->next_active = n->active;
    n->active = wire;
}

static STATUS note_arrival(clusim_sim *s, wire_id out, window_arrival arrival) {
    window_wire *x = &s->windows.wires[out.i];
    uint32_t n = x->num_arrivals;
    TRY(make_room(&x->arrivals, &x->size_arrivals, n, sizeof arrival));
    if (n && x->arrivals[n - 1].at_ps > arrival.at_ps) x->unsorted = 1;
    x->arrivals[n] = arrival;
    x->num_arrivals = n + 1;
    activate(s, out);
    return CLUSIM_OK;
}

/* A packet that arrives over `from` is acknowledged over the wire back. Where nothing is owed and
 * nothing comes to it, there is nothing to drain either. */
static STATUS note_owed(clusim_sim *s, const wire_state *from, const packet *p, int64_t at_ps) {
    uint64_t control = (uint64_t)p->exact * from->rate->format->control_256[p->kind];
    window_wire *x = &s->windows.wires[from->reverse.i];
    if (control == 0 && x->num_owed == 0 && wire_at(s, from->reverse)->owed_256 == 0)
        return CLUSIM_OK;
    TRY(make_room(&x->owed, &x->size_owed, x->num_owed, sizeof *x->owed));
    x->owed[x->num_owed++] = (window_owed){at_ps, control};
    activate(s, from->reverse);
    return CLUSIM_OK;
}

enum { AHEAD = 4 }; /* packets that are fetched before they are looked at */

/* What arrives over one wire before `end_ps`. */
static STATUS gather(clusim_sim *s, wire_id wire, int64_t end_ps) {
    window_wire *x = &s->windows.wires[wire.i];
    const wire_state *w = wire_at(s, wire);
    for (uint32_t k = 0; k < AHEAD && k < x->len; k++)
        __builtin_prefetch(packet_at(s, inbox_entry(x, k)->packet), 1);
    while (x->len && inbox_entry(x, 0)->at_ps < end_ps) {
        window_packet next = *inbox_entry(x, 0);
        packet *p = packet_at(s, next.packet);
        if (x->len > AHEAD) __builtin_prefetch(packet_at(s, inbox_entry(x, AHEAD)->packet), 1);
        x->head++;
        x->len--;
        if (!wire_none(w->reverse)) TRY(note_owed(s, w, p, next.at_ps));
        uint32_t candidate = node_aim(s, p, wire);
        TRY(note_arrival(s, p->out, (window_arrival){next.at_ps, next.packet, candidate}));
        s->agenda.event_count++;
    }
    return CLUSIM_OK;
}

/* What arrives at a node. */
static STATUS gather_all(clusim_sim *s, window_node *n, int64_t end_ps) {
    wire_id *link = &n->inboxes;
    while (!wire_none(*link)) {
        wire_id wire = *link;
        window_wire *x = &s->windows.wires[wire.i];
        TRY(gather(s, wire, end_ps));
        if (x->len) {
            inbox_due(s, inbox_entry(x, 0)->at_ps);
            link = &x->next_inbox;
        } else {
            x->inbox = 0;
            *link = x->next_inbox;
        }
    }
    return CLUSIM_OK;
}

/* ---- sorting ----------------------------------------------------------------------------------
 */

static uint32_t run_end(const window_arrival *a, uint32_t from, uint32_t n) {
    uint32_t end = from + 1;
    while (end < n && a[end].at_ps >= a[end - 1].at_ps) end++;
    return end;
}

/* Merge neighbouring ascending runs of `from` into `to`; returns how many runs there were. */
static uint32_t merge_runs(const window_arrival *from, window_arrival *to, uint32_t n) {
    uint32_t runs = 0, out = 0;
    for (uint32_t a = 0; a < n;) {
        uint32_t middle = run_end(from, a, n), b = middle;
        uint32_t end = middle < n ? run_end(from, middle, n) : n;
        runs += middle < n ? 2 : 1;
        while (a < middle && b < end)
            to[out++] = from[b].at_ps < from[a].at_ps ? from[b++] : from[a++];
        while (a < middle) to[out++] = from[a++];
        while (b < end) to[out++] = from[b++];
        a = end;
    }
    return runs;
}

/* Arrivals come wire by wire, each by time: a few ascending runs. */
static STATUS sort_arrivals(clusim_sim *s, window_wire *x) {
    uint32_t n = x->num_arrivals;
    window_arrival *a = x->arrivals;
    x->unsorted = 0;
    if (n <= 24) {
        for (uint32_t i = 1; i < n; i++) {
            window_arrival moved = a[i];
            uint32_t k = i;
            for (; k > 0 && a[k - 1].at_ps > moved.at_ps; k--) a[k] = a[k - 1];
            a[k] = moved;
        }
        return CLUSIM_OK;
    }
    while (s->windows.size_spare < n) GROW(s->windows.spare, s->windows.size_spare);
    window_arrival *spare = s->windows.spare;
    while (merge_runs(a, spare, n) > 1) memcpy(a, spare, n * sizeof *a);
    return CLUSIM_OK;
}

/* ---- one wire ---------------------------------------------------------------------------------
 */

/* How far a wire has come in its window. */
typedef struct progress {
    wire_state *w;
    window_wire *x;
    uint32_t arrived, owed; /* taken in so far */
} progress;

static int64_t next_arrival(const progress *g) {
    return g->arrived < g->x->num_arrivals ? g->x->arrivals[g->arrived].at_ps : NEVER;
}

/* Of a wire that found too little: all that had come back by then has been counted. */
static int64_t next_credit(const clusim_sim *s, const wire_state *w) {
    int64_t at_ps = NEVER;
    for (uint32_t vc = 0; vc < s->wires.nvc; vc++) {
        const credit_pool *c = &w->credits[vc];
        if (c->len) at_ps = base_min(at_ps, c->ring[c->head].at_ps);
    }
    return at_ps;
}

/* Phase A of the wire up to `now_ps`. */
static inline void take_in(clusim_sim *s, progress *g, int64_t now_ps) {
    const window_wire *x = g->x;
    while (g->arrived < x->num_arrivals && x->arrivals[g->arrived].at_ps <= now_ps) {
        const window_arrival *a = &x->arrivals[g->arrived++];
        s->agenda.now_ps = a->at_ps;
        wire_queue(s, g->w, a->packet, a->candidate);
    }
    while (g->owed < x->num_owed && x->owed[g->owed].at_ps <= now_ps) {
        const window_owed *o = &x->owed[g->owed++];
        s->agenda.now_ps = o->at_ps;
        if (o->control_256 | g->w->owed_256) wire_owe(s, g->w, o->control_256);
    }
}

/* Phase B of the wire now: grant the next packet that has credit, if there is one. */
static inline STATUS grant_one(clusim_sim *s, wire_state *w, bool *granted) {
    uint32_t first = grant_next(w->ready, w->num_words, w->next_candidate), c = first;
    do {
        const packet *p = packet_at(s, w->queues[c].head);
        if (LIKELY(grant_credit(&w->credits[p->vc], p->wire_bytes, s->agenda.now_ps))) {
            *granted = true;
            TRY(grant_queue(s, w, c));
            w->next_candidate = c + 1 == w->num_candidates ? 0 : c + 1;
            if (w->num_ready == 0) return CLUSIM_OK;
            w->contended = 1;
            w->stall_arbitration_ps += w->free_at - s->agenda.now_ps;
            return CLUSIM_OK;
        }
        c = grant_next(w->ready, w->num_words, c + 1 == w->num_candidates ? 0 : c + 1);
    } while (c != first);
    *granted = false;
    for (uint32_t vc = 0; vc < s->wires.nvc; vc++) grant_collect(&w->credits[vc], s->agenda.now_ps);
    if (w->stall_since < 0) w->stall_since = s->agenda.now_ps;
    return CLUSIM_OK;
}

/* When the wire could grant next; NEVER if only what is not known yet can make it. */
static inline int64_t next_grant(const clusim_sim *s, const progress *g) {
    const wire_state *w = g->w;
    if (UNLIKELY(w->stall_since >= 0)) return base_min(next_arrival(g), next_credit(s, w));
    return base_max(w->free_at, w->num_ready ? 0 : next_arrival(g));
}

/* From grant to grant up to `end_ps`. */
static STATUS run_wire(clusim_sim *s, wire_id wire, int64_t end_ps) {
    progress g = {.w = wire_at(s, wire), .x = &s->windows.wires[wire.i]};
    if (UNLIKELY(g.x->unsorted)) TRY(sort_arrivals(s, g.x));
    for (;;) {
        int64_t now_ps = next_grant(s, &g);
        if (now_ps >= end_ps) break;
        take_in(s, &g, now_ps);
        s->agenda.now_ps = now_ps;
        bool granted;
        TRY(grant_one(s, g.w, &granted));
    }
    take_in(s, &g, end_ps - 1);
    g.x->num_arrivals = g.x->num_owed = 0;
    if (g.w->num_ready) inbox_due(s, next_grant(s, &g));
    return CLUSIM_OK;
}

/* The wires out of a node. */
static STATUS run_wires(clusim_sim *s, window_node *n, int64_t end_ps) {
    wire_id *link = &n->active;
    while (!wire_none(*link)) {
        wire_id wire = *link;
        window_wire *x = &s->windows.wires[wire.i];
        TRY(run_wire(s, wire, end_ps));
        if (wire_at(s, wire)->num_ready) {
            link = &x->next_active;
        } else {
            x->active = 0;
            *link = x->next_active;
        }
    }
    return CLUSIM_OK;
}

/* ---- windows ----------------------------------------------------------------------------------
 */

/* What is due is found anew: of packets under way, of wires, and of what they send on. Nodes that
 * get something to do on the way stand behind in the list, and find nothing yet. */
STATUS window_run(clusim_sim *s, int64_t end_ps) {
    node_list *list = &s->windows.busy;
    int64_t now_ps = s->agenda.now_ps;
    uint32_t kept = 0;
    s->windows.due_ps = NEVER;
    for (uint32_t i = 0; i < list->len; i++) {
        node_id node = list->ids[i];
        window_node *n = &s->windows.nodes[node.i];
        TRY(gather_all(s, n, end_ps));
        TRY(run_wires(s, n, end_ps));
        n->listed = !wire_none(n->inboxes) || !wire_none(n->active);
        if (n->listed) list->ids[kept++] = node;
    }
    list->len = kept;
    s->agenda.now_ps = now_ps;
    return CLUSIM_OK;
}

STATUS window_catch_up(clusim_sim *s) {
    while (s->windows.due_ps <= s->agenda.now_ps)
        TRY(window_run(s, base_min(window_horizon(s), s->agenda.now_ps + 1)));
    return CLUSIM_OK;
}

STATUS window_close(clusim_sim *s) {
    windows_part *p = &s->windows;
    if (!p->on) return CLUSIM_OK;
    TRY(window_catch_up(s));
    use_windows(s, false);
    p->due_ps = NEVER;
    for (uint32_t i = 0; i < s->model->image.num_wires; i++) {
        window_wire *x = &p->wires[i];
        wire_state *w = wire_at(s, ID(wire, i));
        for (uint32_t k = 0; k < x->len; k++) {
            const window_packet *q = inbox_entry(x, k);
            TRY(agenda_event(s, q->at_ps, EV_ARRIVE, i, q->packet.i));
        }
        if (x->active) TRY(wire_wake(s, w, base_max(w->free_at, s->agenda.now_ps + 1)));
    }
    return CLUSIM_OK;
}
