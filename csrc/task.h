/* task.h - the task graph: completed tasks, and tasks that become due (contract, section 9). */
#ifndef CLUSIM_TASK_H
#define CLUSIM_TASK_H

#include "state.h"

STATUS task_init(clusim_sim *s);
void task_free(clusim_sim *s);

STATUS task_done(clusim_sim *s, task_id task);
STATUS task_launch(clusim_sim *s, inst_id instance); /* queue an instance for a CTA slot */

#endif
