/* window_endpoint.h - what an endpoint does in a window of time.
 *
 * Its wires are on their own like those of plain nodes, only that flows compete there too: what
 * begins to send in the window is known when it begins (a slice waits at its gate first, and its
 * `fixed_ps` are no shorter than a window), and answers were asked for before. Only memory is
 * shared: what wires grant and what arrives asks for it in order of time when all wires are done.
 */
#ifndef CLUSIM_WINDOW_ENDPOINT_H
#define CLUSIM_WINDOW_ENDPOINT_H

#include "parts/windows.h"
#include "state.h"

/* Of an endpoint that is worked off with its router: what it sends goes before the router, what it
 * is sent behind it. */
enum window_side { WINDOW_BOTH, WINDOW_SENDS, WINDOW_TAKES };

STATUS window_endpoint_run(clusim_sim *s, window_node *n, enum window_side side, int64_t end_ps);

/* Everything that is under way to endpoints becomes events. */
STATUS window_endpoint_close(clusim_sim *s);

/* Whether all tasks and messages may be done before `end_ps`. */
bool window_endpoint_near(clusim_sim *s, int64_t end_ps);

#endif
