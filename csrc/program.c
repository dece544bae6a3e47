#include "program.h"

#include <string.h>

#include "aggregate.h"
#include "fence.h"
#include "inbox.h"
#include "inject.h"
#include "memory.h"
#include "parts/endpoints.h"
#include "parts/programs.h"
#include "parts/scheduler.h"
#include "parts/tasks.h"
#include "parts/windows.h"
#include "parts/xfers.h"
#include "pieces.h"
#include "pool.h"
#include "result.h"
#include "scheduler.h"
#include "slices.h"
#include "task.h"

enum { OPS_NETWORK = MODEL_OPS_MULTIMEM | CLUSIM_OP_AGGREGATE }; /* done by switches */

typedef struct view { /* context of one step of an instance */
    inst_id id;
    inst_state *state;
    const clusim_instance *image;
    const clusim_prim *prim;
    uint32_t flags;
    conn_id recv, send; /* connections, or NONE */
} view;

static conn_id conn_of(const clusim_sim *s, const clusim_instance *i, uint32_t local) {
    return ID(conn, s->model->image.inst_conns[i->conn_off + local]);
}

static view look(clusim_sim *s, inst_id id) {
    const clusim_image *im = &s->model->image;
    view v = {.id = id,
              .state = inst_at(s, id),
              .image = &im->instances[id.i],
              .recv = NO(conn),
              .send = NO(conn)};
    v.prim = &im->prims[v.state->prim];
    v.flags = im->op_flags[v.prim->opcode];
    if (v.flags & CLUSIM_OP_RECV) v.recv = conn_of(s, v.image, v.prim->recv);
    if (v.flags & MODEL_OPS_SENDING) v.send = conn_of(s, v.image, v.prim->send);
    return v;
}

static STATUS make_due(clusim_sim *s, inst_id id) {
    if (inst_at(s, id)->due) return CLUSIM_OK;
    inst_at(s, id)->due = 1;
    return inst_push(&s->programs.due, id);
}

/* ---- slices ---------------------------------------------------------------------------------- */

/* Slices whose slots the present slice uses: the last of a piece also uses those of empty ones. */
static uint32_t slices_used(const view *v) {
    const inst_state *st = v->state;
    bool last = st->slice_at + st->slice_size >= st->piece;
    return last ? st->slices_left : 1;
}

static uint32_t slice_slots(const view *v) { return v->image->slots_per_slice * slices_used(v); }

/* ---- transfers ------------------------------------------------------------------------------- */

/* Bytes are below 2^54 and the cost below 2^54. */
static base_u128 pace_of(int64_t from_ps, uint64_t bytes, uint64_t cost16) {
    return (((base_u128)bytes * cost16) >> 16) + (uint64_t)from_ps;
}

static int64_t pace_after(clusim_sim *s, inst_id id, uint64_t bytes, uint64_t cost16) {
    base_u128 at = pace_of(s->scheduler.now_ps, bytes, cost16);
    if (LIKELY(at < (base_u128)RANGE_TIME_END)) return (int64_t)(uint64_t)at;
    scheduler_beyond(s, CLUSIM_BEYOND_INSTANCE, id.i);
    return RANGE_TIME_END;
}

static uint64_t work16(const clusim_sim *s, const view *v) {
    const clusim_cost *cost = &s->model->image.costs[v->image->cost];
    return ((uint64_t)cost->op_cost16[v->prim->opcode] * v->state->slow_1024) >> 10;
}

/* Cost of a slice per byte while its data move; a proxy thread has finished before. */
static uint64_t cost_of(const clusim_sim *s, const view *v) {
    return v->image->thread == NONE ? work16(s, v) : 0;
}

static const uint8_t first_kind[] = {
    [XFER_WRITE] = CLUSIM_KIND_WRITE,          [XFER_READ] = CLUSIM_KIND_READ_REQ,
    [XFER_MCAST] = CLUSIM_KIND_MCAST,          [XFER_REDUCE] = CLUSIM_KIND_RED_REQ,
    [XFER_REDUCE_MCAST] = CLUSIM_KIND_RED_REQ, [XFER_AGGREGATE] = CLUSIM_KIND_AGG_UP,
};

