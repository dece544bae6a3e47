/* inbox.h - arrivals at nodes that work in windows, without events: packets in one ring per wire,
 * sorted by time; responses, starts and memory accesses at endpoints. */
#ifndef CLUSIM_INBOX_H
#define CLUSIM_INBOX_H

#include "parts/packets.h"
#include "parts/windows.h"
#include "parts/wires.h"
#include "state.h"

/* Something is to be done at such a node. */
static inline void inbox_due(clusim_sim *s, int64_t at_ps) {
    s->windows.due_ps = base_min(s->windows.due_ps, at_ps);
}

/* Mark a node with packets in flight to it or wires with pending work. */
static inline STATUS inbox_busy(clusim_sim *s, node_id node) {
    window_node *n = &s->windows.nodes[node.i];
    if (n->listed) return CLUSIM_OK;
    n->listed = 1;
    window_node *turn = &s->windows.nodes[n->turn.i];
    if (turn != n && turn->listed) return CLUSIM_OK;
    turn->listed = 1;
    return node_push(&s->windows.busy, n->turn);
}

/* A wire out of node `n`, which works in windows, has something to do. */
static inline void inbox_activate_at(clusim_sim *s, window_node *n, wire_id wire) {
    wire_state *w = wire_at(s, wire);
    if (w->active) return;
    w->active = 1;
    w->next_active = n->first[ACTIVE];
    n->first[ACTIVE] = wire;
}

static inline void inbox_activate(clusim_sim *s, wire_id wire) {
    if (wire_at(s, wire)->active) return;
    inbox_activate_at(s, &s->windows.nodes[info_at(s, wire)->src.i], wire);
}

void inbox_free(window_scratch *scratch);

/* List a wire into such a node as having packets in flight. */
STATUS inbox_list(clusim_sim *s, wire_id wire);

static inline uint32_t inbox_len(const window_ring *ring) { return ring->end - ring->head; }

static inline window_packet *inbox_entry(const window_ring *ring, uint32_t number) {
    return &ring->all[(ring->head + number) & (ring->size - 1)];
}

/* Note the room after entries were removed. */
static inline void inbox_removed(window_ring *ring) { ring->full = ring->head + ring->size; }

/* The uncommon cases: no room, or one that overtakes others. */
STATUS inbox_insert(window_ring *ring, window_packet p);

static inline STATUS inbox_append(window_ring *ring, window_packet p) {
    uint32_t end = ring->end;
    if (UNLIKELY(end == ring->full || p.at_ps < ring->last_ps)) return inbox_insert(ring, p);
    ring->last_ps = p.at_ps;
    ring->end = end + 1;
    window_packet *to = &ring->all[end & (ring->size - 1)];
    to->at_ps = p.at_ps;
    to->packet = p.packet;
    to->control_256 = p.control_256;
    return CLUSIM_OK;
}

/* Control bytes owed for a packet after it crossed its wire: below 2^32 (model_windows.c). */
static inline uint32_t inbox_control(const wire_state *w, const packet *p) {
    return p->exact * w->rate->kinds[p->kind].control_256;
}

/* A packet reaches the node at the end of its wire at `at_ps`. */
static inline STATUS inbox_put(clusim_sim *s, wire_id wire, packet_id index, int64_t at_ps) {
    window_in *x = &s->windows.ins[wire.i];
    inbox_due(s, at_ps);
    if (UNLIKELY(!x->listed)) TRY(inbox_list(s, wire));
    uint32_t control_256 = inbox_control(wire_at(s, wire), packet_at(s, index));
    return inbox_append(&x->under_way, (window_packet){at_ps, index, control_256});
}

/* The same where the node may be another thread's. */
STATUS inbox_cross(clusim_sim *s, wire_id wire, packet_id index, int64_t at_ps);

/* Credit of a wire whose sender belongs to another thread is free at `free_ps`. */
STATUS inbox_credit(clusim_sim *s, wire_id wire, uint32_t vc, uint32_t bytes, int64_t free_ps);

/* `payload` bytes of a transfer to several endpoints are visible at one endpoint. */
STATUS inbox_delivery(clusim_sim *s, wire_id wire, xfer_id x, uint32_t payload, int64_t visible);

/* Places for more arrivals of a wire, for one that is before all, and for one that ends them. */
STATUS inbox_more_room(window_scratch *scratch, wire_state *w);

/* A packet enters a VOQ of a wire out of node `n` in this window. */
static inline STATUS inbox_arrives_at(clusim_sim *s, window_node *n, wire_id out,
                                      window_arrival arrival) {
    window_scratch *d = &s->windows.scratch;
    wire_state *w = wire_at(s, out);
    if (UNLIKELY(w->num_arrivals == w->room)) TRY(inbox_more_room(d, w));
    window_arrival *next = &d->queued[w->first_arrival + w->num_arrivals++];
    w->unsorted |= next[-1].at_ps > arrival.at_ps;
    *next = arrival;
    inbox_activate_at(s, n, out);
    return CLUSIM_OK;
}

static inline STATUS inbox_arrives(clusim_sim *s, wire_id out, window_arrival arrival) {
    return inbox_arrives_at(s, &s->windows.nodes[info_at(s, out)->src.i], out, arrival);
}

/* Work of this window for the node whose turn it is: a thread processes one node at a time. */
static inline STATUS inbox_work(clusim_sim *s, window_arrival work) {
    window_scratch *d = &s->windows.scratch;
    if (UNLIKELY(d->num_work == d->size_work)) GROW(d->work, d->size_work);
    d->work[d->num_work++] = work;
    return CLUSIM_OK;
}

/* The unit of the switch at the end of a wire will have finished an operation. */
STATUS inbox_result(clusim_sim *s, wire_id from, packet_id op, int64_t at_ps);

/* ---- endpoints ---------------------------------------------------------------------------------
 */

/* True if endpoints work in windows. */
static inline bool inbox_leading(const clusim_sim *s) { return s->windows.leading; }

/* An endpoint's response to a packet is ready `latency_ps` after its memory accepted it. */
STATUS inbox_reply(clusim_sim *s, endpoint_id endpoint, window_packet taken, int64_t latency_ps);

/* Something begins to send at an endpoint. */
STATUS inbox_start(clusim_sim *s, endpoint_id endpoint, window_start start);

/* The endpoint's memory is accessed in this window: for `payload` bytes of an arriving packet, or
 * without a packet, of a granted one. */
static inline STATUS inbox_access(clusim_sim *s, int64_t at_ps, packet_id index, uint32_t access) {
    return inbox_work(s, (window_arrival){at_ps, index, access});
}

static inline uint32_t inbox_payload(uint32_t payload, enum window_access access) {
    return payload | (uint32_t)access << ACCESS_SHIFT;
}

#endif
