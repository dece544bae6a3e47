/* sim.c - the run loop: events of one timestamp, waves, kernels, then phase B. */
#include "aggregate.h"
#include "arbitrate.h"
#include "congestion.h"
#include "delta_cycle.h"
#include "laws.h"
#include "memory.h"
#include "node.h"
#include "parts/endpoints.h"
#include "parts/packets.h"
#include "parts/results.h"
#include "parts/scheduler.h"
#include "parts/sources.h"
#include "parts/tasks.h"
#include "parts/windows.h"
#include "parts/wires.h"
#include "parts/xfers.h"
#include "pool.h"
#include "program.h"
#include "readout.h"
#include "result.h"
#include "scheduler.h"
#include "source.h"
#include "task.h"
#include "unit.h"
#include "verify.h"
#include "window.h"
#include "wire.h"

/* ---- life ------------------------------------------------------------------------------------ */

/* In this order: congestion looks at wires, sources take slots of endpoints and start at time 0. */
static STATUS init(clusim_sim *s) {
    const clusim_image *im = &s->model->image;
    pool_init(s);
    TRY(scheduler_init(s));
    TRY(wire_init(s));
    TRY(congestion_init(s));
    TRY(window_init(s));
    TRY(memory_init(s));
    TRY(unit_init(s));
    TRY(aggregate_init(s));
    TRY(program_init(s));
    TRY(task_init(s));
    TRY(source_init(s));
    TRY(laws_init(s));
    TRY(readout_init(s));
    for (uint32_t f = 0; f < im->num_faults; f++)
        TRY(scheduler_event(s, im->faults[f].time_ps, EV_FAULT, f, f));
    return scheduler_event(s, 0, EV_START, 0, 0);
}

int clusim_sim_create(const clusim_model *model, int keep_records, clusim_sim **out) {
    *out = NULL;
    clusim_sim *s = calloc(1, sizeof *s);
    if (s == NULL) return CLUSIM_ERR_NO_MEMORY;
    s->model = model;
    s->results.keep_records = keep_records != 0;
    enum clusim_status status = init(s);
    if (status == CLUSIM_OK) {
        *out = s;
    } else {
        clusim_sim_destroy(s);
    }
    return status;
}

/* Whatever of it has been made. */
void clusim_sim_destroy(clusim_sim *s) {
    if (s == NULL) return;
    result_free(s);
    laws_free(s);
    source_free(s);
    task_free(s);
    program_free(s);
    aggregate_free(s);
    unit_free(s);
    memory_free(s);
    window_free(s);
    congestion_free(s);
    wire_free(s);
    scheduler_free(s);
    pool_free(s);
    free(s);
}

/* ---- phase A --------------------------------------------------------------------------------- */

static STATUS apply_fault(clusim_sim *s, fault_id fault) {
    const clusim_fault *f = &s->model->image.faults[fault.i];
    if (f->kind == CLUSIM_FAULT_KIND_SLOW) {
        endpoint_at(s, ID(endpoint, f->index))->slow_1024 = (uint32_t)f->num;
        return CLUSIM_OK;
    }
    return wire_set_rate(s, ID(wire, f->index), s->model->fault_rate[fault.i]);
}

static STATUS wake(clusim_sim *s, wire_id wire) {
    wire_state *w = wire_at(s, wire);
    if (w->wake_at != s->scheduler.now_ps) return CLUSIM_OK; /* superseded by an earlier one */
    w->wake_at = NEVER;
    return scheduler_arbitrate(s, wire);
}

static STATUS complete(clusim_sim *s, xfer_id xfer_index) {
    laws_transfer(s, xfer_at(s, xfer_index));
    if (xfer_at(s, xfer_index)->type == XFER_AGGREGATE) aggregate_end(s, xfer_index);
    if (xfer_at(s, xfer_index)->owner_kind == OWNER_SOURCE) {
        TRY(source_complete(s, xfer_index));
    } else {
        TRY(program_complete(s, xfer_index));
    }
    pool_free_xfer(s, xfer_index);
    return CLUSIM_OK;
}

