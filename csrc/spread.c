#include "spread.h"

#include <string.h>

#include "lines.h"
#include "parts/scheduler.h"
#include "parts/spreads.h"
#include "parts/wires.h"
#include "parts/xfers.h"

STATUS spread_init(clusim_sim *s) {
    const clusim_image *im = &s->model->image;
    bool minimal = false;
    for (uint64_t row = 0; row < im->num_spreads; row++) minimal |= im->spreads[row].minimal_vc > 0;
    if (minimal) ZEROED(s->spreads.promised, im->num_wires * s->wires.nvc);
    return lines_init(s);
}

void spread_free(clusim_sim *s) {
    free(s->spreads.all);
    free(s->spreads.promised);
    lines_free(s);
}

/* ---- load --------------------------------------------------------------------------------------
 */

spread_choice spread_among(const clusim_sim *s, const uint32_t *wires, uint32_t count,
                           node_id node) {
    spread_choice c = {.wires = wires, .all = count, .node = node};
    for (uint32_t k = 0; k < count; k++) c.up += !wire_at(s, ID(wire, wires[k]))->down;
    if (c.up == 0) c.up = count;
    return c;
}

static bool usable(const clusim_sim *s, const spread_choice *c, uint32_t wire) {
    return c->up == c->all || !wire_at(s, ID(wire, wire))->down;
}

wire_id spread_nth(const clusim_sim *s, const spread_choice *c, uint32_t number) {
    uint32_t k = 0;
    while (!usable(s, c, c->wires[k]) || number-- > 0) k++;
    return ID(wire, c->wires[k]);
}

int64_t spread_credit(const clusim_sim *s, wire_id wire, uint32_t vc) {
    const credit_pool *c = &wire_at(s, wire)->credits[vc];
    int64_t sum = c->available;
    for (uint32_t k = c->head; k < c->end; k++) {
        const credit_return *r = &c->pending[k];
        if (r->at_ps < s->scheduler.now_ps) sum += r->bytes;
    }
    return sum;
}

/* Bytes in the buffer at the far end of a wire, or on the way, before the present time. */
static int64_t occupied(const clusim_sim *s, wire_id wire) {
    if (wire_at(s, wire)->traits & PAUSES) return 0;
    int64_t sum = 0, buffer = (int64_t)s->model->image.wires[wire.i].buffer_bytes;
    for (uint32_t vc = 0; vc < s->wires.nvc; vc++) sum += buffer - spread_credit(s, wire, vc);
    return sum;
}

static uint64_t load(const clusim_sim *s, const clusim_spread *spread, wire_id wire) {
    uint64_t queued = wire_at(s, wire)->queued_bytes;
    if (spread == NULL || spread->estimate == CLUSIM_LOAD_QUEUE) return queued;
    return queued + (uint64_t)occupied(s, wire);
}

/* Without a spread the lowest of equally loaded wires; otherwise chance decides. */
static wire_id least(const clusim_sim *s, const packet *p, const spread_choice *c,
                     uint64_t *least_load) {
    const clusim_spread *spread = spread_of(s, xfer_at(s, p->xfer));
    uint32_t start = 0, best_rank = 0, number = 0;
    if (spread) start = base_hash32(s->model->image.seed, c->node.i, p->key) % c->up;
    wire_id best = NO(wire);
    *least_load = UINT64_MAX;
    for (uint32_t k = 0; k < c->all; k++) {
        if (!usable(s, c, c->wires[k])) continue;
        uint32_t rank = number < start ? number + c->up - start : number - start;
        if (spread == NULL) rank = c->wires[k];
        uint64_t found = load(s, spread, ID(wire, c->wires[k]));
        if (found < *least_load || (found == *least_load && rank < best_rank)) {
            best = ID(wire, c->wires[k]);
            best_rank = rank;
            *least_load = found;
        }
        number++;
    }
    return best;
}

wire_id spread_least(const clusim_sim *s, const packet *p, const spread_choice *c) {
    uint64_t found;
    return least(s, p, c, &found);
}

/* ---- flowlets ----------------------------------------------------------------------------------
 */

