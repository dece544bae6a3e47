#include "queue_policy.h"

#include <string.h>

#include "fault.h"
#include "parts/congestion.h"
#include "parts/scheduler.h"

/* Note an illegal answer. */
static void fail(clusim_sim *s, wire_id wire, int64_t value, enum clusim_word word) {
    fault_wire(s, wire,
               (clusim_sender_fault){.time_ps = s->scheduler.now_ps,
                                     .value = value,
                                     .flow = wire.i,
                                     .call = CLUSIM_SENDER_CALL_ENQUEUE,
                                     .word = word});
}

enum queue_answer queue_policy_judge(clusim_sim *s, const packet *p, int64_t queued,
                                     int64_t free_bytes) {
    int64_t *record = s->congestion.records[p->out.i];
    uint32_t row = s->model->image.wires[p->out.i].policy - 1;
    if (record == NULL) return QUEUE_ACCEPTS;
    int64_t rate = record[CLUSIM_WORD_RATE];
    s->senders.policies[row].functions[CLUSIM_SENDER_CALL_ENQUEUE](
        record, s->scheduler.now_ps, p->wire_bytes, queued, free_bytes, p->vc, NULL, 0);
    int64_t answer = record[CLUSIM_WORD_PATH];
    if (record[CLUSIM_WORD_RATE] != rate) {
        fail(s, p->out, record[CLUSIM_WORD_RATE], CLUSIM_WORD_RATE);
    } else if (answer < QUEUE_ACCEPTS || answer > QUEUE_DROPS) {
        fail(s, p->out, answer, CLUSIM_WORD_PATH);
    } else {
        return (enum queue_answer)answer;
    }
    free(record);
    s->congestion.records[p->out.i] = NULL;
    return QUEUE_ACCEPTS;
}

STATUS queue_policy_record(const clusim_sim *s, wire_id wire, uint32_t salt, const clusim_sender *x,
                           int64_t **out) {
    const clusim_wire *image = &s->model->image.wires[wire.i];
    int64_t *record = malloc(x->num_words * sizeof *record);
    if (record == NULL) return CLUSIM_ERR_NO_MEMORY;
    memcpy(record, x->words, x->num_words * sizeof *record);
    base_u128 rate = ((base_u128)image->rate_num << 30) / image->rate_den;
    record[CLUSIM_WORD_RATE] = record[CLUSIM_WORD_LINE_RATE] = (int64_t)rate;
    record[CLUSIM_WORD_KEY] = base_hash32(s->model->image.seed, salt, wire.i);
    *out = record;
    return CLUSIM_OK;
}

STATUS queue_policy_use(clusim_sim *s, uint32_t control, const clusim_sender *x) {
    const clusim_image *im = &s->model->image;
    if (x->functions[CLUSIM_SENDER_CALL_ENQUEUE] == 0) return CLUSIM_ERR_BAD_IMAGE;
    for (uint32_t w = 0; w < im->num_wires; w++)
        if (im->wires[w].policy == control + 1)
            TRY(queue_policy_record(s, ID(wire, w), NONE - 1, x, &s->congestion.records[w]));
    return CLUSIM_OK;
}

void queue_policy_free(clusim_sim *s) {
    for (uint64_t w = 0; s->congestion.records && w < s->model->image.num_wires; w++)
        free(s->congestion.records[w]);
    free(s->congestion.records);
}
