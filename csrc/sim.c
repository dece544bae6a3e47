/* sim.c - the run loop: events of one timestamp, waves, kernels, then phase B. */
#include "sim.h"

#include <string.h>

#include "aggregate.h"
#include "congestion.h"
#include "laws.h"
#include "memory.h"
#include "node.h"
#include "program.h"
#include "source.h"
#include "task.h"
#include "unit.h"
#include "verify.h"
#include "wire.h"

/* ---- life ------------------------------------------------------------------------------------ */

/* An array of the sim, zeroed. */
static STATUS zeroed(void *slot, uint64_t count, size_t size) {
    void *array = calloc(count + 1, size);
    *(void **)slot = array;
    return array != NULL ? CLUSIM_OK : CLUSIM_ERR_NO_MEMORY;
}

#define ZEROED(member, count) TRY(zeroed(&member, count, sizeof *member))

static STATUS allocate_fabric(clusim_sim *s) {
    const clusim_model *m = s->model;
    const clusim_image *im = &m->image;
    s->wires = aligned_alloc(64, (im->num_wires + 1) * sizeof *s->wires);
    if (s->wires == NULL) return CLUSIM_ERR_NO_MEMORY;
    ZEROED(s->credits, im->num_wires * im->nvc);
    ZEROED(s->voqs, m->num_voqs);
    ZEROED(s->ready_bits, m->num_words);
    ZEROED(s->wait_bits, m->num_words);
    ZEROED(s->flows, m->num_flows);
    ZEROED(s->endpoints, im->num_endpoints);
    ZEROED(s->units, im->num_units);
    ZEROED(s->vertices, im->num_vertices);
    ZEROED(s->final, im->num_wires);
    if (m->has_congestion) {
        ZEROED(s->pauses, im->num_wires * im->nvc);
        ZEROED(s->congestion, im->num_wires);
    }
    if (m->has_controls) ZEROED(s->controls, im->num_conns + im->num_sources);
    TRY(aggregate_init(s));
    return laws_init(s);
}

static STATUS allocate_work(clusim_sim *s) {
    const clusim_image *im = &s->model->image;
    ZEROED(s->conns, im->num_conns);
    ZEROED(s->insts, im->num_instances);
    ZEROED(s->tasks, im->num_tasks);
    ZEROED(s->sources, im->num_sources);
    ZEROED(s->message_end, im->num_messages);
    uint32_t key_shift = s->model->is_ordered ? 0 : RANK_SHIFT;
    return event_queue_init(&s->events, s->model->bucket_shift, key_shift);
}

static void init_fabric(clusim_sim *s) {
    const clusim_model *m = s->model;
    const clusim_image *im = &m->image;
    for (uint64_t i = 0; i < m->num_voqs; i++) s->voqs[i] = (voq){NO(packet), NO(packet)};
    for (uint32_t w = 0; w < im->num_wires; w++) {
        wire_init(s, ID(wire, w));
        for (uint32_t vc = 0; vc < im->nvc; vc++) {
            s->credits[w * im->nvc + vc].available = (int64_t)im->wires[w].buffer_bytes;
        }
    }
    for (uint32_t e = 0; e < im->num_endpoints; e++) {
        s->endpoints[e].mem_cost16 = im->endpoints[e].mem_cost16;
        s->endpoints[e].slow_1024 = im->endpoints[e].slow_1024;
        s->endpoints[e].first_kernel = NO(task);
        s->endpoints[e].deferred = NO(packet);
        s->endpoints[e].epoch_at = NEVER;
    }
    for (uint32_t u = 0; u < im->num_units; u++)
        s->units[u].wait_head = s->units[u].deferred = NO(packet);
    congestion_init(s);
}

