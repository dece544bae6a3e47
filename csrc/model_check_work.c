/* model_check_work.c - the checks of model_check.c for connections, programs, traffic and faults:
 * related rows are consistent. Routes are checked in model_ways.c, magnitudes in
 * model_check_sizes.c. */
#include "model.h"
#include "ranges.h"

#define NEED(cond, what)                                                                           \
    if (!(cond)) return what

/* ---- connections
 * --------------------------------------------------------------------------------- */

/* True if a path leads from one node to another. */
static bool path_joins(const clusim_image *im, uint32_t path, uint32_t at, uint32_t to) {
    for (uint32_t k = im->path_off[path]; k < im->path_off[path + 1]; k++) {
        if (im->wires[im->path_wires[k]].src != at) return false;
        at = im->wires[im->path_wires[k]].dst;
    }
    return at == to;
}

/* True if a path leads from one endpoint over the vias to another. */
static bool path_passes(const clusim_image *im, uint32_t path, uint32_t from, model_legs legs) {
    uint32_t leg = 0, at = im->endpoints[from].node;
    for (uint32_t k = im->path_off[path]; k < im->path_off[path + 1]; k++) {
        const clusim_wire *w = &im->wires[im->path_wires[k]];
        if (w->src != at) return false;
        at = w->dst;
        while (leg + 1 < legs.count && im->targets[legs.targets[leg]].node == at) leg++;
    }
    return leg + 1 == legs.count && at == im->targets[legs.targets[leg]].node;
}

static const char *wrong_multimem(const clusim_image *im, const clusim_conn *c) {
    NEED(c->mgroup != NONE, "needs a multicast group");
    NEED(c->first_group != NONE && c->path == NONE, "needs first_group and no path");
    for (uint32_t k = im->group_off[c->first_group]; k < im->group_off[c->first_group + 1]; k++) {
        const clusim_wire *w = &im->wires[im->group_wires[k]];
        NEED(im->nodes[w->dst].kind == CLUSIM_NODE_KIND_SWITCH,
             "leads to an endpoint, not to a switch");
        NEED(w->reverse != NONE, "needs duplex links");
    }
    return NULL;
}

static bool is_nic(const clusim_image *im, uint32_t target) {
    return target == NONE || im->nodes[im->targets[target].node].endpoint == NONE;
}

/* A staged connection writes to its stage, from which the receiver reads. */
static const char *wrong_stage(const clusim_image *im, const clusim_conn *c) {
    NEED(c->first_group == NONE && c->path == NONE && c->path_back == NONE,
         "a staged connection follows the routes");
    NEED(c->stage != c->src && c->stage != c->dst, "the stage is one of the ends");
    (void)im;
    return NULL;
}

/* An aggregation connection belongs to a member of a tree. */
static const char *wrong_member(const clusim_image *im, const clusim_conn *c) {
    NEED(c->vertex != NONE, "needs a vertex");
    NEED(im->vertices[c->vertex].endpoint == c->src, "vertex of another endpoint");
    NEED(c->path == NONE && c->first_group == NONE, "follows the paths of its tree");
    return NULL;
}

static const char *wrong_control(const clusim_image *im, uint64_t row) {
    const clusim_control *c = &im->controls[row];
    NEED(c->min_rate <= c->line_rate, "rates the wrong way round");
    if (!c->receiver) return NULL;
    NEED(c->sender == CLUSIM_SENDER_MODE_POLICY || c->sender == CLUSIM_SENDER_MODE_TELEMETRY,
         "a policy of receivers beside none of senders");
    NEED(im->controls[c->receiver - 1].sender == CLUSIM_SENDER_MODE_RECEIVER,
         "its policy of receivers is of another kind");
    return NULL;
}

/* Highest VC that packets use after a dateline and a detour. */
static uint64_t highest_vc(const clusim_image *im) {
    uint64_t vc = 0, detour = 0;
    for (uint64_t c = 0; c < im->num_conns; c++)
        vc = base_umax(vc, base_umax(im->conns[c].vc, im->conns[c].vc_response));
    for (uint64_t k = 0; k < im->num_sources; k++) vc = base_umax(vc, im->sources[k].vc);
    for (uint64_t w = 0; w < im->num_wires; w++) vc = base_umax(vc, im->wires[w].trim_vc);
    for (uint64_t r = 0; r < im->num_spreads; r++)
        detour = base_umax(detour, im->spreads[r].detour_vcs);
    return vc + detour + 1;
}

