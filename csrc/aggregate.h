/* aggregate.h - aggregation trees of switches.
 *
 * Hardware  SHARP in InfiniBand switches: every port of a tree sends its vector, the switches add
 * them up on the way to the root, and the result is multicast down.
 * Model     Contract, section 6: an inner vertex holds a bounded number of open operations, takes
 * the children's packets in any order, and forwards one. Values are reduced in member order by the
 * data plane. Not modelled  Retransmission, trees that change, operations of several jobs in one
 * slot pool. Parameters  Image arrays `vertices`, `units` and `paths`.
 */
#ifndef CLUSIM_AGGREGATE_H
#define CLUSIM_AGGREGATE_H

#include "sim.h"

STATUS aggregate_init(clusim_sim *s);

/* A member starts a transfer: what comes down from now on is for it. */
void aggregate_begin(clusim_sim *s, xfer_id xfer_index);
void aggregate_end(clusim_sim *s, xfer_id xfer_index);

/* A packet from a child has arrived at its parent; the last one of an operation is due. */
STATUS aggregate_up(clusim_sim *s, packet_id packet);
STATUS aggregate_result(clusim_sim *s, packet_id packet);

/* A result arrived at an inner vertex: one copy per child. */
STATUS aggregate_down(clusim_sim *s, packet_id packet, wire_id from);

/* First wire of the way down from the vertex where a result ends its path. */
wire_id aggregate_onward(const clusim_sim *s, const packet *p);

/* The first wire of a member's way up, which its window is about. */
wire_id aggregate_first_wire(const clusim_sim *s, vertex_id vertex);

/* Whether a packet of an aggregation has reached the end of its path. */
static inline bool aggregate_at_end(const clusim_sim *s, const packet *p) {
    const clusim_image *im = &s->model->image;
    const clusim_vertex *v = &im->vertices[p->vertex.i];
    uint32_t path = p->kind == CLUSIM_KIND_AGG_UP ? v->path_up : v->path_down;
    return p->path_pos == im->path_off[path + 1];
}

#endif
