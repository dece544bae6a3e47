/* samples.h - counters of wires and endpoints at given times, which do not end windows.
 *
 * Hardware  Periodic reading of port counters, and of the rates of queue pairs.
 * Model     Values up to and including a time, as read in a pause at that time.
 * Not modelled  Cost and skew of reading.
 *
 * Before a timestamp or window, all earlier times are recorded from the present state. In a window,
 * times are recorded first for all nodes, then by the turns of nodes, which split at these times:
 * a turn replaces values from its beginning to the end of the window. */
#ifndef CLUSIM_SAMPLES_H
#define CLUSIM_SAMPLES_H

#include "parts/samples.h"
#include "parts/wires.h"
#include "state.h"

void samples_free(clusim_sim *s);

static inline int64_t samples_at(const clusim_sim *s, uint32_t k) {
    if (LIKELY(k >= s->samples.count)) return NEVER;
    return s->samples.first_ps + (int64_t)k * s->samples.width_ps;
}

/* Record all times of a side before `end_ps` that are not passed. */
void samples_pass_all(clusim_sim *s, enum samples_side side, int64_t end_ps);

static inline void samples_pass(clusim_sim *s, enum samples_side side, int64_t end_ps) {
    if (UNLIKELY(samples_at(s, s->samples.next[side]) < end_ps)) samples_pass_all(s, side, end_ps);
}

/* A window begins. */
void samples_open(clusim_sim *s, int64_t begin_ps, int64_t end_ps);

/* A part of the window begins for the present nodes. */
void samples_turn(clusim_sim *s, int64_t begin_ps);

/* Record the present state of a wire for time `k`, or from `k` to the end of the window. */
void samples_wire(clusim_sim *s, wire_id wire, uint32_t k);
void samples_wire_rest(clusim_sim *s, wire_id wire, uint32_t k);

/* Record the memory traffic of an endpoint for time `k`. */
void samples_memory(clusim_sim *s, endpoint_id endpoint, uint32_t k, uint64_t bytes_256);

/* Everything before `end_ps` is done. */
void samples_stop(clusim_sim *s, int64_t end_ps);

/* The run has ended: the present time and later times are not sampled. */
void samples_end(clusim_sim *s);

/* Everything before `end_ps` is done, and from now on there are only events. */
void samples_close(clusim_sim *s, int64_t end_ps);

#endif