/* The entry of a key, or the empty one where it belongs. */
static flowlet *entry_of(const spreads_part *part, const flowlet *key) {
    uint64_t hash = base_mix(base_mix(key->node.i, key->target.i), key->flow.i);
    for (uint32_t k = (uint32_t)hash & (part->size - 1);; k = (k + 1) & (part->size - 1)) {
        flowlet *f = &part->all[k];
        if (node_none(f->node) || (node_is(f->node, key->node) && flow_is(f->flow, key->flow) &&
                                   target_is(f->target, key->target)))
            return f;
    }
}

/* Double the table; at least half is empty. */
static bool grow(spreads_part *part) {
    spreads_part bigger = *part;
    bigger.size = part->size ? 2 * part->size : 64;
    bigger.all = malloc(bigger.size * sizeof *bigger.all);
    if (bigger.all == NULL) return false;
    memset(bigger.all, 0xFF, bigger.size * sizeof *bigger.all);
    for (uint32_t k = 0; k < part->size; k++) {
        if (!node_none(part->all[k].node)) *entry_of(&bigger, &part->all[k]) = part->all[k];
    }
    free(part->all);
    *part = bigger;
    return true;
}

wire_id spread_choose(clusim_sim *s, const packet *p, const spread_choice *c) {
    const xfer *x = xfer_at(s, p->xfer);
    const clusim_spread *spread = spread_of(s, x);
    if (spread == NULL || spread->gap_ps == 0) return spread_least(s, p, c);
    spreads_part *part = &s->spreads;
    if (2 * part->used >= part->size && !grow(part)) {
        part->failed = true;
        return spread_least(s, p, c);
    }
    flowlet key = {.node = c->node, .target = p->dst, .flow = spread_flow(s, x)};
    flowlet *f = entry_of(part, &key);
    bool fresh = node_none(f->node);
    if (fresh) part->used++;
    if (fresh || s->scheduler.now_ps - f->last_ps >= spread->gap_ps || !usable(s, c, f->wire.i))
        key.wire = spread_least(s, p, c);
    else
        key.wire = f->wire;
    key.last_ps = s->scheduler.now_ps;
    *f = key;
    return key.wire;
}

/* ---- detours -----------------------------------------------------------------------------------
 */

typedef struct way {
    uint32_t hops; /* NONE: without a route */
    node_id end;
} way;

/* The way along first wires from a node to a target, or to the last node before it. */
static way follow(const clusim_model *m, node_id node, target_id target, bool before) {
    way result = {.hops = 0, .end = node};
    node_id goal = ID(node, m->image.targets[target.i].node);
    while (!node_is(result.end, goal)) {
        group_id group = model_route(m, result.end, target);
        if (group_none(group)) return (way){NONE, node};
        node_id next = m->wires[m->ways[group.i].first.i].dst;
        if (before && node_is(next, goal)) break;
        result.end = next;
        result.hops++;
    }
    return result;
}

static uint64_t least_load(const clusim_sim *s, const packet *p, node_id node, target_id target) {
    group_id group = model_route(s->model, node, target);
    uint32_t size = model_group_size(s->model, group);
    spread_choice c = spread_among(s, model_group(s->model, group), size, node);
    uint64_t found;
    (void)least(s, p, &c, &found);
    return found;
}

/* UGAL: bytes before the packet times hops, of the shortest path and of one over a random node. */
static bool is_shorter(const clusim_sim *s, const packet *p, node_id node, target_id over) {
    const clusim_model *m = s->model;
    way direct = follow(m, node, p->dst, false), there = follow(m, node, over, true);
    if (there.hops == NONE || there.hops == 0) return false;
    uint32_t hops = there.hops + follow(m, there.end, p->dst, false).hops;
    base_u128 shortest = (base_u128)least_load(s, p, node, p->dst) * direct.hops;
    base_u128 detour = (base_u128)least_load(s, p, node, over) * hops;
    return shortest > detour + spread_of(s, xfer_at(s, p->xfer))->bias_bytes;
}

/* ---- minimal paths -----------------------------------------------------------------------------
 */

/* True if a wire leads towards the target of a packet, and has credit for it that is not promised.
 */
