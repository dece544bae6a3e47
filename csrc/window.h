/* window.h - event-free simulation of nodes in time windows (conservative lookahead, YAWNS).
 *
 * An action at a node affects another node only after a wire's latency. If the first action due at
 * any node is at time D and W is the smallest of these latencies, everything that reaches a node
 * before D + W is known at D, and nodes are independent until then. Wires out of a switch are
 * independent too: the arrival times of packets, owed control bytes and returned credit are known,
 * and each wire advances from grant to grant. A reduction unit is processed before the wires, since
 * every result of a window belongs to an operation that began earlier, provided that the unit's
 * latency is at least W. Semantics are exactly the contract's: all times and counters are the same
 * as with events. window_endpoint.h explains why endpoints qualify.
 *
 * If endpoints work with events, switches follow: a window is processed once all events up to its
 * end are done. If endpoints have windows, nodes lead: events (programs, tasks, completions)
 * follow, and their effects on endpoints are `fixed_ps` later. A window must then end before the
 * end of the run, which only events determine, so windows near it are short.
 *
 * A host on a short wire to a dedicated router is processed with it: the host's sends first, then
 * the router, then the host's receives. Both then have windows as long as the router's other wires
 * allow, provided that arrivals at the host cause no sends and that credit between the two lasts
 * for a window. If credit does not last, the pair processes the window in parts.
 *
 * A switch whose packets compare several wires (adaptive routing, flowlets, minimal paths) works
 * with events, as an endpoint does that follows; its neighbours may work in windows. Not used if
 * every switch may send packets on detours, if wires stop each other or mark packets within a
 * timestamp (marks, pauses), if rates change, or if trees of switches reduce: those images run with
 * events only (model.h, window_ps). */
#ifndef CLUSIM_WINDOW_H
#define CLUSIM_WINDOW_H

#include "parts/windows.h"
#include "state.h"

STATUS window_init(clusim_sim *s);
void window_free(clusim_sim *s);

/* Latest time to which nodes with something due may advance, in a run up to `until_ps`, if
 * endpoints are among them. */
STATUS window_end_ps(clusim_sim *s, int64_t until_ps, int64_t *end_ps);

/* Process all nodes up to `end_ps`, at most the end of the window that begins at due_ps. */
STATUS window_run(clusim_sim *s, int64_t end_ps);

/* Advance nodes, phase B included, to the present time, which events have reached. */
STATUS window_catch_up(clusim_sim *s);

/* The end of the window that begins with the first thing due. */
static inline int64_t window_horizon(const clusim_sim *s) {
    int64_t due_ps = s->windows.due_ps;
    return due_ps == NEVER ? NEVER : due_ps + s->model->window_ps;
}

/* Switch to events only; everything has reached the present time. */
STATUS window_close(clusim_sim *s);

#endif
