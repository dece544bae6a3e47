/* congestion.h - Ethernet's way: pause frames instead of credit, congestion marks, rate control.
 *
 * Hardware  Priority flow control (IEEE 802.1Qbb), marks (RFC 3168) and DCQCN in RoCE adapters.
 * Model     Contract, sections 4 and 5. Pauses and notifications are delays, not packets.
 * Not modelled  Pauses by a shared buffer, pause quanta that run out, the bandwidth of pause and
 * notification frames. Parameters  Image arrays `wires` (xoff, xon, ecn, queue_bytes, alpha, red,
 * trim_vc),
 * `nodes` (shared_bytes) and `controls`.
 */
#ifndef CLUSIM_CONGESTION_H
#define CLUSIM_CONGESTION_H

#include "state.h"

/* A packet has arrived over a wire with pauses: its receive buffer fills. */
STATUS congestion_held(clusim_sim *s, wire_id wire, const packet *p);

/* Bytes of the receive buffer of (wire, vc) are free at `free_ps`. */
STATUS congestion_free_at(clusim_sim *s, wire_state *w, uint32_t vc, uint32_t bytes,
                          int64_t free_ps);
STATUS congestion_free_event(clusim_sim *s, wire_id wire, uint32_t payload);
STATUS congestion_pause_event(clusim_sim *s, wire_id wire, uint32_t payload);

/* A packet received over a wire is to enter a queue of a wire that marks or drops: mark it if it
 * finds congestion. True if it does not enter instead. */
bool congestion_drops(clusim_sim *s, packet *p);

/* True, and counted, if such a packet is trimmed; otherwise it is dropped. */
bool congestion_trims(clusim_sim *s, const packet *p);
void congestion_count_drop(clusim_sim *s, const packet *p);

/* A packet leaves the queue of a wire that shares memory, queues headers, or marks at departure. */
void congestion_left(clusim_sim *s, const wire_state *w, const packet *p);

/* True if the sender is to be notified of a marked packet now; this starts the interval again. */
bool congestion_notifies(clusim_sim *s, flow_id flow);

/* A marked packet of a controlled flow reached its destination. */
STATUS congestion_notify(clusim_sim *s, flow_id flow);
void congestion_notify_event(clusim_sim *s, flow_id flow);

/* A packet of a controlled flow was granted now. */
void congestion_granted(clusim_sim *s, flow_id flow, uint32_t payload);

/* Row of `controls` of a flow, or NONE. */
static inline uint32_t congestion_row(const clusim_image *im, uint64_t flow) {
    return flow < im->num_conns ? im->conns[flow].control
                                : im->sources[flow - im->num_conns].control;
}

static inline const clusim_control *congestion_control(const clusim_sim *s, flow_id flow) {
    const clusim_image *im = &s->model->image;
    return &im->controls[congestion_row(im, flow.i)];
}

STATUS congestion_init(clusim_sim *s);
void congestion_free(clusim_sim *s);
void congestion_read(const clusim_sim *s, wire_id wire, clusim_wire_counters *out);

#endif
