#include "unit.h"

#include "batch.h"
#include "inbox.h"
#include "parts/packets.h"
#include "parts/scheduler.h"
#include "parts/units.h"
#include "parts/wires.h"
#include "parts/xfers.h"
#include "pool.h"
#include "route.h"
#include "scheduler.h"
#include "wire.h"

STATUS unit_init(clusim_sim *s) {
    uint64_t count = s->model->image.num_units;
    ZEROED(s->units.all, count);
    for (uint64_t u = 0; u < count; u++)
        s->units.all[u].wait_head = s->units.all[u].deferred = NO(packet);
    return CLUSIM_OK;
}

void unit_free(clusim_sim *s) { free(s->units.all); }

static unit_id unit_of(const clusim_sim *s, wire_id wire) { return info_at(s, wire)->dst_unit; }

int64_t unit_reduce(clusim_sim *s, unit_id unit, uint64_t operand_bytes) {
    unit_state *u = unit_at(s, unit);
    const clusim_unit *image = &s->model->image.units[unit.i];
    u->reduced_bytes += operand_bytes;
    clock_reach(&u->clock, s->scheduler.now_ps);
    clock_pass_long(&u->clock, (base_u128)operand_bytes * image->cost16);
    return clock_read(&u->clock) + image->latency_ps;
}

/* Index of the VOQ for packets created inside the source node of `wire`. */
static uint32_t inner_queue(const clusim_sim *s, wire_id wire, uint32_t vc) {
    return info_at(s, wire)->num_voqs - s->wires.nvc + vc;
}

/* Admit the operation: free its buffer and send a request to every member. `op` remains as its
 * state. */
static STATUS admit(clusim_sim *s, packet_id op) {
    const clusim_image *im = &s->model->image;
    wire_id from = packet_at(s, op)->in_wire;
    packet request = *packet_at(s, op);
    const xfer *x = xfer_at(s, request.xfer);
    unit_at(s, unit_of(s, from))->in_use += request.payload;
    TRY(wire_return_credit(s, from, request.vc, request.wire_bytes, s->scheduler.now_ps));
    model_span span = model_members(im, x->mgroup);
    packet_at(s, op)->members = (uint16_t)(span.hi - span.lo);
    uint32_t vc = x->vc;
    for (uint32_t k = span.lo; k < span.hi; k++) {
        packet_id index;
        TRY(pool_packet(s, &index));
        packet *p = packet_at(s, index);
        *p = request;
        p->kind = CLUSIM_KIND_RED_FETCH;
        p->dst = ID(target, im->mgroup_members[k]);
        p->op = op;
        p->held_wire = NO(wire);
        p->marked = 0;
        wire_id out = route_choose(s, p, from, p->dst);
        route_restart(s, p, out, vc);
        TRY(wire_enqueue(s, index, inner_queue(s, out, vc)));
    }
    return CLUSIM_OK;
}

static bool fits(const clusim_sim *s, unit_id unit, packet_id op) {
    uint64_t used = unit_at(s, unit)->in_use;
    return used == 0 ||
           used + packet_at(s, op)->payload <= s->model->image.units[unit.i].capacity_bytes;
}

STATUS unit_request(clusim_sim *s, packet_id index, wire_id from) {
    unit_id unit = unit_of(s, from);
    unit_state *u = unit_at(s, unit);
    packet *p = packet_at(s, index);
    p->in_wire = from;
    if (packet_none(u->wait_head) && fits(s, unit, index)) {
        return admit(s, index);
    }
    *next_of(s, index) = NO(packet);
    if (packet_none(u->wait_head)) {
        u->wait_head = index;
    } else {
        *next_of(s, u->wait_tail) = index;
    }
    u->wait_tail = index;
    return CLUSIM_OK;
}

STATUS unit_data(clusim_sim *s, packet_id index, wire_id from) {
    const packet *p = batch_at(s, index);
    TRY(wire_return_credit(s, from, p->vc, p->wire_bytes, s->scheduler.now_ps));
    packet_id op = batch_op(s, index);
    batch_free(s, index);
    if (--packet_at(s, op)->members) return CLUSIM_OK;
    unit_id unit = unit_of(s, from);
    const clusim_image *im = &s->model->image;
    model_span span = model_members(im, xfer_at(s, packet_at(s, op)->xfer)->mgroup);
    int64_t at = unit_reduce(s, unit, (uint64_t)(span.hi - span.lo) * packet_at(s, op)->payload);
    if (wire_at(s, from)->traits & TO_PLAIN) return inbox_result(s, from, op, at);
    return scheduler_event(s, at, EV_RESULT, unit.i, op.i);
}

STATUS unit_result(clusim_sim *s, packet_id op) {
    packet *p = packet_at(s, op);
    wire_id from = p->in_wire;
    unit_id unit = unit_of(s, from);
    unit_state *u = unit_at(s, unit);
    const xfer *x = xfer_at(s, p->xfer);
    u->in_use -= p->payload;
    wire_id out = info_at(s, from)->reverse;
    p->kind = CLUSIM_KIND_RED_RESULT;
    p->dst = model_target(x->endpoint);
    p->held_wire = NO(wire);
    p->marked = 0;
    route_restart(s, p, out, x->vc_response);
    TRY(wire_enqueue(s, op, inner_queue(s, out, x->vc_response)));
    while (!packet_none(u->wait_head) && fits(s, unit, u->wait_head)) {
        packet_id next = u->wait_head;
        u->wait_head = *next_of(s, next);
        TRY(admit(s, next));
    }
    return CLUSIM_OK;
}
