#include "route.h"

#include "parts/wires.h"
#include "parts/xfers.h"
#include "path_policy.h"
#include "spread.h"
#include "tree.h"

wire_id route_choose_up(clusim_sim *s, packet *p, wire_id from, group_id group) {
    const wire_end *end = end_at(s, from);
    uint32_t size = model_group_size(s->model, group);
    spread_choice c = spread_among(s, model_group(s->model, group), size, end->node);
    if (c.up == 1) return spread_nth(s, &c, 0);
    wire_id chosen = path_policy_choose(s, p, &c);
    if (!wire_none(chosen)) return chosen;
    if (p->adaptive) return spread_choose(s, p, &c);
    uint32_t number = (uint32_t)(((uint64_t)p->key + end->ordinal) % c.up);
    p->key /= c.up;
    return spread_nth(s, &c, number);
}

bool route_minimal(clusim_sim *s, packet *p, wire_id from) {
    const clusim_spread *spread = spread_of(s, xfer_at(s, p->xfer));
    if (spread == NULL || spread->minimal_vc == 0) return false;
    if (p->vc == spread->minimal_vc) p->vc = p->first_vc;
    wire_id best = spread_minimal(s, p, end_at(s, from)->node);
    if (wire_none(best)) return false;
    route_cut(s, p, best);
    p->vc = (uint8_t)spread->minimal_vc;
    spread_promise(s, p);
    return true;
}

static void next_target(const clusim_sim *s, packet *p, node_id node) {
    const xfer *x = xfer_at(s, p->xfer);
    const clusim_target *targets = s->model->image.targets;
    uint32_t leg = p->leg == LEG_FREE ? p->after : p->leg;
    while (leg != LEG_LAST && targets[p->dst.i].node == node.i) {
        bool second = leg == LEG_FIRST && !target_none(x->via_last);
        leg = second ? LEG_SECOND : LEG_LAST;
        p->dst = second ? x->via_last : x->dst;
    }
    if (p->leg == LEG_FREE) {
        p->after = leg & 3;
    } else {
        p->leg = leg & 3;
    }
}

void route_next_target(const clusim_sim *s, packet *p, node_id node) {
    if (p->leg == LEG_FREE && p->away) spread_turn(s, p, node);
    if (p->leg == LEG_FREE && p->away) return;
    next_target(s, p, node);
    if (p->leg == LEG_FREE) spread_turn(s, p, node);
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
    } else if (UNLIKELY(p->leg != LEG_LAST) && !(p->leg == LEG_FREE && p->away)) {
        packet ahead = *p;
        next_target(s, &ahead, node);
        dst = ahead.dst;
    }
    return m->group_fastest[model_route(m, node, dst).i];
}
