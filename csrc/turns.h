/* turns.h - alternation of events and windows: which advances first, and up to which time.
 *
 * An event changes the state of nodes in windows, and they schedule events. Both are up to date
 * together ("level") at windows.done_ps. Three states, of which a run has one at a time:
 *
 *     FOLLOWING  windows.on, not leading: endpoints have events. Events advance first, to the
 *                horizon of the nodes (window_horizon); the nodes follow up to there.
 *     LEADING    windows.on, leading: endpoints also work in windows. Effects of events on them are
 *                a window later, so from level on nodes advance first, one window, and events
 *                follow up to its end.
 *     OFF        events only.
 *
 *        window_init                         level, time near 2^62 ps (near_end)
 *     ------------> FOLLOWING or LEADING ---------------------------------------> OFF
 *      |                 |     ^                        window_close
 *      |                 +-----+ one window (window_run) or one timestamp (timestamp_run)
 *      +--> OFF          windows do not pay, or the image has mechanisms that they do not model
 *
 * A run pauses only where both are level, so that its readable state is of one time. */
#ifndef CLUSIM_TURNS_H
#define CLUSIM_TURNS_H

#include "state.h"

/* Process the next window or timestamp. *stop is CLUSIM_STOP_DONE if the run continues. Events are
 * always before the end of time: later ones were refused when they were scheduled. */
STATUS turns_advance(clusim_sim *s, int64_t until_ps, enum clusim_stop *stop);

/* Stop at `stop_at` events or when the records are nearly full, but not while endpoints are ahead
 * of events. */
STATUS turns_pause(clusim_sim *s, uint64_t stop_at, enum clusim_stop *stop);

#endif