static STATUS init_work(clusim_sim *s) {
    const clusim_image *im = &s->model->image;
    for (uint32_t c = 0; c < im->num_conns; c++) {
        bool numbers = im->conns[c].kind == CLUSIM_CONN_KIND_AGGREGATION; /* of operations */
        s->conns[c].stripe = s->conns[c].stripe_read = numbers ? 0 : im->conns[c].key;
        s->conns[c].recv_waiters = s->conns[c].send_waiters = NO(inst);
    }
    for (uint32_t t = 0; t < im->num_tasks; t++) {
        s->tasks[t].start_ps = s->tasks[t].end_ps = -1;
        s->tasks[t].deps_left = im->tasks[t].num_deps;
        if (im->tasks[t].num_deps == 0) TRY(task_push(&s->due_tasks, ID(task, t)));
    }
    for (uint32_t i = 0; i < im->num_instances; i++) {
        s->insts[i].prim = im->templates[im->instances[i].template].prim_lo;
    }
    for (uint32_t m = 0; m < im->num_messages; m++) s->message_end[m] = -1;
    s->tasks_left = im->num_tasks;
    for (uint32_t i = 0; i < im->num_sources; i++) {
        endpoint_state *e = endpoint_at(s, ID(endpoint, im->sources[i].endpoint));
        uint32_t slot = 0;
        while (e->slots[slot >> 6] >> (slot & 63) & 1) slot++;
        e->slots[slot >> 6] |= UINT64_C(1) << (slot & 63);
        s->sources[i].slot = slot;
        s->sources[i].next_message = ID(message, im->sources[i].msg_lo);
        s->messages_left += im->sources[i].msg_hi - im->sources[i].msg_lo;
        TRY(sim_event(s, 0, EV_SOURCE, 0, i));
    }
    for (uint32_t f = 0; f < im->num_faults; f++)
        TRY(sim_event(s, im->faults[f].time_ps, EV_FAULT, f, f));
    return sim_event(s, 0, EV_START, 0, 0);
}

static STATUS init(clusim_sim *s) {
    TRY(allocate_fabric(s));
    TRY(allocate_work(s));
    init_fabric(s);
    return init_work(s);
}

int clusim_sim_create(const clusim_model *model, int keep_records, clusim_sim **out) {
    *out = NULL;
    clusim_sim *s = calloc(1, sizeof *s);
    if (s == NULL) return CLUSIM_ERR_NO_MEMORY;
    s->model = model;
    s->info = model->wires;
    s->nvc = model->image.nvc;
    s->keep_records = keep_records != 0;
    s->packet_free = NO(packet);
    s->xfer_free = NO(xfer);
    s->buffer_free = NO(buffer);
    s->beyond = BEYOND_NOTHING;
    enum clusim_status status = init(s);
    if (status == CLUSIM_OK) {
        *out = s;
    } else {
        clusim_sim_destroy(s);
    }
    return status;
}

void clusim_sim_destroy(clusim_sim *s) {
    if (s == NULL) return;
    event_queue_free(&s->events);
    laws_free(s);
    for (uint64_t i = 0; s->credits && i < s->model->image.num_wires * s->nvc; i++)
        free(s->credits[i].ring);
    for (uint32_t i = 0; i < s->xfer_size; i++) free(s->xfers[i].own_group);
    void *owned[] = {s->wires,
                     s->credits,
                     s->voqs,
                     s->ready_bits,
                     s->wait_bits,
                     s->flows,
                     s->packets,
                     s->xfers,
                     s->buffers,
                     s->conns,
                     s->insts,
                     s->endpoints,
                     s->tasks,
                     s->sources,
                     s->units,
                     s->message_end,
                     s->records,
                     s->final,
                     s->phase_b.ids,
                     s->due_tasks.ids,
                     s->due_starts.ids,
                     s->due_insts.ids,
                     s->phase_b_pass.ids,
                     s->task_wave.ids,
                     s->inst_wave.ids,
                     s->slot_queue.ids,
                     s->deferred.ids,
                     s->dirty_endpoints.ids,
                     s->vertices,
                     s->vertex_counts,
                     s->vertex_payloads,
                     s->pauses,
                     s->congestion,
                     s->controls};
    for (size_t i = 0; i < sizeof owned / sizeof *owned; i++) free(owned[i]);
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
    if (w->wake_at != s->now_ps) return CLUSIM_OK; /* superseded by an earlier one */
    w->wake_at = NEVER;
    return sim_arbitrate(s, wire);
}

static STATUS complete(clusim_sim *s, xfer_id xfer_index) {
    laws_transfer(s, xfer_at(s, xfer_index));
    if (xfer_at(s, xfer_index)->type == XFER_AGGREGATE) aggregate_end(s, xfer_index);
    if (xfer_at(s, xfer_index)->owner_kind == OWNER_SOURCE) {
        TRY(source_complete(s, xfer_index));
    } else {
        TRY(program_complete(s, xfer_index));
    }
    sim_pool_free_xfer(s, xfer_index);
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
    return CLUSIM_OK;
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
            if (packet_at(s, ID(packet, id))->kind == CLUSIM_KIND_AGG_UP) {
                TRY(aggregate_result(s, ID(packet, id)));
            } else {
                TRY(unit_result(s, ID(packet, id)));
            }
            break;
        case EV_KERNEL: return memory_kernel_event(s, ID(task, id));
        case EV_EPOCH: return memory_epoch_event(s, ID(endpoint, id));
        case EV_SOURCE:
            if (number) source_at(s, ID(source, id))->injecting = 0;
            TRY(source_try(s, ID(source, id)));
            break;
        case EV_START: /* only makes time 0 happen */ break;
        default: return dispatch_program(s, class, number, id);
    }
    return CLUSIM_OK;
}

