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

/* A transfer joins the line of its queue pairs; its flow waits for their repeats. */
void lines_start(clusim_sim *s, xfer_id x);

#endif
