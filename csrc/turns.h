/* turns.h - events and windows take turns: what goes on first, and until when.
 *
 * An event changes what nodes in windows do, and they schedule events. Both are up to date together
 * ("level") at windows.done_ps. Three states, of which a run has one at a time:
 *
 *     FOLLOWING  windows.on, not leading: endpoints have events. Events go first, to the horizon of
 *                the nodes (window_horizon); the nodes follow up to there.
 *     LEADING    windows.on, leading: endpoints work in windows, too. What events do to them acts a
 *                window later, so from level on nodes go first, one window, and events follow up to
 *                its end.
 *     OFF        events alone.
 *
 *        window_init                         level, time near 2^62 ps (near_end)
 *     ------------> FOLLOWING or LEADING ---------------------------------------> OFF
 *      |                 |     ^                        window_close
 *      |                 +-----+ one window (window_run) or one timestamp (timestamp_run)
 *      +--> OFF          windows do not pay, or the image has mechanisms that they do not model
 *
 * A run pauses only where both are level, so that what is read of it is of one time.
 */
#ifndef CLUSIM_TURNS_H
#define CLUSIM_TURNS_H

#include "state.h"

/* Process the next window or timestamp. *stop is CLUSIM_STOP_DONE if the run goes on. No event is
 * at or beyond the end of time: the run was refused when it came up. */
STATUS turns_advance(clusim_sim *s, int64_t until_ps, enum clusim_stop *stop);

/* Stop at `stop_at` events or when the records are nearly full, but not while endpoints are ahead
 * of events. */
STATUS turns_pause(clusim_sim *s, uint64_t stop_at, enum clusim_stop *stop);

#endif