static STATUS dispatch_program(clusim_sim *s, uint32_t class, uint32_t number, uint32_t id) {
    switch (class) {
        case EV_COMPLETE: return complete(s, ID(xfer, id));
        case EV_TAIL:
        case EV_HEAD: return program_counter_visible(s, ID(conn, id), number, class == EV_TAIL);
        case EV_LAUNCH: return task_launch(s, ID(inst, id));
        case EV_READY: return program_ready(s, ID(inst, id));
        default: /* EV_DELAY */ return task_done(s, ID(task, id));
    }
}

static STATUS dispatch_congestion(clusim_sim *s, uint32_t class, uint32_t number, uint32_t id) {
    switch (class) {
        case EV_FREE: return congestion_free_event(s, ID(wire, number), id);
        case EV_PAUSE: return congestion_pause_event(s, ID(wire, number), id);
        default: /* EV_NOTIFY */ congestion_notify_event(s, ID(flow, id)); break;
    }
    return CLUSIM_OK;
}

static STATUS dispatch_timer(clusim_sim *s, uint32_t class, uint32_t number, uint32_t id) {
    switch (class) {
        case EV_FREE:
        case EV_PAUSE:
        case EV_NOTIFY: return dispatch_congestion(s, class, number, id);
        case EV_FAULT: return apply_fault(s, ID(fault, id));
        case EV_RESULT:
            if (packet_at(s, ID(packet, id))->kind == CLUSIM_KIND_AGG_UP)
                return aggregate_result(s, ID(packet, id));
            return unit_result(s, ID(packet, id));
        case EV_KERNEL: return memory_kernel_event(s, ID(task, id));
        case EV_EPOCH: return memory_epoch_event(s, ID(endpoint, id));
        case EV_SOURCE:
            return number ? source_left(s, ID(source, id)) : source_try(s, ID(source, id));
        case EV_START: /* only makes time 0 happen */ break;
        default: return dispatch_program(s, class, number, id);
    }
    return CLUSIM_OK;
}

/* Fetch what the events of the next bucket will touch: their packets and wires. Packets in flight
 * are too many for the fast caches, and nothing has touched them since they were sent. */
static void prefetch_upcoming(const clusim_sim *s) {
    const event_chunk *chunk = event_queue_upcoming(&s->scheduler.events);
    if (chunk == NULL) return;
    for (uint32_t i = 0; i < chunk->count; i++) {
        uint32_t class = scheduler_class(chunk->events[i].key);
        if (class == EV_ARRIVE || class == EV_RESPOND) {
            __builtin_prefetch(packet_at(s, ID(packet, chunk->events[i].payload)), 1);
        }
        const wire_state *w = wire_at(s, ID(wire, chunk->events[i].key & NUMBER_MASK));
        if (class == EV_ARRIVE || class == EV_WAKE) __builtin_prefetch(w, 1);
    }
}

/* Whether there is an event, after the next bucket was looked at if need be: of those after
 * `limit_ps` nothing need be known. */
static inline STATUS any_event(clusim_sim *s, int64_t limit_ps, bool *any) {
    *any = event_queue_any(&s->scheduler.events);
    if (LIKELY(*any)) return CLUSIM_OK;
    TRY(event_queue_refill(&s->scheduler.events, limit_ps, any));
    if (*any) prefetch_upcoming(s);
    return CLUSIM_OK;
}

/* All events due now. */
static inline STATUS dispatch_events(clusim_sim *s) {
    event_queue *q = &s->scheduler.events;
    while (event_queue_any(q)) { /* those of one time are in one bucket */
        const event *e = event_queue_first(q);
        if (e->at_ps != s->scheduler.now_ps) break;
        uint32_t id = e->payload;
        uint32_t class = scheduler_class(e->key), number = e->key & NUMBER_MASK;
        bool last = e->key >> RANK_SHIFT == 3;
        event_queue_pop(q);
        s->scheduler.event_count++;
        if (LIKELY(class == EV_ARRIVE)) {
            TRY(node_arrive(s, ID(packet, id)));
        } else if (class == EV_WAKE) {
            TRY(wake(s, ID(wire, id)));
        } else if (class == EV_RESPOND) {
            TRY(node_respond(s, ID(packet, id)));
        } else {
            if (last && s->scheduler.deferred.len) TRY(node_settle(s));
            TRY(dispatch_timer(s, class, number, id));
        }
    }
    if (s->scheduler.deferred.len) TRY(node_settle(s));
    return CLUSIM_OK;
}

