/* model_check.c - everything the engine later trusts without looking, checked row by row: the
 * fabric.
 *
 * Each function says what is wrong with one row of one table, or NULL. The front end checks before
 * and with better words; this is the engine's own line of defence.
 */
#include <stdio.h>

#include "model.h"

#define MAX_TIME ((int64_t)1 << 61)
#define NEED(cond, what)                                                                           \
    if (!(cond)) return what

static bool latency_ok(int64_t ps) { return ps >= 1 && ps < MAX_TIME; }
static bool maybe(uint32_t index, uint64_t count) { return index == NONE || index < count; }
static bool rate_ok(uint64_t num, uint64_t den) {
    return num >= 1 && den >= 1 && num < (1u << 30) && den < (1u << 30);
}

/* ---- nodes -------------------------------------------------------------------------------------
 */

static const char *wrong_node(const clusim_image *im, uint64_t row) {
    const clusim_node *n = &im->nodes[row];
    NEED(latency_ok(n->latency_ps), "latency must be at least 1 ps");
    NEED(maybe(n->endpoint, im->num_endpoints), "endpoint out of range");
    NEED(maybe(n->unit, im->num_units), "unit out of range");
    NEED((n->kind == 0) == (n->endpoint != NONE), "endpoints, and only they, are of kind 0");
    NEED(n->unit == NONE || n->kind == 1, "only a switch has a reduction unit");
    return NULL;
}

static const char *wrong_endpoint(const clusim_image *im, uint64_t row) {
    const clusim_endpoint *p = &im->endpoints[row];
    NEED(p->node < im->num_nodes && im->nodes[p->node].endpoint == row, "node does not match");
    NEED(latency_ok(p->write_latency_ps), "write latency must be at least 1 ps");
    NEED(latency_ok(p->read_latency_ps), "read latency must be at least 1 ps");
    NEED(latency_ok(p->response_latency_ps), "response latency must be at least 1 ps");
    NEED(p->mem_quantum_ps >= 1 && p->mem_quantum_ps < ((int64_t)1 << 40), "mem_quantum_ps");
    NEED(p->sms >= 1, "needs an SM");
    NEED(p->cta_slots >= 1 && p->cta_slots <= 256, "needs 1 to 256 CTA slots");
    NEED(p->slow_1024 >= 1 && p->mem_cost16 >= 1, "slow_1024 and mem_cost16 must be positive");
    NEED(((uint64_t)p->mem_quantum_ps << 16) / p->mem_cost16 >= 1, "memory moves nothing");
    return NULL;
}

static const char *wrong_unit(const clusim_image *im, uint64_t row) {
    const clusim_unit *u = &im->units[row];
    NEED(u->node < im->num_nodes && im->nodes[u->node].unit == row, "node does not match");
    NEED(latency_ok(u->latency_ps), "latency must be at least 1 ps");
    return NULL;
}

/* ---- wires and routes
 * ---------------------------------------------------------------------------- */

static const char *wrong_format(const clusim_image *im, uint64_t row) {
    const clusim_format *f = &im->formats[row];
    NEED(f->flit_bytes >= 1 && f->flit_bytes <= 65536, "flit_bytes must be 1 to 65536");
    for (uint32_t k = 0; k < NUM_KINDS; k++) {
        NEED(f->header_bytes[k] >= 1, "headers must be at least 1 byte");
        NEED(f->service_1024[k] >= 1, "service_1024 must be positive");
        NEED(f->limit_bytes[k] >= 1, "limit_bytes must be positive");
    }
    return NULL;
}

static const char *wrong_wire(const clusim_image *im, uint64_t row) {
    const clusim_wire *w = &im->wires[row];
    NEED(w->src < im->num_nodes && w->dst < im->num_nodes && w->src != w->dst, "bad ends");
    NEED(rate_ok(w->rate_num, w->rate_den), "rate must be positive, its terms below 2^30");
    NEED(latency_ok(w->latency_ps) && w->replay_ps >= 0, "latency must be at least 1 ps");
    NEED(maybe(w->reverse, im->num_wires), "reverse out of range");
    NEED(w->format < im->num_formats, "format out of range");
    NEED(w->buffer_bytes >= 1 && w->buffer_bytes < (UINT64_C(1) << 40), "bad buffer_bytes");
    NEED(w->dateline <= 1, "dateline is 0 or 1");
    NEED(w->xoff_bytes == 0 || w->xon_bytes <= w->xoff_bytes, "resume above the pause threshold");
    NEED(w->xoff_bytes < w->buffer_bytes, "pause threshold beyond the buffer");
    NEED(w->ecn_min_bytes <= w->ecn_max_bytes, "mark thresholds the wrong way round");
    return NULL;
}

