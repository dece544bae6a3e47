/* readout.h - readable state of a run, also while it drains. */
#ifndef CLUSIM_READOUT_H
#define CLUSIM_READOUT_H

#include "state.h"

STATUS readout_init(clusim_sim *s);

/* The run has ended: save its counters and its fingerprint. */
void readout_finish(clusim_sim *s);

#endif
