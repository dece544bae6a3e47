#include "task.h"

#include "parts/programs.h"
#include "parts/scheduler.h"
#include "parts/tasks.h"
#include "result.h"

STATUS task_init(clusim_sim *s) {
    const clusim_image *im = &s->model->image;
    ZEROED(s->tasks.all, im->num_tasks);
    s->tasks.left = im->num_tasks;
    for (uint32_t t = 0; t < im->num_tasks; t++) {
        s->tasks.all[t].start_ps = s->tasks.all[t].end_ps = -1;
        s->tasks.all[t].deps_left = im->tasks[t].num_deps;
        if (im->tasks[t].num_deps == 0) TRY(task_push(&s->tasks.due, ID(task, t)));
    }
    return CLUSIM_OK;
}

void task_free(clusim_sim *s) {
    free(s->tasks.all);
    free(s->tasks.due.ids);
    free(s->tasks.current.ids);
    free(s->tasks.due_starts.ids);
    free(s->tasks.slot_queue.ids);
}

STATUS task_done(clusim_sim *s, task_id task) {
    const clusim_image *im = &s->model->image;
    task_at(s, task)->end_ps = s->scheduler.now_ps;
    s->tasks.left--;
    result_hash(s, 2, s->scheduler.now_ps, task.i, 0);
    const clusim_task *t = &im->tasks[task.i];
    for (uint32_t k = t->succ_lo; k < t->succ_hi; k++) {
        task_id next = ID(task, im->succ[k]);
        if (--task_at(s, next)->deps_left == 0) TRY(task_push(&s->tasks.due, next));
    }
    return CLUSIM_OK;
}

STATUS task_launch(clusim_sim *s, inst_id id) {
    inst_at(s, id)->phase = PH_QUEUED;
    return inst_push(&s->tasks.due_starts, id);
}