/* Key of the queue pair of a pinned transfer; with `split` its packets alternate over all. */
static uint32_t pinned_key(const clusim_sim *s, xfer *x, const clusim_conn *c, conn_state *cs) {
    uint32_t queues = c->queue_hi - c->queue_lo;
    if (LIKELY(queues == 0) || x->type != XFER_WRITE) return c->key;
    const uint32_t *keys = s->model->image.queue_keys + c->queue_lo;
    if (c->split) {
        x->queues = keys;
        x->num_queues = queues;
        return keys[0];
    }
    uint32_t turn = cs->turn;
    cs->turn = turn + 1 == queues ? 0 : turn + 1;
    return keys[turn];
}

/* Set destination and route of a transfer; returns the base offset of its first packet. */
static uint32_t aim(clusim_sim *s, xfer *x, const clusim_conn *c, conn_state *cs) {
    uint32_t *count = &cs->stripe;
    bool staged = c->stage != NONE;
    x->dst = x->via_first = x->via_last = NO(target);
    x->flow = NO(flow);
    x->spread = x->type == XFER_WRITE ? c->spread : NONE;
    x->path = ID(path, c->path);
    x->path_back = ID(path, c->path_back);
    if (x->type == XFER_WRITE) {
        x->dst = ID(target, staged ? c->stage : c->dst);
        x->via_first = ID(target, c->via_first);
        x->via_last = ID(target, c->via_last);
        if (c->via_first != NONE) x->kind = CLUSIM_KIND_FETCH;
        if (c->control != NONE) x->flow = ID(flow, x->conn.i);
    } else if (x->type == XFER_READ) {
        x->dst = ID(target, staged ? c->stage : c->src);
        if (staged) count = &cs->stripe_read;
    } else if (x->type == XFER_AGGREGATE) {
        x->vertex = ID(vertex, c->vertex);
        x->path = ID(path, s->model->image.vertices[c->vertex].path_up);
        x->policy = 0;
    }
    uint32_t base = x->policy == CLUSIM_POLICY_PINNED ? pinned_key(s, x, c, cs) : *count;
    *count += x->count;
    return base;
}

/* Wire group of the first hop, if no explicit path sets it. */
static group_id first_group(const clusim_sim *s, const xfer *x, const clusim_conn *c) {
    if (c->first_group != NONE || !path_none(x->path)) return ID(group, c->first_group);
    return inject_first_group(s, x);
}

/* The payload that a slice is on its connection. */
static uint64_t expanded(const view *v, const clusim_conn *c) {
    return base_ceil_div(slices_bytes(v->state) * c->expand_120, 120);
}

static STATUS start_transfer(clusim_sim *s, const view *v, conn_id conn_index, uint32_t type) {
    const clusim_image *im = &s->model->image;
    const clusim_conn *c = &im->conns[conn_index.i];
    xfer_id index;
    TRY(pool_xfer(s, &index));
    v->state->xfer = index;
    xfer *x = xfer_at(s, index);
    x->bytes = expanded(v, c);
    x->limit = c->packet_bytes;
    x->full = c->packet_bytes * c->burst;
    x->count = inject_count(x->bytes, x->full);
    x->cost16 = cost_of(s, v);
    x->pace_ps = pace_after(s, v->id, x->bytes, x->cost16);
    x->type = (uint8_t)type;
    x->kind = first_kind[type];
    x->policy = (uint8_t)c->policy;
    x->vc = (uint8_t)c->vc;
    x->vc_response = (uint8_t)c->vc_response;
    x->owner_kind = OWNER_INSTANCE;
    x->inst = v->id;
    x->slot = v->state->slot;
    x->endpoint = ID(endpoint, v->image->endpoint);
    x->mgroup = ID(mgroup, c->mgroup);
    x->conn = conn_index;
    x->ordinal = v->state->send_ordinal;
    x->remaining = x->count;
    if (type == XFER_MCAST || type == XFER_REDUCE_MCAST) {
        x->remaining *= im->mgroup_off[c->mgroup + 1] - im->mgroup_off[c->mgroup];
    }
    if (xfer_awaited(x)) s->windows.undelivered += x->remaining;
    uint32_t base = aim(s, x, c, conn_at(s, conn_index));
    if (type == XFER_AGGREGATE) aggregate_begin(s, index);
    return inject_start(s, index, first_group(s, x, c), base, c->window_bytes);
}

