/* model_check.c - everything the engine later trusts without looking, checked row by row.
 *
 * Each function says what is wrong with one row of one table, or NULL. The front end checks before
 * and with better words; this is the engine's own line of defence.
 */
#include <stdio.h>

#include "model.h"

#define MAX_TIME ((int64_t)1 << 61)
#define NEED(cond, what)                                                                           \
    if (!(cond)) return what

typedef const char *(*row_check)(const clusim_image *im, uint64_t row);

static bool latency_ok(int64_t ps) { return ps >= 1 && ps < MAX_TIME; }
static bool maybe(uint32_t index, uint64_t count) { return index == NONE || index < count; }
static bool range_ok(uint32_t lo, uint32_t hi, uint64_t count) { return lo <= hi && hi <= count; }
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
    for (uint32_t k = 0; k < 8; k++) {
        NEED(f->header_bytes[k] >= 1, "headers must be at least 1 byte");
        NEED(f->service_1024[k] >= 1, "service_1024 must be positive");
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

/* Every wire of a route leads to the destination or to a node that knows the way. */
static const char *wrong_route(const clusim_image *im, uint64_t row) {
    uint32_t group = im->routes[row];
    if (group == NONE) return NULL;
    uint64_t node = row / im->num_endpoints, endpoint = row % im->num_endpoints;
    NEED(group + UINT64_C(1) < im->num_group_off, "group out of range");
    for (uint32_t k = im->group_off[group]; k < im->group_off[group + 1]; k++) {
        const clusim_wire *w = &im->wires[im->group_wires[k]];
        NEED(w->src == node, "group does not leave this node");
        bool there = w->dst == im->endpoints[endpoint].node;
        NEED(there || im->routes[w->dst * im->num_endpoints + endpoint] != NONE,
             "leads to a node without a route");
    }
    return NULL;
}

/* ---- connections
 * --------------------------------------------------------------------------------- */

static bool path_connects(const clusim_image *im, uint32_t path, uint32_t from, uint32_t to) {
    if (path == NONE) return true;
    uint32_t at = im->endpoints[from].node;
    for (uint32_t k = im->path_off[path]; k < im->path_off[path + 1]; k++) {
        if (im->wires[im->path_wires[k]].src != at) return false;
        at = im->wires[im->path_wires[k]].dst;
    }
    return at == im->endpoints[to].node;
}

static const char *wrong_multimem(const clusim_image *im, const clusim_conn *c) {
    NEED(c->mgroup + UINT64_C(1) < im->num_mgroup_off, "mgroup out of range");
    NEED(c->first_group != NONE && c->path == NONE, "needs first_group and no path");
    for (uint32_t k = im->group_off[c->first_group]; k < im->group_off[c->first_group + 1]; k++) {
        const clusim_wire *w = &im->wires[im->group_wires[k]];
        NEED(im->nodes[w->dst].kind == 1, "leads to an endpoint, not to a switch");
        NEED(w->reverse != NONE, "needs duplex links");
    }
    return NULL;
}

static const char *wrong_route_of(const clusim_image *im, const clusim_conn *c, uint32_t from,
                                  uint32_t to) {
    NEED(from != to, "source and destination are one endpoint");
    uint64_t route = (uint64_t)im->endpoints[from].node * im->num_endpoints + to;
    bool routed = im->routes[route] != NONE || c->first_group != NONE || c->path != NONE;
    NEED(routed, "no route between the two ends");
    NEED(path_connects(im, c->path, from, to), "path does not connect");
    NEED(path_connects(im, c->path_back, to, from), "path_back does not connect");
    return NULL;
}

static const char *wrong_data(const clusim_image *im, const clusim_conn *c) {
    uint32_t from = c->kind == 1 ? c->dst : c->src, to = c->kind == 1 ? c->src : c->dst;
    NEED(c->packet_bytes >= 1 && c->burst >= 1, "packet_bytes and burst must be positive");
    NEED((uint64_t)c->packet_bytes * c->burst <= (1u << 28), "burst is too large");
    if (c->first_group != NONE) {
        uint32_t wire = im->group_wires[im->group_off[c->first_group]];
        NEED(im->wires[wire].src == im->endpoints[from].node, "first_group leaves another node");
    }
    return c->kind == 3 ? wrong_multimem(im, c) : wrong_route_of(im, c, from, to);
}

static const char *wrong_conn(const clusim_image *im, uint64_t row) {
    const clusim_conn *c = &im->conns[row];
    NEED(c->kind <= 3 && c->policy <= 2, "kind or policy out of range");
    NEED(c->tail_ps >= 0 && c->head_ps >= 0, "delays cannot be negative");
    NEED(c->src < im->num_endpoints && c->dst < im->num_endpoints, "endpoint out of range");
    NEED(maybe(c->first_group, im->num_group_off - 1), "first_group out of range");
    NEED(maybe(c->path, im->num_path_off - 1), "path out of range");
    NEED(maybe(c->path_back, im->num_path_off - 1), "path_back out of range");
    NEED(c->slots >= 1 && c->slots <= 64, "slots must be 1 to 64");
    NEED(c->expand_120 >= 120 && c->expand_120 <= 12000, "expand_120 out of range");
    NEED(c->vc < im->nvc && c->vc_response < im->nvc, "VC out of range");
    return c->kind == 2 ? NULL : wrong_data(im, c);
}

/* ---- programs
 * -------------------------------------------------------------------------------------- */

enum { RECV = 1, SEND = 2, REDUCE = 8, USES_SEND = 14, MULTIMEM = 12 };

static const char *wrong_prim(const clusim_image *im, uint64_t row) {
    const clusim_prim *p = &im->prims[row];
    NEED(p->opcode < im->num_opcodes, "unknown opcode");
    uint32_t flags = im->op_flags[p->opcode];
    NEED(!(flags & RECV) || p->recv != NONE, "needs a receive connection");
    NEED(!(flags & USES_SEND) || p->send != NONE, "needs a send connection");
    return NULL;
}

static const char *wrong_template(const clusim_image *im, uint64_t row) {
    const clusim_template *t = &im->templates[row];
    NEED(t->prim_lo < t->prim_hi && t->prim_hi <= im->num_prims, "primitives out of range");
    NEED(t->nchunks >= 1 && t->mode <= 1, "nchunks or mode out of range");
    return NULL;
}

static bool wires_reach(const clusim_image *im, uint32_t group, uint32_t member) {
    for (uint32_t w = im->group_off[group]; w < im->group_off[group + 1]; w++) {
        const clusim_wire *x = &im->wires[im->group_wires[w]];
        if (x->dst != im->endpoints[member].node || x->reverse == NONE) return false;
    }
    return true;
}

/* Every member is reachable from each switch of a multimem connection; for reductions each switch
 * has a unit and the members hang on it. */
static bool members_reachable(const clusim_image *im, const clusim_conn *c, bool adjacent) {
    for (uint32_t k = im->group_off[c->first_group]; k < im->group_off[c->first_group + 1]; k++) {
        uint64_t node = im->wires[im->group_wires[k]].dst;
        if (adjacent && im->nodes[node].unit == NONE) return false;
        for (uint32_t j = im->mgroup_off[c->mgroup]; j < im->mgroup_off[c->mgroup + 1]; j++) {
            uint32_t member = im->mgroup_members[j];
            uint32_t group = im->routes[node * im->num_endpoints + member];
            if (group == NONE || (adjacent && !wires_reach(im, group, member))) return false;
        }
    }
    return true;
}

static const char *wrong_end(const clusim_image *im, const clusim_instance *x, uint32_t local,
                             uint32_t flags) {
    uint64_t at = (uint64_t)x->conn_off + local;
    NEED(at < im->num_inst_conns && im->inst_conns[at] < im->num_conns, "connection out of range");
    const clusim_conn *c = &im->conns[im->inst_conns[at]];
    uint32_t mine = flags == RECV ? c->dst : c->src;
    NEED(mine == x->endpoint, "connection of another endpoint");
    NEED((c->kind == 3) == ((flags & MULTIMEM) != 0), "opcode does not fit the connection");
    NEED(c->kind == 3 || x->slots_per_slice <= c->slots, "a slice exceeds the slots");
    NEED(c->kind != 3 || members_reachable(im, c, (flags & REDUCE) != 0),
         "the switches need routes to all members, for reductions a unit with all of them on it");
    return NULL;
}

static const char *wrong_ends(const clusim_image *im, const clusim_instance *x) {
    const clusim_template *t = &im->templates[x->template_];
    for (uint32_t k = t->prim_lo; k < t->prim_hi; k++) {
        const clusim_prim *p = &im->prims[k];
        uint32_t flags = im->op_flags[p->opcode];
        const char *wrong = flags & RECV ? wrong_end(im, x, p->recv, RECV) : NULL;
        if (wrong == NULL && flags & USES_SEND)
            wrong = wrong_end(im, x, p->send, flags & USES_SEND);
        if (wrong) return wrong;
    }
    return NULL;
}

static const char *wrong_instance(const clusim_image *im, uint64_t row) {
    const clusim_instance *x = &im->instances[row];
    NEED(x->task < im->num_tasks && x->endpoint < im->num_endpoints, "task or endpoint");
    NEED(im->tasks[x->task].inst_lo <= row && row < im->tasks[x->task].inst_hi, "not of its task");
    NEED(x->template_ < im->num_templates && x->cost < im->num_costs, "template or cost");
    NEED(x->chunk_bytes >= 1 && x->align >= 1 && x->slices >= 1, "chunk, align and slices");
    NEED(x->slots_per_slice >= 1, "slots_per_slice must be positive");
    NEED(x->start_ps >= 0 && x->start_ps < MAX_TIME, "start_ps out of range");
    NEED(x->length < (UINT64_C(1) << 52), "length is too large");
    NEED(x->chunk_bytes < (UINT64_C(1) << 40), "chunk is too large");
    return wrong_ends(im, x);
}

static const char *wrong_task(const clusim_image *im, uint64_t row) {
    const clusim_task *t = &im->tasks[row];
    NEED(t->kind <= 3 && t->endpoint < im->num_endpoints, "kind or endpoint out of range");
    NEED(range_ok(t->inst_lo, t->inst_hi, im->num_instances), "instances out of range");
    NEED(range_ok(t->succ_lo, t->succ_hi, im->num_succ), "successors out of range");
    NEED(t->delay_ps >= 0 && t->delay_ps < MAX_TIME, "delay out of range");
    NEED(t->compute_ps >= 0 && t->compute_ps < MAX_TIME, "compute_ps out of range");
    NEED(t->kind != 1 || t->sms >= 1, "a kernel needs SMs");
    return NULL;
}

static const char *wrong_succ(const clusim_image *im, uint64_t row) {
    return im->succ[row] < im->num_tasks ? NULL : "task out of range";
}

/* ---- traffic and faults
 * ------------------------------------------------------------------------------ */

static const char *wrong_message(const clusim_image *im, const clusim_source *s, uint32_t row) {
    const clusim_message *m = &im->messages[row];
    NEED(m->bytes >= 1 && m->bytes < (UINT64_C(1) << 52), "size of a message");
    NEED(m->dst < im->num_endpoints && m->dst != s->endpoint, "destination of a message");
    NEED(m->start_ps >= 0 && m->start_ps < MAX_TIME, "start of a message");
    uint64_t route = (uint64_t)im->endpoints[s->endpoint].node * im->num_endpoints + m->dst;
    NEED(im->routes[route] != NONE, "no route to a message's destination");
    return NULL;
}

static const char *wrong_source(const clusim_image *im, uint64_t row) {
    const clusim_source *s = &im->sources[row];
    NEED(s->endpoint < im->num_endpoints && s->policy <= 2 && s->vc < im->nvc, "out of range");
    NEED(range_ok(s->msg_lo, s->msg_hi, im->num_messages), "messages out of range");
    NEED(s->packet_bytes >= 1 && s->burst >= 1, "packet_bytes and burst must be positive");
    NEED((uint64_t)s->packet_bytes * s->burst <= (1u << 28), "burst is too large");
    uint32_t others = 0; /* sources of this endpoint up to this one hold its lowest slots */
    for (uint64_t k = 0; k <= row; k++) others += im->sources[k].endpoint == s->endpoint;
    NEED(others <= im->endpoints[s->endpoint].cta_slots, "more sources than CTA slots");
    const char *wrong = NULL;
    for (uint32_t k = s->msg_lo; k < s->msg_hi && !wrong; k++) wrong = wrong_message(im, s, k);
    return wrong;
}

static const char *wrong_fault(const clusim_image *im, uint64_t row) {
    const clusim_fault *f = &im->faults[row];
    NEED(f->kind <= 1 && f->time_ps >= 0 && f->time_ps < MAX_TIME, "kind or time");
    NEED(f->index < (f->kind ? im->num_endpoints : im->num_wires), "index out of range");
    NEED(f->kind == 0 || f->num >= 1, "a factor must be positive");
    NEED(f->kind == 1 || f->num == 0 || rate_ok(f->num, f->den), "rate out of range");
    return NULL;
}

/* ---- all of it
 * ------------------------------------------------------------------------------------------ */

static int refuse(clusim_error *e, uint64_t row, const char *table, const char *what) {
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
    NEED(im->num_opcodes <= 16, "at most 16 opcodes");
    NEED(im->num_wires < (1u << 24), "at most 2^24 wires");
    NEED(im->num_routes == im->num_nodes * im->num_endpoints, "routes: need nodes x endpoints");
    NEED(spans(im->group_off, im->num_group_off, im->num_group_wires), "group_off");
    NEED(spans(im->path_off, im->num_path_off, im->num_path_wires), "path_off");
    NEED(spans(im->mgroup_off, im->num_mgroup_off, im->num_mgroup_members), "mgroup_off");
    return NULL;
}

/* Tables in an order in which each may trust those before it. */
int model_check_image(const clusim_image *im, clusim_error *e) {
    const char *wrong = wrong_shape(im);
    if (wrong) return refuse(e, 0, "image", wrong);
    const struct {
        const char *name;
        uint64_t rows;
        row_check check;
    } tables[] = {
        {"nodes", im->num_nodes, wrong_node},
        {"endpoints", im->num_endpoints, wrong_endpoint},
        {"units", im->num_units, wrong_unit},
        {"formats", im->num_formats, wrong_format},
        {"wires", im->num_wires, wrong_wire},
        {"groups", im->num_group_off - 1, wrong_group},
        {"paths", im->num_path_off - 1, wrong_path},
        {"multicast groups", im->num_mgroup_off - 1, wrong_mgroup},
        {"routes", im->num_routes, wrong_route},
        {"conns", im->num_conns, wrong_conn},
        {"prims", im->num_prims, wrong_prim},
        {"templates", im->num_templates, wrong_template},
        {"succ", im->num_succ, wrong_succ},
        {"tasks", im->num_tasks, wrong_task},
        {"instances", im->num_instances, wrong_instance},
        {"sources", im->num_sources, wrong_source},
        {"faults", im->num_faults, wrong_fault},
    };
    for (size_t t = 0; t < sizeof tables / sizeof *tables; t++) {
        for (uint64_t row = 0; row < tables[t].rows; row++) {
            wrong = tables[t].check(im, row);
            if (wrong) return refuse(e, row, tables[t].name, wrong);
        }
    }
    return CLUSIM_OK;
}
