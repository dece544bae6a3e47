/* delta_cycle.h - delta cycles: due tasks, instances in CTA slots and programs start.
 *
 * Hardware  Streams launch kernels; the work distributor assigns their thread blocks to free SMs.
 * Model     Contract, sections 1 (waves, here delta cycles), 7 (slots) and 9 (tasks).
 * Not modelled  Stream priorities, the cost of a launch (a preceding delay task). */
#ifndef CLUSIM_DELTA_CYCLE_H
#define CLUSIM_DELTA_CYCLE_H

#include "parts/programs.h"
#include "parts/tasks.h"
#include "state.h"

/* True if there may be work; at most timestamps there is no work. */
static inline bool delta_cycle_due(const clusim_sim *s) {
    return s->programs.due.len || s->tasks.due.len || s->tasks.due_starts.len ||
           s->tasks.slot_freed;
}

STATUS delta_cycle_run(clusim_sim *s, bool *any); /* phase A, step 5: whether anything was due */

#endif
