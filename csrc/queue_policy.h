/* queue_policy.h - policies of the queues of wires: functions from outside that accept, mark, trim
 * or drop.
 *
 * Hardware  Programmable queue management of switches.
 * Model     Contract, section 4 (queue policy).
 * Not modelled  The time that a switch needs to run the policy. Parameters  `policy` of wires. */
#ifndef CLUSIM_QUEUE_POLICY_H
#define CLUSIM_QUEUE_POLICY_H

#include "parts/senders.h"
#include "state.h"

enum queue_answer { QUEUE_ACCEPTS, QUEUE_MARKS, QUEUE_TRIMS, QUEUE_DROPS };

/* Answer for a packet that is to enter a queue with `queued` bytes. */
enum queue_answer queue_policy_judge(clusim_sim *s, const packet *p, int64_t queued,
                                     int64_t free_bytes);

/* The record of a policy for a wire, with a key by `salt`. */
STATUS queue_policy_record(const clusim_sim *s, wire_id wire, uint32_t salt, const clusim_sender *x,
                           int64_t **out);

/* The wires with a row of `controls` begin with the record of its policy. */
STATUS queue_policy_use(clusim_sim *s, uint32_t control, const clusim_sender *x);
void queue_policy_free(clusim_sim *s);

#endif
