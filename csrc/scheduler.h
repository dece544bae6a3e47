/* scheduler.h - scheduling of events and arbitration, and conditions that end the run. */
#ifndef CLUSIM_SCHEDULER_H
#define CLUSIM_SCHEDULER_H

#include "parts/scheduler.h"
#include "parts/wires.h"
#include "state.h"

STATUS scheduler_init(clusim_sim *s);
void scheduler_free(clusim_sim *s);

static inline uint32_t scheduler_class(uint32_t key) { return key >> CLASS_SHIFT & 31; }

static inline uint32_t scheduler_key(const clusim_sim *s, uint32_t class, uint32_t number) {
    uint32_t rank = class == EV_FAULT ? 0 : class == EV_ARRIVE || class == EV_WAKE ? 1 : 3;
    if (class == EV_RESPOND) rank = s->model->has_relays ? 2 : 1;
    return rank << RANK_SHIFT | class << CLASS_SHIFT | (number & NUMBER_MASK);
}

/* Something of the run left the ranges: it ends with this timestamp. */
void scheduler_beyond(clusim_sim *s, uint32_t what, uint32_t index);
void scheduler_flow_beyond(clusim_sim *s, flow_id flow);
void scheduler_event_beyond(clusim_sim *s, uint32_t class, uint32_t order, uint32_t payload);

/* A sum of a time and durations may have wrapped around 2^63 in `at`, but not around 2^64. */
ALWAYS_INLINE STATUS scheduler_event(clusim_sim *s, int64_t at, uint32_t class, uint32_t order,
                                     uint32_t payload) {
    enum clusim_status pushed =
        event_queue_push(&s->scheduler.events, at, scheduler_key(s, class, order), payload);
    if (LIKELY(pushed != CLUSIM_ERR_RANGE)) return pushed;
    scheduler_event_beyond(s, class, order, payload);
    return CLUSIM_OK;
}

/* Request arbitration of a wire in phase B of the present timestamp. */
static inline STATUS scheduler_arbitrate(clusim_sim *s, wire_id wire) {
    if (wire_at(s, wire)->listed) return CLUSIM_OK;
    wire_at(s, wire)->listed = 1;
    return wire_push(&s->scheduler.phase_b, wire);
}

#endif
