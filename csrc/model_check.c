/* Checks of the image: everything the engine later trusts without looking. */
#include <stdarg.h>
#include <stdio.h>

#include "model.h"

#define MAX_TIME ((int64_t)1 << 61)

static int bad(clusim_error *e, uint64_t index, const char *format, ...) {
    e->status = CLUSIM_ERR_BAD_IMAGE;
    e->index = (uint32_t)index;
    va_list args;
    va_start(args, format);
    vsnprintf(e->message, sizeof e->message, format, args);
    va_end(args);
    return CLUSIM_ERR_BAD_IMAGE;
}

#define REQUIRE(cond, what)                                                                        \
    do {                                                                                           \
        if (!(cond)) return bad(e, i, "%s[%llu]: %s", table, (unsigned long long)i, what);         \
    } while (0)

static bool latency_ok(int64_t ps) { return ps >= 1 && ps < MAX_TIME; }
static bool maybe(uint32_t index, uint64_t count) { return index == NONE || index < count; }

static int check_nodes(const clusim_image *im, clusim_error *e) {
    const char *table = "nodes";
    for (uint64_t i = 0; i < im->num_nodes; i++) {
        const clusim_node *n = &im->nodes[i];
        REQUIRE(latency_ok(n->latency_ps), "latency must be at least 1 ps");
        REQUIRE(maybe(n->endpoint, im->num_endpoints), "endpoint out of range");
        REQUIRE(maybe(n->unit, im->num_units), "unit out of range");
        REQUIRE((n->kind == 0) == (n->endpoint != NONE), "endpoints, and only they, are of kind 0");
        REQUIRE(n->unit == NONE || n->kind == 1, "only a switch has a reduction unit");
    }
    table = "endpoints";
    for (uint64_t i = 0; i < im->num_endpoints; i++) {
        const clusim_endpoint *p = &im->endpoints[i];
        REQUIRE(p->node < im->num_nodes && im->nodes[p->node].endpoint == i, "node does not match");
        REQUIRE(latency_ok(p->write_latency_ps) && latency_ok(p->read_latency_ps) &&
                    latency_ok(p->response_latency_ps),
                "latencies must be at least 1 ps");
        REQUIRE(p->mem_quantum_ps >= 1 && p->mem_quantum_ps < ((int64_t)1 << 40),
                "mem_quantum_ps out of range");
        REQUIRE(p->sms >= 1 && p->cta_slots >= 1 && p->cta_slots <= 256,
                "needs an SM and 1 to 256 CTA slots");
        REQUIRE(p->slow_1024 >= 1 && p->mem_cost16 >= 1, "slow_1024 and mem_cost16 must be positive");
        REQUIRE(((uint64_t)p->mem_quantum_ps << 16) / p->mem_cost16 >= 1, "memory moves nothing");
    }
    table = "units";
    for (uint64_t i = 0; i < im->num_units; i++) {
        const clusim_unit *u = &im->units[i];
        REQUIRE(u->node < im->num_nodes && im->nodes[u->node].unit == i, "node does not match");
        REQUIRE(latency_ok(u->latency_ps), "latency must be at least 1 ps");
    }
    return CLUSIM_OK;
}

static int check_wires(const clusim_image *im, clusim_error *e) {
    const char *table = "formats";
    for (uint64_t i = 0; i < im->num_formats; i++) {
        const clusim_format *f = &im->formats[i];
        REQUIRE(f->flit_bytes >= 1 && f->flit_bytes <= 65536, "flit_bytes must be 1 to 65536");
        for (uint32_t k = 0; k < 8; k++) {
            REQUIRE(f->header_bytes[k] >= 1, "headers must be at least 1 byte");
            REQUIRE(f->service_1024[k] >= 1, "service_1024 must be positive");
        }
    }
    table = "wires";
    for (uint64_t i = 0; i < im->num_wires; i++) {
        const clusim_wire *w = &im->wires[i];
        REQUIRE(w->src < im->num_nodes && w->dst < im->num_nodes && w->src != w->dst, "bad ends");
        REQUIRE(w->rate_num >= 1 && w->rate_den >= 1, "rate must be positive");
        REQUIRE(w->rate_num < (1u << 30) && w->rate_den < (1u << 30), "rate is too finely divided");
        REQUIRE(latency_ok(w->latency_ps) && w->replay_ps >= 0, "latency must be at least 1 ps");
        REQUIRE(maybe(w->reverse, im->num_wires), "reverse out of range");
        REQUIRE(w->format < im->num_formats, "format out of range");
        REQUIRE(w->buffer_bytes >= 1 && w->buffer_bytes < (UINT64_C(1) << 40), "bad buffer_bytes");
        REQUIRE(w->dateline <= 1, "dateline is 0 or 1");
    }
    return CLUSIM_OK;
}

