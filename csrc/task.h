/* task.h - the task graph, CTA slots, and the waves in which what is due starts.
 *
 * Hardware  Streams launch kernels; the work distributor gives their thread blocks to free SMs.
 * Model     Contract, sections 1 (waves), 7 (slots) and 9 (tasks).
 * Not modelled  Stream priorities, the cost of a launch (a delay task in front of it).
 */
#ifndef CLUSIM_TASK_H
#define CLUSIM_TASK_H

#include "sim.h"

STATUS task_done(clusim_sim *s, task_id task);
STATUS task_launch(clusim_sim *s, inst_id instance); /* queue an instance for a CTA slot */
STATUS task_wave(clusim_sim *s, bool *any);          /* phase A, step 5: whether anything was due */

#endif