/* ---- connections ----------------------------------------------------------------------------- */

STATUS program_counter_visible(clusim_sim *s, conn_id conn, uint32_t slots, bool tail) {
    conn_state *c = conn_at(s, conn);
    inst_id *waiters = tail ? &c->recv_waiters : &c->send_waiters;
    if (tail) {
        c->tail_visible += slots;
    } else {
        c->head_visible += slots;
    }
    for (inst_id id = *waiters; !inst_none(id); id = inst_at(s, id)->next_waiter)
        TRY(make_due(s, id));
    *waiters = NO(inst);
    return CLUSIM_OK;
}

static void wait_for(clusim_sim *s, const view *v, conn_id conn, uint32_t side) {
    inst_id *waiters = side == CLUSIM_CAUSE_RECV ? &conn_at(s, conn)->recv_waiters
                                                 : &conn_at(s, conn)->send_waiters;
    v->state->wait_side = (uint8_t)side;
    v->state->cause = side;
    v->state->wait_conn = conn;
    v->state->next_waiter = *waiters;
    *waiters = v->id;
}

/* ---- the steps of a slice -------------------------------------------------------------------- */

static bool sends_slots(const view *v) { return (v->flags & CLUSIM_OP_SEND) != 0; }

static bool pass_gate(clusim_sim *s, const view *v) {
    uint64_t k = slice_slots(v);
    v->state->wait_side = CLUSIM_CAUSE_NONE;
    if (!conn_none(v->recv) &&
        conn_at(s, v->recv)->tail_visible - conn_at(s, v->recv)->consumed < k) {
        wait_for(s, v, v->recv, CLUSIM_CAUSE_RECV);
        return false;
    }
    if (!sends_slots(v)) return true;
    conn_state *c = conn_at(s, v->send);
    const clusim_conn *image = &s->model->image.conns[v->send.i];
    if (c->issued + k - c->head_visible > image->slots) {
        wait_for(s, v, v->send, CLUSIM_CAUSE_SEND);
        return false;
    }
    c->issued += k;
    v->state->send_ordinal = (uint32_t)c->sends++;
    bool write = image->kind == CLUSIM_CONN_KIND_WRITE && !(v->prim->flags & CLUSIM_PRIM_FLAG_SYNC);
    c->missing[v->state->send_ordinal & 63] = write ? 2 : 1;
    c->width[v->state->send_ordinal & 63] = (uint8_t)k;
    return true;
}

/* A time of a slow endpoint: at most the end of time, at which the run is refused. */
static int64_t slowed_ps(const view *v, int64_t time_ps) {
    base_u128 slowed = ((base_u128)(uint64_t)time_ps * v->state->slow_1024) >> 10;
    return slowed < (base_u128)RANGE_TIME_END ? (int64_t)(uint64_t)slowed : RANGE_TIME_END;
}

/* Let the thread that serves an instance do a slice after those it has; returns when it is handed
 * on. Empty slices are messages as well, which the thread does next. */
static int64_t serve(clusim_sim *s, const view *v, int64_t fixed) {
    endpoint_state *host = endpoint_at(s, ID(endpoint, v->image->thread));
    base_u128 at = base_umax((uint64_t)s->scheduler.now_ps, (uint64_t)host->thread_free_ps);
    at += (uint64_t)fixed + (((base_u128)slices_bytes(v->state) * work16(s, v)) >> 16);
    uint64_t done = at < (base_u128)RANGE_TIME_END ? (uint64_t)at : (uint64_t)RANGE_TIME_END;
    uint64_t after = (uint64_t)slowed_ps(v, s->model->image.costs[v->image->cost].after_ps);
    base_u128 more = (base_u128)(slices_used(v) - 1) * ((uint64_t)fixed + after) + after;
    base_u128 free_ps = more + done;
    host->thread_free_ps =
        free_ps < (base_u128)RANGE_TIME_END ? (int64_t)(uint64_t)free_ps : RANGE_TIME_END;
    return (int64_t)done;
}

