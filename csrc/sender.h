/* sender.h - sender policies: functions from outside that set rate and window of a queue pair.
 *
 * Hardware  Programmable congestion control of NICs.
 * Model     Contract, section 5 (sender policies). A policy sees one flow only.
 * Not modelled  The time that a NIC needs to run the policy. Parameters  `sender` of the image's
 * `controls`. */
#ifndef CLUSIM_SENDER_H
#define CLUSIM_SENDER_H

#include "congestion.h"
#include "parts/senders.h"
#include "state.h"

/* True if deliveries of the flow are reported to its policy. */
bool sender_acknowledged(const clusim_sim *s, flow_id flow);

/* A transfer of the flow starts or is granted completely. */
STATUS sender_transfer(clusim_sim *s, flow_id flow, xfer_id id);
void sender_idle(clusim_sim *s, flow_id flow);

/* A packet of a controlled flow was granted now: packet `number` of a transfer. */
STATUS sender_granted(clusim_sim *s, xfer_id id, uint32_t number, uint32_t payload);

/* The next packets of a transfer are on the present path of its flow's policy. */
void sender_route(clusim_sim *s, xfer_id id);

/* A repeated packet was granted now; it is in flight if it is `acknowledged`. */
STATUS sender_repeated(clusim_sim *s, const packet *p);

/* Remove a lost packet from the bytes in flight; false if it was removed before. */
bool sender_in_flight(const clusim_sim *s, const backlog_item *item, uint32_t payload);

/* Bytes of the flow in flight were lost. */
STATUS sender_lost(clusim_sim *s, flow_id flow, int64_t bytes);

/* More bytes wait to be sent again, of a transfer or others of its queue pair. */
STATUS sender_repeats(clusim_sim *s, const xfer *x, int64_t bytes);

/* Earliest start of a repeat of a transfer; NEVER while it waits for its window or credit. */
int64_t sender_ready_at(const clusim_sim *s, const xfer *x);

/* Set the time of the next packet after an event of the flow. True if the flow waits for another
 * time with the transfer `*id`. */
bool sender_changed(clusim_sim *s, flow_id flow, xfer_id *id);

/* A notification, or the oldest notice of a flow with a policy, reaches the sender. */
STATUS sender_notify_event(clusim_sim *s, flow_id flow);

/* A timer of a policy may be due. */
STATUS sender_alarm_event(clusim_sim *s, flow_id flow);

STATUS sender_init(clusim_sim *s);
void sender_free(clusim_sim *s);

#endif
