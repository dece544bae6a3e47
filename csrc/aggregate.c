#include "aggregate.h"

#include "node.h"
#include "unit.h"
#include "wire.h"

static const clusim_vertex *image_of(const clusim_sim *s, uint32_t vertex) {
    return &s->model->image.vertices[vertex];
}

/* ---- life ------------------------------------------------------------------------------------ */

/* Children come after their parents, so that going backwards every vertex knows its members. */
bool aggregate_init(clusim_sim *s) {
    const clusim_image *im = &s->model->image;
    uint64_t slots = 0;
    for (uint32_t v = 0; v < im->num_vertices; v++) slots += image_of(s, v)->slots;
    s->vertex_counts = calloc(slots + 1, sizeof *s->vertex_counts);
    s->vertex_payloads = calloc(slots + 1, sizeof *s->vertex_payloads);
    if (s->vertex_counts == NULL || s->vertex_payloads == NULL) return false;
    slots = 0;
    for (uint32_t v = (uint32_t)im->num_vertices; v-- > 0;) {
        vertex_state *state = &s->vertices[v];
        state->wait_head = state->wait_tail = state->xfer = NONE;
        state->counts = s->vertex_counts + slots;
        state->payloads = s->vertex_payloads + slots;
        slots += image_of(s, v)->slots;
        bool leaf = image_of(s, v)->unit == NONE;
        state->member = leaf ? v : s->vertices[image_of(s, v)->child_lo].member;
    }
    return true;
}

void aggregate_begin(clusim_sim *s, uint32_t xfer_index) {
    uint32_t vertex = s->xfers[xfer_index].vertex;
    if (UNLIKELY(s->vertices[vertex].xfer != NONE)) sim_beyond(s, CLUSIM_BEYOND_VERTEX, vertex);
    s->vertices[vertex].xfer = xfer_index;
}

void aggregate_end(clusim_sim *s, uint32_t xfer_index) {
    uint32_t *present = &s->vertices[s->xfers[xfer_index].vertex].xfer;
    if (LIKELY(*present == xfer_index)) *present = NONE;
}

uint32_t aggregate_first_wire(const clusim_sim *s, uint32_t vertex) {
    const clusim_image *im = &s->model->image;
    return im->path_wires[im->path_off[image_of(s, vertex)->path_up]];
}

uint32_t aggregate_onward(const clusim_sim *s, const packet *p) {
    const clusim_image *im = &s->model->image;
    uint32_t child = image_of(s, p->first_wire)->child_lo;
    return im->path_wires[im->path_off[image_of(s, child)->path_down]];
}

/* ---- sending --------------------------------------------------------------------------------- */

/* Aim a packet at a vertex below, and return the first wire of the way there. */
static uint32_t aim_down(const clusim_sim *s, packet *p, uint32_t child) {
    const clusim_image *im = &s->model->image;
    uint32_t at = im->path_off[image_of(s, child)->path_down];
    p->kind = CLUSIM_KIND_AGG_DOWN;
    p->first_wire = child;
    p->dst = image_of(s, child)->endpoint;
    p->leg = LEG_LAST;
    p->xfer = s->vertices[s->vertices[child].member].xfer;
    p->path_pos = at + 1;
    return im->path_wires[at];
}

/* Put a packet made in the switch before `out` into its queue. */
static void send_new(clusim_sim *s, uint32_t index, uint32_t out, uint32_t vc) {
    packet *p = &s->packets[index];
    p->held_wire = NONE;
    p->ref = NONE;
    p->copy = 0;
    p->marked = 0;
    node_restart(s, p, out, vc);
    wire_enqueue(s, index, s->info[out].num_voqs - s->nvc + vc);
}

static void send_up(clusim_sim *s, uint32_t index, uint32_t vertex) {
    const clusim_image *im = &s->model->image;
    packet *p = &s->packets[index];
    uint32_t at = im->path_off[image_of(s, vertex)->path_up];
    p->first_wire = vertex;
    p->path_pos = at + 1;
    send_new(s, index, im->path_wires[at], s->xfers[p->xfer].vc);
}

