#include "batch.h"

#include "parts/wires.h"
#include "pool.h"

/* True if the packet crosses only one wire, to a unit or an endpoint: its key and path are not used
 * again. */
static bool plain(const clusim_sim *s, const packet *p) {
    if (!wire_none(p->held_wire) || p->marked || p->adaptive) return false;
    if (p->kind == CLUSIM_KIND_RED_DATA) return true;
    endpoint_id far = wire_at(s, p->out)->far_endpoint;
    return !endpoint_none(far) && target_is(model_target(far), p->dst);
}

static bool equal(const packet *a, const packet *b) {
    return a->wire_bytes == b->wire_bytes && a->payload == b->payload && a->exact == b->exact &&
           target_is(a->dst, b->dst) && a->kind == b->kind && a->vc == b->vc &&
           a->first_vc == b->first_vc;
}

bool batch_join(clusim_sim *s, packet_id tail, packet_id index) {
    packet *b = packet_at(s, tail);
    const packet *p = packet_at(s, index);
    if (!equal(b, p) || !plain(s, p)) return false;
    if (!b->batch) {
        if (!plain(s, b)) return false;
        packet_id op = b->op;
        b->batch = 1;
        b->held_vc = 0;
        b->num_ops = 1;
        b->num_over = 0;
        b->ops[0] = op;
    }
    if (b->num_ops == BATCH_OPS) return false;
    b->ops[b->num_ops++] = p->op;
    pool_free_packet(s, index);
    return true;
}

/* The packet of an operation. Reads only constant fields of the operation: the thread of its unit
 * changes `members`. */
static packet separate(const clusim_sim *s, const packet *b, packet_id op) {
    packet p = *b;
    p.batch = 0;
    p.held_vc = 0;
    p.members = 0;
    p.xfer = packet_at(s, op)->xfer;
    p.key = 0;
    p.held_wire = NO(wire);
    p.in_wire = b->out;
    p.held_bytes = 0;
    p.op = op;
    p.path_pos = NONE;
    p.first_wire = packet_at(s, op)->first_wire;
    p.number = 0;
    return p;
}

void batch_free(clusim_sim *s, packet_id id) {
    packet *b = batch_at(s, id);
    if (batch_member(id) && ++b->num_over < b->num_ops) return;
    pool_free_packet(s, ID(packet, (uint32_t)(b - s->packets.all)));
}

STATUS batch_restore(clusim_sim *s, packet_id *id) {
    packet_id member = *id;
    if (!batch_member(member)) return CLUSIM_OK;
    TRY(pool_packet(s, id));
    *packet_at(s, *id) = separate(s, batch_at(s, member), batch_op(s, member));
    batch_free(s, member);
    return CLUSIM_OK;
}
