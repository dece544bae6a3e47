/* sim.c - a simulation: creation, the run loop, and its end. */
#include "aggregate.h"
#include "congestion.h"
#include "laws.h"
#include "memory.h"
#include "parts/results.h"
#include "parts/scheduler.h"
#include "parts/sources.h"
#include "parts/tasks.h"
#include "parts/windows.h"
#include "pool.h"
#include "program.h"
#include "readout.h"
#include "result.h"
#include "samples.h"
#include "scheduler.h"
#include "sender.h"
#include "source.h"
#include "spread.h"
#include "task.h"
#include "turns.h"
#include "unit.h"
#include "verify.h"
#include "window.h"
#include "wire.h"
/* ---- life ------------------------------------------------------------------------------------ */

/* The order matters: congestion reads wires; sources use endpoint slots and start at time 0. */
static STATUS init(clusim_sim *s) {
    const clusim_image *im = &s->model->image;
    pool_init(s);
    TRY(scheduler_init(s));
    TRY(wire_init(s));
    TRY(congestion_init(s));
    TRY(sender_init(s));
    TRY(spread_init(s));
    TRY(window_init(s));
    TRY(memory_init(s));
    TRY(unit_init(s));
    TRY(aggregate_init(s));
    TRY(program_init(s));
    TRY(task_init(s));
    TRY(source_init(s));
    TRY(laws_init(s));
    TRY(readout_init(s));
    for (uint32_t f = 0; f < im->num_faults; f++)
        TRY(scheduler_event(s, im->faults[f].time_ps, EV_FAULT, f, f));
    return scheduler_event(s, 0, EV_START, 0, 0);
}

int clusim_sim_create(const clusim_model *model, int keep_records, clusim_sim **out) {
    *out = NULL;
    clusim_sim *s = calloc(1, sizeof *s);
    if (s == NULL) return CLUSIM_ERR_NO_MEMORY;
    s->model = model;
    s->results.keep_records = keep_records != 0;
    enum clusim_status status = init(s);
    if (status == CLUSIM_OK) {
        *out = s;
    } else {
        clusim_sim_destroy(s);
    }
    return status;
}

/* Also frees a partly initialised simulation. */
void clusim_sim_destroy(clusim_sim *s) {
    if (s == NULL) return;
    result_free(s);
    laws_free(s);
    source_free(s);
    task_free(s);
    program_free(s);
    aggregate_free(s);
    unit_free(s);
    memory_free(s);
    window_free(s);
    congestion_free(s);
    sender_free(s);
    spread_free(s);
    wire_free(s);
    scheduler_free(s);
    samples_free(s);
    pool_free(s);
    free(s);
}

/* ---- the loop -------------------------------------------------------------------------------- */

static bool all_done(const clusim_sim *s) {
    return s->tasks.left == 0 && s->sources.messages_left == 0 && s->scheduler.event_count;
}

static STATUS run(clusim_sim *s, int64_t until_ps, uint64_t max_events, enum clusim_stop *stop) {
    uint64_t room = UINT64_MAX - s->scheduler.event_count;
    uint64_t stop_at = s->scheduler.event_count + base_umin(max_events, room);
    *stop = CLUSIM_STOP_DONE;
    while (*stop == CLUSIM_STOP_DONE && !all_done(s)) {
        TRY(turns_pause(s, stop_at, stop));
        if (LIKELY(*stop == CLUSIM_STOP_DONE)) TRY(turns_advance(s, until_ps, stop));
    }
    TRY(window_catch_up(s));
    CLUSIM_ASSERT(*stop != CLUSIM_STOP_DONE || s->windows.done_ps <= s->scheduler.now_ps + 1);
    if (*stop != CLUSIM_STOP_DONE) {
        samples_stop(s, s->scheduler.now_ps + 1);
        return CLUSIM_OK;
    }
    samples_end(s);
    readout_finish(s);
    return CLUSIM_OK;
}

int clusim_sim_run(clusim_sim *s, int64_t until_ps, uint64_t max_events) {
    enum clusim_stop stop = CLUSIM_STOP_DONE;
    if (s->results.ended == CLUSIM_OK && !s->results.finished)
        s->results.ended = run(s, until_ps, max_events, &stop);
    return s->results.ended == CLUSIM_OK ? (int)stop : (int)s->results.ended;
}

static STATUS drain(clusim_sim *s) {
    enum clusim_stop stop = CLUSIM_STOP_DONE;
    while (stop == CLUSIM_STOP_DONE) TRY(turns_advance(s, NEVER, &stop));
    return CLUSIM_OK;
}

/* After the end: let packets, credits and timers run out; kernels and tasks are done already. */
int clusim_sim_check(clusim_sim *s, clusim_error *error) {
    if (!s->results.finished) return verify_balances(s, error);
    int64_t end_ps = s->scheduler.now_ps;
    s->results.draining = true;
    if (s->results.ended == CLUSIM_OK) s->results.ended = drain(s);
    enum clusim_status status = s->results.ended;
    if (status == CLUSIM_OK) status = verify_balances(s, error);
    if (status == CLUSIM_OK) status = laws_check(s, end_ps, error);
    s->scheduler.now_ps = end_ps;
    return status;
}
