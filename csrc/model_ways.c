/* model_ways.c - check that packets can proceed wherever they may be: by the routes from every hop
 * of every connection and message to the next target, and back over the wires of the requests.
 *
 * Routes are checked where they are used, because a node outside a server need not have routes to
 * everything inside. A route is walked once per pair of ends; channels between them are mostly
 * adjacent. */
#include <string.h>

#include "model.h"

enum { KNOWN = 1 << 12 };

typedef struct way_step {
    uint32_t node, next; /* next wire of its route to follow */
} way_step;

typedef struct walk {
    const clusim_image *im;
    uint32_t *seen;  /* owned; per node: number of the walk that is on it, plus 1 if it is done */
    way_step *stack; /* owned; the way from its start to where it is */
    uint32_t number; /* of the present walk, even */
    bool has_relays;
    const clusim_conn *multicast; /* multicast that must fit in the buffers of the route, or NULL */
    bool records;                 /* true if a walk records the wires by which it arrives */
    uint32_t *arrivals;           /* owned */
    uint32_t num_arrivals;
    uint32_t known_from[KNOWN], known_to[KNOWN]; /* ways that were walked, by hash */
} walk;

static uint32_t slot_of(uint32_t from, uint32_t to) {
    return (uint32_t)((from * UINT64_C(0x9E3779B97F4A7C15) ^ to * UINT64_C(0xBF58476D1CE4E5B9)) >>
                      40) %
           KNOWN;
}

/* True if a buffer of a wire can never hold a multicast packet. No task waits for such a packet, so
 * the run would end with it in the network. */
static bool is_stuck(const clusim_image *im, const clusim_conn *c, const clusim_wire *x) {
    if (c == NULL || x->xoff_bytes) return false;
    const clusim_format *f = &im->formats[x->format];
    uint32_t full = c->packet_bytes * c->burst;
    uint32_t exact = model_exact(f, CLUSIM_KIND_MCAST, full, c->packet_bytes);
    return model_wire_bytes(f, CLUSIM_KIND_MCAST, full, exact, c->packet_bytes) > x->buffer_bytes;
}

/* Check the next wire of the route at the top of the stack, and follow it. */
static const char *go_on(walk *w, uint32_t target, uint32_t *height) {
    const clusim_image *im = w->im;
    way_step *top = &w->stack[*height - 1];
    uint32_t goal = im->targets[target].node, group = model_route_in(im, top->node, target);
    if (group == NONE) return "no route between the two ends";
    if (top->next == model_part_size(im->group_off, group)) {
        w->seen[top->node] = w->number + 1;
        --*height;
        return NULL;
    }
    uint32_t wire = im->group_wires[im->group_off[group] + top->next++];
    const clusim_wire *x = &im->wires[wire];
    if (x->src != top->node) return "a route does not leave its node";
    if (is_stuck(im, w->multicast, x)) return "a multicast packet is larger than a buffer";
    if (x->dst == goal) {
        if (w->records) w->arrivals[w->num_arrivals++] = wire;
        return NULL;
    }
    if (w->seen[x->dst] == w->number) return "routes lead in a circle";
    if (w->seen[x->dst] == w->number + 1) return NULL;
    if (im->nodes[x->dst].endpoint != NONE) w->has_relays = true;
    w->seen[x->dst] = w->number;
    w->stack[(*height)++] = (way_step){x->dst, 0};
    return NULL;
}

/* Walk all ways from a node to a target. */
static const char *walk_from(walk *w, uint32_t node, uint32_t target) {
    w->number += 2;
    if (w->number >= UINT32_MAX - 2) {
        memset(w->seen, 0, (w->im->num_nodes + 1) * sizeof *w->seen);
        w->number = 2;
    }
    if (node == w->im->targets[target].node) return NULL;
    uint32_t height = 1;
    w->stack[0] = (way_step){node, 0};
    w->seen[node] = w->number;
    while (height) {
        const char *wrong = go_on(w, target, &height);
        if (wrong) return wrong;
    }
    return NULL;
}

static const char *walk_once(walk *w, uint32_t node, uint32_t target) {
    uint32_t slot = slot_of(node, target);
    if (w->known_from[slot] == node && w->known_to[slot] == target) return NULL;
    const char *wrong = walk_from(w, node, target);
    w->known_from[slot] = node;
    w->known_to[slot] = target;
    return wrong;
}

/* Node at the end of a first wire towards a more distant target. */
static uint32_t first_node(walk *w, uint32_t wire, uint32_t target) {
    uint32_t node = w->im->wires[wire].dst;
    if (w->im->nodes[node].endpoint != NONE && node != w->im->targets[target].node)
        w->has_relays = true;
    return node;
}

