/* arbitrate.h - phase B: arbitration of a wire, and the time of the next attempt.
 *
 * Contract, section 4. Round robin among the queues and flows that are ready and have credit; wires
 * out of plain nodes are arbitrated in window.c, where their state cannot change concurrently. */
#ifndef CLUSIM_ARBITRATE_H
#define CLUSIM_ARBITRATE_H

#include "state.h"

/* Phase B for one wire: grant the next eligible candidate, or schedule the next attempt. */
STATUS arbitrate_wire(clusim_sim *s, wire_id wire);

#endif
