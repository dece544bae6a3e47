#include "delta_cycle.h"

#include "memory.h"
#include "parts/endpoints.h"
#include "parts/programs.h"
#include "parts/scheduler.h"
#include "parts/tasks.h"
#include "program.h"
#include "scheduler.h"
#include "task.h"

static STATUS start_task(clusim_sim *s, task_id task) {
    const clusim_task *t = &s->model->image.tasks[task.i];
    task_at(s, task)->start_ps = s->scheduler.now_ps;
    switch (t->kind) {
        case CLUSIM_TASK_KIND_PROGRAM:
            task_at(s, task)->instances_left = t->inst_hi - t->inst_lo;
            for (uint32_t i = t->inst_lo; i < t->inst_hi; i++) {
                int64_t delay = s->model->image.instances[i].start_ps;
                if (delay) {
                    TRY(scheduler_event(s, s->scheduler.now_ps + delay, EV_LAUNCH, 0, i));
                } else {
                    TRY(task_launch(s, ID(inst, i)));
                }
            }
            if (t->inst_lo == t->inst_hi) TRY(task_done(s, task));
            break;
        case CLUSIM_TASK_KIND_KERNEL: return memory_start_kernel(s, task);
        case CLUSIM_TASK_KIND_DELAY:
            TRY(scheduler_event(s, s->scheduler.now_ps + t->delay_ps, EV_DELAY, 0, task.i));
            break;
        default: return task_done(s, task);
    }
    return CLUSIM_OK;
}

/* Allocate the lowest free CTA slot of an endpoint; NONE if all are in use. */
static uint32_t take_slot(endpoint_state *e, uint32_t count) {
    for (uint32_t w = 0; w < 4; w++) {
        uint64_t open = ~e->slots[w];
        if (open == 0) continue;
        uint32_t slot = w * 64 + (uint32_t)__builtin_ctzll(open);
        if (slot >= count) return NONE;
        e->slots[w] |= open & -open;
        return slot;
    }
    return NONE;
}

static STATUS start_instance(clusim_sim *s, inst_id id, bool *started) {
    const clusim_image *im = &s->model->image;
    const clusim_instance *x = &im->instances[id.i];
    endpoint_id endpoint = ID(endpoint, x->endpoint);
    endpoint_state *e = endpoint_at(s, endpoint);
    uint32_t slot = take_slot(e, im->endpoints[x->endpoint].cta_slots);
    *started = slot != NONE;
    if (!*started) return CLUSIM_OK;
    e->busy_sms += x->sm;
    if (e->kernels) TRY(memory_mark_dirty(s, endpoint));
    return program_begin(s, id, slot);
}

/* The queue is in order of (time of start, id); several waves of one time may add to it. */
static STATUS start_instances(clusim_sim *s) {
    uint32_t first = s->tasks.slot_queue.len;
    while (first > 0 &&
           inst_at(s, s->tasks.slot_queue.ids[first - 1])->queued_ps == s->scheduler.now_ps)
        first--;
    for (uint32_t i = 0; i < s->tasks.due_starts.len; i++) {
        inst_at(s, s->tasks.due_starts.ids[i])->queued_ps = s->scheduler.now_ps;
        TRY(inst_push(&s->tasks.slot_queue, s->tasks.due_starts.ids[i]));
    }
    s->tasks.due_starts.len = 0;
    inst_sort(&s->tasks.slot_queue, first);
    s->tasks.slot_freed = false;
    uint32_t kept = 0;
    for (uint32_t i = 0; i < s->tasks.slot_queue.len; i++) {
        inst_id id = s->tasks.slot_queue.ids[i];
        bool started;
        TRY(start_instance(s, id, &started));
        if (!started) s->tasks.slot_queue.ids[kept++] = id;
    }
    s->tasks.slot_queue.len = kept;
    return CLUSIM_OK;
}

STATUS delta_cycle_run(clusim_sim *s, bool *any) {
    bool starts = (s->tasks.slot_freed && s->tasks.slot_queue.len) || s->tasks.due_starts.len;
    if (s->tasks.due.len == 0 && s->programs.due.len == 0 && !starts) {
        s->tasks.slot_freed = false;
        *any = false;
        return CLUSIM_OK;
    }
    *any = true;
    task_take(&s->tasks.current, &s->tasks.due);
    for (uint32_t i = 0; i < s->tasks.current.len; i++) TRY(start_task(s, s->tasks.current.ids[i]));
    if (s->tasks.due_starts.len || starts) TRY(start_instances(s));
    inst_take(&s->programs.current, &s->programs.due);
    for (uint32_t i = 0; i < s->programs.current.len; i++) {
        inst_at(s, s->programs.current.ids[i])->due = 0;
        TRY(program_run(s, s->programs.current.ids[i]));
    }
    return CLUSIM_OK;
}
