#include "timestamp.h"

#include "aggregate.h"
#include "arbitrate.h"
#include "congestion.h"
#include "delta_cycle.h"
#include "event_queue.h"
#include "inject.h"
#include "laws.h"
#include "memory.h"
#include "node.h"
#include "parts/endpoints.h"
#include "parts/packets.h"
#include "parts/scheduler.h"
#include "parts/spreads.h"
#include "parts/wires.h"
#include "parts/xfers.h"
#include "pool.h"
#include "program.h"
#include "repeat.h"
#include "scheduler.h"
#include "sender.h"
#include "source.h"
#include "task.h"
#include "unit.h"
#include "wire.h"
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
    xfer *x = xfer_at(s, xfer_index);
    x->complete = true;
    if (x->refers == 0) pool_free_xfer(s, xfer_index);
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
        case EV_REPEAT: return repeat_refused(s, ID(pair, id));
        case EV_TIMEOUT: return repeat_timeout(s, ID(pair, id));
        case EV_RESEND: return repeat_next(s, ID(line, id));
        case EV_ALARM: TRY(sender_alarm_event(s, ID(flow, id))); break;
        default: /* EV_NOTIFY */ TRY(sender_notify_event(s, ID(flow, id)));
    }
    if (id >= s->model->image.num_conns + s->model->image.num_sources) return CLUSIM_OK;
    return repeat_resume(s, ID(flow, id)); /* an alarm of a receiver is of no flow */
}

static STATUS dispatch_timer(clusim_sim *s, uint32_t class, uint32_t number, uint32_t id) {
    if (class >= EV_FREE && class <= EV_RESEND) return dispatch_congestion(s, class, number, id);
    switch (class) {
        case EV_FAULT: return apply_fault(s, ID(fault, id));
        case EV_RESULT:
            if (packet_at(s, ID(packet, id))->kind == CLUSIM_KIND_AGG_UP)
                return aggregate_result(s, ID(packet, id));
            return unit_result(s, ID(packet, id));
        case EV_KERNEL: return memory_kernel_event(s, ID(task, id));
        case EV_EPOCH: return memory_epoch_event(s, ID(endpoint, id));
        case EV_SOURCE:
            return number ? source_left(s, ID(source, id)) : source_try(s, ID(source, id));
        case EV_START: /* only creates an event at time 0 */ break;
        default: return dispatch_program(s, class, number, id);
    }
    return CLUSIM_OK;
}

/* Prefetch packets and wires of the next bucket's events. Packets in flight are too many for the
 * fast caches, and have not been touched since they were sent. */
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

STATUS timestamp_next(clusim_sim *s, int64_t limit_ps, int64_t *at_ps) {
    bool any = event_queue_any(&s->scheduler.events);
    if (UNLIKELY(!any)) {
        TRY(event_queue_refill(&s->scheduler.events, limit_ps, &any));
        if (any) prefetch_upcoming(s);
    }
    *at_ps = any ? event_queue_first(&s->scheduler.events)->at_ps : NEVER;
    return CLUSIM_OK;
}

/* All events due now. */
static inline STATUS dispatch_events(clusim_sim *s) {
    event_queue *q = &s->scheduler.events;
    while (event_queue_any(q)) { /* events of one time are in one bucket */
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
 * There a grant may make another wire eligible; the pass then continues with it in order. */
static STATUS phase_b_ordered(clusim_sim *s) {
    if (UNLIKELY(s->spreads.failed)) return CLUSIM_ERR_NO_MEMORY;
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

/* ---- both ---- */

STATUS timestamp_run(clusim_sim *s) {
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
