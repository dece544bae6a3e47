/* receiver.h - receiver policies: functions from outside that grant credit to the flows of a NIC.
 *
 * Hardware  NICs whose receivers grant credit to senders.
 * Model     Contract, section 5 (receiver policy). Requests and credit are delays, not packets.
 * Not modelled  The time that a NIC needs to run the policy, bytes of requests and credit.
 * Parameters  `sender` of the image's `controls`. */
#ifndef CLUSIM_RECEIVER_H
#define CLUSIM_RECEIVER_H

#include "parts/senders.h"
#include "state.h"

/* True if credit is the only rate control of a row's flows. */
static inline bool receiver_rules(const clusim_control *c) {
    return c->sender == CLUSIM_SENDER_MODE_RECEIVER;
}

/* True if the receivers of flows of a row grant credit. */
static inline bool receiver_grants(const clusim_control *c) {
    return receiver_rules(c) || c->receiver;
}

/* The flow of a transfer and its receiver. */
link_id receiver_link(const clusim_sim *s, const xfer *x);

/* True if the flow has credit. */
static inline bool receiver_open(const clusim_sim *s, link_id link) {
    return s->senders.receivers.links[link.i].credit > 0;
}

/* The flow requests credit for payload: of a transfer, or lost (CREDIT_REQUESTED, CREDIT_LOST). */
STATUS receiver_request(clusim_sim *s, link_id link, int64_t bytes, uint32_t kind);

/* A packet of a flow arrived at its last endpoint. */
STATUS receiver_arrived(clusim_sim *s, const packet *p);

/* The oldest request or credit of a flow arrives. */
STATUS receiver_message_event(clusim_sim *s, flow_id flow);

/* A timer may be due. */
STATUS receiver_alarm_event(clusim_sim *s, receiver_id id);

/* The receivers of a row of `controls` begin with the record of its policy. */
STATUS receiver_use(clusim_sim *s, uint32_t control, const clusim_sender *x);

STATUS receiver_init(clusim_sim *s);
void receiver_free(clusim_sim *s);

#endif
