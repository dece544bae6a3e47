/* node.h - what happens to packets at the far end of a wire: forwarding, delivery, fan-out.
 *
 * Hardware  Crossbar switches with virtual output queues; GPUs that answer requests from memory.
 * Model     Contract, section 6.
 * Not modelled  Crossbar input speed-up limits, arbitration pipelines beyond the fixed latency.
 */
#ifndef CLUSIM_NODE_H
#define CLUSIM_NODE_H

#include "sim.h"

void node_arrive(clusim_sim *s, uint32_t packet);
/* Handle what arrived at this timestamp at the node where it ends. */
void node_settle(clusim_sim *s);
void node_respond(clusim_sim *s, uint32_t packet);

/* Choose the wire out of the far node of wire `from` towards `endpoint`; uses up part of p->key. */
uint32_t node_route(clusim_sim *s, packet *p, uint32_t from, uint32_t endpoint);

/* Set the wire bytes and VC of a packet that goes on (not: starts) over `out` after `from`. */
void node_prepare(const clusim_sim *s, packet *p, uint32_t from, uint32_t out);

/* Set them for a packet that starts anew over `out`, on virtual channel `vc`. */
void node_restart(const clusim_sim *s, packet *p, uint32_t out, uint32_t vc);

/* Count `n` deliveries of a transfer, the last visible at `visible`. */
void node_deliver(clusim_sim *s, uint32_t xfer_index, int64_t visible, uint32_t from);

#endif
