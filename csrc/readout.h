/* readout.h - what can be read of a run, also while it drains. */
#ifndef CLUSIM_READOUT_H
#define CLUSIM_READOUT_H

#include "state.h"

STATUS readout_init(clusim_sim *s);

/* The run has ended: its counters and its fingerprint are those of now. */
void readout_finish(clusim_sim *s);

#endif