/* Fetch what the events of the next bucket will touch: their packets and wires. Packets in flight
 * are too many for the fast caches, and nothing has touched them since they were sent. */
static void prefetch_upcoming(const clusim_sim *s) {
    const event_chunk *chunk = event_queue_upcoming(&s->events);
    if (chunk == NULL) return;
    for (uint32_t i = 0; i < chunk->count; i++) {
        uint32_t class = sim_class(chunk->events[i].key);
        if (class == EV_ARRIVE || class == EV_RESPOND) {
            __builtin_prefetch(packet_at(s, ID(packet, chunk->events[i].payload)), 1);
        }
        const wire_state *w = wire_at(s, ID(wire, chunk->events[i].key & NUMBER_MASK));
        if (class == EV_ARRIVE || class == EV_WAKE) __builtin_prefetch(w, 1);
    }
}

/* Whether there is an event, after the next bucket was looked at if need be. */
static inline STATUS any_event(clusim_sim *s, bool *any) {
    *any = event_queue_any(&s->events);
    if (LIKELY(*any)) return CLUSIM_OK;
    TRY(event_queue_refill(&s->events, any));
    if (*any) prefetch_upcoming(s);
    return CLUSIM_OK;
}

/* All events due now. */
static inline STATUS dispatch_events(clusim_sim *s) {
    event_queue *q = &s->events;
    for (;;) {
        bool any;
        TRY(any_event(s, &any));
        if (UNLIKELY(!any)) break;
        const event *e = event_queue_first(q);
        if (e->at_ps != s->now_ps) break;
        uint32_t id = e->payload;
        uint32_t class = sim_class(e->key), number = e->key & NUMBER_MASK;
        bool last = e->key >> RANK_SHIFT == 3;
        event_queue_pop(q);
        s->event_count++;
        if (LIKELY(class == EV_ARRIVE)) {
            TRY(node_arrive(s, ID(packet, id)));
        } else if (class == EV_WAKE) {
            TRY(wake(s, ID(wire, id)));
        } else if (class == EV_RESPOND) {
            TRY(node_respond(s, ID(packet, id)));
        } else {
            if (last && s->deferred.len) TRY(node_settle(s));
            TRY(dispatch_timer(s, class, number, id));
        }
    }
    if (s->deferred.len) TRY(node_settle(s));
    return CLUSIM_OK;
}

/* ---- phase B --------------------------------------------------------------------------------- */

/* Ascending order matters only where wires compete for a flow's next packet: adaptive injection.
 * There a grant may make another wire eligible; the pass then goes on with it in its place. */