static void send_down(clusim_sim *s, uint32_t index, uint32_t root) {
    const clusim_vertex *v = image_of(s, root);
    packet result = s->packets[index];
    uint32_t vc = s->xfers[result.xfer].vc_response;
    for (uint32_t child = v->child_lo; child < v->child_hi; child++) {
        uint32_t copy = child == v->child_lo ? index : sim_pool_packet(s);
        if (UNLIKELY(copy == NONE)) return;
        s->packets[copy] = result;
        uint32_t out = aim_down(s, &s->packets[copy], child);
        send_new(s, copy, out, vc);
    }
}

void aggregate_down(clusim_sim *s, uint32_t index, uint32_t from) {
    const clusim_vertex *v = image_of(s, s->packets[index].first_wire);
    uint32_t candidate = s->wires[from].in_queue + s->packets[index].vc;
    uint32_t shared = sim_pool_buffer(s);
    if (UNLIKELY(shared == NONE)) return;
    packet original = s->packets[index];
    s->buffers[shared] = (shared_buffer){.copies = v->child_hi - v->child_lo,
                                         .wire = from,
                                         .bytes = original.wire_bytes,
                                         .vc = original.vc};
    node_hold(&original, from);
    original.copy = 1;
    original.ref = shared;
    for (uint32_t child = v->child_lo; child < v->child_hi; child++) {
        uint32_t copy = child == v->child_lo ? index : sim_pool_packet(s);
        if (UNLIKELY(copy == NONE)) return;
        packet *p = &s->packets[copy];
        *p = original;
        uint32_t out = aim_down(s, p, child);
        node_restart(s, p, out, p->first_vc);
        node_enqueue(s, copy, candidate);
    }
}

/* ---- operations ------------------------------------------------------------------------------ */

static bool fits(const clusim_sim *s, uint32_t vertex, const packet *p) {
    return p->key - s->vertices[vertex].base < image_of(s, vertex)->slots;
}

/* Take a child's packet in; the last one of its operation stays as the operation's result. */
static void admit(clusim_sim *s, uint32_t vertex, uint32_t index) {
    const clusim_vertex *v = image_of(s, vertex);
    vertex_state *state = &s->vertices[vertex];
    const packet *p = &s->packets[index];
    wire_return_credit(s, &s->wires[p->out], p->vc, p->wire_bytes, s->now_ps);
    uint64_t place = ((uint64_t)state->head + (p->key - state->base)) % v->slots;
    uint32_t children = v->child_hi - v->child_lo;
    if (state->counts[place] == 0) state->payloads[place] = p->payload;
    if (UNLIKELY(state->payloads[place] != p->payload)) sim_beyond(s, CLUSIM_BEYOND_VERTEX, vertex);
    if (++state->counts[place] < children) {
        sim_free_packet(s, index);
        return;
    }
    int64_t at = unit_reduce(s, v->unit, (uint64_t)children * p->payload);
    sim_event(s, at, EV_RESULT, v->unit, index);
}

void aggregate_up(clusim_sim *s, uint32_t index) {
    uint32_t vertex = image_of(s, s->packets[index].first_wire)->parent;
    vertex_state *state = &s->vertices[vertex];
    if (fits(s, vertex, &s->packets[index])) {
        admit(s, vertex, index);
        return;
    }
    s->packets[index].next = NONE;
    if (state->wait_head == NONE) {
        state->wait_head = index;
    } else {
        s->packets[state->wait_tail].next = index;
    }
    state->wait_tail = index;
}

/* Admit what waits and now has room, in order of arrival. */
static void admit_waiting(clusim_sim *s, uint32_t vertex) {
    vertex_state *state = &s->vertices[vertex];
    uint32_t index = state->wait_head, last = NONE;
    while (index != NONE) {
        uint32_t next = s->packets[index].next;
        if (fits(s, vertex, &s->packets[index])) {
            if (last == NONE) {
                state->wait_head = next;
            } else {
                s->packets[last].next = next;
            }
            if (state->wait_tail == index) state->wait_tail = last;
            admit(s, vertex, index);
        } else {
            last = index;
        }
        index = next;
    }
}

void aggregate_result(clusim_sim *s, uint32_t index) {
    uint32_t vertex = image_of(s, s->packets[index].first_wire)->parent;
    vertex_state *state = &s->vertices[vertex];
    if (image_of(s, vertex)->parent == NONE) {
        send_down(s, index, vertex);
    } else {
        send_up(s, index, vertex);
    }
    state->counts[state->head] = 0;
    state->head = (state->head + 1) % image_of(s, vertex)->slots;
    state->base++;
    admit_waiting(s, vertex);
}
