/* parts/tasks.h - task graph, and tasks that wait for CTA slots. */
#ifndef CLUSIM_PARTS_TASKS_H
#define CLUSIM_PARTS_TASKS_H

#include "list.h"

typedef struct task_state {
    int64_t start_ps, end_ps;
    uint32_t deps_left, instances_left;
    task_id next_kernel;
    /* kernels */
    uint64_t done, speed;
    int64_t since, end_at, event_at; /* event_at: of its earliest pending event */
} task_state;

typedef struct tasks_part {
    task_state *all;                  /* owned */
    task_list due, current;           /* to start; of the current delta cycle */
    inst_list due_starts, slot_queue; /* to be queued for a slot; queued, by time and id */
    uint64_t left;                    /* not done */
    bool slot_freed;
} tasks_part;

#endif