static STATUS phase_b_ordered(clusim_sim *s) {
    while (s->phase_b.len) {
        wire_list *pass = &s->phase_b_pass;
        wire_take(pass, &s->phase_b);
        for (uint32_t i = 0; i < pass->len; i++) {
            wire_id wire = pass->ids[i];
            wire_at(s, wire)->listed = 0;
            TRY(wire_arbitrate(s, wire));
            for (uint32_t k = s->phase_b.len; k-- > 0;) {
                wire_id added = s->phase_b.ids[k];
                if (added.i <= wire.i) continue;
                s->phase_b.ids[k] = s->phase_b.ids[--s->phase_b.len];
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
    for (uint32_t i = 0; i < s->phase_b.len; i++) {
        wire_id wire = s->phase_b.ids[i];
        wire_at(s, wire)->listed = 0;
        TRY(wire_arbitrate(s, wire));
    }
    s->phase_b.len = 0;
    return CLUSIM_OK;
}

/* ---- the loop -------------------------------------------------------------------------------- */

static STATUS step(clusim_sim *s) {
    bool more;
    do {
        TRY(dispatch_events(s));
        TRY(task_wave(s, &more));
    } while (more);
    if (s->dirty_endpoints.len) TRY(memory_settle(s));
    if (LIKELY(s->beyond == BEYOND_NOTHING)) TRY(phase_b(s));
    return CLUSIM_OK;
}

static void finish(clusim_sim *s) {
    s->finished = true;
    clusim_sim_read_mem_bytes_256(s, s->final_mem_256);
    uint64_t f = s->fingerprint;
    for (uint32_t w = 0; w < s->model->image.num_wires; w++) {
        clusim_wire_counters *c = &s->final[w];
        wire_read(s, ID(wire, w), c);
        const uint64_t parts[] = {c->packets,
                                  c->bytes,
                                  (uint64_t)c->busy_ps,
                                  c->control_bytes,
                                  (uint64_t)c->stall_credit_ps,
                                  (uint64_t)c->stall_arbitration_ps,
                                  c->queued_max,
                                  c->replays};
        for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) f = base_mix(f, parts[i]);
        if (!(s->info[w].traits & (PAUSES | MARKS))) continue;
        f = base_mix(base_mix(f, c->pauses), c->marks);
        f = base_mix(base_mix(f, c->held_max), c->overflows);
    }
    s->fingerprint = f;
}

enum { RECORDS_NEARLY_FULL = 1 << 16 };

static bool all_done(const clusim_sim *s) {
    return s->tasks_left == 0 && s->messages_left == 0 && s->event_count;
}

/* Handle the next timestamp. CLUSIM_STOP_DONE in *stop only means: go on. No event is at or beyond
 * the end of time: the run was refused when it came up. */
static inline STATUS advance(clusim_sim *s, int64_t until_ps, enum clusim_stop *stop) {
    bool any;
    TRY(any_event(s, &any));
    *stop = any ? CLUSIM_STOP_DONE : CLUSIM_STOP_DEADLOCK;
    if (UNLIKELY(!any)) return CLUSIM_OK;
    int64_t at_ps = event_queue_first(&s->events)->at_ps;
    if (UNLIKELY(at_ps > until_ps)) {
        s->now_ps = base_max(s->now_ps, until_ps);
        *stop = CLUSIM_STOP_TIME;
        return CLUSIM_OK;
    }
    s->now_ps = at_ps;
    TRY(step(s));
    return LIKELY(s->beyond == BEYOND_NOTHING) ? CLUSIM_OK : CLUSIM_ERR_RANGE;
}

static STATUS run(clusim_sim *s, int64_t until_ps, uint64_t max_events, enum clusim_stop *stop) {
    uint64_t room = UINT64_MAX - s->event_count;
    uint64_t stop_at = s->event_count + base_umin(max_events, room);
    *stop = CLUSIM_STOP_DONE;
    while (*stop == CLUSIM_STOP_DONE && !all_done(s)) {
        if (UNLIKELY(s->event_count >= stop_at)) {
            *stop = CLUSIM_STOP_EVENTS;
        } else if (UNLIKELY(s->num_records >= RECORDS_NEARLY_FULL)) {
            *stop = CLUSIM_STOP_RECORDS;
        } else {
            TRY(advance(s, until_ps, stop));
        }
    }
    if (*stop == CLUSIM_STOP_DONE) finish(s);
    return CLUSIM_OK;
}

int clusim_sim_run(clusim_sim *s, int64_t until_ps, uint64_t max_events) {
    enum clusim_stop stop = CLUSIM_STOP_DONE;
    if (s->ended == CLUSIM_OK && !s->finished) s->ended = run(s, until_ps, max_events, &stop);
    return s->ended == CLUSIM_OK ? (int)stop : (int)s->ended;
}

static STATUS drain(clusim_sim *s) {
    enum clusim_stop stop = CLUSIM_STOP_DONE;
    while (stop == CLUSIM_STOP_DONE) TRY(advance(s, NEVER, &stop));
    return CLUSIM_OK;
}

/* After the end: let packets, credits and timers run out; kernels and tasks are done already. */
int clusim_sim_check(clusim_sim *s, clusim_error *error) {
    if (!s->finished) return verify_balances(s, error);
    int64_t end_ps = s->now_ps;
    s->draining = true;
    if (s->ended == CLUSIM_OK) s->ended = drain(s);
    enum clusim_status status = s->ended;
    if (status == CLUSIM_OK) status = verify_balances(s, error);
    if (status == CLUSIM_OK) status = laws_check(s, end_ps, error);
    s->now_ps = end_ps;
    return status;
}
