/* order.h - receivers that accept the packets of a queue pair in order only.
 *
 * Hardware  RoCE and InfiniBand NICs (reliable connection): an early packet is dropped, and after a
 *           NAK the sender returns to the expected one; or a reorder buffer of limited size.
 * Model     Contract, section 6 (receivers in order).
 * Not modelled  A NIC's drop before PCIe: early packets are dropped at their destination. */
#ifndef CLUSIM_ORDER_H
#define CLUSIM_ORDER_H

#include "parts/packets.h"
#include "parts/spreads.h"
#include "parts/xfers.h"
#include "state.h"

/* Queue pair of a packet. */
pair_id order_pair_of(const clusim_sim *s, const packet *p);

/* A packet arrives at a receiver that accepts them in order only: true if it is not the expected
 * one. */
bool order_arrived(clusim_sim *s, const packet *p);

/* A packet that is not the expected one arrives: keep or drop it. Its buffer is free. */
STATUS order_early(clusim_sim *s, packet_id packet);

/* The header of a trimmed packet arrives: request the packet. */
STATUS order_trimmed(clusim_sim *s, const packet *p);

/* The expected packet of a queue pair was accepted. Remove the next one from the kept packets, or
 * refuse a lost one. */
STATUS order_next(clusim_sim *s, pair_id pair, packet_id *out);

/* True if a packet was accepted or is kept; if it would be, now. */
bool order_knows(const clusim_sim *s, const packet *p);
bool order_takes(const clusim_sim *s, const packet *p);

/* Forget the transfers that a line does not need. */
void order_shorten(clusim_sim *s, order_line *line);

/* Number of a packet in its line. */
static inline uint64_t order_number(const clusim_sim *s, const packet *p) {
    return xfer_at(s, p->xfer)->first + p->number;
}

#endif
