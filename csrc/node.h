/* node.h - what happens to packets at the far end of a wire: forwarding, delivery, fan-out.
 *
 * Hardware  Crossbar switches with virtual output queues; GPUs that answer requests from memory.
 * Model     Contract, section 6.
 * Not modelled  Crossbar input speed-up limits, arbitration pipelines beyond the fixed latency.
 */
#ifndef CLUSIM_NODE_H
#define CLUSIM_NODE_H

#include "wire.h"

STATUS node_arrive(clusim_sim *s, packet_id packet);
/* Handle what arrived at this timestamp at the node where it ends. */
STATUS node_settle(clusim_sim *s);
STATUS node_respond(clusim_sim *s, packet_id packet);

/* Choose the wire out of the far node of wire `from` towards `target`; uses up part of p->key. */
wire_id node_route(clusim_sim *s, packet *p, wire_id from, target_id target);

/* Set the wire bytes and VC of a packet that goes on (not: starts) over `out` after `from`. */
void node_prepare(const clusim_sim *s, packet *p, wire_id from, wire_id out);

/* Set them for a packet that starts anew over `out`, on virtual channel `vc`. */
void node_restart(const clusim_sim *s, packet *p, wire_id out, uint32_t vc);

/* The packet is at `node`: if that is its target and not the last, aim at the next. */
void node_next_target(const clusim_sim *s, packet *p, node_id node);

void congestion_mark(clusim_sim *s, packet *p);

/* The packet holds the receive buffer of the wire it came over until it has left again. */
static inline void node_hold(packet *p, wire_id from) {
    p->held_wire = from;
    p->held_bytes = p->wire_bytes;
    p->held_vc = p->vc;
}

/* Put a packet that came in over a wire into a VOQ of the wire `packet.out`. */
static inline STATUS node_enqueue(clusim_sim *s, packet_id index, uint32_t candidate) {
    TRY(wire_enqueue(s, index, candidate));
    packet *p = packet_at(s, index);
    if (UNLIKELY(wire_at(s, p->out)->traits & MARKS)) congestion_mark(s, p);
    return CLUSIM_OK;
}

#endif
