/* verify.h - conservation: after a run has drained, everything must balance. */
#ifndef CLUSIM_VERIFY_H
#define CLUSIM_VERIFY_H

#include "state.h"

STATUS verify_balances(clusim_sim *s, clusim_error *error);

/* True if a packet may wait for ever: for a wire that is down, or for a buffer smaller than
 * itself. */
bool verify_may_wait(const clusim_sim *s);

#endif
