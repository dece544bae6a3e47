/* spread.h - choice of a path for each packet: by load, for a flowlet, or over a detour.
 *
 * Hardware  Adaptive routing of InfiniBand, Slingshot and Spectrum switches; flowlet tables of
 *           Ethernet switches; UGAL routers of dragonflies.
 * Model     Contract, section 6 (spreads).
 * Not modelled  Load of remote links (congestion notification, piggybacking), finite flowlet
 *               tables, detours that restart after their first switch. Minimal paths: fully
 *               adaptive with an escape channel (J. Duato, "A new theory of deadlock-free adaptive
 *               routing in wormhole networks", 1993); a packet chooses once, with credit. */
#ifndef CLUSIM_SPREAD_H
#define CLUSIM_SPREAD_H

#include "parts/xfers.h"
#include "state.h"

STATUS spread_init(clusim_sim *s);
void spread_free(clusim_sim *s);

static inline const clusim_spread *spread_of(const clusim_sim *s, const xfer *x) {
    return x->spread == NONE ? NULL : &s->model->image.spreads[x->spread];
}

/* The flow of a transfer: its connection or source. */
static inline flow_id spread_flow(const clusim_sim *s, const xfer *x) {
    uint32_t conns = (uint32_t)s->model->image.num_conns;
    return ID(flow, x->owner_kind == OWNER_SOURCE ? conns + x->source.i : x->conn.i);
}

/* The wires among which a packet chooses: of a route group, or of a first hop. */
typedef struct spread_choice {
    const uint32_t *wires;
    uint32_t all, up; /* number of wires, and of usable wires */
    node_id node;
} spread_choice;

/* The wires of a list; all are usable if all are down. */
spread_choice spread_among(const clusim_sim *s, const uint32_t *wires, uint32_t count,
                           node_id node);

/* The `number`-th usable wire of a choice. */
wire_id spread_nth(const clusim_sim *s, const spread_choice *c, uint32_t number);

/* Credit of a wire with the returns before the present time. */
int64_t spread_credit(const clusim_sim *s, wire_id wire, uint32_t vc);

/* The least loaded wire for a packet. */
wire_id spread_least(const clusim_sim *s, const packet *p, const spread_choice *c);

/* The same; a flowlet stays on its wire. */
wire_id spread_choose(clusim_sim *s, const packet *p, const spread_choice *c);

/* The least loaded wire of a minimal path with credit for the packet at `node`, or NONE; chance
 * decides among equals. */
wire_id spread_minimal(const clusim_sim *s, const packet *p, node_id node);

/* Promise credit to the packet until its grant. */
void spread_promise(clusim_sim *s, packet *p);
void spread_granted(clusim_sim *s, packet *p);

/* A packet with LEG_FREE is at `node`: begin a detour, or end it. */
void spread_turn(const clusim_sim *s, packet *p, node_id node);

#endif
