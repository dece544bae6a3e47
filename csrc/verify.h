/* verify.h - conservation: after a run has drained, everything must balance. */
#ifndef CLUSIM_VERIFY_H
#define CLUSIM_VERIFY_H

#include "sim.h"

int verify_balances(clusim_sim *s, clusim_error *error);

#endif
