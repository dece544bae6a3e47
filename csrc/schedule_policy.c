#include "schedule_policy.h"

#include "fault.h"
#include "parts/packets.h"
#include "parts/scheduler.h"
#include "parts/wires.h"
#include "queue_policy.h"

static uint32_t policy_of(const clusim_image *im, uint32_t wire) {
    uint32_t row = im->wires[wire].schedule;
    return row ? im->schedules[row - 1].policy : 0;
}

void schedule_policy_describe(const clusim_sim *s, const wire_state *w, uint32_t candidate,
                              clusim_head *head) {
    packet_id index = w->queues[candidate].head;
    uint64_t first = (uint64_t)wire_of(s, w).i * s->wires.nvc;
    head->age_ps = s->scheduler.now_ps - s->wires.entered[index.i];
    head->size_bytes = packet_at(s, index)->wire_bytes;
    head->queue_bytes = (int64_t)s->wires.class_bytes[first + packet_at(s, index)->vc];
}

uint32_t schedule_policy_choose(clusim_sim *s, wire_id wire, clusim_head *heads) {
    int64_t **records = s->wires.schedules;
    if (records == NULL || records[wire.i] == NULL) return NONE;
    int64_t *record = records[wire.i], rate = record[CLUSIM_WORD_RATE];
    uint32_t row = policy_of(&s->model->image, wire.i) - 1;
    s->senders.policies[row].functions[CLUSIM_SENDER_CALL_NEXT](record, s->scheduler.now_ps, 0, 0,
                                                                0, 0, heads, s->wires.nvc);
    int64_t answer = record[CLUSIM_WORD_PATH];
    bool failed = record[CLUSIM_WORD_RATE] != rate;
    if (!failed && answer >= 0 && answer < s->wires.nvc && heads[answer].size_bytes)
        return (uint32_t)answer;
    uint32_t word = failed ? CLUSIM_WORD_RATE : CLUSIM_WORD_PATH;
    fault_wire(s, wire,
               (clusim_sender_fault){.time_ps = s->scheduler.now_ps,
                                     .value = record[word],
                                     .flow = wire.i,
                                     .call = CLUSIM_SENDER_CALL_NEXT,
                                     .word = word});
    free(record);
    records[wire.i] = NULL;
    return NONE;
}

STATUS schedule_policy_use(clusim_sim *s, uint32_t control, const clusim_sender *x) {
    const clusim_image *im = &s->model->image;
    if (x->functions[CLUSIM_SENDER_CALL_NEXT] == 0) return CLUSIM_ERR_BAD_IMAGE;
    for (uint32_t w = 0; w < im->num_wires; w++)
        if (policy_of(im, w) == control + 1)
            TRY(queue_policy_record(s, ID(wire, w), NONE - 3, x, &s->wires.schedules[w]));
    return CLUSIM_OK;
}

STATUS schedule_policy_init(clusim_sim *s) {
    const clusim_image *im = &s->model->image;
    bool any = false;
    for (uint32_t i = 0; i < im->num_schedules; i++) any |= im->schedules[i].policy > 0;
    if (!any) return CLUSIM_OK;
    ZEROED(s->wires.schedules, im->num_wires);
    ZEROED(s->wires.class_bytes, im->num_wires * s->wires.nvc);
    return CLUSIM_OK;
}

void schedule_policy_free(clusim_sim *s) {
    for (uint64_t w = 0; s->wires.schedules && w < s->model->image.num_wires; w++)
        free(s->wires.schedules[w]);
    free(s->wires.schedules);
    free(s->wires.class_bytes);
    free(s->wires.entered);
}
