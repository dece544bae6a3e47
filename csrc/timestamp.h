/* timestamp.h - one timestamp: due events and delta cycles (phase A), then one arbitration of every
 * wire that may have packets to send (phase B).
 *
 * Hardware  -
 * Model     Contract, section 1.
 */
#ifndef CLUSIM_TIMESTAMP_H
#define CLUSIM_TIMESTAMP_H

#include "state.h"

/* Time of the next event [ps], or NEVER. Events after `limit_ps` may be left unsorted. */
STATUS timestamp_next(clusim_sim *s, int64_t limit_ps, int64_t *at_ps);

/* Process the events of the present time. */
STATUS timestamp_run(clusim_sim *s);

#endif