static const char *wrong_group(const clusim_image *im, uint64_t row) {
    NEED(im->group_off[row] < im->group_off[row + 1], "empty or not ascending");
    for (uint32_t k = im->group_off[row]; k < im->group_off[row + 1]; k++) {
        uint32_t wire = im->group_wires[k], first = im->group_wires[im->group_off[row]];
        NEED(wire < im->num_wires && first < im->num_wires, "wire out of range");
        NEED(im->wires[wire].src == im->wires[first].src, "wires leave different nodes");
    }
    return NULL;
}

static const char *wrong_path(const clusim_image *im, uint64_t row) {
    NEED(im->path_off[row] < im->path_off[row + 1], "empty or not ascending");
    for (uint32_t k = im->path_off[row]; k < im->path_off[row + 1]; k++) {
        NEED(im->path_wires[k] < im->num_wires, "wire out of range");
    }
    return NULL;
}

static const char *wrong_mgroup(const clusim_image *im, uint64_t row) {
    NEED(im->mgroup_off[row] < im->mgroup_off[row + 1], "empty or not ascending");
    NEED(im->mgroup_off[row + 1] - im->mgroup_off[row] < 65536, "too many members");
    for (uint32_t k = im->mgroup_off[row]; k < im->mgroup_off[row + 1]; k++) {
        NEED(im->mgroup_members[k] < im->num_endpoints, "endpoint out of range");
    }
    return NULL;
}

static const char *wrong_target(const clusim_image *im, uint64_t row) {
    const clusim_target *t = &im->targets[row];
    NEED(t->node < im->num_nodes, "node out of range");
    NEED(row >= im->num_endpoints || t->node == im->endpoints[row].node, "not of its endpoint");
    return NULL;
}

/* ---- all of it
 * ------------------------------------------------------------------------------------------ */

int model_refuse(clusim_error *e, uint64_t row, const char *table, const char *what) {
    e->status = CLUSIM_ERR_BAD_IMAGE;
    e->index = (uint32_t)row;
    snprintf(e->message, sizeof e->message, "%s[%llu]: %s", table, (unsigned long long)row, what);
    return CLUSIM_ERR_BAD_IMAGE;
}

static bool spans(const uint32_t *off, uint64_t count, uint64_t total) {
    return count >= 1 && off[0] == 0 && off[count - 1] == total;
}

static const char *wrong_shape(const clusim_image *im) {
    NEED(im->nvc >= 1 && im->nvc <= 8, "nvc must be 1 to 8");
    NEED(im->num_opcodes <= 18, "at most 18 opcodes");
    NEED(im->num_wires < (1u << 24), "at most 2^24 wires");
    NEED(im->num_targets >= im->num_endpoints, "every endpoint is a target");
    NEED(spans(im->group_off, im->num_group_off, im->num_group_wires), "group_off");
    NEED(spans(im->path_off, im->num_path_off, im->num_path_wires), "path_off");
    NEED(spans(im->mgroup_off, im->num_mgroup_off, im->num_mgroup_members), "mgroup_off");
    return NULL;
}

int model_check_tables(const clusim_image *im, const model_table *tables, size_t count,
                       clusim_error *e) {
    for (size_t t = 0; t < count; t++) {
        for (uint64_t row = 0; row < tables[t].rows; row++) {
            const char *wrong = tables[t].check(im, row);
            if (wrong) return model_refuse(e, row, tables[t].name, wrong);
        }
    }
    return CLUSIM_OK;
}

int model_check_image(const clusim_image *im, clusim_error *e, bool *has_relays) {
    const char *wrong = wrong_shape(im);
    if (wrong) return model_refuse(e, 0, "image", wrong);
    const model_table tables[] = {
        {"nodes", im->num_nodes, wrong_node},
        {"endpoints", im->num_endpoints, wrong_endpoint},
        {"units", im->num_units, wrong_unit},
        {"formats", im->num_formats, wrong_format},
        {"wires", im->num_wires, wrong_wire},
        {"targets", im->num_targets, wrong_target},
        {"groups", im->num_group_off - 1, wrong_group},
        {"paths", im->num_path_off - 1, wrong_path},
        {"multicast groups", im->num_mgroup_off - 1, wrong_mgroup},
    };
    int status = model_check_tables(im, tables, sizeof tables / sizeof *tables, e);
    if (status == CLUSIM_OK) status = model_check_routes(im, e, has_relays);
    if (status == CLUSIM_OK) status = model_check_work(im, e);
    return status == CLUSIM_OK ? model_check_sizes(im, e) : status;
}
