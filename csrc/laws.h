/* laws.h - invariants of every run on any system: requested payload is delivered payload, no
 * component exceeds its rate, and no task ends before its cause.
 *
 * Contract, section 12. Intermediate state is kept per transfer and per change of a rate; the rest
 * is checked after the run has ended and drained. A violation is a bug of the engine. */
#ifndef CLUSIM_LAWS_H
#define CLUSIM_LAWS_H

#include "state.h"

STATUS laws_init(clusim_sim *s);
void laws_free(clusim_sim *s);

/* A transfer is complete now. */
void laws_transfer(clusim_sim *s, const xfer *x);

/* The rate of a wire is about to change. */
void laws_rate_changes(clusim_sim *s, wire_id wire);

/* Call after the run has drained; `end_ps` is its time. */
STATUS laws_check(const clusim_sim *s, int64_t end_ps, clusim_error *error);

#endif
