#include "aggregate.h"

#include "parts/packets.h"
#include "parts/scheduler.h"
#include "parts/units.h"
#include "parts/wires.h"
#include "parts/xfers.h"
#include "pool.h"
#include "route.h"
#include "scheduler.h"
#include "tree.h"
#include "unit.h"
#include "wire.h"

/* ---- life ------------------------------------------------------------------------------------ */

/* Children follow their parents, so in backward order every vertex has its members. */
STATUS aggregate_init(clusim_sim *s) {
    const clusim_image *im = &s->model->image;
    uint64_t slots = 0;
    for (uint32_t v = 0; v < im->num_vertices; v++) slots += im->vertices[v].slots;
    ZEROED(s->trees.all, im->num_vertices);
    ZEROED(s->trees.counts, slots);
    ZEROED(s->trees.payloads, slots);
    slots = 0;
    for (uint32_t v = (uint32_t)im->num_vertices; v-- > 0;) {
        vertex_state *state = &s->trees.all[v];
        const clusim_vertex *image = &im->vertices[v];
        state->wait_head = state->wait_tail = NO(packet);
        state->xfer = NO(xfer);
        state->counts = s->trees.counts + slots;
        state->payloads = s->trees.payloads + slots;
        slots += image->slots;
        bool leaf = image->unit == NONE;
        state->member = leaf ? ID(vertex, v) : s->trees.all[image->child_lo].member;
    }
    return CLUSIM_OK;
}

void aggregate_free(clusim_sim *s) {
    free(s->trees.all);
    free(s->trees.counts);
    free(s->trees.payloads);
}

void aggregate_begin(clusim_sim *s, xfer_id xfer_index) {
    vertex_id vertex = xfer_at(s, xfer_index)->vertex;
    if (UNLIKELY(!xfer_none(vertex_at(s, vertex)->xfer)))
        scheduler_beyond(s, CLUSIM_BEYOND_VERTEX, vertex.i);
    vertex_at(s, vertex)->xfer = xfer_index;
}

void aggregate_end(clusim_sim *s, xfer_id xfer_index) {
    xfer_id *present = &vertex_at(s, xfer_at(s, xfer_index)->vertex)->xfer;
    if (LIKELY(xfer_is(*present, xfer_index))) *present = NO(xfer);
}

/* ---- sending --------------------------------------------------------------------------------- */

/* Aim a packet at a vertex below, and return the first wire of the way there. */
static wire_id aim_down(const clusim_sim *s, packet *p, vertex_id child) {
    const clusim_image *im = &s->model->image;
    uint32_t at = im->path_off[tree_vertex(s, child)->path_down];
    p->kind = CLUSIM_KIND_AGG_DOWN;
    p->vertex = child;
    p->dst = ID(target, tree_vertex(s, child)->endpoint);
    p->leg = LEG_LAST;
    p->xfer = vertex_at(s, vertex_at(s, child)->member)->xfer;
    p->path_pos = at + 1;
    return ID(wire, im->path_wires[at]);
}

/* Enqueue a packet created in the switch before `out`. */
static STATUS send_new(clusim_sim *s, packet_id index, wire_id out, uint32_t vc) {
    packet *p = packet_at(s, index);
    p->held_wire = NO(wire);
    p->shared = NO(buffer);
    p->copy = 0;
    p->marked = 0;
    route_restart(s, p, out, vc);
    return wire_enqueue(s, index, info_at(s, out)->num_voqs - s->wires.nvc + vc);
}

static STATUS send_up(clusim_sim *s, packet_id index, vertex_id vertex) {
    const clusim_image *im = &s->model->image;
    packet *p = packet_at(s, index);
    uint32_t at = im->path_off[tree_vertex(s, vertex)->path_up];
    p->vertex = vertex;
    p->path_pos = at + 1;
    return send_new(s, index, ID(wire, im->path_wires[at]), xfer_at(s, p->xfer)->vc);
}

static STATUS send_down(clusim_sim *s, packet_id index, vertex_id root) {
    const clusim_vertex *v = tree_vertex(s, root);
    packet result = *packet_at(s, index);
    uint32_t vc = xfer_at(s, result.xfer)->vc_response;
    for (uint32_t child = v->child_lo; child < v->child_hi; child++) {
        packet_id copy = index;
        if (child != v->child_lo) TRY(pool_packet(s, &copy));
        *packet_at(s, copy) = result;
        wire_id out = aim_down(s, packet_at(s, copy), ID(vertex, child));
        TRY(send_new(s, copy, out, vc));
    }
    return CLUSIM_OK;
}

