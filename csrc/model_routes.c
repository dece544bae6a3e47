/* model_routes.c - checks of an image's routes: every route continues; some may cross GPUs.
 *
 * Nodes look up targets of their zone by one column and all others by another (contract, section
 * 6), so only pairs that are ever looked up are visited: large systems have few of them. */
#include "model.h"

#define NEED(cond, what)                                                                           \
    if (!(cond)) return what

typedef struct zone_list {
    const clusim_image *im;
    uint32_t *order; /* owned; targets by zone */
    bool has_relays;
} zone_list;

typedef struct zoned {
    uint32_t zone, target;
} zoned;

static int by_zone(const void *a, const void *b) {
    const zoned *x = a, *y = b;
    if (x->zone != y->zone) return x->zone < y->zone ? -1 : 1;
    return (x->target > y->target) - (x->target < y->target);
}

/* Index in `order` of the first target of `zone` or a later one. */
static uint32_t first_of(const zone_list *z, uint32_t zone) {
    uint32_t lo = 0, hi = (uint32_t)z->im->num_targets;
    while (lo < hi) {
        uint32_t mid = lo + (hi - lo) / 2;
        if (z->im->targets[z->order[mid]].zone < zone) {
            lo = mid + 1;
        } else {
            hi = mid;
        }
    }
    return lo;
}

/* Check one route from a node towards a target; inside a zone every node must have the next hop. */
static const char *wrong_way(zone_list *z, uint32_t node, uint32_t target) {
    const clusim_image *im = z->im;
    uint32_t group = model_route_in(im, node, target);
    if (group == NONE) return NULL;
    for (uint32_t k = im->group_off[group]; k < im->group_off[group + 1]; k++) {
        const clusim_wire *w = &im->wires[im->group_wires[k]];
        NEED(w->src == node, "group does not leave this node");
        if (w->dst == im->targets[target].node) continue;
        NEED(model_route_in(im, w->dst, target) != NONE, "leads to a node without a route");
        if (im->nodes[w->dst].endpoint != NONE) z->has_relays = true;
    }
    return NULL;
}

/* Greatest columns in use: per zone they bound a node's row, over all zones its wide row. */
static const char *wrong_columns(const zone_list *z, uint32_t node, uint64_t widest) {
    const clusim_image *im = z->im;
    const clusim_node *n = &im->nodes[node];
    uint32_t lo = first_of(z, n->zone);
    bool all_here = lo == 0;
    for (uint32_t i = lo; i < im->num_targets && im->targets[z->order[i]].zone == n->zone; i++) {
        NEED(n->route_lo + im->targets[z->order[i]].local < im->num_routes, "column out of range");
        all_here = all_here && i + 1 == im->num_targets;
    }
    if (all_here) return NULL;
    NEED(n->wide_lo + widest * n->wide_stride < im->num_routes, "wide column out of range");
    return NULL;
}

static const char *wrong_node_routes(zone_list *z, uint32_t node) {
    const clusim_image *im = z->im;
    uint32_t zone = im->nodes[node].zone;
    for (uint32_t i = first_of(z, zone);
         i < im->num_targets && im->targets[z->order[i]].zone == zone; i++) {
        const char *wrong = wrong_way(z, node, z->order[i]);
        if (wrong) return wrong;
    }
    if (im->nodes[node].wide_stride == 0) return NULL;
    for (uint32_t t = 0; t < im->num_targets; t++) {
        const char *wrong = im->targets[t].zone == zone ? NULL : wrong_way(z, node, t);
        if (wrong) return wrong;
    }
    return NULL;
}

/* A single group for everything outside: it must exist and leave the node. */
static const char *wrong_gateway(const zone_list *z, uint32_t node) {
    const clusim_image *im = z->im;
    const clusim_node *n = &im->nodes[node];
    if (n->wide_stride || n->wide_lo >= im->num_routes) return NULL;
    uint32_t group = im->routes[n->wide_lo];
    if (group == NONE) return NULL;
    NEED(im->wires[im->group_wires[im->group_off[group]]].src == node,
         "wide group of another node");
    return NULL;
}

static bool path_relays(const clusim_image *im) {
    for (uint64_t p = 0; p + 1 < im->num_path_off; p++) {
        for (uint32_t k = im->path_off[p]; k + 1 < im->path_off[p + 1]; k++) {
            if (im->nodes[im->wires[im->path_wires[k]].dst].endpoint != NONE) return true;
        }
    }
    return false;
}

static const char *wrong_routes(zone_list *z, uint64_t *row) {
    const clusim_image *im = z->im;
    uint64_t widest = 0;
    for (uint32_t t = 0; t < im->num_targets; t++) {
        widest = base_umax(widest, im->targets[t].wide);
    }
    const char *wrong = NULL;
    for (uint32_t n = 0; n < im->num_nodes && !wrong; n++) {
        *row = n;
        if (im->num_targets) wrong = wrong_columns(z, n, widest);
        if (!wrong) wrong = wrong_gateway(z, n);
    }
    for (uint32_t n = 0; n < im->num_nodes && !wrong; n++) {
        *row = n;
        wrong = wrong_node_routes(z, n);
    }
    return wrong;
}

static STATUS sort_targets(zone_list *z) {
    uint64_t n = z->im->num_targets;
    zoned *pairs = malloc((n + 1) * sizeof *pairs);
    z->order = malloc((n + 1) * sizeof *z->order);
    if (pairs && z->order) {
        for (uint32_t t = 0; t < n; t++) pairs[t] = (zoned){z->im->targets[t].zone, t};
        qsort(pairs, n, sizeof *pairs, by_zone);
        for (uint32_t t = 0; t < n; t++) z->order[t] = pairs[t].target;
    }
    bool ok = pairs && z->order;
    free(pairs);
    return ok ? CLUSIM_OK : CLUSIM_ERR_NO_MEMORY;
}

STATUS model_check_routes(const clusim_image *im, clusim_error *e, bool *has_relays) {
    zone_list z = {.im = im};
    uint64_t row = 0;
    if (sort_targets(&z) != CLUSIM_OK) {
        free(z.order);
        return model_no_memory(e);
    }
    const char *wrong = wrong_routes(&z, &row);
    *has_relays = z.has_relays || path_relays(im);
    free(z.order);
    return wrong ? model_refuse(e, row, "routes of node", wrong) : CLUSIM_OK;
}
