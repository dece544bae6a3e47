#include "path_policy.h"

#include <string.h>

#include "fault.h"
#include "parts/congestion.h"
#include "parts/scheduler.h"
#include "parts/wires.h"
#include "parts/xfers.h"

/* Free bytes at the far end of a wire; with pauses, room of the VCs that are not stopped. */
static int64_t credit_of(const clusim_sim *s, wire_id wire) {
    bool pauses = wire_at(s, wire)->traits & PAUSES;
    int64_t sum = 0, buffer = (int64_t)s->model->image.wires[wire.i].buffer_bytes;
    for (uint32_t vc = 0; vc < s->wires.nvc; vc++) {
        if (!pauses) {
            sum += spread_credit(s, wire, vc);
        } else if (s->congestion.pauses[(uint64_t)wire.i * s->wires.nvc + vc].stopped <= 0) {
            sum += buffer;
        }
    }
    return sum;
}

static void describe(const clusim_sim *s, wire_id wire, clusim_output *out) {
    const wire_state *w = wire_at(s, wire);
    base_u128 scaled = (base_u128)w->rate->num << 30;
    *out = (clusim_output){.queue_bytes = (int64_t)w->queued_bytes,
                           .credit_bytes = credit_of(s, wire),
                           .rate = (int64_t)(scaled / w->rate->den),
                           .wire = wire.i};
}

/* Note an illegal answer; the node has no policy from then on. */
static void fail(clusim_sim *s, node_id node, int64_t value, enum clusim_word word) {
    fault_node(s, node,
               (clusim_sender_fault){.time_ps = s->scheduler.now_ps,
                                     .value = value,
                                     .flow = node.i,
                                     .call = CLUSIM_SENDER_CALL_CHOOSE,
                                     .word = word});
    free(s->wires.paths[node.i]);
    s->wires.paths[node.i] = NULL;
}

wire_id path_policy_choose(clusim_sim *s, const packet *p, const spread_choice *c) {
    if (s->wires.paths == NULL || s->wires.paths[c->node.i] == NULL) return NO(wire);
    const clusim_image *im = &s->model->image;
    int64_t *record = s->wires.paths[c->node.i], rate = record[CLUSIM_WORD_RATE];
    for (uint32_t k = 0; k < c->up; k++) describe(s, spread_nth(s, c, k), &s->wires.outputs[k]);
    uint32_t draw = base_hash32(im->seed, c->node.i, p->key);
    uint32_t flow = spread_flow(s, xfer_at(s, p->xfer)).i, row = im->nodes[c->node.i].policy - 1;
    s->senders.policies[row].functions[CLUSIM_SENDER_CALL_CHOOSE](
        record, s->scheduler.now_ps, p->payload, p->key, flow, draw, s->wires.outputs, c->up);
    int64_t answer = record[CLUSIM_WORD_PATH];
    if (record[CLUSIM_WORD_RATE] != rate) {
        fail(s, c->node, record[CLUSIM_WORD_RATE], CLUSIM_WORD_RATE);
    } else if (answer < 0 || answer >= c->up) {
        fail(s, c->node, answer, CLUSIM_WORD_PATH);
    } else {
        return spread_nth(s, c, (uint32_t)answer);
    }
    return spread_nth(s, c, 0);
}

STATUS path_policy_use(clusim_sim *s, uint32_t control, const clusim_sender *x) {
    const clusim_image *im = &s->model->image;
    if (x->functions[CLUSIM_SENDER_CALL_CHOOSE] == 0) return CLUSIM_ERR_BAD_IMAGE;
    for (uint32_t n = 0; n < im->num_nodes; n++) {
        if (im->nodes[n].policy != control + 1) continue;
        int64_t *record = malloc(x->num_words * sizeof *record);
        if (record == NULL) return CLUSIM_ERR_NO_MEMORY;
        memcpy(record, x->words, x->num_words * sizeof *record);
        record[CLUSIM_WORD_KEY] = base_hash32(im->seed, NONE - 4, n);
        s->wires.paths[n] = record;
    }
    return CLUSIM_OK;
}

STATUS path_policy_init(clusim_sim *s) {
    const clusim_image *im = &s->model->image;
    uint32_t most = 0;
    bool any = false;
    for (uint32_t n = 0; n < im->num_nodes; n++) any |= im->nodes[n].policy > 0;
    if (!any) return CLUSIM_OK;
    for (uint32_t g = 0; g < s->model->num_groups; g++)
        most = (uint32_t)base_umax(most, s->model->ways[g].count);
    ZEROED(s->wires.paths, im->num_nodes);
    ZEROED(s->wires.outputs, most);
    s->wires.any_choice = true;
    return CLUSIM_OK;
}

void path_policy_free(clusim_sim *s) {
    for (uint64_t n = 0; s->wires.paths && n < s->model->image.num_nodes; n++)
        free(s->wires.paths[n]);
    free(s->wires.paths);
    free(s->wires.outputs);
}
