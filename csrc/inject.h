/* inject.h - flows: how transfers become packets on the wires of their endpoint.
 *
 * Hardware  Thread blocks issue stores and loads; addresses are interleaved over a GPU's links.
 * Model     Contract, section 5: packets are made when a wire grants them, never before, so memory
 *           does not grow with the size of a message.
 * Not modelled  Warps, the order of addresses inside a packet, partial writes.
 */
#ifndef CLUSIM_INJECT_H
#define CLUSIM_INJECT_H

#include "parts/wires.h"
#include "state.h"

/* Make the next packet of the flow in `slot` for `wire`. */
STATUS inject_make(clusim_sim *s, wire_id wire, uint32_t slot, packet_id *out);

/* It was granted and its serialisation ends at `end`. */
STATUS inject_grant(clusim_sim *s, wire_id wire, uint32_t slot, int64_t end);

/* A response came back: one packet less is outstanding. */
STATUS inject_response(clusim_sim *s, const packet *p);

/* The same of the flow in `slot` of a wire that works in windows. */
void inject_opened(clusim_sim *s, wire_state *w, uint32_t slot);

/* Flows whose next packet has become available join the candidates of a wire. */
void inject_admit(const clusim_sim *s, wire_state *w);

/* Begin injecting a transfer whose description is filled in; the present time is its start. */
STATUS inject_start(clusim_sim *s, xfer_id xfer_index, group_id first_group, uint32_t key_base,
                    uint32_t window_bytes);

/* The group of wires from the endpoint of a transfer towards its first target. */
static inline group_id inject_first_group(const clusim_sim *s, const xfer *x) {
    target_id target = !target_none(x->via_first)  ? x->via_first
                       : !target_none(x->via_last) ? x->via_last
                                                   : x->dst;
    node_id node = ID(node, s->model->image.endpoints[x->endpoint.i].node);
    return model_route(s->model, node, target);
}

/* Number of packets of at most `full` bytes in `bytes`. */
static inline uint32_t inject_count(uint64_t bytes, uint64_t full) {
    return (uint32_t)base_ceil_div(bytes, full);
}

#endif
