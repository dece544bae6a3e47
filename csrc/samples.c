#include "samples.h"

#include <string.h>

#include "congestion.h"
#include "parts/congestion.h"
#include "parts/endpoints.h"
#include "parts/scheduler.h"
#include "parts/senders.h"
#include "parts/windows.h"
#include "receiver.h"

#define UNLIMITED_BYTES (INT64_C(1) << 62)

static void find_sides(clusim_sim *s) {
    bool *any = s->samples.any;
    any[SAMPLES_WINDOWS] = s->windows.on;
    any[SAMPLES_EVENTS] = !s->windows.leading || s->samples.num_flows;
    for (uint32_t i = 0; i < s->model->image.num_wires && !any[SAMPLES_EVENTS]; i++)
        any[SAMPLES_EVENTS] = (wire_at(s, ID(wire, i))->traits & FROM_PLAIN) == 0;
}

static STATUS set_flows(clusim_sim *s, const uint32_t *flows, uint32_t number) {
    const clusim_image *im = &s->model->image;
    ZEROED(s->samples.flow_ids, number);
    for (uint32_t i = 0; i < number; i++) {
        if (flows[i] >= im->num_conns + im->num_sources || congestion_row(im, flows[i]) == NONE)
            return CLUSIM_ERR_BAD_IMAGE;
        s->samples.flow_ids[i] = ID(flow, flows[i]);
    }
    s->samples.num_flows = number;
    return CLUSIM_OK;
}

int clusim_sim_sample(clusim_sim *s, const clusim_sample_times *times, const uint32_t *flows) {
    samples_part *p = &s->samples;
    uint64_t count = times->count;
    samples_free(s);
    *p = (samples_part){.first_ps = times->first_ps, .width_ps = times->width_ps};
    ZEROED(p->wires, count * s->model->image.num_wires);
    ZEROED(p->mem_bytes_256, count * s->model->image.num_endpoints);
    TRY(set_flows(s, flows, times->num_flows));
    ZEROED(p->flows, count * p->num_flows);
    p->count = times->count;
    find_sides(s);
    return CLUSIM_OK;
}

void samples_free(clusim_sim *s) {
    free(s->samples.wires);
    free(s->samples.mem_bytes_256);
    free(s->samples.flows);
    free(s->samples.flow_ids);
    s->samples = (samples_part){0};
}

/* The same of a flow that sends on credit: what it may have in flight, and has. */
static clusim_flow_sample credit_sample(const clusim_sim *s, const sender_state *f,
                                        clusim_flow_sample sample) {
    sample.window = sample.in_flight = f->in_flight;
    if (!link_none(f->link) && receiver_open(s, f->link))
        sample.window += s->senders.receivers.links[f->link.i].credit;
    return sample;
}

/* Present state of a flow with rate control. */
static clusim_flow_sample flow_sample(const clusim_sim *s, flow_id flow) {
    const flow_control *c = flow_at(s, flow);
    clusim_flow_sample sample = {.sent_bytes = c->sent_bytes,
                                 .marked_bytes = c->marked_bytes,
                                 .rate = (int64_t)c->rate,
                                 .window = UNLIMITED_BYTES};
    if (!congestion_control(s, flow)->sender) return sample;
    const sender_state *f = sender_at(s, flow);
    if (receiver_rules(congestion_control(s, flow))) return credit_sample(s, f, sample);
    if (f->record == NULL) return sample; /* without the policy's functions, before the run */
    sample.rate = f->record[CLUSIM_WORD_RATE];
    sample.window = f->record[CLUSIM_WORD_WINDOW];
    sample.in_flight = f->in_flight;
    sample.rtt_ps = f->rtt_ps;
    if (!link_none(f->link) && f->policy->functions[CLUSIM_SENDER_CALL_ACKED])
        sample.window = base_min(sample.window, credit_sample(s, f, sample).window);
    return sample;
}

void clusim_sim_read_flows(const clusim_sim *s, clusim_flow_sample *out) {
    for (uint32_t i = 0; i < s->samples.num_flows; i++)
        out[i] = flow_sample(s, s->samples.flow_ids[i]);
}

uint32_t clusim_sim_read_samples(const clusim_sim *s, clusim_wire_sample *wires,
                                 uint64_t *mem_bytes_256, clusim_flow_sample *flows) {
    const samples_part *p = &s->samples;
    uint32_t passed = (uint32_t)base_umin(p->next[SAMPLES_EVENTS], p->next[SAMPLES_WINDOWS]);
    size_t rows = passed * s->model->image.num_wires, ends = passed * s->model->image.num_endpoints;
    if (rows) memcpy(wires, p->wires, rows * sizeof *wires);
    if (ends) memcpy(mem_bytes_256, p->mem_bytes_256, ends * sizeof *mem_bytes_256);
    size_t number = (size_t)passed * p->num_flows;
    if (number) memcpy(flows, p->flows, number * sizeof *flows);
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
    if (!windows && s->samples.num_flows)
        clusim_sim_read_flows(s, s->samples.flows + (size_t)k * s->samples.num_flows);
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
