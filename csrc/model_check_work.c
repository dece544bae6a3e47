/* model_check_work.c - the checks of model_check.c for connections, programs, traffic and faults.
 */
#include "model.h"

#define MAX_TIME ((int64_t)1 << 61)
#define NEED(cond, what)                                                                           \
    if (!(cond)) return what

static bool maybe(uint32_t index, uint64_t count) { return index == NONE || index < count; }
static bool range_ok(uint32_t lo, uint32_t hi, uint64_t count) { return lo <= hi && hi <= count; }
static bool rate_ok(uint64_t num, uint64_t den) {
    return num >= 1 && den >= 1 && num < (1u << 30) && den < (1u << 30);
}

/* ---- connections
 * --------------------------------------------------------------------------------- */

/* Whether a path leads from one node to another. */
static bool path_joins(const clusim_image *im, uint32_t path, uint32_t at, uint32_t to) {
    for (uint32_t k = im->path_off[path]; k < im->path_off[path + 1]; k++) {
        if (im->wires[im->path_wires[k]].src != at) return false;
        at = im->wires[im->path_wires[k]].dst;
    }
    return at == to;
}

static bool path_connects(const clusim_image *im, uint32_t path, uint32_t from, uint32_t to) {
    return path == NONE || path_joins(im, path, im->endpoints[from].node, im->endpoints[to].node);
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

typedef struct via {
    uint32_t first, last;
} via;

static via via_of(const clusim_conn *c) { return (via){c->via_first, c->via_last}; }

static bool leads(const clusim_image *im, uint32_t node, uint32_t target) {
    return node == im->targets[target].node || model_route_in(im, node, target) != NONE;
}

/* Whether there is a route from an endpoint over the vias to another endpoint. */
static bool has_way(const clusim_image *im, uint32_t from, via over, uint32_t to) {
    uint32_t at = im->endpoints[from].node;
    if (over.first != NONE) {
        if (!leads(im, at, over.first)) return false;
        at = im->targets[over.first].node;
    }
    if (over.last != NONE) {
        if (!leads(im, at, over.last)) return false;
        at = im->targets[over.last].node;
    }
    return leads(im, at, to);
}

static const char *wrong_via(const clusim_image *im, via over) {
    NEED(maybe(over.first, im->num_targets) && maybe(over.last, im->num_targets), "via");
    NEED(over.first == NONE || im->nodes[im->targets[over.first].node].endpoint == NONE,
         "a via is an endpoint");
    NEED(over.last == NONE || im->nodes[im->targets[over.last].node].endpoint == NONE,
         "a via is an endpoint");
    return NULL;
}

/* A staged connection writes to its stage, from which the receiver reads. */
static const char *wrong_stage(const clusim_image *im, const clusim_conn *c) {
    NEED(c->stage < im->num_endpoints, "stage out of range");
    NEED(c->first_group == NONE && c->path == NONE && c->path_back == NONE,
         "a staged connection follows the routes");
    NEED(c->stage != c->src && c->stage != c->dst, "the stage is one of the ends");
    NEED(has_way(im, c->src, via_of(c), c->stage), "no route to the stage");
    NEED(has_way(im, c->dst, (via){NONE, NONE}, c->stage), "no route from the stage");
    return NULL;
}

/* An aggregation connection belongs to a member of a tree. */
static const char *wrong_member(const clusim_image *im, const clusim_conn *c) {
    NEED(c->vertex < im->num_vertices, "vertex out of range");
    NEED(im->vertices[c->vertex].endpoint == c->src, "vertex of another endpoint");
    return NULL;
}

static const char *wrong_control(const clusim_image *im, uint64_t row) {
    const clusim_control *c = &im->controls[row];
    NEED(c->alpha_timer_ps >= 1 && c->increase_timer_ps >= 1, "timers must be positive");
    NEED(c->cnp_interval_ps >= 0 && c->cnp_delay_ps >= 0, "delays cannot be negative");
    NEED(c->byte_counter >= 1, "byte_counter must be positive");
    NEED(c->min_rate >= 1 && c->min_rate <= c->line_rate, "rates the wrong way round");
    NEED(c->line_rate < (UINT64_C(1) << 40) && c->hyper < (UINT64_C(1) << 40), "rate too large");
    NEED(c->additive < (UINT64_C(1) << 40) && c->g_65536 <= 65536, "step or weight too large");
    return NULL;
}

static bool tree_edge_ok(const clusim_image *im, const clusim_vertex *child, uint32_t parent) {
    const clusim_vertex *v = &im->vertices[parent];
    uint32_t paths = (uint32_t)im->num_path_off - 1;
    if (child->parent != parent || child->path_up >= paths || child->path_down >= paths)
        return false;
    uint32_t top = im->units[v->unit].node;
    uint32_t low =
        child->unit == NONE ? im->endpoints[child->endpoint].node : im->units[child->unit].node;
    return path_joins(im, child->path_up, low, top) && path_joins(im, child->path_down, top, low);
}

static const char *wrong_vertex(const clusim_image *im, uint64_t row) {
    const clusim_vertex *v = &im->vertices[row];
    NEED(maybe(v->parent, im->num_vertices) && v->parent != row, "parent out of range");
    NEED((v->unit == NONE) != (v->endpoint == NONE), "is either a unit or a member");
    NEED(maybe(v->unit, im->num_units) && maybe(v->endpoint, im->num_endpoints), "out of range");
    NEED(range_ok(v->child_lo, v->child_hi, im->num_vertices), "children out of range");
    if (v->unit == NONE) {
        NEED(v->child_lo == v->child_hi && v->parent != NONE, "a member has a parent and no child");
        return NULL;
    }
    NEED(v->child_lo < v->child_hi && v->child_hi - v->child_lo < 65536, "has no children");
    NEED(v->slots >= 1 && v->slots <= (1u << 20), "slots must be 1 to 2^20");
    for (uint32_t c = v->child_lo; c < v->child_hi; c++) {
        const clusim_vertex *child = &im->vertices[c];
        NEED(c > row, "a child comes before its parent");
        NEED((child->unit == NONE) != (child->endpoint == NONE), "child is neither");
        NEED(maybe(child->unit, im->num_units), "child out of range");
        NEED(maybe(child->endpoint, im->num_endpoints), "child out of range");
        NEED(tree_edge_ok(im, child, (uint32_t)row), "edge to a child does not connect");
    }
    return NULL;
}

static const char *wrong_route_of(const clusim_image *im, const clusim_conn *c, uint32_t from,
                                  uint32_t to) {
    NEED(from != to, "source and destination are one endpoint");
    bool routed = c->first_group != NONE || c->path != NONE || has_way(im, from, via_of(c), to);
    NEED(routed, "no route between the two ends");
    NEED(path_connects(im, c->path, from, to), "path does not connect");
    NEED(path_connects(im, c->path_back, to, from), "path_back does not connect");
    return NULL;
}

static const char *wrong_extras(const clusim_image *im, const clusim_conn *c) {
    NEED(c->control == NONE || c->kind == 0, "only writes are rate-controlled");
    NEED(c->control == NONE || c->policy == 1 || c->path != NONE, "rate control needs one wire");
    NEED(c->kind == 0 || (c->via_first == NONE && c->via_last == NONE), "only writes have vias");
    NEED(c->kind == 0 || c->stage == NONE, "only a write connection has a stage");
    return wrong_via(im, via_of(c));
}

static const char *wrong_data(const clusim_image *im, const clusim_conn *c) {
    uint32_t from = c->kind == 1 ? c->dst : c->src, to = c->kind == 1 ? c->src : c->dst;
    NEED(c->packet_bytes >= 1 && c->burst >= 1, "packet_bytes and burst must be positive");
    NEED((uint64_t)c->packet_bytes * c->burst <= (1u << 28), "burst is too large");
    if (c->first_group != NONE) {
        uint32_t wire = im->group_wires[im->group_off[c->first_group]];
        NEED(im->wires[wire].src == im->endpoints[from].node, "first_group leaves another node");
    }
    const char *wrong = wrong_extras(im, c);
    if (wrong) return wrong;
    if (c->stage != NONE) return wrong_stage(im, c);
    if (c->kind == 4) return wrong_member(im, c);
    return c->kind == 3 ? wrong_multimem(im, c) : wrong_route_of(im, c, from, to);
}

static const char *wrong_conn(const clusim_image *im, uint64_t row) {
    const clusim_conn *c = &im->conns[row];
    NEED(c->kind <= 4 && c->policy <= 2, "kind or policy out of range");
    NEED(maybe(c->control, im->num_controls), "control out of range");
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

enum { RECV = 1, SEND = 2, REDUCE = 8, AGGREGATE = 16, USES_SEND = 30, MULTIMEM = 12 };

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
            uint32_t group = model_route_in(im, (uint32_t)node, member);
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
    NEED((c->kind == 4) == ((flags & AGGREGATE) != 0), "opcode does not fit the connection");
    NEED(c->kind >= 3 || x->slots_per_slice <= c->slots, "a slice exceeds the slots");
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
    via over = {m->via_first, m->via_last};
    const char *wrong = wrong_via(im, over);
    if (wrong) return wrong;
    NEED(has_way(im, s->endpoint, over, m->dst), "no route to a message's destination");
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
    NEED(maybe(s->control, im->num_controls), "control out of range");
    NEED(s->control == NONE || s->policy == 1, "rate control needs one wire");
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

int model_check_work(const clusim_image *im, clusim_error *e) {
    const model_table tables[] = {
        {"controls", im->num_controls, wrong_control},
        {"vertices", im->num_vertices, wrong_vertex},
        {"conns", im->num_conns, wrong_conn},
        {"prims", im->num_prims, wrong_prim},
        {"templates", im->num_templates, wrong_template},
        {"succ", im->num_succ, wrong_succ},
        {"tasks", im->num_tasks, wrong_task},
        {"instances", im->num_instances, wrong_instance},
        {"sources", im->num_sources, wrong_source},
        {"faults", im->num_faults, wrong_fault},
    };
    return model_check_tables(im, tables, sizeof tables / sizeof *tables, e);
}