/* From a node over all targets. */
static const char *walk_legs(walk *w, uint32_t node, model_legs legs) {
    for (uint32_t k = 0; k < legs.count; k++) {
        const char *wrong = walk_once(w, node, legs.targets[k]);
        if (wrong) return wrong;
        node = w->im->targets[legs.targets[k]].node;
    }
    return NULL;
}

/* The same, the first hop by the wires of a group if one is given. */
static const char *walk_out(walk *w, uint32_t endpoint, uint32_t group, model_legs legs) {
    const clusim_image *im = w->im;
    if (group == NONE) return walk_legs(w, im->endpoints[endpoint].node, legs);
    for (uint32_t k = im->group_off[group]; k < im->group_off[group + 1]; k++) {
        uint32_t node = first_node(w, im->group_wires[k], legs.targets[0]);
        const char *wrong = walk_legs(w, node, legs);
        if (wrong) return wrong;
    }
    return NULL;
}

/* A response leaves over the opposite wire of its request. */
static const char *walk_back(walk *w, uint32_t wire, uint32_t requester) {
    uint32_t reverse = w->im->wires[wire].reverse;
    if (reverse == NONE) return "a response has no wire back";
    return walk_once(w, first_node(w, reverse, requester), requester);
}

/* Walk requests that follow the routes from a node on, and their responses. */
static const char *walk_there_and_back(walk *w, uint32_t node, uint32_t requester,
                                       uint32_t responder) {
    w->num_arrivals = 0;
    w->records = true;
    const char *wrong = walk_from(w, node, responder);
    w->records = false;
    for (uint32_t k = 0; k < w->num_arrivals && !wrong; k++) {
        wrong = walk_back(w, w->arrivals[k], requester);
    }
    return wrong;
}

/* A read without paths: requests of one endpoint to another, responses back. */
static const char *walk_read(walk *w, uint32_t group, uint32_t requester, uint32_t responder) {
    const clusim_image *im = w->im;
    if (group == NONE)
        return walk_there_and_back(w, im->endpoints[requester].node, requester, responder);
    for (uint32_t k = im->group_off[group]; k < im->group_off[group + 1]; k++) {
        uint32_t wire = im->group_wires[k], node = first_node(w, wire, responder);
        bool there = node == im->endpoints[responder].node;
        const char *wrong = there ? walk_back(w, wire, requester)
                                  : walk_there_and_back(w, node, requester, responder);
        if (wrong) return wrong;
    }
    return NULL;
}

/* ---- connections and messages ------------------------------------------------------------------
 */

static const char *ways_of_read(walk *w, const clusim_conn *c) {
    const clusim_image *im = w->im;
    if (c->path == NONE) {
        if (c->path_back == NONE) return walk_read(w, c->first_group, c->dst, c->src);
        return walk_out(w, c->dst, c->first_group, model_legs_of(NONE, NONE, c->src));
    }
    if (c->path_back != NONE) return NULL;
    return walk_back(w, im->path_wires[im->path_off[c->path + 1] - 1], c->dst);
}

/* Multicasts spread at the first switch. */
static const char *ways_of_multimem(walk *w, const clusim_conn *c) {
    const clusim_image *im = w->im;
    for (uint32_t k = im->group_off[c->first_group]; k < im->group_off[c->first_group + 1]; k++) {
        uint32_t node = im->wires[im->group_wires[k]].dst;
        for (uint32_t j = im->mgroup_off[c->mgroup]; j < im->mgroup_off[c->mgroup + 1]; j++) {
            w->multicast = c;
            const char *wrong = walk_from(w, node, im->mgroup_members[j]);
            w->multicast = NULL;
            if (wrong) return wrong;
        }
    }
    return NULL;
}

static const char *ways_of_conn(walk *w, const clusim_conn *c) {
    if (c->kind == CLUSIM_CONN_KIND_READ) return ways_of_read(w, c);
    if (c->kind == CLUSIM_CONN_KIND_MULTIMEM) return ways_of_multimem(w, c);
    if (c->kind != CLUSIM_CONN_KIND_WRITE || c->path != NONE) return NULL;
    uint32_t to = c->stage == NONE ? c->dst : c->stage;
    model_legs legs = model_legs_of(c->via_first, c->via_last, to);
    const char *wrong = walk_out(w, c->src, c->first_group, legs);
    if (wrong || c->stage == NONE) return wrong;
    return walk_read(w, NONE, c->dst, c->stage);
}

/* ---- detours -----------------------------------------------------------------------------------
 */

/* Nodes at which detours end, and targets of packets on them. */
typedef struct detours {
    uint8_t *ends, *goals; /* owned */
} detours;

/* True if packets may choose a detour at a node. */
static bool may_turn(const clusim_image *im, uint32_t node) {
    const clusim_node *n = &im->nodes[node];
    return n->endpoint == NONE && !(n->flags & CLUSIM_NODE_FLAG_BRIDGE);
}