static const char *wrong_spread(const clusim_image *im, uint64_t row) {
    const clusim_spread *x = &im->spreads[row];
    NEED(x->detour_lo <= x->detour_hi, "detours the wrong way round");
    NEED(x->ordered || !x->timeout_ps, "a timeout, but packets are accepted in any order");
    NEED(x->timeout_ps || !x->selective, "selective, but without a timeout");
    NEED(x->selective || !x->trimmed, "trimmed, but not selective");
    if (x->minimal_vc == 0) return NULL;
    NEED(x->gap_ps == 0 && x->detour_lo == x->detour_hi,
         "minimal paths exclude flowlets and detours");
    NEED(x->minimal_vc > highest_vc(im), "other packets use the virtual channel of minimal paths");
    return NULL;
}

/* True if the paths between a vertex and its parent join their nodes. */
static bool tree_edge_ok(const clusim_image *im, const clusim_vertex *child, uint32_t parent) {
    if (child->parent != parent || child->path_up == NONE || child->path_down == NONE) return false;
    uint32_t top = im->units[im->vertices[parent].unit].node;
    uint32_t low =
        child->unit == NONE ? im->endpoints[child->endpoint].node : im->units[child->unit].node;
    return path_joins(im, child->path_up, low, top) && path_joins(im, child->path_down, top, low);
}

static const char *wrong_kin(const clusim_image *im, uint64_t row) {
    const clusim_vertex *v = &im->vertices[row];
    NEED((v->unit == NONE) != (v->endpoint == NONE), "is either a unit or a member");
    if (v->unit == NONE) {
        NEED(v->child_lo == v->child_hi && v->parent != NONE, "a member has a parent and no child");
    } else {
        NEED(v->child_lo < v->child_hi && v->child_hi - v->child_lo < 65536, "has no children");
        NEED(v->child_lo > row, "a child comes before its parent");
        NEED(v->slots >= 1, "a unit's vertex needs a slot");
    }
    if (v->parent == NONE) return NULL;
    const clusim_vertex *parent = &im->vertices[v->parent];
    NEED(parent->child_lo <= row && row < parent->child_hi, "is no child of its parent");
    return NULL;
}

static const char *wrong_vertex(const clusim_image *im, uint64_t row) {
    const clusim_vertex *v = &im->vertices[row];
    if (v->unit == NONE) return NULL;
    for (uint32_t c = v->child_lo; c < v->child_hi; c++) {
        NEED(tree_edge_ok(im, &im->vertices[c], (uint32_t)row), "edge to a child does not connect");
    }
    return NULL;
}

static const char *wrong_paths(const clusim_image *im, const clusim_conn *c, uint32_t from,
                               uint32_t to) {
    NEED(from != to, "source and destination are one endpoint");
    if (c->path != NONE) {
        model_legs legs = model_legs_of(c->via_first, c->via_last, to);
        NEED(path_passes(im, c->path, from, legs), "path does not connect");
    }
    NEED(c->path_back == NONE ||
             path_joins(im, c->path_back, im->endpoints[to].node, im->endpoints[from].node),
         "path_back does not connect");
    return NULL;
}

static const char *wrong_spreading(const clusim_conn *c) {
    NEED(c->spread == NONE || (c->kind == CLUSIM_CONN_KIND_WRITE && c->path == NONE),
         "only writes without a path spread");
    NEED(c->queue_lo <= c->queue_hi, "queue pairs end before they begin");
    NEED(c->queue_lo == c->queue_hi || (c->kind == CLUSIM_CONN_KIND_WRITE && c->path == NONE &&
                                        (c->policy == CLUSIM_POLICY_PINNED || c->spread != NONE)),
         "only pinned or spread writes without a path have queue pairs");
    return NULL;
}

