/* path_policy.h - policies of the paths of switches: functions from outside that choose among equal
 * wires.
 *
 * Hardware  Programmable load balancing of switches.
 * Model     Contract, section 6 (path policy).
 * Not modelled  The time that a switch needs to run the policy, load of remote links.
 * Parameters  `policy` of nodes. */
#ifndef CLUSIM_PATH_POLICY_H
#define CLUSIM_PATH_POLICY_H

#include "parts/senders.h"
#include "spread.h"
#include "state.h"

/* The wire that the policy of the packet's node chooses, of several usable ones; NONE without a
 * policy. */
wire_id path_policy_choose(clusim_sim *s, const packet *p, const spread_choice *c);

/* The nodes with a row of `controls` begin with the record of its policy. */
STATUS path_policy_use(clusim_sim *s, uint32_t control, const clusim_sender *x);
STATUS path_policy_init(clusim_sim *s);
void path_policy_free(clusim_sim *s);

#endif