static bool leads(const clusim_sim *s, const packet *p, wire_id wire, uint32_t hops) {
    const clusim_model *m = s->model;
    const wire_info *info = info_at(s, wire);
    const wire_state *w = wire_at(s, wire);
    if (!info->dim || w->down || (w->traits & PAUSES)) return false;
    if (m->image.nodes[info->dst.i].endpoint != NONE) return false;
    if (follow(m, info->dst, p->dst, false).hops + 1 != hops) return false;
    uint32_t vc = spread_of(s, xfer_at(s, p->xfer))->minimal_vc;
    int64_t taken = s->spreads.promised[wire.i * s->wires.nvc + vc];
    uint32_t limit = xfer_at(s, p->xfer)->limit;
    const clusim_format *f = w->rate->format;
    uint32_t exact = model_exact(f, p->kind, p->payload, limit);
    int64_t bytes = model_wire_bytes(f, p->kind, p->payload, exact, limit);
    return spread_credit(s, wire, vc) - taken >= bytes;
}

wire_id spread_minimal(const clusim_sim *s, const packet *p, node_id node) {
    const clusim_model *m = s->model;
    const clusim_node *here = &m->image.nodes[node.i];
    if (here->endpoint != NONE || (here->flags & CLUSIM_NODE_FLAG_BRIDGE)) return NO(wire);
    const clusim_spread *spread = spread_of(s, xfer_at(s, p->xfer));
    wire_id best = NO(wire);
    uint64_t least_load = UINT64_MAX;
    uint32_t least_hash = 0, hops = follow(m, node, p->dst, false).hops;
    for (uint32_t k = m->out_off[node.i]; k < m->out_off[node.i + 1]; k++) {
        wire_id wire = ID(wire, m->out_wires[k]);
        if (!leads(s, p, wire, hops)) continue;
        uint64_t found = load(s, spread, wire);
        uint32_t hash = base_hash32(m->image.seed, wire.i, p->key);
        if (found < least_load || (found == least_load && hash < least_hash)) {
            best = wire;
            least_load = found;
            least_hash = hash;
        }
    }
    return best;
}

void spread_promise(clusim_sim *s, packet *p) {
    s->spreads.promised[p->out.i * s->wires.nvc + p->vc] += p->wire_bytes;
    p->promised = 1;
}

void spread_granted(clusim_sim *s, packet *p) {
    s->spreads.promised[p->out.i * s->wires.nvc + p->vc] -= p->wire_bytes;
    p->promised = 0;
}

static void end_detour(const clusim_sim *s, packet *p, node_id node) {
    const xfer *x = xfer_at(s, p->xfer);
    target_id back = p->after == LEG_LAST ? x->dst : x->via_last;
    node_id goal = ID(node, s->model->image.targets[p->dst.i].node);
    node_id home = ID(node, s->model->image.targets[back.i].node);
    group_id group = model_route(s->model, node, p->dst);
    bool beside = node_is(s->model->wires[s->model->ways[group.i].first.i].dst, goal);
    if (!beside && !node_is(node, home)) return;
    p->dst = back;
    p->leg = p->after;
    uint32_t vc = p->first_vc + spread_of(s, x)->detour_vcs;
    p->vc = p->first_vc = (uint8_t)base_umin(vc, s->wires.nvc - 1);
}

void spread_turn(const clusim_sim *s, packet *p, node_id node) {
    const clusim_node *here = &s->model->image.nodes[node.i];
    if (p->away) {
        end_detour(s, p, node);
        return;
    }
    const xfer *x = xfer_at(s, p->xfer);
    if (p->after == LEG_FIRST || here->endpoint != NONE || (here->flags & CLUSIM_NODE_FLAG_BRIDGE))
        return;
    const clusim_spread *spread = spread_of(s, x);
    uint32_t count = spread->detour_hi - spread->detour_lo;
    uint32_t drawn = base_hash32(s->model->image.seed, node.i, p->key) % count;
    target_id over = ID(target, spread->detour_lo + drawn);
    bool arrived = p->after == LEG_LAST && !target_none(x->via_last);
    p->away = !arrived && is_shorter(s, p, node, over);
    if (p->away) {
        p->dst = over;
    } else {
        p->leg = p->after;
    }
}
