/* readout.c - the functions of clusim.h that copy state out of a sim, and the state saved for them
 * at the end of the run. */
#include "readout.h"

#include <string.h>

#include "parts/endpoints.h"
#include "parts/packets.h"
#include "parts/results.h"
#include "parts/scheduler.h"
#include "parts/sources.h"
#include "parts/spreads.h"
#include "parts/tasks.h"
#include "parts/wires.h"
#include "program.h"
#include "wire.h"

STATUS readout_init(clusim_sim *s) {
    ZEROED(s->results.final, s->model->image.num_wires);
    ZEROED(s->results.final_mem_256, s->model->image.num_endpoints);
    return CLUSIM_OK;
}

void readout_finish(clusim_sim *s) {
    s->results.finished = true;
    clusim_sim_read_mem_bytes_256(s, s->results.final_mem_256);
    uint64_t f = s->results.fingerprint;
    for (uint32_t w = 0; w < s->model->image.num_wires; w++) {
        clusim_wire_counters *c = &s->results.final[w];
        wire_read(s, ID(wire, w), c);
        const uint64_t parts[] = {c->packets,
                                  c->bytes,
                                  (uint64_t)c->busy_ps,
                                  c->control_bytes,
                                  (uint64_t)c->stall_credit_ps,
                                  (uint64_t)c->stall_arbitration_ps,
                                  c->queued_max,
                                  c->replays};
        for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) f = base_mix(f, parts[i]);
        if (!(s->wires.info[w].traits & (PAUSES | MARKS))) continue;
        f = base_mix(base_mix(f, c->pauses), c->marks);
        f = base_mix(base_mix(f, c->held_max), c->overflows);
        if (!s->model->image.wires[w].queue_bytes) continue;
        f = base_mix(base_mix(f, c->drops), c->dropped_bytes);
        if (!s->model->image.wires[w].trim_vc) continue;
        f = base_mix(base_mix(f, c->trims), c->trimmed_bytes);
    }
    s->results.fingerprint = f;
}

void clusim_sim_beyond(const clusim_sim *s, uint32_t *what, uint32_t *index) {
    *what = s->scheduler.beyond;
    *index = s->scheduler.beyond_index;
}

int64_t clusim_sim_now_ps(const clusim_sim *s) { return s->scheduler.now_ps; }
uint64_t clusim_sim_num_events(const clusim_sim *s) { return s->scheduler.event_count; }
uint64_t clusim_sim_packet_slots(const clusim_sim *s) { return s->packets.size; }
uint64_t clusim_sim_fingerprint(const clusim_sim *s) { return s->results.fingerprint; }
size_t clusim_sim_num_records(const clusim_sim *s) { return s->results.num_records; }

void clusim_sim_read_wires(const clusim_sim *s, clusim_wire_counters *out) {
    uint64_t n = s->model->image.num_wires;
    if (s->results.finished) {
        if (n) memcpy(out, s->results.final, n * sizeof *out);
        return;
    }
    for (uint32_t w = 0; w < n; w++) wire_read(s, ID(wire, w), &out[w]);
}

void clusim_sim_read_orders(const clusim_sim *s, clusim_order_counters *out) {
    uint64_t n = s->model->image.num_targets;
    memset(out, 0, n * sizeof *out);
    if (s->spreads.orders.counters) memcpy(out, s->spreads.orders.counters, n * sizeof *out);
}

void clusim_sim_read_tasks(const clusim_sim *s, int64_t *start_ps, int64_t *end_ps) {
    for (uint64_t t = 0; t < s->model->image.num_tasks; t++) {
        start_ps[t] = s->tasks.all[t].start_ps;
        end_ps[t] = s->tasks.all[t].end_ps;
    }
}

void clusim_sim_read_messages(const clusim_sim *s, int64_t *end_ps) {
    uint64_t n = s->model->image.num_messages;
    if (n) memcpy(end_ps, s->sources.message_end, n * sizeof *end_ps);
}

void clusim_sim_read_instances(const clusim_sim *s, clusim_instance_state *out) {
    for (uint32_t i = 0; i < s->model->image.num_instances; i++)
        program_read(s, ID(inst, i), &out[i]);
}

void clusim_sim_read_mem_bytes_256(const clusim_sim *s, uint64_t *out) {
    for (uint64_t e = 0; e < s->model->image.num_endpoints; e++)
        out[e] =
            s->results.draining ? s->results.final_mem_256[e] : s->endpoints.all[e].mem_bytes_256;
}

size_t clusim_sim_take_records(clusim_sim *s, clusim_record *out, size_t capacity) {
    size_t n = s->results.num_records < capacity ? s->results.num_records : capacity;
    if (n == 0) return 0;
    memcpy(out, s->results.records, n * sizeof *out);
    memmove(s->results.records, s->results.records + n, (s->results.num_records - n) * sizeof *out);
    s->results.num_records -= (uint32_t)n;
    return n;
}