static bool controls_wire(const clusim_image *im, uint32_t control) {
    uint32_t mode = control == NONE ? 0 : im->controls[control].sender;
    return mode == CLUSIM_SENDER_MODE_QUEUE || mode == CLUSIM_SENDER_MODE_SCHEDULE ||
           mode == CLUSIM_SENDER_MODE_PATH;
}

static const char *wrong_extras(const clusim_image *im, const clusim_conn *c) {
    NEED(c->control == NONE || c->kind == CLUSIM_CONN_KIND_WRITE,
         "only writes are rate-controlled");
    NEED(!controls_wire(im, c->control), "its rate control is a policy of queues");
    NEED(c->kind == CLUSIM_CONN_KIND_WRITE || (c->via_first == NONE && c->via_last == NONE),
         "only writes have vias");
    NEED(c->kind == CLUSIM_CONN_KIND_WRITE || c->stage == NONE,
         "only a write connection has a stage");
    NEED(is_nic(im, c->via_first) && is_nic(im, c->via_last), "a via is an endpoint");
    NEED(!model_sends_in_order(im, c->control, c->spread),
         "a sender policy excludes receivers in order");
    return wrong_spreading(c);
}

static const char *wrong_data(const clusim_image *im, const clusim_conn *c) {
    uint32_t from = c->kind == CLUSIM_CONN_KIND_READ ? c->dst : c->src,
             to = c->kind == CLUSIM_CONN_KIND_READ ? c->src : c->dst;
    NEED(c->packet_bytes >= 1 && c->burst >= 1, "packet_bytes and burst must be positive");
    NEED((uint64_t)c->packet_bytes * c->burst <= (1u << 28), "burst is too large");
    if (c->first_group != NONE) {
        uint32_t wire = im->group_wires[im->group_off[c->first_group]];
        NEED(im->wires[wire].src == im->endpoints[from].node, "first_group leaves another node");
    }
    if (c->stage != NONE) return wrong_stage(im, c);
    if (c->kind == CLUSIM_CONN_KIND_AGGREGATION) return wrong_member(im, c);
    return c->kind == CLUSIM_CONN_KIND_MULTIMEM ? wrong_multimem(im, c)
                                                : wrong_paths(im, c, from, to);
}

static const char *wrong_conn(const clusim_image *im, uint64_t row) {
    const clusim_conn *c = &im->conns[row];
    const char *wrong = wrong_extras(im, c);
    if (wrong || c->kind == CLUSIM_CONN_KIND_FLAG) return wrong;
    return wrong_data(im, c);
}

/* Packets of a member are numbered by its connection, so it has one. */
static STATUS check_members(const clusim_image *im, clusim_error *e) {
    uint8_t *taken = calloc(im->num_vertices + 1, 1);
    if (taken == NULL) return model_no_memory(e);
    enum clusim_status status = CLUSIM_OK;
    for (uint64_t c = 0; c < im->num_conns && status == CLUSIM_OK; c++) {
        if (im->conns[c].kind != CLUSIM_CONN_KIND_AGGREGATION) continue;
        uint8_t *mine = &taken[im->conns[c].vertex];
        if (*mine) status = model_refuse(e, c, "conns", "its vertex has a connection already");
        *mine = 1;
    }
    free(taken);
    return status;
}

/* ---- programs
 * -------------------------------------------------------------------------------------- */

/* In-switch actions cannot be combined with other actions. */
static const char *wrong_opcode(const clusim_image *im, uint64_t row) {
    uint32_t flags = im->op_flags[row];
    bool alone = flags <= (CLUSIM_OP_RECV | CLUSIM_OP_SEND) || flags == CLUSIM_OP_AGGREGATE ||
                 (flags & ~(uint32_t)MODEL_OPS_MULTIMEM) == 0;
    return alone ? NULL : "flags that exclude each other";
}

static const char *wrong_prim(const clusim_image *im, uint64_t row) {
    const clusim_prim *p = &im->prims[row];
    uint32_t flags = im->op_flags[p->opcode];
    NEED(!(flags & CLUSIM_OP_RECV) || p->recv != NONE, "needs a receive connection");
    NEED(!(flags & MODEL_OPS_SENDING) || p->send != NONE, "needs a send connection");
    return NULL;
}

