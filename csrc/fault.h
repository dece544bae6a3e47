/* fault.h - illegal answers of policies, which end the run with their timestamp.
 *
 * Hardware  None. Model  Contract, section 1: of several in a timestamp the first owner is named:
 * wires, then flows, then switches. Not modelled  -. Parameters  -. */
#ifndef CLUSIM_FAULT_H
#define CLUSIM_FAULT_H

#include "parts/senders.h"
#include "state.h"

/* Of the policy of a wire, of a switch, or of a flow or the receiver whose first flow it is. */
void fault_wire(clusim_sim *s, wire_id wire, clusim_sender_fault fault);
void fault_node(clusim_sim *s, node_id node, clusim_sender_fault fault);
void fault_flow(clusim_sim *s, flow_id flow, clusim_sender_fault fault);

#endif
