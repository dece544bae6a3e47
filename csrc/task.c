#include "task.h"

#include "memory.h"
#include "program.h"

void task_done(clusim_sim *s, uint32_t task) {
    const clusim_image *im = &s->model->image;
    s->tasks[task].end_ps = s->now_ps;
    s->tasks_left--;
    sim_hash(s, 2, s->now_ps, task, 0);
    for (uint32_t k = im->tasks[task].succ_lo; k < im->tasks[task].succ_hi; k++) {
        if (--s->tasks[im->succ[k]].deps_left == 0) sim_pool_list(s, &s->due_tasks, im->succ[k]);
    }
}

void task_launch(clusim_sim *s, uint32_t id) {
    s->insts[id].phase = PH_QUEUED;
    sim_pool_list(s, &s->due_starts, id);
}

static void start_task(clusim_sim *s, uint32_t task) {
    const clusim_task *t = &s->model->image.tasks[task];
    s->tasks[task].start_ps = s->now_ps;
    switch (t->kind) {
        case CLUSIM_TASK_KIND_PROGRAM:
            s->tasks[task].instances_left = t->inst_hi - t->inst_lo;
            for (uint32_t i = t->inst_lo; i < t->inst_hi; i++) {
                int64_t delay = s->model->image.instances[i].start_ps;
                if (delay) {
                    sim_event(s, s->now_ps + delay, EV_LAUNCH, 0, i);
                } else {
                    task_launch(s, i);
                }
            }
            if (t->inst_lo == t->inst_hi) task_done(s, task);
            break;
        case CLUSIM_TASK_KIND_KERNEL: memory_start_kernel(s, task); break;
        case CLUSIM_TASK_KIND_DELAY:
            sim_event(s, s->now_ps + t->delay_ps, EV_DELAY, 0, task);
            break;
        default: task_done(s, task); break;
    }
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

static bool start_instance(clusim_sim *s, uint32_t id) {
    const clusim_image *im = &s->model->image;
    const clusim_instance *x = &im->instances[id];
    endpoint_state *e = &s->endpoints[x->endpoint];
    uint32_t slot = take_slot(e, im->endpoints[x->endpoint].cta_slots);
    if (slot == NONE) return false;
    e->busy_sms += x->sm;
    if (e->kernels) memory_mark_dirty(s, x->endpoint);
    program_begin(s, id, slot);
    return true;
}

/* The queue is in order of (time of start, id); several waves of one time may add to it. */
static void start_instances(clusim_sim *s) {
    uint32_t first = s->slot_queue.len;
    while (first > 0 && s->insts[s->slot_queue.ids[first - 1]].queued_ps == s->now_ps) first--;
    for (uint32_t i = 0; i < s->due_starts.len; i++) {
        s->insts[s->due_starts.ids[i]].queued_ps = s->now_ps;
        sim_pool_list(s, &s->slot_queue, s->due_starts.ids[i]);
    }
    s->due_starts.len = 0;
    sim_pool_sort_from(&s->slot_queue, first);
    s->slot_freed = false;
    uint32_t kept = 0;
    for (uint32_t i = 0; i < s->slot_queue.len; i++) {
        uint32_t id = s->slot_queue.ids[i];
        if (!start_instance(s, id)) s->slot_queue.ids[kept++] = id;
    }
    s->slot_queue.len = kept;
}

/* Move a list of due ids, sorted, to `wave`, so that what becomes due meanwhile waits. */
static void take_due(clusim_sim *s, id_list *due) {
    id_list taken = *due;
    *due = s->wave;
    due->len = 0;
    s->wave = taken;
    sim_pool_sort(&s->wave);
}

bool task_wave(clusim_sim *s) {
    bool starts = (s->slot_freed && s->slot_queue.len) || s->due_starts.len;
    if (s->due_tasks.len == 0 && s->due_insts.len == 0 && !starts) {
        s->slot_freed = false;
        return false;
    }
    take_due(s, &s->due_tasks);
    for (uint32_t i = 0; i < s->wave.len; i++) start_task(s, s->wave.ids[i]);
    if (s->due_starts.len || starts) start_instances(s);
    take_due(s, &s->due_insts);
    for (uint32_t i = 0; i < s->wave.len; i++) {
        s->insts[s->wave.ids[i]].due = 0;
        program_run(s, s->wave.ids[i]);
    }
    return true;
}