static const char *wrong_template(const clusim_image *im, uint64_t row) {
    const clusim_template *t = &im->templates[row];
    return t->prim_lo < t->prim_hi ? NULL : "has no primitives";
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
    NEED(at < im->num_inst_conns, "connection out of range");
    const clusim_conn *c = &im->conns[im->inst_conns[at]];
    uint32_t mine = flags == CLUSIM_OP_RECV ? c->dst : c->src;
    NEED(mine == x->endpoint, "connection of another endpoint");
    NEED((c->kind == CLUSIM_CONN_KIND_MULTIMEM) == ((flags & MODEL_OPS_MULTIMEM) != 0),
         "opcode does not fit the connection");
    NEED((c->kind == CLUSIM_CONN_KIND_AGGREGATION) == ((flags & CLUSIM_OP_AGGREGATE) != 0),
         "opcode does not fit the connection");
    NEED(c->kind >= CLUSIM_CONN_KIND_MULTIMEM ||
             (uint64_t)x->slices * x->slots_per_slice <= c->slots,
         "a piece exceeds the slots");
    NEED(c->kind != CLUSIM_CONN_KIND_MULTIMEM ||
             members_reachable(im, c, (flags & CLUSIM_OP_REDUCE) != 0),
         "the switches need routes to all members, for reductions a unit with all of them on it");
    return NULL;
}

static const char *wrong_ends(const clusim_image *im, const clusim_instance *x) {
    const clusim_template *t = &im->templates[x->template];
    for (uint32_t k = t->prim_lo; k < t->prim_hi; k++) {
        const clusim_prim *p = &im->prims[k];
        uint32_t flags = im->op_flags[p->opcode];
        const char *wrong =
            flags & CLUSIM_OP_RECV ? wrong_end(im, x, p->recv, CLUSIM_OP_RECV) : NULL;
        if (wrong == NULL && flags & MODEL_OPS_SENDING)
            wrong = wrong_end(im, x, p->send, flags & MODEL_OPS_SENDING);
        if (wrong) return wrong;
    }
    return NULL;
}

static const char *wrong_instance(const clusim_image *im, uint64_t row) {
    const clusim_instance *x = &im->instances[row];
    const clusim_task *t = &im->tasks[x->task];
    NEED(t->inst_lo <= row && row < t->inst_hi, "not of its task");
    return wrong_ends(im, x);
}

static const char *wrong_task(const clusim_image *im, uint64_t row) {
    const clusim_task *t = &im->tasks[row];
    NEED(t->inst_lo <= t->inst_hi, "instances the wrong way round");
    NEED(t->succ_lo <= t->succ_hi, "successors the wrong way round");
    NEED(t->kind != CLUSIM_TASK_KIND_KERNEL || t->sms >= 1, "a kernel needs SMs");
    for (uint32_t i = t->inst_lo; i < t->inst_hi; i++) {
        NEED(im->instances[i].task == row, "an instance of another task");
    }
    return NULL;
}

/* A task waits for exactly the tasks that name it, each row of `succ` being of one task. */
static int count_edges(const clusim_image *im, clusim_error *e, uint32_t *deps, uint8_t *taken) {
    for (uint64_t t = 0; t < im->num_tasks; t++) {
        for (uint32_t k = im->tasks[t].succ_lo; k < im->tasks[t].succ_hi; k++) {
            if (taken[k]) return model_refuse(e, t, "tasks", "successors of another task");
            taken[k] = 1;
            deps[im->succ[k]]++;
        }
    }
    for (uint64_t t = 0; t < im->num_tasks; t++) {
        if (deps[t] != im->tasks[t].num_deps)
            return model_refuse(e, t, "tasks", "num_deps is not what names it as successor");
    }
    return CLUSIM_OK;
}

static STATUS check_edges(const clusim_image *im, clusim_error *e) {
    uint32_t *deps = calloc(im->num_tasks + 1, sizeof *deps);
    uint8_t *taken = calloc(im->num_succ + 1, 1);
    enum clusim_status status =
        deps && taken ? count_edges(im, e, deps, taken) : model_no_memory(e);
    free(deps);
    free(taken);
    return status;
}