static int check_offsets(const char *table, const uint32_t *off, uint64_t count, uint64_t total,
                         uint64_t minimum, clusim_error *e) {
    uint64_t i = 0;
    REQUIRE(count >= 1 && off[0] == 0 && off[count - 1] == total, "offsets do not span the array");
    for (i = 1; i < count; i++) {
        REQUIRE(off[i] >= off[i - 1] + minimum, "too short or not ascending");
    }
    return CLUSIM_OK;
}

static int check_routes(const clusim_image *im, clusim_error *e) {
    uint64_t groups = im->num_group_off - 1;
    int status = check_offsets("group_off", im->group_off, im->num_group_off, im->num_group_wires, 1, e);
    if (status == CLUSIM_OK) {
        status = check_offsets("path_off", im->path_off, im->num_path_off, im->num_path_wires, 1, e);
    }
    if (status == CLUSIM_OK) {
        status = check_offsets("mgroup_off", im->mgroup_off, im->num_mgroup_off,
                               im->num_mgroup_members, 1, e);
    }
    if (status != CLUSIM_OK) return status;
    const char *table = "routes";
    uint64_t i = 0;
    REQUIRE(im->num_routes == im->num_nodes * im->num_endpoints, "need nodes x endpoints entries");
    for (i = 0; i < im->num_routes; i++) {
        REQUIRE(maybe(im->routes[i], groups), "group out of range");
        if (im->routes[i] == NONE) continue;
        uint32_t wire = im->group_wires[im->group_off[im->routes[i]]];
        REQUIRE(wire < im->num_wires && im->wires[wire].src == i / im->num_endpoints,
                "group does not leave this node");
    }
    table = "group_wires";
    for (uint64_t g = 0; g < groups; g++) {
        for (i = im->group_off[g]; i < im->group_off[g + 1]; i++) {
            REQUIRE(im->group_wires[i] < im->num_wires, "wire out of range");
            REQUIRE(im->wires[im->group_wires[i]].src ==
                        im->wires[im->group_wires[im->group_off[g]]].src,
                    "wires of a group leave different nodes");
        }
    }
    table = "routes";
    for (i = 0; i < im->num_routes; i++) {
        if (im->routes[i] == NONE) continue;
        uint64_t e2 = i % im->num_endpoints;
        for (uint32_t k = im->group_off[im->routes[i]]; k < im->group_off[im->routes[i] + 1]; k++) {
            uint32_t next = im->wires[im->group_wires[k]].dst;
            REQUIRE(next == im->endpoints[e2].node ||
                        im->routes[next * im->num_endpoints + e2] != NONE,
                    "leads to a node without a route");
        }
    }
    table = "path_wires";
    for (i = 0; i < im->num_path_wires; i++) {
        REQUIRE(im->path_wires[i] < im->num_wires, "wire out of range");
    }
    table = "mgroup_members";
    for (i = 0; i < im->num_mgroup_members; i++) {
        REQUIRE(im->mgroup_members[i] < im->num_endpoints, "endpoint out of range");
    }
    return CLUSIM_OK;
}

static int check_path(const clusim_image *im, uint32_t path, uint32_t from, uint32_t to) {
    uint32_t at = im->endpoints[from].node;
    for (uint32_t k = im->path_off[path]; k < im->path_off[path + 1]; k++) {
        if (im->wires[im->path_wires[k]].src != at) return 0;
        at = im->wires[im->path_wires[k]].dst;
    }
    return at == im->endpoints[to].node;
}