/* ---- phase B --------------------------------------------------------------------------------- */

/* Ascending order matters only where wires compete for a flow's next packet: adaptive injection.
 * There a grant may make another wire eligible; the pass then goes on with it in its place. */
static STATUS phase_b_ordered(clusim_sim *s) {
    while (s->scheduler.phase_b.len) {
        wire_list *pass = &s->scheduler.phase_b_pass;
        wire_take(pass, &s->scheduler.phase_b);
        for (uint32_t i = 0; i < pass->len; i++) {
            wire_id wire = pass->ids[i];
            wire_at(s, wire)->listed = 0;
            TRY(arbitrate_wire(s, wire));
            for (uint32_t k = s->scheduler.phase_b.len; k-- > 0;) {
                wire_id added = s->scheduler.phase_b.ids[k];
                if (added.i <= wire.i) continue;
                s->scheduler.phase_b.ids[k] = s->scheduler.phase_b.ids[--s->scheduler.phase_b.len];
                TRY(wire_push(pass, added));
                uint32_t at = pass->len - 1;
                for (; at > i + 1 && pass->ids[at - 1].i > added.i; at--)
                    pass->ids[at] = pass->ids[at - 1];
                pass->ids[at] = added;
            }
        }
    }
    return CLUSIM_OK;
}

static inline STATUS phase_b(clusim_sim *s) {
    if (UNLIKELY(s->model->has_adaptive)) return phase_b_ordered(s);
    for (uint32_t i = 0; i < s->scheduler.phase_b.len; i++) {
        wire_id wire = s->scheduler.phase_b.ids[i];
        wire_at(s, wire)->listed = 0;
        TRY(arbitrate_wire(s, wire));
    }
    s->scheduler.phase_b.len = 0;
    return CLUSIM_OK;
}

/* ---- the loop -------------------------------------------------------------------------------- */

static STATUS step(clusim_sim *s) {
    bool more;
    do {
        TRY(dispatch_events(s));
        more = delta_cycle_due(s);
        if (more) TRY(delta_cycle_run(s, &more));
    } while (more);
    if (s->endpoints.dirty.len) TRY(memory_settle(s));
    if (LIKELY(s->scheduler.beyond == BEYOND_NOTHING)) TRY(phase_b(s));
    return CLUSIM_OK;
}

enum { RECORDS_NEARLY_FULL = 1 << 16 };

static bool all_done(const clusim_sim *s) {
    return s->tasks.left == 0 && s->sources.messages_left == 0 && s->scheduler.event_count;
}

/* When the next event is, if it matters what nodes in windows do before: they go first. */
static inline STATUS next_event(clusim_sim *s, int64_t until_ps, int64_t *at_ps) {
    int64_t due_ps = s->windows.due_ps;
    int64_t limit_ps = due_ps <= until_ps || due_ps == NEVER ? window_horizon(s) : until_ps;
    bool any;
    TRY(any_event(s, limit_ps, &any));
    *at_ps = any ? event_queue_first(&s->scheduler.events)->at_ps : NEVER;
    return CLUSIM_OK;
}

/* Events have come as far as the nodes that work in windows: all before some time is done. */
static inline bool level(const clusim_sim *s, int64_t at_ps) { return at_ps >= s->windows.done_ps; }

/* Whether nodes that work in windows go on before the event at `at_ps`. Where endpoints are among
 * them, what events do to them comes a window later, so they lead; else they follow. */
static inline bool nodes_first(clusim_sim *s, int64_t at_ps, int64_t until_ps, int64_t *end_ps) {
    int64_t due_ps = s->windows.due_ps;
    if (s->windows.leading) {
        if (!level(s, at_ps) || due_ps > at_ps || due_ps > until_ps) return false;
        *end_ps = window_end_ps(s, until_ps);
        return true;
    }
    *end_ps = base_min(window_horizon(s), until_ps + (until_ps != NEVER));
    return due_ps < *end_ps && at_ps >= *end_ps;
}

