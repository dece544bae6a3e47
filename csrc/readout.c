/* readout.c - the functions of clusim.h that copy state out of a sim. */
#include <string.h>

#include "program.h"
#include "wire.h"

void clusim_sim_beyond(const clusim_sim *s, uint32_t *what, uint32_t *index) {
    *what = s->beyond;
    *index = s->beyond_index;
}

int64_t clusim_sim_now_ps(const clusim_sim *s) { return s->now_ps; }
uint64_t clusim_sim_num_events(const clusim_sim *s) { return s->event_count; }
uint64_t clusim_sim_fingerprint(const clusim_sim *s) { return s->fingerprint; }
size_t clusim_sim_num_records(const clusim_sim *s) { return s->num_records; }

void clusim_sim_read_wires(const clusim_sim *s, clusim_wire_counters *out) {
    uint64_t n = s->model->image.num_wires;
    if (s->finished) {
        if (n) memcpy(out, s->final, n * sizeof *out);
        return;
    }
    for (uint32_t w = 0; w < n; w++) wire_read(s, ID(wire, w), &out[w]);
}

void clusim_sim_read_tasks(const clusim_sim *s, int64_t *start_ps, int64_t *end_ps) {
    for (uint64_t t = 0; t < s->model->image.num_tasks; t++) {
        start_ps[t] = s->tasks[t].start_ps;
        end_ps[t] = s->tasks[t].end_ps;
    }
}

void clusim_sim_read_messages(const clusim_sim *s, int64_t *end_ps) {
    uint64_t n = s->model->image.num_messages;
    if (n) memcpy(end_ps, s->message_end, n * sizeof *end_ps);
}

void clusim_sim_read_instances(const clusim_sim *s, clusim_instance_state *out) {
    for (uint32_t i = 0; i < s->model->image.num_instances; i++)
        program_read(s, ID(inst, i), &out[i]);
}

void clusim_sim_read_mem_bytes_256(const clusim_sim *s, uint64_t *out) {
    for (uint64_t e = 0; e < s->model->image.num_endpoints; e++)
        out[e] = s->draining ? s->final_mem_256[e] : s->endpoints[e].mem_bytes_256;
}

size_t clusim_sim_take_records(clusim_sim *s, clusim_record *out, size_t capacity) {
    size_t n = s->num_records < capacity ? s->num_records : capacity;
    if (n == 0) return 0;
    memcpy(out, s->records, n * sizeof *out);
    memmove(s->records, s->records + n, (s->num_records - n) * sizeof *out);
    s->num_records -= n;
    return n;
}
