#include "task.h"

#include "memory.h"
#include "program.h"

STATUS task_done(clusim_sim *s, task_id task) {
    const clusim_image *im = &s->model->image;
    task_at(s, task)->end_ps = s->now_ps;
    s->tasks_left--;
    sim_hash(s, 2, s->now_ps, task.i, 0);
    const clusim_task *t = &im->tasks[task.i];
    for (uint32_t k = t->succ_lo; k < t->succ_hi; k++) {
        task_id next = ID(task, im->succ[k]);
        if (--task_at(s, next)->deps_left == 0) TRY(task_push(&s->due_tasks, next));
    }
    return CLUSIM_OK;
}

STATUS task_launch(clusim_sim *s, inst_id id) {
    inst_at(s, id)->phase = PH_QUEUED;
    return inst_push(&s->due_starts, id);
}

static STATUS start_task(clusim_sim *s, task_id task) {
    const clusim_task *t = &s->model->image.tasks[task.i];
    task_at(s, task)->start_ps = s->now_ps;
    switch (t->kind) {
        case CLUSIM_TASK_KIND_PROGRAM:
            task_at(s, task)->instances_left = t->inst_hi - t->inst_lo;
            for (uint32_t i = t->inst_lo; i < t->inst_hi; i++) {
                int64_t delay = s->model->image.instances[i].start_ps;
                if (delay) {
                    TRY(sim_event(s, s->now_ps + delay, EV_LAUNCH, 0, i));
                } else {
                    TRY(task_launch(s, ID(inst, i)));
                }
            }
            if (t->inst_lo == t->inst_hi) TRY(task_done(s, task));
            break;
        case CLUSIM_TASK_KIND_KERNEL: return memory_start_kernel(s, task);
        case CLUSIM_TASK_KIND_DELAY:
            TRY(sim_event(s, s->now_ps + t->delay_ps, EV_DELAY, 0, task.i));
            break;
        default: return task_done(s, task);
    }
    return CLUSIM_OK;
}

/* Take the lowest free CTA slot of an endpoint; NONE if all are taken. */
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
    uint32_t first = s->slot_queue.len;
    while (first > 0 && inst_at(s, s->slot_queue.ids[first - 1])->queued_ps == s->now_ps) first--;
    for (uint32_t i = 0; i < s->due_starts.len; i++) {
        inst_at(s, s->due_starts.ids[i])->queued_ps = s->now_ps;
        TRY(inst_push(&s->slot_queue, s->due_starts.ids[i]));
    }
    s->due_starts.len = 0;
    inst_sort(&s->slot_queue, first);
    s->slot_freed = false;
    uint32_t kept = 0;
    for (uint32_t i = 0; i < s->slot_queue.len; i++) {
        inst_id id = s->slot_queue.ids[i];
        bool started;
        TRY(start_instance(s, id, &started));
        if (!started) s->slot_queue.ids[kept++] = id;
    }
    s->slot_queue.len = kept;
    return CLUSIM_OK;
}

STATUS task_wave(clusim_sim *s, bool *any) {
    bool starts = (s->slot_freed && s->slot_queue.len) || s->due_starts.len;
    if (s->due_tasks.len == 0 && s->due_insts.len == 0 && !starts) {
        s->slot_freed = false;
        *any = false;
        return CLUSIM_OK;
    }
    *any = true;
    task_take(&s->task_wave, &s->due_tasks);
    for (uint32_t i = 0; i < s->task_wave.len; i++) TRY(start_task(s, s->task_wave.ids[i]));
    if (s->due_starts.len || starts) TRY(start_instances(s));
    inst_take(&s->inst_wave, &s->due_insts);
    for (uint32_t i = 0; i < s->inst_wave.len; i++) {
        inst_at(s, s->inst_wave.ids[i])->due = 0;
        TRY(program_run(s, s->inst_wave.ids[i]));
    }
    return CLUSIM_OK;
}