/* Time at which the data of a slice that passed its gate begin to move. */
static int64_t moves_at(clusim_sim *s, const view *v) {
    int64_t fixed = slowed_ps(v, s->model->image.costs[v->image->cost].fixed_ps);
    return v->image->thread == NONE ? s->scheduler.now_ps + fixed : serve(s, v, fixed);
}

static STATUS ready_at(clusim_sim *s, inst_id id, int64_t at_ps) {
    return scheduler_event(s, at_ps, EV_READY, 0, id.i);
}

/* True if the receiver of a connection fetches the data. */
static bool pulls(const clusim_conn *c) {
    return c->kind == CLUSIM_CONN_KIND_READ || c->stage != NONE;
}

static bool fetches(const clusim_sim *s, const view *v) {
    return !conn_none(v->recv) && pulls(&s->model->image.conns[v->recv.i]) &&
           !(v->prim->flags & CLUSIM_PRIM_FLAG_SYNC);
}

static bool writes(const clusim_sim *s, const view *v) {
    return sends_slots(v) && s->model->image.conns[v->send.i].kind == CLUSIM_CONN_KIND_WRITE &&
           !(v->prim->flags & CLUSIM_PRIM_FLAG_SYNC);
}

/* The slice has passed its gate, and its data begin to move at `at_ps`: at an endpoint that works
 * in windows, if they use its wires. */
static STATUS moves(clusim_sim *s, const view *v, int64_t at_ps) {
    bool fetch = fetches(s, v), sync = v->prim->flags & CLUSIM_PRIM_FLAG_SYNC;
    bool network = !sync && (v->flags & OPS_NETWORK);
    v->state->start_ps = at_ps;
    v->state->xfer = NO(xfer);
    if (!s->windows.leading || !(fetch || network || writes(s, v)))
        return ready_at(s, v->id, at_ps);
    const clusim_conn *c = &s->model->image.conns[fetch ? v->recv.i : v->send.i];
    if (pace_of(at_ps, expanded(v, c), cost_of(s, v)) >> WINDOW_LAST_BITS) {
        s->windows.near_end = true;
        return ready_at(s, v->id, at_ps);
    }
    window_start start = {at_ps, v->id.i, START_SLICE};
    return inbox_start(s, ID(endpoint, v->image->endpoint), start);
}

/* The transfer after an optional READ, or the local work, which may be done already. */
static STATUS start_main(clusim_sim *s, const view *v, bool *done) {
    v->state->phase = PH_DATA;
    bool sync = v->prim->flags & CLUSIM_PRIM_FLAG_SYNC;
    if (!sync && (v->flags & CLUSIM_OP_AGGREGATE)) {
        return start_transfer(s, v, v->send, XFER_AGGREGATE);
    }
    if (!sync && (v->flags & OPS_NETWORK)) {
        bool both = (v->flags & CLUSIM_OP_MCAST) && (v->flags & CLUSIM_OP_REDUCE);
        uint32_t single = v->flags & CLUSIM_OP_MCAST ? XFER_MCAST : XFER_REDUCE;
        return start_transfer(s, v, v->send, both ? XFER_REDUCE_MCAST : single);
    }
    if (writes(s, v)) return start_transfer(s, v, v->send, XFER_WRITE);
    int64_t pace = pace_after(s, v->id, slices_bytes(v->state), cost_of(s, v));
    *done = pace == s->scheduler.now_ps;
    return *done ? CLUSIM_OK : ready_at(s, v->id, pace);
}

