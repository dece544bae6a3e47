#include "fault.h"

#include "scheduler.h"

/* Owners in the order of the contract: wires, flows, switches. */
static uint32_t rank_of(const clusim_sender_fault *f) {
    if (f->call == CLUSIM_SENDER_CALL_CHOOSE) return 2;
    return f->call != CLUSIM_SENDER_CALL_ENQUEUE && f->call != CLUSIM_SENDER_CALL_NEXT;
}

/* Remember the first one by owner. */
static void note(clusim_sim *s, clusim_sender_fault fault) {
    const clusim_sender_fault *known = &s->senders.fault;
    uint32_t rank = rank_of(&fault);
    bool first = !s->senders.failed;
    if (!first && rank != rank_of(known))
        first = rank < rank_of(known);
    else if (!first)
        first = fault.flow < known->flow;
    if (first) s->senders.fault = fault;
    s->senders.failed = true;
}

void fault_wire(clusim_sim *s, wire_id wire, clusim_sender_fault fault) {
    note(s, fault);
    scheduler_beyond(s, CLUSIM_BEYOND_WIRE, wire.i);
}

void fault_node(clusim_sim *s, node_id node, clusim_sender_fault fault) {
    note(s, fault);
    scheduler_beyond(s, CLUSIM_BEYOND_SWITCH, node.i);
}

void fault_flow(clusim_sim *s, flow_id flow, clusim_sender_fault fault) {
    note(s, fault);
    scheduler_flow_beyond(s, flow);
}
