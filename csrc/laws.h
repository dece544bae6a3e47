/* laws.h - what holds in every run whatever the machine: payload asked for is payload delivered,
 * nothing works faster than its rate, and nothing ends before its cause.
 *
 * Contract, section 12. What is needed on the way is kept per transfer and per change of a rate;
 * the rest is looked at when the run has ended and drained. A law that is broken is a bug of ours.
 */
#ifndef CLUSIM_LAWS_H
#define CLUSIM_LAWS_H

#include "state.h"

STATUS laws_init(clusim_sim *s);
void laws_free(clusim_sim *s);

/* A transfer is complete now. */
void laws_transfer(clusim_sim *s, const xfer *x);

/* The rate of a wire is about to change. */
void laws_rate_changes(clusim_sim *s, wire_id wire);

/* After the run of which `end_ps` is the time, drained. */
STATUS laws_check(const clusim_sim *s, int64_t end_ps, clusim_error *error);

#endif