/* The largest packet of a connection must fit the buffers of all wires of any VC it may use. */
static int check_conns(const clusim_image *im, clusim_error *e) {
    const char *table = "conns";
    for (uint64_t i = 0; i < im->num_conns; i++) {
        const clusim_conn *c = &im->conns[i];
        REQUIRE(c->kind <= 3 && c->policy <= 2, "kind or policy out of range");
        REQUIRE(c->tail_ps >= 0 && c->head_ps >= 0, "delays cannot be negative");
        REQUIRE(c->src < im->num_endpoints && c->dst < im->num_endpoints, "endpoint out of range");
        REQUIRE(maybe(c->first_group, im->num_group_off - 1), "first_group out of range");
        REQUIRE(maybe(c->path, im->num_path_off - 1) && maybe(c->path_back, im->num_path_off - 1),
                "path out of range");
        REQUIRE(c->slots >= 1 && c->slots <= 64, "slots must be 1 to 64");
        REQUIRE(c->expand_120 >= 120 && c->expand_120 <= 12000, "expand_120 out of range");
        REQUIRE(c->vc < im->nvc && c->vc_response < im->nvc, "VC out of range");
        if (c->kind == 2) continue;
        REQUIRE(c->packet_bytes >= 1 && c->burst >= 1, "packet_bytes and burst must be positive");
        REQUIRE((uint64_t)c->packet_bytes * c->burst <= (1u << 28), "burst is too large");
        uint32_t from = c->kind == 1 ? c->dst : c->src, to = c->kind == 1 ? c->src : c->dst;
        if (c->kind == 3) {
            REQUIRE(c->mgroup < im->num_mgroup_off - 1, "mgroup out of range");
            REQUIRE(c->first_group != NONE && c->path == NONE, "needs first_group and no path");
            for (uint32_t k = im->group_off[c->first_group]; k < im->group_off[c->first_group + 1]; k++) {
                uint32_t w = im->group_wires[k];
                REQUIRE(im->nodes[im->wires[w].dst].unit != NONE, "no reduction unit there");
                REQUIRE(im->wires[w].reverse != NONE, "needs duplex links");
            }
        } else {
            REQUIRE(from != to, "source and destination are one endpoint");
            REQUIRE(c->first_group != NONE || c->path != NONE ||
                        im->routes[(uint64_t)im->endpoints[from].node * im->num_endpoints + to] != NONE,
                    "no route between the two ends");
            REQUIRE(c->path == NONE || check_path(im, c->path, from, to), "path does not connect");
            REQUIRE(c->path_back == NONE || check_path(im, c->path_back, to, from),
                    "path_back does not connect");
        }
        if (c->first_group != NONE) {
            uint32_t w = im->group_wires[im->group_off[c->first_group]];
            REQUIRE(im->wires[w].src == im->endpoints[from].node, "first_group leaves another node");
        }
    }
    return CLUSIM_OK;
}

/* Every member of a multimem connection is reachable from, and for reductions next to, each unit. */
static bool members_reachable(const clusim_image *im, const clusim_conn *c, bool adjacent) {
    for (uint32_t k = im->group_off[c->first_group]; k < im->group_off[c->first_group + 1]; k++) {
        uint64_t node = im->wires[im->group_wires[k]].dst;
        for (uint32_t j = im->mgroup_off[c->mgroup]; j < im->mgroup_off[c->mgroup + 1]; j++) {
            uint32_t member = im->mgroup_members[j];
            uint32_t group = im->routes[node * im->num_endpoints + member];
            if (group == NONE) return false;
            for (uint32_t w = im->group_off[group]; adjacent && w < im->group_off[group + 1]; w++) {
                const clusim_wire *x = &im->wires[im->group_wires[w]];
                if (x->dst != im->endpoints[member].node || x->reverse == NONE) return false;
            }
        }
    }
    return true;
}

static int check_programs(const clusim_image *im, clusim_error *e) {
    const char *table = "prims";
    for (uint64_t i = 0; i < im->num_prims; i++) {
        const clusim_prim *p = &im->prims[i];
        REQUIRE(p->opcode < im->num_opcodes, "unknown opcode");
        uint32_t flags = im->op_flags[p->opcode];
        REQUIRE(!(flags & 1) || p->recv != NONE, "needs a receive connection");
        REQUIRE(!(flags & 14) || p->send != NONE, "needs a send connection");
    }
    table = "templates";
    for (uint64_t i = 0; i < im->num_templates; i++) {
        const clusim_template *t = &im->templates[i];
        REQUIRE(t->prim_lo < t->prim_hi && t->prim_hi <= im->num_prims, "primitives out of range");
        REQUIRE(t->nchunks >= 1 && t->mode <= 1, "nchunks or mode out of range");
    }
    table = "instances";
    for (uint64_t i = 0; i < im->num_instances; i++) {
        const clusim_instance *x = &im->instances[i];
        REQUIRE(x->task < im->num_tasks && x->endpoint < im->num_endpoints, "task or endpoint");
        REQUIRE(im->tasks[x->task].inst_lo <= i && i < im->tasks[x->task].inst_hi, "not of its task");
        REQUIRE(x->template_ < im->num_templates && x->cost < im->num_costs, "template or cost");
        REQUIRE(x->chunk_bytes >= 1 && x->align >= 1 && x->slices >= 1, "chunk, align, slices");
        REQUIRE(x->slots_per_slice >= 1, "slots_per_slice must be positive");
        REQUIRE(x->length < (UINT64_C(1) << 52) && x->chunk_bytes < (UINT64_C(1) << 40), "too large");
        for (uint32_t k = im->templates[x->template_].prim_lo; k < im->templates[x->template_].prim_hi; k++) {
            const clusim_prim *p = &im->prims[k];
            uint32_t flags = im->op_flags[p->opcode];
            const uint32_t ends[2] = {flags & 1 ? p->recv : NONE, flags & 14 ? p->send : NONE};
            for (uint32_t side = 0; side < 2; side++) {
                if (ends[side] == NONE) continue;
                uint64_t at = (uint64_t)x->conn_off + ends[side];
                REQUIRE(at < im->num_inst_conns && im->inst_conns[at] < im->num_conns, "connection");
                const clusim_conn *c = &im->conns[im->inst_conns[at]];
                REQUIRE((side ? c->src : c->dst) == x->endpoint, "connection of another endpoint");
                REQUIRE((c->kind == 3) == (side && (flags & 12)), "opcode does not fit connection");
                REQUIRE(c->kind != 3 || members_reachable(im, c, (flags & 8) != 0),
                        "members must hang on the units' switches");
                REQUIRE(c->kind == 3 || x->slots_per_slice <= c->slots, "slice exceeds the slots");
            }
        }
    }
    return CLUSIM_OK;
}