/* ---- traffic and faults
 * ------------------------------------------------------------------------------ */

static const char *wrong_source(const clusim_image *im, uint64_t row) {
    const clusim_source *s = &im->sources[row];
    NEED(!controls_wire(im, im->sources[row].control), "its rate control is a policy of queues");
    NEED(s->msg_lo <= s->msg_hi, "messages the wrong way round");
    NEED((uint64_t)s->packet_bytes * s->burst <= (1u << 28), "burst is too large");
    for (uint32_t k = s->msg_lo; k < s->msg_hi; k++) {
        const clusim_message *m = &im->messages[k];
        NEED(m->dst != s->endpoint, "a message to its own endpoint");
        NEED(k == s->msg_lo || m[-1].start_ps <= m->start_ps, "messages not by start_ps");
        NEED(is_nic(im, m->via_first) && is_nic(im, m->via_last), "a via is an endpoint");
    }
    return NULL;
}

/* A message has one source; an endpoint a slot for each of its sources. */
static int count_sources(const clusim_image *im, clusim_error *e, uint32_t *slots, uint8_t *taken) {
    for (uint64_t row = 0; row < im->num_sources; row++) {
        const clusim_source *s = &im->sources[row];
        if (++slots[s->endpoint] > im->endpoints[s->endpoint].cta_slots)
            return model_refuse(e, row, "sources", "more sources than CTA slots");
        for (uint32_t k = s->msg_lo; k < s->msg_hi; k++) {
            if (taken[k]) return model_refuse(e, row, "sources", "messages of another source");
            taken[k] = 1;
        }
    }
    for (uint64_t k = 0; k < im->num_messages; k++) {
        if (!taken[k]) return model_refuse(e, k, "messages", "has no source");
    }
    return CLUSIM_OK;
}

static STATUS check_sources(const clusim_image *im, clusim_error *e) {
    uint32_t *slots = calloc(im->num_endpoints + 1, sizeof *slots);
    uint8_t *taken = calloc(im->num_messages + 1, 1);
    enum clusim_status status =
        slots && taken ? count_sources(im, e, slots, taken) : model_no_memory(e);
    free(slots);
    free(taken);
    return status;
}

static const char *wrong_fault(const clusim_image *im, uint64_t row) {
    const clusim_fault *f = &im->faults[row];
    NEED(f->index < (f->kind == CLUSIM_FAULT_KIND_SLOW ? im->num_endpoints : im->num_wires),
         "index out of range");
    NEED(f->kind == CLUSIM_FAULT_KIND_RATE ||
             (f->num >= RANGE_SLOW_LEAST && f->num <= RANGE_SLOW_MOST),
         "factor out of range");
    NEED(f->kind == CLUSIM_FAULT_KIND_SLOW || f->num == 0 || f->den >= 1, "rate out of range");
    return NULL;
}

STATUS model_check_work(const clusim_image *im, clusim_error *e) {
    const model_table tables[] = {
        {"op_flags", im->num_op_flags, wrong_opcode},
        {"controls", im->num_controls, wrong_control},
        {"spreads", im->num_spreads, wrong_spread},
        {"vertices", im->num_vertices, wrong_kin},
        {"vertices", im->num_vertices, wrong_vertex},
        {"conns", im->num_conns, wrong_conn},
        {"prims", im->num_prims, wrong_prim},
        {"templates", im->num_templates, wrong_template},
        {"tasks", im->num_tasks, wrong_task},
        {"instances", im->num_instances, wrong_instance},
        {"sources", im->num_sources, wrong_source},
        {"faults", im->num_faults, wrong_fault},
    };
    enum clusim_status status = model_check_tables(im, tables, sizeof tables / sizeof *tables, e);
    if (status == CLUSIM_OK) status = check_members(im, e);
    if (status == CLUSIM_OK) status = check_edges(im, e);
    return status == CLUSIM_OK ? check_sources(im, e) : status;
}