static STATUS start_data(clusim_sim *s, const view *v, bool *done) {
    if (fetches(s, v)) {
        v->state->phase = PH_READ;
        return start_transfer(s, v, v->recv, XFER_READ);
    }
    return start_main(s, v, done);
}

/* After a READ: the WRITE of the same primitive, if it has one. */
static STATUS after_read(clusim_sim *s, const view *v, bool *done) {
    if (writes(s, v)) return start_main(s, v, done);
    *done = true;
    return CLUSIM_OK;
}

static STATUS record(clusim_sim *s, inst_id id, uint32_t seq) {
    const inst_state *st = inst_at(s, id);
    int64_t now_ps = s->scheduler.now_ps;
    result_hash(s, 1, now_ps, id.i, seq);
    return result_record(s, (clusim_record){now_ps, st->gate_ps, id.i, seq, st->wire.i, st->cause});
}

static bool stores(const view *v) {
    bool sync = v->prim->flags & CLUSIM_PRIM_FLAG_SYNC;
    return !sync && (v->flags & MODEL_OPS_MULTIMEM) == CLUSIM_OP_MCAST;
}

static STATUS finish_slice(clusim_sim *s, const view *v) {
    TRY(record(s, v->id, v->state->seq++));
    uint32_t k = slice_slots(v);
    if (!conn_none(v->recv)) {
        conn_state *c = conn_at(s, v->recv);
        c->consumed += k; /* more than there were, if two received the same */
        if (UNLIKELY(c->consumed > c->tail_visible))
            scheduler_beyond(s, CLUSIM_BEYOND_CONNECTION, v->recv.i);
        int64_t at = s->scheduler.now_ps + s->model->image.conns[v->recv.i].head_ps;
        TRY(scheduler_event(s, at, EV_HEAD, k, v->recv.i));
    }
    if (stores(v)) fence_begin(s, v->id);
    if (!sends_slots(v)) return CLUSIM_OK;
    return fence_post_after(s, v->id, v->send, v->state->send_ordinal);
}

static STATUS finish_instance(clusim_sim *s, inst_id id) {
    inst_state *st = inst_at(s, id);
    const clusim_instance *x = &s->model->image.instances[id.i];
    endpoint_id endpoint = ID(endpoint, x->endpoint);
    task_id task = ID(task, x->task);
    endpoint_state *e = endpoint_at(s, endpoint);
    st->phase = PH_DONE;
    e->slots[st->slot >> 6] &= ~(UINT64_C(1) << (st->slot & 63));
    e->busy_sms -= x->sm;
    if (e->kernels) TRY(memory_mark_dirty(s, endpoint));
    s->tasks.slot_freed = true;
    if (--task_at(s, task)->instances_left == 0) TRY(task_done(s, task));
    return CLUSIM_OK;
}

/* Advance an instance as far as possible at this timestamp. */
STATUS program_run(clusim_sim *s, inst_id id) {
    inst_state *st = inst_at(s, id);
    if (!st->has_slice) {
        return finish_instance(s, id);
    }
    for (;;) {
        view v = look(s, id);
        bool done = false;
        switch (st->phase) {
            case PH_GATE: {
                if (!pass_gate(s, &v)) return CLUSIM_OK;
                st->slow_1024 = endpoint_at(s, ID(endpoint, v.image->endpoint))->slow_1024;
                st->gate_ps = s->scheduler.now_ps;
                st->wire = NO(wire);
                int64_t at_ps = moves_at(s, &v);
                st->phase = PH_FIXED;
                if (at_ps == s->scheduler.now_ps) continue;
                return moves(s, &v, at_ps);
            }
            case PH_FIXED: TRY(start_data(s, &v, &done)); break;
            case PH_READ: TRY(after_read(s, &v, &done)); break;
            default:
                done = !stores(&v) || xfer_none(st->fence);
                if (!done) st->phase = PH_FENCE;
                break;
        }
        if (!done) return CLUSIM_OK;
        TRY(finish_slice(s, &v));
        st->phase = PH_GATE;
        st->cause = CLUSIM_CAUSE_NONE;
        if (!slices_next(s, id)) {
            return finish_instance(s, id);
        }
    }
}

