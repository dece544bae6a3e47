/* route.h - routes of packets, and their size and VC on the wires.
 *
 * Hardware  Destination tables in switches, adaptive or hashed choice among parallel links.
 * Model     Contract, sections 4 (dates and VCs), 5 and 6 (route choice, vias, cutting).
 * Not modelled  Tables that change, congestion of more than the next hop. */
#ifndef CLUSIM_ROUTE_H
#define CLUSIM_ROUTE_H

#include "parts/wires.h"
#include "state.h"

/* The same for several wires, if some are down, or packets or a policy choose. */
wire_id route_choose_up(clusim_sim *s, packet *p, wire_id from, group_id group);

/* Choose the wire out of the far node of wire `from` towards `target`; uses up part of p->key. */
static inline wire_id route_choose(clusim_sim *s, packet *p, wire_id from, target_id target) {
    const clusim_model *m = s->model;
    const wire_end *end = end_at(s, from);
    if (UNLIKELY(p->path_pos != NONE)) return ID(wire, m->image.path_wires[p->path_pos++]);
    group_id group = model_route(m, end->node, target);
    model_way way = m->ways[group.i];
    uint32_t n = way.count;
    if (n == 1) return way.first;
    if (UNLIKELY(s->wires.any_choice || p->adaptive)) return route_choose_up(s, p, from, group);
    uint32_t number = (uint32_t)(((uint64_t)p->key + end->ordinal) % n);
    p->key /= n;
    return ID(wire, model_group(m, group)[number]);
}

/* Estimated next wire of the packet at `node`: wire q of the contract. */
wire_id route_onward(const clusim_sim *s, const packet *p, node_id node);

/* Set them for a packet that starts again over `out`, on virtual channel `vc`. */
void route_restart(const clusim_sim *s, packet *p, wire_id out, uint32_t vc);

/* Cut a packet as the format of `out` has it. */
void route_cut(const clusim_sim *s, packet *p, wire_id out);

/* The packet is at `node`: if that is its target and not the last, aim at the next; it may begin or
 * end a detour there. */
void route_next_target(const clusim_sim *s, packet *p, node_id node);

/* Replace the choice by a wire of a minimal path, if the packet may use one and has credit. */
bool route_minimal(clusim_sim *s, packet *p, wire_id from);

/* VC on the first wire of a packet, and on the wire after `from` (contract, section 4). */
static inline uint32_t route_first_vc(const clusim_sim *s, wire_id wire, uint32_t vc) {
    if (LIKELY(!s->model->has_dims) || !info_at(s, wire)->dateline) return vc;
    return vc + 1 < s->wires.nvc ? vc + 1 : s->wires.nvc - 1;
}

static inline bool same_format(const wire_state *a, const wire_state *b) {
    return a->rate == b->rate || a->rate->format == b->rate->format;
}

/* Set the wire bytes and VC of a packet that continues (not: starts) over `out` after `from`. */
static inline void route_prepare(clusim_sim *s, packet *p, wire_id from, wire_id out) {
    if (LIKELY(!s->model->has_formats) || same_format(wire_at(s, out), wire_at(s, from))) {
        p->out = out;
    } else {
        route_cut(s, p, out);
    }
    if (LIKELY(!s->model->has_dims)) return;
    if (UNLIKELY(p->adaptive) && route_minimal(s, p, from)) return;
    const wire_info *a = info_at(s, from), *b = info_at(s, out);
    if (a->dim != b->dim) p->vc = p->first_vc;
    if (b->dateline) p->vc = (uint8_t)route_first_vc(s, out, p->first_vc);
}

#endif