static int check_tasks(const clusim_image *im, clusim_error *e) {
    const char *table = "tasks";
    for (uint64_t i = 0; i < im->num_tasks; i++) {
        const clusim_task *t = &im->tasks[i];
        REQUIRE(t->kind <= 3 && t->endpoint < im->num_endpoints, "kind or endpoint out of range");
        REQUIRE(t->inst_lo <= t->inst_hi && t->inst_hi <= im->num_instances, "instances");
        REQUIRE(t->succ_lo <= t->succ_hi && t->succ_hi <= im->num_succ, "successors");
        REQUIRE(t->delay_ps >= 0 && t->delay_ps < MAX_TIME, "delay out of range");
        REQUIRE(t->kind != 1 || (t->sms >= 1 && t->compute_ps >= 0 && t->compute_ps < MAX_TIME),
                "a kernel needs SMs and a time");
    }
    table = "succ";
    for (uint64_t i = 0; i < im->num_succ; i++) REQUIRE(im->succ[i] < im->num_tasks, "out of range");
    table = "sources";
    for (uint64_t i = 0; i < im->num_sources; i++) {
        const clusim_source *s = &im->sources[i];
        REQUIRE(s->endpoint < im->num_endpoints && s->policy <= 2 && s->vc < im->nvc, "out of range");
        REQUIRE(s->msg_lo <= s->msg_hi && s->msg_hi <= im->num_messages, "messages out of range");
        REQUIRE(s->packet_bytes >= 1 && s->burst >= 1, "packet_bytes and burst must be positive");
        REQUIRE((uint64_t)s->packet_bytes * s->burst <= (1u << 28), "burst is too large");
        for (uint32_t k = s->msg_lo; k < s->msg_hi; k++) {
            const clusim_message *m = &im->messages[k];
            REQUIRE(m->bytes >= 1 && m->bytes < (UINT64_C(1) << 52), "message size");
            REQUIRE(m->dst < im->num_endpoints && m->dst != s->endpoint, "message destination");
            REQUIRE(m->start_ps >= 0 && m->start_ps < MAX_TIME, "message start");
            REQUIRE(im->routes[(uint64_t)im->endpoints[s->endpoint].node * im->num_endpoints + m->dst] !=
                        NONE, "no route to a message's destination");
        }
    }
    table = "faults";
    for (uint64_t i = 0; i < im->num_faults; i++) {
        const clusim_fault *f = &im->faults[i];
        REQUIRE(f->kind <= 1 && f->time_ps >= 0 && f->time_ps < MAX_TIME, "kind or time");
        REQUIRE(f->index < (f->kind ? im->num_endpoints : im->num_wires), "index out of range");
        REQUIRE(f->kind == 1 ? f->num >= 1 : (f->num < (1u << 30) && (f->num == 0 || (f->den >= 1 &&
                    f->den < (1u << 30)))), "rate out of range");
    }
    return CLUSIM_OK;
}

int model_check_image(const clusim_image *im, clusim_error *e) {
    if (im->nvc < 1 || im->nvc > 8) return bad(e, 0, "nvc must be 1 to 8");
    if (im->num_opcodes > 16) return bad(e, 0, "at most 16 opcodes");
    if (im->num_wires >= (1u << 24)) return bad(e, 0, "at most 2^24 wires");
    int status = check_nodes(im, e);
    if (status == CLUSIM_OK) status = check_wires(im, e);
    if (status == CLUSIM_OK) status = check_routes(im, e);
    if (status == CLUSIM_OK) status = check_conns(im, e);
    if (status == CLUSIM_OK) status = check_tasks(im, e);
    return status == CLUSIM_OK ? check_programs(im, e) : status;
}