STATUS aggregate_down(clusim_sim *s, packet_id index, wire_id from) {
    const clusim_vertex *v = tree_vertex(s, packet_at(s, index)->vertex);
    uint32_t candidate = end_at(s, from)->in_queue + packet_at(s, index)->vc;
    buffer_id shared;
    TRY(pool_buffer(s, &shared));
    packet original = *packet_at(s, index);
    *buffer_at(s, shared) = (shared_buffer){.copies = v->child_hi - v->child_lo,
                                            .wire = from,
                                            .bytes = original.wire_bytes,
                                            .vc = original.vc};
    wire_hold(&original, from);
    original.copy = 1;
    original.shared = shared;
    for (uint32_t child = v->child_lo; child < v->child_hi; child++) {
        packet_id copy = index;
        if (child != v->child_lo) TRY(pool_packet(s, &copy));
        packet *p = packet_at(s, copy);
        *p = original;
        wire_id out = aim_down(s, p, ID(vertex, child));
        route_restart(s, p, out, p->first_vc);
        TRY(wire_enqueue_marked(s, copy, candidate));
    }
    return CLUSIM_OK;
}

/* ---- operations ------------------------------------------------------------------------------ */

static bool fits(const clusim_sim *s, vertex_id vertex, const packet *p) {
    return p->key - vertex_at(s, vertex)->base < tree_vertex(s, vertex)->slots;
}

/* Accept a child's packet; the last one of its operation becomes the operation's result. */
static STATUS admit(clusim_sim *s, vertex_id vertex, packet_id index) {
    const clusim_vertex *v = tree_vertex(s, vertex);
    vertex_state *state = vertex_at(s, vertex);
    const packet *p = packet_at(s, index);
    TRY(wire_return_credit(s, p->out, p->vc, p->wire_bytes, s->scheduler.now_ps));
    uint64_t place = ((uint64_t)state->head + (p->key - state->base)) % v->slots;
    uint32_t children = v->child_hi - v->child_lo;
    if (state->counts[place] == 0) state->payloads[place] = p->payload;
    if (UNLIKELY(state->payloads[place] != p->payload))
        scheduler_beyond(s, CLUSIM_BEYOND_VERTEX, vertex.i);
    if (++state->counts[place] < children) {
        pool_free_packet(s, index);
        return CLUSIM_OK;
    }
    int64_t at = unit_reduce(s, ID(unit, v->unit), (uint64_t)children * p->payload);
    return scheduler_event(s, at, EV_RESULT, v->unit, index.i);
}

STATUS aggregate_up(clusim_sim *s, packet_id index) {
    vertex_id vertex = ID(vertex, tree_vertex(s, packet_at(s, index)->vertex)->parent);
    vertex_state *state = vertex_at(s, vertex);
    if (fits(s, vertex, packet_at(s, index))) {
        return admit(s, vertex, index);
    }
    *next_of(s, index) = NO(packet);
    if (packet_none(state->wait_head)) {
        state->wait_head = index;
    } else {
        *next_of(s, state->wait_tail) = index;
    }
    state->wait_tail = index;
    return CLUSIM_OK;
}

/* Admit waiting packets that now have room, in order of arrival. */
static STATUS admit_waiting(clusim_sim *s, vertex_id vertex) {
    vertex_state *state = vertex_at(s, vertex);
    packet_id index = state->wait_head, last = NO(packet);
    while (!packet_none(index)) {
        packet_id next = *next_of(s, index);
        if (fits(s, vertex, packet_at(s, index))) {
            if (packet_none(last)) {
                state->wait_head = next;
            } else {
                *next_of(s, last) = next;
            }
            if (packet_is(state->wait_tail, index)) state->wait_tail = last;
            TRY(admit(s, vertex, index));
        } else {
            last = index;
        }
        index = next;
    }
    return CLUSIM_OK;
}

STATUS aggregate_result(clusim_sim *s, packet_id index) {
    vertex_id vertex = ID(vertex, tree_vertex(s, packet_at(s, index)->vertex)->parent);
    vertex_state *state = vertex_at(s, vertex);
    if (tree_vertex(s, vertex)->parent == NONE) {
        TRY(send_down(s, index, vertex));
    } else {
        TRY(send_up(s, index, vertex));
    }
    state->counts[state->head] = 0;
    state->head = (state->head + 1) % tree_vertex(s, vertex)->slots;
    state->base++;
    return admit_waiting(s, vertex);
}
