/* arbitrate.h - phase B: which candidate of a wire is granted, and when to look again.
 *
 * Contract, section 4. Round robin among the queues and flows that are ready and have credit; wires
 * out of plain nodes are arbitrated in window.c, where nothing can change behind their back.
 */
#ifndef CLUSIM_ARBITRATE_H
#define CLUSIM_ARBITRATE_H

#include "state.h"

/* Phase B for one wire: grant the next eligible candidate, or say when to look again. */
STATUS arbitrate_wire(clusim_sim *s, wire_id wire);

#endif
