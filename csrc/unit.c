#include "unit.h"

#include "node.h"
#include "wire.h"

static uint32_t unit_of(const clusim_sim *s, uint32_t wire) { return s->info[wire].dst_unit; }

int64_t unit_reduce(clusim_sim *s, uint32_t unit, uint64_t operand_bytes) {
    unit_state *u = &s->units[unit];
    const clusim_unit *image = &s->model->image.units[unit];
    u->reduced_bytes += operand_bytes;
    clock_reach(&u->clock, s->now_ps);
    clock_pass_long(&u->clock, (base_u128)operand_bytes * image->cost16);
    return clock_read(&u->clock) + image->latency_ps;
}

/* Index of the VOQ for packets made inside the source node of `wire`. */
static uint32_t inner_queue(const clusim_sim *s, uint32_t wire, uint32_t vc) {
    return s->info[wire].num_voqs - s->nvc + vc;
}

/* Take the operation in: free its buffer and ask every member. `op` stays as the operation's state.
 */
static void admit(clusim_sim *s, uint32_t op) {
    const clusim_image *im = &s->model->image;
    uint32_t from = s->packets[op].in_wire;
    packet request = s->packets[op];
    const xfer *x = &s->xfers[request.xfer];
    s->units[unit_of(s, from)].in_use += request.payload;
    wire_state *w = &s->wires[from];
    wire_return_credit(s, w, request.vc, request.wire_bytes, s->now_ps);
    uint32_t lo = im->mgroup_off[x->mgroup], hi = im->mgroup_off[x->mgroup + 1];
    s->packets[op].members = (uint16_t)(hi - lo);
    uint32_t vc = x->vc;
    for (uint32_t k = lo; k < hi; k++) {
        uint32_t index = sim_pool_packet(s);
        if (UNLIKELY(index == NONE)) return;
        packet *p = &s->packets[index];
        *p = request;
        p->kind = CLUSIM_KIND_RED_FETCH;
        p->dst = im->mgroup_members[k];
        p->ref = op;
        p->held_wire = NONE;
        p->marked = 0;
        uint32_t out = node_route(s, p, from, p->dst);
        node_restart(s, p, out, vc);
        wire_enqueue(s, index, inner_queue(s, out, vc));
    }
}

static bool fits(const clusim_sim *s, uint32_t unit, uint32_t op) {
    uint64_t used = s->units[unit].in_use;
    return used == 0 || used + s->packets[op].payload <= s->model->image.units[unit].capacity_bytes;
}

void unit_request(clusim_sim *s, uint32_t index, uint32_t from) {
    uint32_t unit = unit_of(s, from);
    unit_state *u = &s->units[unit];
    packet *p = &s->packets[index];
    p->in_wire = from;
    if (u->wait_head == NONE && fits(s, unit, index)) {
        admit(s, index);
        return;
    }
    p->next = NONE;
    if (u->wait_head == NONE) {
        u->wait_head = index;
    } else {
        s->packets[u->wait_tail].next = index;
    }
    u->wait_tail = index;
}

void unit_data(clusim_sim *s, uint32_t index, uint32_t from) {
    const packet *p = &s->packets[index];
    wire_state *w = &s->wires[from];
    wire_return_credit(s, w, p->vc, p->wire_bytes, s->now_ps);
    uint32_t op = p->ref;
    sim_free_packet(s, index);
    if (--s->packets[op].members) return;
    uint32_t unit = unit_of(s, from);
    const clusim_image *im = &s->model->image;
    uint32_t group = s->xfers[s->packets[op].xfer].mgroup;
    uint64_t members = im->mgroup_off[group + 1] - im->mgroup_off[group];
    int64_t at = unit_reduce(s, unit, members * s->packets[op].payload);
    sim_event(s, at, EV_RESULT, unit, op);
}

void unit_result(clusim_sim *s, uint32_t op) {
    packet *p = &s->packets[op];
    uint32_t from = p->in_wire;
    uint32_t unit = unit_of(s, from);
    unit_state *u = &s->units[unit];
    const xfer *x = &s->xfers[p->xfer];
    u->in_use -= p->payload;
    uint32_t out = s->info[from].reverse;
    p->kind = CLUSIM_KIND_RED_RESULT;
    p->dst = x->back;
    p->held_wire = NONE;
    p->marked = 0;
    node_restart(s, p, out, x->vc_response);
    wire_enqueue(s, op, inner_queue(s, out, x->vc_response));
    while (u->wait_head != NONE && fits(s, unit, u->wait_head)) {
        uint32_t next = u->wait_head;
        u->wait_head = s->packets[next].next;
        admit(s, next);
    }
}
