#include "partition.h"

#include "inbox.h"
#include "node.h"
#include "parts/packets.h"
#include "parts/scheduler.h"
#include "parts/windows.h"
#include "parts/wires.h"
#include "pool.h"
#include "scheduler.h"
#include "thread_pool.h"
#include "wire.h"

typedef struct partition_member {
    clusim_sim view;
    window_thread thread;
    window_outbox *out[2]; /* owned: of this window, and of the last one, which others empty */
    node_list nodes;       /* with something to do; their array is owned, as those below */
    window_scratch scratch;
    event_queue events;   /* for the sim */
    packets_part packets; /* its free packets */
} partition_member;

typedef struct partition {
    thread_pool *thread_pool;
    partition_member *members; /* owned */
    uint32_t count;
    uint64_t usual;      /* recent events per window */
    uint64_t pays;       /* minimum events per window for multi-threaded execution */
    uint64_t shared;     /* windows so executed */
    partition_work work; /* of the current window */
    int64_t end_ps;
    uint32_t now; /* `out` of the current window */
} partition;

/* ---- assignment of nodes to threads ---------------------------------------------------------- */

static bool in_windows(const clusim_sim *s, uint32_t node) {
    const clusim_model *m = s->model;
    for (uint32_t k = m->out_off[node]; k < m->out_off[node + 1]; k++)
        if (m->wires[m->out_wires[k]].traits & FROM_PLAIN) return true;
    return false;
}

enum { MOST_THREADS = 64, NOBODY = 255 };

/* Load estimate of the nodes of one kind. */
typedef struct partition_load {
    uint64_t given[MOST_THREADS]; /* of each part */
    uint64_t all;
    uint32_t parts;
} partition_load;

/* Load estimate of a node: packets that its wires can send in 2^40 ps. */
static uint64_t load_of(const clusim_sim *s, uint32_t node) {
    const clusim_model *m = s->model;
    uint64_t load = 0;
    for (uint32_t k = m->out_off[node]; k < m->out_off[node + 1]; k++) {
        const wire_info *w = &m->wires[m->out_wires[k]];
        if (!(w->traits & FROM_PLAIN)) continue;
        int64_t packet_ps = model_est(&m->rates[w->rate], 1 << 12);
        load += (UINT64_C(1) << 40) / (uint64_t)base_max(packet_ps, 1);
    }
    return load;
}

static void give(clusim_sim *s, partition_load *load, uint32_t node, uint32_t part) {
    s->windows.nodes[node].part = (uint8_t)part;
    load->given[part] += load_of(s, node);
}

/* Deal endpoints in their order: those of one server are adjacent. A router that is processed with
 * an endpoint joins its part. */
static void deal_ends(clusim_sim *s, uint32_t parts) {
    partition_load load = {.parts = parts};
    uint32_t part = 0;
    for (uint32_t n = 0; n < s->model->image.num_nodes; n++) {
        s->windows.nodes[n].part = NOBODY;
        if (!endpoint_none(s->windows.nodes[n].endpoint)) load.all += load_of(s, n);
    }
    uint64_t given = 0;
    for (uint32_t n = 0; n < s->model->image.num_nodes; n++) {
        if (endpoint_none(s->windows.nodes[n].endpoint)) continue;
        uint64_t own = load_of(s, n); /* the midpoint of its load selects the part */
        while (part + 1 < parts && (2 * given + own) * parts > 2 * load.all * (part + 1)) part++;
        give(s, &load, n, part);
        given += own;
        node_id router = s->model->pairs[n];
        if (!node_none(router)) s->windows.nodes[router.i].part = (uint8_t)part;
    }
}

/* Part with most of a node's neighbours, among parts that do not exceed their share of such nodes;
 * NOBODY if no neighbour has a part yet or all parts have their share. */
static uint32_t best_part(const clusim_sim *s, const partition_load *load, uint32_t node) {
    const clusim_model *m = s->model;
    uint32_t near[MOST_THREADS] = {0}, best = NOBODY;
    bool any = false;
    for (uint32_t k = m->out_off[node]; k < m->out_off[node + 1]; k++) {
        uint32_t part = s->windows.nodes[m->wires[m->out_wires[k]].dst.i].part;
        if (part == NOBODY) continue;
        near[part]++;
        any = true;
    }
    for (uint32_t p = 0; p < load->parts && any; p++) {
        if (load->given[p] * load->parts >= load->all) continue;
        bool nearer = best == NOBODY || near[p] > near[best] ||
                      (near[p] == near[best] && load->given[p] < load->given[best]);
        if (nearer) best = p;
    }
    return best;
}