/* Walk from all nodes that may choose a detour to its last node. */
static const char *walk_detours(walk *w, const clusim_spread *spread, uint8_t *ends) {
    const clusim_image *im = w->im;
    const char *wrong = NULL;
    bool relays = w->has_relays;
    w->has_relays = false;
    w->records = true;
    for (uint32_t n = 0; n < im->num_nodes && !wrong; n++) {
        for (uint32_t v = spread->detour_lo; v < spread->detour_hi && !wrong; v++) {
            if (!may_turn(im, n) || model_route_in(im, n, v) == NONE) continue;
            w->num_arrivals = 0;
            wrong = walk_from(w, n, v);
            for (uint32_t k = 0; k < w->num_arrivals; k++) ends[im->wires[w->arrivals[k]].src] = 1;
            if (!wrong && w->has_relays) wrong = "a detour passes an endpoint";
        }
    }
    w->records = false;
    w->has_relays = relays;
    return wrong;
}

static void note_goals(const clusim_image *im, uint32_t row, uint8_t *goals) {
    for (uint64_t c = 0; c < im->num_conns; c++) {
        const clusim_conn *x = &im->conns[c];
        if (x->spread == row) goals[x->via_last == NONE ? x->dst : x->via_last] = 1;
    }
    for (uint64_t k = 0; k < im->num_sources; k++) {
        const clusim_source *s = &im->sources[k];
        for (uint32_t m = s->msg_lo; s->spread == row && m < s->msg_hi; m++) {
            const clusim_message *x = &im->messages[m];
            goals[x->via_last == NONE ? x->dst : x->via_last] = 1;
        }
    }
}

/* From every end of a detour a route must lead to every target of its packets. */
static const char *ways_of_spread(walk *w, uint32_t row, detours *d) {
    const clusim_image *im = w->im;
    const clusim_spread *spread = &im->spreads[row];
    if (spread->detour_lo == spread->detour_hi) return NULL;
    memset(d->ends, 0, im->num_nodes + 1);
    memset(d->goals, 0, im->num_targets + 1);
    note_goals(im, row, d->goals);
    const char *wrong = walk_detours(w, spread, d->ends);
    for (uint32_t n = 0; n < im->num_nodes && !wrong; n++) {
        for (uint32_t t = 0; t < im->num_targets && d->ends[n] && !wrong; t++) {
            if (d->goals[t]) wrong = walk_once(w, n, t);
        }
    }
    return wrong;
}

static STATUS check_detours(walk *w, clusim_error *e) {
    const clusim_image *im = w->im;
    if (im->num_spreads == 0) return CLUSIM_OK;
    detours d = {calloc(im->num_nodes + 1, 1), calloc(im->num_targets + 1, 1)};
    enum clusim_status status = d.ends && d.goals ? CLUSIM_OK : model_no_memory(e);
    for (uint32_t row = 0; row < im->num_spreads && status == CLUSIM_OK; row++) {
        const char *wrong = ways_of_spread(w, row, &d);
        if (wrong) status = model_refuse(e, row, "spreads", wrong);
    }
    free(d.ends);
    free(d.goals);
    return status;
}

static STATUS check_ways(walk *w, clusim_error *e) {
    const clusim_image *im = w->im;
    for (uint64_t row = 0; row < im->num_conns; row++) {
        const char *wrong = ways_of_conn(w, &im->conns[row]);
        if (wrong) return model_refuse(e, row, "conns", wrong);
    }
    for (uint64_t row = 0; row < im->num_sources; row++) {
        const clusim_source *s = &im->sources[row];
        for (uint32_t k = s->msg_lo; k < s->msg_hi; k++) {
            const clusim_message *m = &im->messages[k];
            const char *wrong =
                walk_out(w, s->endpoint, NONE, model_legs_of(m->via_first, m->via_last, m->dst));
            if (wrong) return model_refuse(e, row, "sources", wrong);
        }
    }
    return check_detours(w, e);
}

STATUS model_check_ways(const clusim_image *im, clusim_error *e, bool *has_relays) {
    walk *w = malloc(sizeof *w);
    if (w == NULL) return model_no_memory(e);
    *w = (walk){.im = im};
    memset(w->known_from, 0xFF, sizeof w->known_from);
    w->seen = calloc(im->num_nodes + 1, sizeof *w->seen);
    w->stack = malloc((im->num_nodes + 1) * sizeof *w->stack);
    w->arrivals = malloc((im->num_wires + 1) * sizeof *w->arrivals);
    bool ok = w->seen && w->stack && w->arrivals;
    enum clusim_status status = ok ? check_ways(w, e) : model_no_memory(e);
    *has_relays |= w->has_relays;
    free(w->seen);
    free(w->stack);
    free(w->arrivals);
    free(w);
    return status;
}
