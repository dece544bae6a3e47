/* schedule_policy.h - policies of the schedule of wires: functions from outside that choose the
 * class of the next packet.
 *
 * Hardware  Programmable schedulers of switches.
 * Model     Contract, section 4 (schedule policy).
 * Not modelled  The time that a switch needs to run the policy. Parameters  `policy` of schedules.
 */
#ifndef CLUSIM_SCHEDULE_POLICY_H
#define CLUSIM_SCHEDULE_POLICY_H

#include "parts/senders.h"
#include "state.h"

/* Set age and bytes of the class of a head: the first packet of a VOQ. */
void schedule_policy_describe(const clusim_sim *s, const wire_state *w, uint32_t candidate,
                              clusim_head *head);

/* Class of the next packet, with one of the heads; NONE without a policy. */
uint32_t schedule_policy_choose(clusim_sim *s, wire_id wire, clusim_head *heads);

/* The wires with a schedule of a row of `controls` begin with the record of its policy. */
STATUS schedule_policy_use(clusim_sim *s, uint32_t control, const clusim_sender *x);
STATUS schedule_policy_init(clusim_sim *s);
void schedule_policy_free(clusim_sim *s);

#endif
