/* model_ways.c - wherever packets may go, they find the way on: by the routes from every hop of
 * every connection and message to the next target, and back over the wires by which requests come.
 *
 * Routes are checked where they are used, because a node outside a machine need not know all that
 * is inside. A way is walked once for its two ends; channels between them are mostly neighbours.
 */
#include <string.h>

#include "model.h"

enum { KNOWN = 1 << 12 };

typedef struct walk {
    const clusim_image *im;
    uint32_t *seen;  /* owned; per node: number of the walk that came by last */
    uint32_t *stack; /* owned; nodes to go on from */
    uint32_t number; /* of the present walk */
    bool has_relays;
    bool records;       /* whether a walk notes the wires by which it arrives */
    uint32_t *arrivals; /* owned */
    uint32_t num_arrivals;
    uint32_t known_from[KNOWN], known_to[KNOWN]; /* ways that were walked, by hash */
} walk;

static uint32_t slot_of(uint32_t from, uint32_t to) {
    return (uint32_t)((from * UINT64_C(0x9E3779B97F4A7C15) ^ to * UINT64_C(0xBF58476D1CE4E5B9)) >>
                      40) %
           KNOWN;
}

/* Visit what may come after a node on the way to a target. */
static const char *go_on(walk *w, uint32_t node, uint32_t target, uint32_t *height) {
    const clusim_image *im = w->im;
    uint32_t goal = im->targets[target].node, group = model_route_in(im, node, target);
    if (group == NONE) return "no route between the two ends";
    for (uint32_t k = im->group_off[group]; k < im->group_off[group + 1]; k++) {
        const clusim_wire *x = &im->wires[im->group_wires[k]];
        if (x->src != node) return "a route does not leave its node";
        if (x->dst == goal) {
            if (w->records) w->arrivals[w->num_arrivals++] = im->group_wires[k];
            continue;
        }
        if (w->seen[x->dst] == w->number) continue;
        if (im->nodes[x->dst].endpoint != NONE) w->has_relays = true;
        w->seen[x->dst] = w->number;
        w->stack[(*height)++] = x->dst;
    }
    return NULL;
}

/* Walk all ways from a node to a target; afterwards `seen` marks the nodes before the target. */
static const char *walk_from(walk *w, uint32_t node, uint32_t target) {
    if (++w->number == 0) {
        memset(w->seen, 0, (w->im->num_nodes + 1) * sizeof *w->seen);
        w->number = 1;
    }
    if (node == w->im->targets[target].node) return NULL;
    uint32_t height = 1;
    w->stack[0] = node;
    w->seen[node] = w->number;
    while (height) {
        const char *wrong = go_on(w, w->stack[--height], target, &height);
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
        const char *wrong = walk_legs(w, im->wires[im->group_wires[k]].dst, legs);
        if (wrong) return wrong;
    }
    return NULL;
}

/* A response leaves over the opposite of the wire on which its request came. */
static const char *walk_back(walk *w, uint32_t wire, uint32_t requester) {
    uint32_t reverse = w->im->wires[wire].reverse;
    if (reverse == NONE) return "a response has no wire back";
    if (w->im->nodes[w->im->wires[reverse].dst].endpoint == requester) return NULL;
    return walk_once(w, w->im->wires[reverse].dst, requester);
}

/* Requests that come by the routes, from a node on, and their responses. */
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
        uint32_t wire = im->group_wires[k], node = im->wires[wire].dst;
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
            const char *wrong = walk_once(w, node, im->mgroup_members[j]);
            if (wrong) return wrong;
        }
    }
    return NULL;
}

static const char *ways_of_conn(walk *w, const clusim_conn *c) {
    if (c->kind == 1) return ways_of_read(w, c);
    if (c->kind == 3) return ways_of_multimem(w, c);
    if (c->kind != 0 || c->path != NONE) return NULL;
    uint32_t to = c->stage == NONE ? c->dst : c->stage;
    model_legs legs = model_legs_of(c->via_first, c->via_last, to);
    const char *wrong = walk_out(w, c->src, c->first_group, legs);
    if (wrong || c->stage == NONE) return wrong;
    return walk_read(w, NONE, c->dst, c->stage);
}

static int check_ways(walk *w, clusim_error *e) {
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
    return CLUSIM_OK;
}

int model_check_ways(const clusim_image *im, clusim_error *e, bool *has_relays) {
    walk *w = malloc(sizeof *w);
    if (w == NULL) return model_no_memory(e);
    *w = (walk){.im = im};
    memset(w->known_from, 0xFF, sizeof w->known_from);
    w->seen = calloc(im->num_nodes + 1, sizeof *w->seen);
    w->stack = malloc((im->num_nodes + 1) * sizeof *w->stack);
    w->arrivals = malloc((im->num_wires + 1) * sizeof *w->arrivals);
    bool ok = w->seen && w->stack && w->arrivals;
    int status = ok ? check_ways(w, e) : model_no_memory(e);
    *has_relays |= w->has_relays;
    free(w->seen);
    free(w->stack);
    free(w->arrivals);
    free(w);
    return status;
}
