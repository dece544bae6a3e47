/* repeat.h - packets that their sender repeats, as their receiver refused them or they were lost.
 *
 * Hardware  Retransmission of RoCE and InfiniBand NICs: back to the refused packet (go-back-N), or
 * of missing packets only (selective repeat), and after a timeout.
 *
 * Model     Contract, section 6 (receivers in order, loss). Refusals are delays, not packets.
 *
 * Not modelled  Lost refusals, timers of single packets; timeouts count from drops. */
#ifndef CLUSIM_REPEAT_H
#define CLUSIM_REPEAT_H

#include "parts/packets.h"
#include "state.h"

/* The sender learns that packets were refused. */
STATUS repeat_refused(clusim_sim *s, pair_id pair);

/* A queue pair may have waited too long for progress. */
STATUS repeat_timeout(clusim_sim *s, pair_id pair);

/* The next repeat of a line may leave. */
STATUS repeat_next(clusim_sim *s, line_id line);

/* A repeated packet was granted, and leaves its endpoint by `end_ps`. */
STATUS repeat_granted(clusim_sim *s, packet *p, int64_t end_ps);

/* A notice or a timer may have changed the time of a flow's next packet. */
STATUS repeat_resume(clusim_sim *s, flow_id flow);

#endif
