#include "scheduler.h"

#include "parts/xfers.h"

STATUS scheduler_init(clusim_sim *s) {
    s->scheduler.beyond = BEYOND_NOTHING;
    uint32_t key_shift = s->model->is_ordered ? 0 : RANK_SHIFT;
    return event_queue_init(&s->scheduler.events, s->model->bucket_shift, key_shift);
}

void scheduler_free(clusim_sim *s) {
    event_queue_free(&s->scheduler.events);
    free(s->scheduler.phase_b.ids);
    free(s->scheduler.phase_b_pass.ids);
    free(s->scheduler.deferred.ids);
}

/* ---- range violations (contract, section 1) -------------------------------------------------- */

/* Of several in one timestamp, the contract names the first by kind and index. */
void scheduler_beyond(clusim_sim *s, uint32_t what, uint32_t index) {
    if (what > s->scheduler.beyond ||
        (what == s->scheduler.beyond && index >= s->scheduler.beyond_index))
        return;
    s->scheduler.beyond = what;
    s->scheduler.beyond_index = index;
}

void scheduler_flow_beyond(clusim_sim *s, flow_id flow) {
    uint32_t conns = (uint32_t)s->model->image.num_conns;
    if (flow.i < conns) {
        scheduler_beyond(s, CLUSIM_BEYOND_CONNECTION, flow.i);
    } else {
        scheduler_beyond(s, CLUSIM_BEYOND_SOURCE, flow.i - conns);
    }
}

/* Owner of an event of a class; its number is the payload unless stated otherwise. */
static const uint8_t what_of[EV_WAKE + 1] = {
    [EV_FAULT] = BEYOND_NOTHING,
    [EV_START] = BEYOND_NOTHING,
    [EV_WAKE] = BEYOND_NOTHING,
    [EV_ARRIVE] = CLUSIM_BEYOND_WIRE,
    [EV_FREE] = CLUSIM_BEYOND_WIRE,
    [EV_PAUSE] = CLUSIM_BEYOND_WIRE,
    [EV_RESPOND] = CLUSIM_BEYOND_ENDPOINT,
    [EV_COMPLETE] = CLUSIM_BEYOND_ENDPOINT,
    [EV_EPOCH] = CLUSIM_BEYOND_ENDPOINT,
    [EV_RESULT] = CLUSIM_BEYOND_UNIT,
    [EV_TAIL] = CLUSIM_BEYOND_CONNECTION,
    [EV_HEAD] = CLUSIM_BEYOND_CONNECTION,
    [EV_SOURCE] = CLUSIM_BEYOND_SOURCE,
    [EV_READY] = CLUSIM_BEYOND_INSTANCE,
    [EV_LAUNCH] = CLUSIM_BEYOND_INSTANCE,
    [EV_KERNEL] = CLUSIM_BEYOND_TASK,
    [EV_DELAY] = CLUSIM_BEYOND_TASK,
};

/* An event after the end of time is dropped; a WAKE results from a time that was refused. */
void scheduler_event_beyond(clusim_sim *s, uint32_t class, uint32_t order, uint32_t payload) {
    uint32_t what = what_of[class], index = payload;
    if (class >= EV_NOTIFY && class <= EV_RESEND) {
        scheduler_flow_beyond(s, ID(flow, class >= EV_REPEAT ? order : payload));
        return;
    }
    if (class == EV_RESPOND) index = wire_at(s, ID(wire, order))->far_endpoint.i;
    if (class == EV_COMPLETE) index = xfer_at(s, ID(xfer, payload))->endpoint.i;
    if (what == CLUSIM_BEYOND_WIRE || what == CLUSIM_BEYOND_UNIT) index = order;
    scheduler_beyond(s, what, index);
}
