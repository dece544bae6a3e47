/* window_endpoint.h - processing of an endpoint in a time window.
 *
 * Wires of an endpoint are as independent as those of plain nodes, but flows also compete there.
 * Transfers that start in the window are known at its begin (a slice waits at its gate first, and
 * its `fixed_ps` is at least a window), and responses were requested earlier. Only memory is
 * shared: requests of grants and arrivals are issued in order of time after all wires are done. */
#ifndef CLUSIM_WINDOW_ENDPOINT_H
#define CLUSIM_WINDOW_ENDPOINT_H

#include "parts/windows.h"
#include "state.h"

/* Parts of an endpoint that is processed with its router: sends before the router, receives
 * after. */
enum window_side { WINDOW_BOTH, WINDOW_SENDS, WINDOW_TAKES };

STATUS window_endpoint_run(clusim_sim *s, window_node *n, enum window_side side, int64_t end_ps);

/* Convert everything in flight to endpoints into events. */
STATUS window_endpoint_close(clusim_sim *s);

/* True if pending deliveries or programs prove that tasks or messages end after `end_ps`; otherwise
 * they may end in the next window if packets are near to their targets. */
bool window_endpoint_goes_on(clusim_sim *s, int64_t end_ps);
bool window_endpoint_near(const clusim_sim *s);

#endif