/* The data of a slice begin to move. */
STATUS program_move(clusim_sim *s, inst_id id) {
    view v = look(s, id);
    bool done = false;
    return start_data(s, &v, &done);
}

/* ---- event handlers -------------------------------------------------------------------------- */

STATUS program_ready(clusim_sim *s, inst_id id) { return make_due(s, id); }

STATUS program_complete(clusim_sim *s, xfer_id xfer_index) {
    const xfer *x = xfer_at(s, xfer_index);
    if (x->type == XFER_WRITE) {
        TRY(fence_post(s, x->conn, x->ordinal));
    } else if (x->type == XFER_MCAST) {
        TRY(fence_end(s, x->inst, xfer_index));
        if (inst_at(s, x->inst)->phase == PH_FENCE) TRY(make_due(s, x->inst));
    } else {
        inst_at(s, x->inst)->wire = x->last_wire;
        if (x->pace_ps > s->scheduler.now_ps) {
            TRY(ready_at(s, x->inst, x->pace_ps));
        } else {
            TRY(make_due(s, x->inst));
        }
    }
    return CLUSIM_OK;
}

/* ---- life -------------------------------------------------------------------------------------
 */

STATUS program_init(clusim_sim *s) {
    const clusim_image *im = &s->model->image;
    ZEROED(s->programs.conns, im->num_conns);
    ZEROED(s->programs.insts, im->num_instances);
    for (uint32_t c = 0; c < im->num_conns; c++) {
        bool numbers = im->conns[c].kind == CLUSIM_CONN_KIND_AGGREGATION; /* of operations */
        conn_state *conn = &s->programs.conns[c];
        conn->stripe = conn->stripe_read = numbers ? 0 : im->conns[c].key;
        conn->recv_waiters = conn->send_waiters = NO(inst);
    }
    for (uint32_t i = 0; i < im->num_instances; i++)
        s->programs.insts[i].prim = im->templates[im->instances[i].template].prim_lo;
    fence_init(s);
    return CLUSIM_OK;
}

void program_free(clusim_sim *s) {
    free(s->programs.conns);
    fence_free(s);
    free(s->programs.insts);
    free(s->programs.due.ids);
    free(s->programs.current.ids);
}

STATUS program_begin(clusim_sim *s, inst_id id, uint32_t slot) {
    const clusim_image *im = &s->model->image;
    const clusim_instance *x = &im->instances[id.i];
    inst_state *st = inst_at(s, id);
    st->slot = slot;
    st->phase = PH_GATE;
    st->prim = im->templates[x->template].prim_lo;
    st->loops = pieces_loops(im, x, &im->templates[x->template]);
    st->has_slice = st->loops > 0 && slices_first(s, id);
    return make_due(s, id);
}

void program_read(const clusim_sim *s, inst_id id, clusim_instance_state *out) {
    static const uint8_t names[] = {
        [PH_NEW] = CLUSIM_STATE_NOT_STARTED, [PH_QUEUED] = CLUSIM_STATE_WAIT_CTA_SLOT,
        [PH_GATE] = CLUSIM_STATE_BUSY,       [PH_FIXED] = CLUSIM_STATE_BUSY,
        [PH_READ] = CLUSIM_STATE_BUSY,       [PH_DATA] = CLUSIM_STATE_BUSY,
        [PH_FENCE] = CLUSIM_STATE_BUSY,      [PH_DONE] = CLUSIM_STATE_DONE,
    };
    const inst_state *st = inst_at(s, id);
    *out = (clusim_instance_state){names[st->phase], st->prim, NONE, st->seq, st->loop};
    if (st->phase == PH_GATE && st->wait_side != CLUSIM_CAUSE_NONE) {
        out->state =
            st->wait_side == CLUSIM_CAUSE_RECV ? CLUSIM_STATE_WAIT_RECV : CLUSIM_STATE_WAIT_SEND;
        out->conn = st->wait_conn.i;
    }
}
