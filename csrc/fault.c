#include "fault.h"

#include "scheduler.h"

static bool is_of_wire(const clusim_sender_fault *f) {
    return f->call == CLUSIM_SENDER_CALL_ENQUEUE || f->call == CLUSIM_SENDER_CALL_NEXT;
}

/* Remember the first one by owner. */
static void note(clusim_sim *s, clusim_sender_fault fault) {
    const clusim_sender_fault *known = &s->senders.fault;
    bool wire = is_of_wire(&fault), first = !s->senders.failed;
    if (!first && wire != is_of_wire(known))
        first = wire;
    else if (!first)
        first = fault.flow < known->flow;
    if (first) s->senders.fault = fault;
    s->senders.failed = true;
}

void fault_wire(clusim_sim *s, wire_id wire, clusim_sender_fault fault) {
    note(s, fault);
    scheduler_beyond(s, CLUSIM_BEYOND_WIRE, wire.i);
}

void fault_flow(clusim_sim *s, flow_id flow, clusim_sender_fault fault) {
    note(s, fault);
    scheduler_flow_beyond(s, flow);
}
