/* model_check.c - checks, row by row, of everything that the engine later relies on: the fabric.
 *
 * Numbers and indices are in their ranges by now (model_ranges.c); these checks need more than one
 * field or row. Each function returns the error of one row of one table, or NULL. The front end
 * checks earlier and with better messages; this is the engine's line of defence. */
#include <string.h>

#include "model.h"

#define NEED(cond, what)                                                                           \
    if (!(cond)) return what

/* ---- nodes -------------------------------------------------------------------------------------
 */

static const char *wrong_node(const clusim_image *im, uint64_t row) {
    const clusim_node *n = &im->nodes[row];
    NEED((n->kind == CLUSIM_NODE_KIND_ENDPOINT) == (n->endpoint != NONE),
         "endpoints, and only they, are of kind 0");
    NEED(n->unit == NONE || n->kind == CLUSIM_NODE_KIND_SWITCH,
         "only a switch has a reduction unit");
    NEED(n->endpoint == NONE || im->endpoints[n->endpoint].node == row, "endpoint does not match");
    NEED(n->unit == NONE || im->units[n->unit].node == row, "unit does not match");
    NEED(!n->policy || n->endpoint == NONE, "an endpoint with a policy of paths");
    NEED(!n->policy || im->controls[n->policy - 1].sender == CLUSIM_SENDER_MODE_PATH,
         "its policy is of another kind");
    NEED(!n->shared_bytes || (n->endpoint == NONE && n->unit == NONE),
         "shared memory of queues, but it has an endpoint or a unit");
    return NULL;
}

static const char *wrong_endpoint(const clusim_image *im, uint64_t row) {
    const clusim_endpoint *p = &im->endpoints[row];
    NEED(im->nodes[p->node].endpoint == row, "node does not match");
    NEED(((uint64_t)p->mem_quantum_ps << 16) / p->mem_cost16 >= 1, "memory moves nothing");
    return NULL;
}

static const char *wrong_unit(const clusim_image *im, uint64_t row) {
    return im->nodes[im->units[row].node].unit == row ? NULL : "node does not match";
}

/* ---- wires, and what depends on them --------------------------------------------------------- */

static const char *wrong_wire(const clusim_image *im, uint64_t row) {
    const clusim_wire *w = &im->wires[row];
    NEED(w->src != w->dst, "begins and ends at one node");
    NEED(w->xoff_bytes == 0 || w->xon_bytes <= w->xoff_bytes, "resume above the pause threshold");
    NEED(w->xoff_bytes < w->buffer_bytes, "pause threshold beyond the buffer");
    NEED(w->ecn_min_bytes <= w->ecn_max_bytes, "mark thresholds the wrong way round");
    NEED(!w->red || w->queue_bytes, "drops at random, but has no queue_bytes");
    NEED(!w->red || !w->ecn_departure, "drops what it would mark, but marks at departure");
    NEED(!w->trim_vc || w->queue_bytes, "trims packets, but has no queue_bytes");
    NEED(!w->policy || im->controls[w->policy - 1].sender == CLUSIM_SENDER_MODE_QUEUE,
         "its policy is of senders");
    uint32_t chosen = w->schedule ? im->schedules[w->schedule - 1].policy : 0;
    NEED(!chosen || im->nodes[w->src].endpoint == NONE, "its schedule has a policy of switches");
    NEED(!chosen || im->controls[chosen - 1].sender == CLUSIM_SENDER_MODE_SCHEDULE,
         "its schedule's policy is of another kind");
    if (w->reverse == NONE) return NULL;
    const clusim_wire *back = &im->wires[w->reverse];
    NEED(back->reverse == row, "is not the reverse of its reverse");
    NEED(back->src == w->dst && back->dst == w->src, "reverse joins other nodes");
    return NULL;
}

static const char *wrong_group(const clusim_image *im, uint64_t row) {
    uint32_t first = im->group_wires[im->group_off[row]];
    for (uint32_t k = im->group_off[row]; k < im->group_off[row + 1]; k++) {
        NEED(im->wires[im->group_wires[k]].src == im->wires[first].src,
             "wires leave different nodes");
    }
    return NULL;
}

static const char *wrong_mgroup(const clusim_image *im, uint64_t row) {
    return im->mgroup_off[row + 1] - im->mgroup_off[row] < 65536 ? NULL : "too many members";
}

static const char *wrong_target(const clusim_image *im, uint64_t row) {
    NEED(row >= im->num_endpoints || im->targets[row].node == im->endpoints[row].node,
         "not of its endpoint");
    return NULL;
}

/* No wire is twice in a group: its share of a transfer's packets would be lost. */
static STATUS check_twins(const clusim_image *im, clusim_error *e, uint32_t *last_group) {
    for (uint64_t g = 0; g + 1 < im->num_group_off; g++) {
        for (uint32_t k = im->group_off[g]; k < im->group_off[g + 1]; k++) {
            uint32_t wire = im->group_wires[k];
            if (last_group[wire] == g + 1)
                return model_refuse(e, g, "groups", "a wire is in it twice");
            last_group[wire] = (uint32_t)g + 1;
        }
    }
    return CLUSIM_OK;
}

STATUS model_check_fabric(const clusim_image *im, clusim_error *e) {
    const model_table tables[] = {
        {"nodes", im->num_nodes, wrong_node},
        {"endpoints", im->num_endpoints, wrong_endpoint},
        {"units", im->num_units, wrong_unit},
        {"wires", im->num_wires, wrong_wire},
        {"targets", im->num_targets, wrong_target},
        {"groups", im->num_group_off - 1, wrong_group},
        {"multicast groups", im->num_mgroup_off - 1, wrong_mgroup},
    };
    if (im->num_targets < im->num_endpoints)
        return model_refuse(e, im->num_targets, "targets", "every endpoint is a target");
    enum clusim_status status = model_check_tables(im, tables, sizeof tables / sizeof *tables, e);
    if (status != CLUSIM_OK) return status;
    uint32_t *last_group = calloc(im->num_wires + 1, sizeof *last_group);
    if (last_group == NULL) return model_no_memory(e);
    status = check_twins(im, e, last_group);
    free(last_group);
    return status;
}