/* Switches and NICs, from those next to endpoints on. */
static void deal_others(clusim_sim *s, uint32_t parts) {
    uint32_t count = (uint32_t)s->model->image.num_nodes;
    partition_load load = {.parts = parts};
    for (uint32_t n = 0; n < count; n++)
        if (s->windows.nodes[n].part == NOBODY) load.all += load_of(s, n);
    for (bool more = true; more;) {
        more = false;
        for (uint32_t n = 0; n < count; n++) {
            if (s->windows.nodes[n].part != NOBODY) continue;
            uint32_t part = best_part(s, &load, n);
            if (part == NOBODY) continue;
            give(s, &load, n, part);
            more = true;
        }
    }
    for (uint32_t n = 0; n < count; n++)
        if (s->windows.nodes[n].part == NOBODY) s->windows.nodes[n].part = 0;
}

void partition_mark(clusim_sim *s) {
    for (uint32_t i = 0; i < s->model->image.num_wires; i++) {
        const wire_state *w = wire_at(s, ID(wire, i));
        const wire_info *info = info_at(s, ID(wire, i));
        bool inside = (w->traits & FROM_PLAIN) && (w->traits & TO_PLAIN);
        bool crosses = s->windows.nodes[info->src.i].part != s->windows.nodes[info->dst.i].part;
        uint16_t others = w->traits & (uint16_t)~CROSSES;
        wire_set_traits(s, ID(wire, i), inside && crosses ? (uint16_t)(others | CROSSES) : others);
    }
}

/* Break-even of two threads, in events: a hand-over (25 us between idle cores) over the time saved
 * per event (85 ns on one thread, of which two save 41%); docs/performance.md has the
 * measurement. */
enum { PAYS = 750 };

/* ---- life ------------------------------------------------------------------------------------ */

STATUS partition_create(clusim_sim *s, uint32_t threads, uint32_t pays) {
    uint32_t useful = 0;
    for (uint32_t n = 0; n < s->model->image.num_nodes; n++) useful += in_windows(s, n);
    threads = (uint32_t)base_umin(base_umin(threads, MOST_THREADS), useful);
    if (threads < 2) return CLUSIM_OK;
    partition *c = calloc(1, sizeof *c);
    if (c == NULL) return CLUSIM_ERR_NO_MEMORY;
    s->windows.partition = c;
    c->pays = pays == NONE ? PAYS : pays;
    TRY(thread_pool_create(threads, &c->thread_pool));
    uint32_t count = thread_pool_members(c->thread_pool);
    ZEROED(c->members, count);
    c->count = count;
    for (uint32_t k = 0; k < c->count; k++) {
        partition_member *m = &c->members[k];
        m->thread = (window_thread){.whole = s, .thread_pool = c->thread_pool, .number = k};
        TRY(pool_make_room(&m->packets, SPARE_PACKETS));
        ZEROED(m->out[0], count);
        ZEROED(m->out[1], count);
        event_queue_keep(&m->events, s->model->bucket_shift);
    }
    deal_ends(s, c->count);
    deal_others(s, c->count);
    partition_mark(s);
    return CLUSIM_OK;
}

static void free_boxes(window_outbox *all, uint32_t count) {
    for (uint32_t k = 0; all && k < count; k++) free(all[k].all);
    free(all);
}

void partition_free(clusim_sim *s) {
    partition *c = s->windows.partition;
    if (c == NULL) return;
    thread_pool_free(c->thread_pool);
    for (uint32_t k = 0; c->members && k < c->count; k++) {
        partition_member *m = &c->members[k];
        free_boxes(m->out[0], c->count);
        free_boxes(m->out[1], c->count);
        free(m->thread.deliveries.all);
        free(m->nodes.ids);
        pool_free_room(&m->packets);
        inbox_free(&m->scratch);
        event_queue_free(&m->events);
    }
    free(c->members);
    free(c);
    s->windows.partition = NULL;
}

uint32_t partition_threads(const clusim_sim *s) {
    return s->windows.partition ? s->windows.partition->count : 1;
}

uint64_t partition_shared(const clusim_sim *s) {
    return s->windows.partition ? s->windows.partition->shared : 0;
}

/* ---- a window ----------------------------------------------------------------------------------
 */

/* Counters start at 0 and are added up after all threads are done. Opened before any thread runs,
 * because threads use parts of the sim from then on. */