/* Handle the next timestamp. CLUSIM_STOP_DONE in *stop only means: go on. No event is at or beyond
 * the end of time: the run was refused when it came up. */
static inline STATUS advance(clusim_sim *s, int64_t until_ps, enum clusim_stop *stop) {
    int64_t at_ps, end_ps, due_ps = s->windows.due_ps;
    TRY(next_event(s, until_ps, &at_ps));
    bool any = at_ps != NEVER || due_ps != NEVER;
    *stop = any ? CLUSIM_STOP_DONE : CLUSIM_STOP_DEADLOCK;
    if (UNLIKELY(!any)) return CLUSIM_OK;
    bool late = base_min(at_ps, due_ps) >> WINDOW_LAST_BITS || s->windows.near_end;
    if (UNLIKELY(late && s->windows.on && level(s, at_ps))) return window_close(s);
    if (nodes_first(s, at_ps, until_ps, &end_ps)) return window_run(s, end_ps);
    if (UNLIKELY(at_ps > until_ps)) {
        s->scheduler.now_ps = base_max(s->scheduler.now_ps, until_ps);
        *stop = CLUSIM_STOP_TIME;
        return CLUSIM_OK;
    }
    s->scheduler.now_ps = at_ps;
    TRY(step(s));
    return LIKELY(s->scheduler.beyond == BEYOND_NOTHING) ? CLUSIM_OK : CLUSIM_ERR_RANGE;
}

/* Whether the run is to pause now; not while endpoints are ahead of events. */
static STATUS pause(clusim_sim *s, uint64_t stop_at, enum clusim_stop *stop) {
    bool events = s->scheduler.event_count >= stop_at;
    if (LIKELY(!events && s->results.num_records < RECORDS_NEARLY_FULL)) return CLUSIM_OK;
    int64_t at_ps;
    TRY(next_event(s, NEVER, &at_ps));
    if (level(s, at_ps)) *stop = events ? CLUSIM_STOP_EVENTS : CLUSIM_STOP_RECORDS;
    return CLUSIM_OK;
}

static STATUS run(clusim_sim *s, int64_t until_ps, uint64_t max_events, enum clusim_stop *stop) {
    uint64_t room = UINT64_MAX - s->scheduler.event_count;
    uint64_t stop_at = s->scheduler.event_count + base_umin(max_events, room);
    *stop = CLUSIM_STOP_DONE;
    while (*stop == CLUSIM_STOP_DONE && !all_done(s)) {
        TRY(pause(s, stop_at, stop));
        if (LIKELY(*stop == CLUSIM_STOP_DONE)) TRY(advance(s, until_ps, stop));
    }
    TRY(window_catch_up(s));
    CLUSIM_ASSERT(*stop != CLUSIM_STOP_DONE || s->windows.done_ps <= s->scheduler.now_ps + 1);
    if (*stop == CLUSIM_STOP_DONE) readout_finish(s);
    return CLUSIM_OK;
}

int clusim_sim_run(clusim_sim *s, int64_t until_ps, uint64_t max_events) {
    enum clusim_stop stop = CLUSIM_STOP_DONE;
    if (s->results.ended == CLUSIM_OK && !s->results.finished)
        s->results.ended = run(s, until_ps, max_events, &stop);
    return s->results.ended == CLUSIM_OK ? (int)stop : (int)s->results.ended;
}

static STATUS drain(clusim_sim *s) {
    enum clusim_stop stop = CLUSIM_STOP_DONE;
    while (stop == CLUSIM_STOP_DONE) TRY(advance(s, NEVER, &stop));
    return CLUSIM_OK;
}

/* After the end: let packets, credits and timers run out; kernels and tasks are done already. */
int clusim_sim_check(clusim_sim *s, clusim_error *error) {
    if (!s->results.finished) return verify_balances(s, error);
    int64_t end_ps = s->scheduler.now_ps;
    s->results.draining = true;
    if (s->results.ended == CLUSIM_OK) s->results.ended = drain(s);
    enum clusim_status status = s->results.ended;
    if (status == CLUSIM_OK) status = verify_balances(s, error);
    if (status == CLUSIM_OK) status = laws_check(s, end_ps, error);
    s->scheduler.now_ps = end_ps;
    return status;
}
