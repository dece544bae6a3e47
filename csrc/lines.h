/* lines.h - queue pairs whose packets are accepted in order, and the lines of their transfers.
 *
 * Model     Contract, section 6 (receivers in order); order.h is their work.
 * Not modelled  Connections that share a queue pair. */
#ifndef CLUSIM_LINES_H
#define CLUSIM_LINES_H

#include "parts/xfers.h"
#include "state.h"

#define NO_NUMBER UINT64_MAX /* above all numbers of packets */

/* Create the queue pairs with receivers in order. */
STATUS lines_init(clusim_sim *s);
void lines_free(clusim_sim *s);

/* A transfer of a flow joins the line of its queue pairs; it waits for their repeats. */
void lines_start(clusim_sim *s, xfer_id x, flow_id flow);

/* Queue pair of a packet of a transfer. */
pair_id lines_pair(const clusim_sim *s, const xfer *x, uint32_t number);

/* A packet of a transfer, or a refusal, has arrived or vanished, or its line does not need it. */
void lines_forget(clusim_sim *s, xfer_id x);

/* A packet was dropped now: its queue pair waits for progress. */
STATUS lines_dropped(clusim_sim *s, const packet *p);

/* Schedule a TIMEOUT of a queue pair. */
STATUS lines_time(clusim_sim *s, pair_id pair, int64_t at_ps);

#endif
