/* order.h - receivers that accept the packets of a transfer in order only.
 *
 * Hardware  RoCE and InfiniBand NICs (reliable connection): an early packet is dropped, and after a
 *           NAK the sender returns to the expected one; or a reorder buffer of limited size.
 * Model     Contract, section 6 (receivers in order).
 * Not modelled  Order among transfers of a flow, timeouts, selective repeat, a NIC's drop before
 *               PCIe: packets are dropped at their destination. */
#ifndef CLUSIM_ORDER_H
#define CLUSIM_ORDER_H

#include "parts/packets.h"
#include "parts/xfers.h"
#include "state.h"

/* A packet arrives at a receiver that accepts them in order only. */
void order_arrived(clusim_sim *s, const packet *p);

/* A packet that is not the expected one arrives: keep or drop it. Its buffer is free. */
STATUS order_early(clusim_sim *s, packet_id packet);

/* Remove the expected packet from the kept packets, or refuse a lost one. */
STATUS order_next(clusim_sim *s, xfer_id x, packet_id *out);

/* The sender learns that a packet was refused. */
STATUS order_repeat(clusim_sim *s, xfer_id x);

/* A repeated packet has left its endpoint. */
STATUS order_repeated(clusim_sim *s, packet *p);

/* A packet of a transfer, or a refusal, has arrived. */
void order_forget(clusim_sim *s, xfer_id x);

#endif
