#include "route.h"

#include "parts/xfers.h"
#include "tree.h"

static wire_id least_queued(const clusim_sim *s, const uint32_t *wires, uint32_t n,
                            bool skip_down) {
    wire_id best = NO(wire);
    uint64_t least = UINT64_MAX;
    for (uint32_t k = 0; k < n; k++) {
        const wire_state *w = wire_at(s, ID(wire, wires[k]));
        if (skip_down && w->down) continue;
        uint64_t queued = w->queued_bytes;
        if (queued < least || (queued == least && wires[k] < best.i)) {
            best = ID(wire, wires[k]);
            least = queued;
        }
    }
    return best;
}

/* The `number`-th wire of a group that is not down. */
static wire_id nth_up(const clusim_sim *s, const uint32_t *wires, uint32_t number) {
    for (uint32_t k = 0;; k++) {
        wire_id wire = ID(wire, wires[k]);
        if (!wire_at(s, wire)->down && number-- == 0) return wire;
    }
}

wire_id route_choose_up(clusim_sim *s, packet *p, wire_id from, group_id group) {
    const uint32_t *wires = model_group(s->model, group);
    uint32_t all = model_group_size(s->model, group), up = 0;
    for (uint32_t k = 0; k < all; k++) up += !wire_at(s, ID(wire, wires[k]))->down;
    bool skip_down = up > 0 && up < all;
    uint32_t n = skip_down ? up : all;
    if (p->adaptive) return least_queued(s, wires, all, skip_down);
    if (n == 1) return nth_up(s, wires, 0);
    uint32_t number = (uint32_t)(((uint64_t)p->key + end_at(s, from)->ordinal) % n);
    p->key /= n;
    return skip_down ? nth_up(s, wires, number) : ID(wire, wires[number]);
}

void route_next_target(const clusim_sim *s, packet *p, node_id node) {
    const xfer *x = xfer_at(s, p->xfer);
    const clusim_target *targets = s->model->image.targets;
    while (p->leg != LEG_LAST && targets[p->dst.i].node == node.i) {
        bool second = p->leg == LEG_FIRST && !target_none(x->via_last);
        p->leg = second ? LEG_SECOND : LEG_LAST;
        p->dst = second ? x->via_last : x->dst;
    }
}

void route_cut(const clusim_sim *s, packet *p, wire_id out) {
    const clusim_format *f = wire_at(s, out)->rate->format;
    uint32_t limit = xfer_at(s, p->xfer)->limit;
    p->out = out;
    p->exact = model_exact(f, p->kind, p->payload, limit);
    p->wire_bytes = model_wire_bytes(f, p->kind, p->payload, p->exact, limit);
}

void route_restart(const clusim_sim *s, packet *p, wire_id out, uint32_t vc) {
    route_cut(s, p, out);
    p->first_vc = (uint8_t)vc;
    p->vc = (uint8_t)route_first_vc(s, out, vc);
}

wire_id route_onward(const clusim_sim *s, const packet *p, node_id node) {
    const clusim_model *m = s->model;
    if (p->path_pos != NONE) {
        if (UNLIKELY(p->kind == CLUSIM_KIND_AGG_DOWN) && tree_at_end(s, p))
            return tree_onward(s, p);
        return ID(wire, m->image.path_wires[p->path_pos]);
    }
    target_id dst = p->dst;
    if (p->kind == CLUSIM_KIND_MCAST && !p->copy) {
        dst =
            ID(target, m->image.mgroup_members[m->image.mgroup_off[xfer_at(s, p->xfer)->mgroup.i]]);
    } else if (UNLIKELY(p->leg != LEG_LAST)) {
        packet ahead = *p;
        route_next_target(s, &ahead, node);
        dst = ahead.dst;
    }
    return m->group_fastest[model_route(m, node, dst).i];
}
