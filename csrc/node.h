/* node.h - what happens to packets at the far end of a wire: forwarding, delivery, fan-out.
 *
 * Hardware  Crossbar switches with virtual output queues; GPUs that answer requests from memory.
 * Model     Contract, section 6.
 * Not modelled  Crossbar input speed-up limits, arbitration pipelines beyond the fixed latency.
 */
#ifndef CLUSIM_NODE_H
#define CLUSIM_NODE_H

#include "state.h"

/* A packet that came over `from` goes on: choose its next wire. Returns its VOQ there. */
uint32_t node_aim(clusim_sim *s, packet *p, wire_id from);

STATUS node_arrive(clusim_sim *s, packet_id packet);
/* Handle what arrived at this timestamp at the node where it ends. */
STATUS node_settle(clusim_sim *s);
/* A packet ends at the endpoint at the end of its wire, now. */
STATUS node_deliver(clusim_sim *s, packet_id packet);
/* `payload` bytes of a transfer are visible where `from` ends. */
STATUS node_delivered(clusim_sim *s, xfer_id x, uint32_t payload, int64_t visible, wire_id from);
/* A packet arrives now at the reduction unit that takes it in. */
STATUS node_reduce(clusim_sim *s, packet_id packet);
/* A multicast arrives at its switch now. */
STATUS node_copy(clusim_sim *s, packet_id packet);
/* An endpoint's answer is ready: what was a request is what leaves. Returns its VOQ there. */
uint32_t node_answer(clusim_sim *s, packet *p);
STATUS node_respond(clusim_sim *s, packet_id packet);

#endif
