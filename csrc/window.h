/* window.h - nodes without events: conservative lookahead (YAWNS), a window of time at once.
 *
 * What happens at a node can be felt elsewhere only after a wire's latency, and so can what happens
 * elsewhere at it. So when the first thing due at a node is at time D, and W is the smallest of
 * those latencies, all that reaches it before D + W is known by D, and every node is on its own up
 * to there. So is every wire out of a switch: packets that arrive at it, control bytes that it
 * comes to owe and credit that comes back have their times, and it goes from grant to grant. A
 * reduction unit is worked off before them, as all that it finishes in a window began before it, if
 * its latency is no shorter than W. Exactly the contract's semantics: no time and no counter is
 * another than with events. window_endpoint.h says why endpoints can do so too.
 *
 * Where endpoints work with events, switches follow: a window is worked off when all events have
 * come as far as its end. Where endpoints have windows, nodes lead: events (programs, tasks, what
 * is complete) come behind, and what they do to endpoints comes a `fixed_ps` later. Then a window
 * may not go beyond the end of the run, which is when events say so: near it windows are short.
 *
 * A host on a short wire to a router of its own is worked off with it: first what it sends, then
 * the router, then what it is sent. Both then have windows as long as the router's other wires
 * allow, if what arrives at the host makes it send nothing, and if credit between the two lasts for
 * a window; where it does not, these two go through the window in parts.
 *
 * Not so where wires look at each other's queues or stop each other within a timestamp (adaptive
 * routing, marks, pauses), where rates change, and where trees of switches add up: those images run
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

/* Events have come to the present time: so do nodes, phase B included. */
STATUS window_catch_up(clusim_sim *s);

/* The end of the window that begins with the first thing due. */
static inline int64_t window_horizon(const clusim_sim *s) {
    int64_t due_ps = s->windows.due_ps;
    return due_ps == NEVER ? NEVER : due_ps + s->model->window_ps;
}

/* Go on with events alone; everything has come to the present time. */
STATUS window_close(clusim_sim *s);

#endif
