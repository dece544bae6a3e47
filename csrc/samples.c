#include "samples.h"

#include <string.h>

#include "parts/endpoints.h"
#include "parts/scheduler.h"
#include "parts/windows.h"

static void find_sides(clusim_sim *s) {
    bool *any = s->samples.any;
    any[SAMPLES_WINDOWS] = s->windows.on;
    any[SAMPLES_EVENTS] = !s->windows.leading;
    for (uint32_t i = 0; i < s->model->image.num_wires && !any[SAMPLES_EVENTS]; i++)
        any[SAMPLES_EVENTS] = (wire_at(s, ID(wire, i))->traits & FROM_PLAIN) == 0;
}

int clusim_sim_sample(clusim_sim *s, int64_t first_ps, int64_t width_ps, uint32_t count) {
    samples_part *p = &s->samples;
    samples_free(s);
    *p = (samples_part){.first_ps = first_ps, .width_ps = width_ps};
    ZEROED(p->wires, count * s->model->image.num_wires);
    ZEROED(p->mem_bytes_256, count * s->model->image.num_endpoints);
    p->count = count;
    find_sides(s);
    return CLUSIM_OK;
}

void samples_free(clusim_sim *s) {
    free(s->samples.wires);
    free(s->samples.mem_bytes_256);
    s->samples.wires = NULL;
    s->samples.mem_bytes_256 = NULL;
}

uint32_t clusim_sim_read_samples(const clusim_sim *s, clusim_wire_sample *wires,
                                 uint64_t *mem_bytes_256) {
    const samples_part *p = &s->samples;
    uint32_t passed = (uint32_t)base_umin(p->next[SAMPLES_EVENTS], p->next[SAMPLES_WINDOWS]);
    size_t rows = passed * s->model->image.num_wires, ends = passed * s->model->image.num_endpoints;
    if (rows) memcpy(wires, p->wires, rows * sizeof *wires);
    if (ends) memcpy(mem_bytes_256, p->mem_bytes_256, ends * sizeof *mem_bytes_256);
    return passed;
}

void samples_wire(clusim_sim *s, wire_id wire, uint32_t k) {
    const wire_state *w = wire_at(s, wire);
    int64_t at_ps = samples_at(s, k), beyond_ps = base_max(0, w->free_at - at_ps);
    s->samples.wires[k * s->model->image.num_wires + wire.i] = (clusim_wire_sample){
        .bytes = w->bytes,
        .busy_ps = w->busy_ps - beyond_ps,
        .stall_credit_ps = w->stall_credit_ps + (w->stalled ? at_ps - w->stall_since : 0),
        .stall_arbitration_ps = w->stall_arbitration_ps - (w->contended ? beyond_ps : 0),
        .queued_bytes = w->queued_bytes};
}

void samples_wire_rest(clusim_sim *s, wire_id wire, uint32_t k) {
    for (; k < s->samples.next[SAMPLES_WINDOWS]; k++) samples_wire(s, wire, k);
}

void samples_memory(clusim_sim *s, endpoint_id endpoint, uint32_t k, uint64_t bytes_256) {
    s->samples.mem_bytes_256[k * s->model->image.num_endpoints + endpoint.i] = bytes_256;
}

static void record(clusim_sim *s, enum samples_side side, uint32_t k) {
    bool windows = side == SAMPLES_WINDOWS;
    for (uint32_t i = 0; i < s->model->image.num_wires; i++)
        if (((wire_at(s, ID(wire, i))->traits & FROM_PLAIN) != 0) == windows)
            samples_wire(s, ID(wire, i), k);
    if (s->windows.leading != windows) return;
    for (uint32_t e = 0; e < s->model->image.num_endpoints; e++)
        samples_memory(s, ID(endpoint, e), k, endpoint_at(s, ID(endpoint, e))->mem_bytes_256);
}

void samples_pass_all(clusim_sim *s, enum samples_side side, int64_t end_ps) {
    uint32_t *next = &s->samples.next[side];
    for (; samples_at(s, *next) < end_ps; ++*next)
        if (s->samples.any[side]) record(s, side, *next);
}

void samples_open(clusim_sim *s, int64_t begin_ps, int64_t end_ps) {
    samples_pass(s, SAMPLES_WINDOWS, begin_ps);
    s->samples.turn = s->samples.next[SAMPLES_WINDOWS];
    samples_pass(s, SAMPLES_WINDOWS, end_ps);
}

void samples_turn(clusim_sim *s, int64_t begin_ps) {
    uint32_t k = s->samples.next[SAMPLES_WINDOWS];
    while (k > 0 && samples_at(s, k - 1) >= begin_ps) k--;
    s->samples.turn = k;
}

void samples_stop(clusim_sim *s, int64_t end_ps) {
    samples_pass(s, SAMPLES_EVENTS, end_ps);
    samples_pass(s, SAMPLES_WINDOWS, end_ps);
}

void samples_close(clusim_sim *s, int64_t end_ps) {
    samples_stop(s, end_ps);
    s->samples.any[SAMPLES_WINDOWS] = false;
    s->samples.any[SAMPLES_EVENTS] = true;
}

void samples_end(clusim_sim *s) {
    samples_stop(s, s->scheduler.now_ps);
    s->samples.count = s->samples.next[SAMPLES_EVENTS];
}
