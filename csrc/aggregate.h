/* aggregate.h - aggregation trees of switches.
 *
 * Hardware  SHARP in InfiniBand switches: every port of a tree sends its vector, the switches add
 *           them up on the way to the root, and the result is multicast down.
 * Model     Contract, section 6: an inner vertex holds a bounded number of open operations, accepts
 *           the children's packets in any order, and forwards one. Values are reduced in member
 *           order by the data plane.
 * Not modelled  Retransmission, trees that change, operations of several jobs in one slot pool.
 * Parameters    Image arrays `vertices`, `units` and `paths`. */
#ifndef CLUSIM_AGGREGATE_H
#define CLUSIM_AGGREGATE_H

#include "state.h"

STATUS aggregate_init(clusim_sim *s);
void aggregate_free(clusim_sim *s);

/* A member starts a transfer: packets that arrive from above from now on belong to it. */
void aggregate_begin(clusim_sim *s, xfer_id xfer_index);
void aggregate_end(clusim_sim *s, xfer_id xfer_index);

/* A packet from a child has arrived at its parent; the last one of an operation is due. */
STATUS aggregate_up(clusim_sim *s, packet_id packet);
STATUS aggregate_result(clusim_sim *s, packet_id packet);

/* A result arrived at an inner vertex: one copy per child. */
STATUS aggregate_down(clusim_sim *s, packet_id packet, wire_id from);

#endif
