/* window.h - plain nodes without events: what crosses them is worked off a window of time at once.
 *
 * A node is plain if it only forwards: switches and NICs, not endpoints. What happens at one can be
 * felt elsewhere only after a wire's latency, and so can what happens elsewhere at it. So when
 * the first thing due at a plain node is at time D, and W is the smallest of those latencies, all
 * that reaches plain nodes before D + W is known once everything else has come as far as D. Then
 * every wire out of a plain node is on its own up to there: packets that arrive at it, control
 * bytes that it comes to owe and credit that comes back have their times, and it goes from grant to
 * grant. Exactly the contract's semantics: no time and no counter is another than with events.
 *
 * Not so where wires look at each other's queues or stop each other within a timestamp (adaptive
 * routing, marks, pauses), where rates change, and where switches reduce or copy: those images run
 * with events alone (model.h, window_ps).
 */
#ifndef CLUSIM_WINDOW_H
#define CLUSIM_WINDOW_H

#include "parts/windows.h"
#include "state.h"

STATUS window_init(clusim_sim *s);
void window_free(clusim_sim *s);

/* How far nodes that have something due may go, in a run up to `until_ps`. */
int64_t window_end_ps(clusim_sim *s, int64_t until_ps);

/* All that nodes do before `end_ps`, which is not beyond the window that begins at due_ps. */
STATUS window_run(clusim_sim *s, int64_t end_ps);

/* Everything that is not plain has come to the present time: so do plain nodes, phase B included.
 */
STATUS window_catch_up(clusim_sim *s);

/* The end of the window that begins with the first thing due. */
static inline int64_t window_horizon(const clusim_sim *s) {
    int64_t due_ps = s->windows.due_ps;
    return due_ps == NEVER ? NEVER : due_ps + s->model->window_ps;
}

/* Go on with events alone; everything has come to the present time. */
STATUS window_close(clusim_sim *s);

#endif
