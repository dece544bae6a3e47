/* node.h - handling of packets at the far end of a wire: forwarding, delivery, fan-out.
 *
 * Hardware  Crossbar switches with virtual output queues; GPUs that answer requests from memory.
 * Model     Contract, section 6.
 * Not modelled  Crossbar input speed-up limits, arbitration pipelines except the fixed latency. */
#ifndef CLUSIM_NODE_H
#define CLUSIM_NODE_H

#include "parts/packets.h"
#include "parts/windows.h"
#include "parts/wires.h"
#include "route.h"
#include "state.h"
#include "wire.h"

/* Choose the next wire of a packet received over `from`. Returns its VOQ there. */
static inline uint32_t node_aim(clusim_sim *s, packet *p, wire_id from) {
    wire_hold(p, from);
    uint32_t candidate = end_at(s, from)->in_queue + p->vc;
    if (UNLIKELY(p->leg != LEG_LAST)) route_next_target(s, p, end_at(s, from)->node);
    bool fetched = UNLIKELY(p->kind == CLUSIM_KIND_FETCH) && (wire_at(s, from)->traits & BRIDGE);
    if (UNLIKELY(fetched)) p->kind = CLUSIM_KIND_WRITE;
    route_prepare(s, p, from, route_choose(s, p, from, p->dst));
    if (UNLIKELY(fetched)) route_cut(s, p, p->out);
    return candidate;
}

STATUS node_arrive(clusim_sim *s, packet_id packet);
/* Handle packets that arrived at their last node at this timestamp. */
STATUS node_settle(clusim_sim *s);
/* Packets that end at an endpoint, by the times at which its memory accepts them. */
STATUS node_deliver(clusim_sim *s, endpoint_id endpoint, const window_arrival *all, uint32_t count);
/* `payload` bytes of a transfer are visible where `from` ends. */
STATUS node_delivered(clusim_sim *s, xfer_id x, uint32_t payload, int64_t visible, wire_id from);
/* A packet arrives now at its reduction unit. */
STATUS node_reduce(clusim_sim *s, packet_id packet);
/* A multicast arrives at its switch now. */
STATUS node_copy(clusim_sim *s, packet_id packet);
/* An endpoint's response is ready: convert the request into it. Returns its VOQ there. */
uint32_t node_answer(clusim_sim *s, packet *p);
STATUS node_respond(clusim_sim *s, packet_id packet);

#endif