static void open_view(partition_member *m) {
    clusim_sim *v = &m->view;
    *v = *m->thread.whole;
    v->scheduler.events = m->events;
    v->scheduler.event_count = 0;
    v->packets.spare = m->packets.spare;
    v->packets.num_spare = m->packets.num_spare;
    v->packets.room = m->packets.room;
    v->packets.live = 0;
    v->windows.thread = &m->thread;
    v->windows.busy = m->nodes;
    v->windows.scratch = m->scratch;
    v->windows.undelivered = 0;
    v->windows.near_end = false;
}

static void close_view(partition_member *m) {
    const clusim_sim *v = &m->view;
    m->events = v->scheduler.events;
    m->packets.num_spare = v->packets.num_spare;
    m->nodes = v->windows.busy;
    m->scratch = v->windows.scratch;
}

/* Deliver the messages of all threads to the nodes of one. */
static STATUS receive(clusim_sim *s, const partition *c, uint32_t number, uint32_t window) {
    for (uint32_t from = 0; from < c->count; from++) {
        window_outbox *box = &c->members[from].out[window][number];
        for (uint32_t k = 0; k < box->len; k++) {
            const window_message *x = &box->all[k];
            if (x->news == NEWS_PACKET) {
                TRY(inbox_put(s, x->wire, ID(packet, x->id), x->at_ps));
            } else {
                TRY(wire_add_credit(s, x->wire, x->vc, x->bytes, x->at_ps));
            }
        }
        box->len = 0;
    }
    return CLUSIM_OK;
}

STATUS partition_flush(clusim_sim *s) {
    const partition *c = s->windows.partition;
    for (uint32_t k = 0; c && k < c->count; k++) TRY(receive(s, c, k, c->now));
    return CLUSIM_OK;
}

static enum clusim_status do_part(void *context, uint32_t number) {
    partition *c = context;
    partition_member *m = &c->members[number];
    enum clusim_status status = receive(&m->view, c, number, !c->now);
    if (status == CLUSIM_OK) status = c->work(&m->view, c->end_ps);
    close_view(m);
    return status;
}

/* Merge the results of a thread into the sim. */
static STATUS take_in(clusim_sim *s, partition_member *m) {
    const clusim_sim *v = &m->view;
    s->scheduler.event_count += v->scheduler.event_count;
    if (v->scheduler.beyond != BEYOND_NOTHING)
        scheduler_beyond(s, v->scheduler.beyond, v->scheduler.beyond_index);
    s->packets.live += v->packets.live;
    s->windows.undelivered += v->windows.undelivered;
    s->windows.near_end |= v->windows.near_end;
    inbox_due(s, v->windows.due_ps);
    for (uint32_t k = 0; k < m->nodes.len; k++) TRY(node_push(&s->windows.busy, m->nodes.ids[k]));
    m->nodes.len = 0;
    TRY(event_queue_take(&s->scheduler.events, &m->events));
    for (uint32_t k = 0; k < m->thread.deliveries.len; k++) {
        const window_message *x = &m->thread.deliveries.all[k];
        TRY(node_delivered(s, ID(xfer, x->id), x->bytes, x->at_ps, x->wire));
    }
    m->thread.deliveries.len = 0;
    return CLUSIM_OK;
}

static STATUS run_together(clusim_sim *s, partition *c) {
    for (uint32_t k = 0; k < s->windows.busy.len; k++) {
        node_id node = s->windows.busy.ids[k];
        TRY(node_push(&c->members[s->windows.nodes[node.i].part].nodes, node));
    }
    s->windows.busy.len = 0;
    c->now = !c->now;
    for (uint32_t k = 0; k < c->count; k++) {
        c->members[k].thread.to = c->members[k].out[c->now];
        open_view(&c->members[k]);
    }
    TRY(thread_pool_run(c->thread_pool, do_part, c));
    for (uint32_t k = 0; k < c->count; k++) TRY(take_in(s, &c->members[k]));
    return CLUSIM_OK;
}

STATUS partition_run(clusim_sim *s, int64_t end_ps, partition_work work) {
    partition *c = s->windows.partition;
    uint64_t before = s->scheduler.event_count;
    c->work = work;
    c->end_ps = end_ps;
    if (c->usual < c->pays) {
        TRY(partition_flush(s));
        TRY(work(s, end_ps));
    } else {
        c->shared++;
        TRY(run_together(s, c));
    }
    c->usual = (c->usual + s->scheduler.event_count - before) / 2;
    return CLUSIM_OK;
}
