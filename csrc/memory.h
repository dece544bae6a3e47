/* memory.h - each endpoint's memory, shared by communication and kernels; kernels' progress.
 *
 * Hardware  HBM with an L2; copies by communication and the traffic of kernels share its rate.
 * Model     Contract, sections 8 and 9: a clock that each access advances; kernels use in epochs
 *           the remainder of communication, and leave communication at least its weighted share.
 * Not modelled  Banks, refresh, read/write turnaround, the L2's replacement. */
#ifndef CLUSIM_MEMORY_H
#define CLUSIM_MEMORY_H

#include "parts/endpoints.h"
#include "parts/scheduler.h"
#include "scheduler.h"
#include "state.h"

STATUS memory_init(clusim_sim *s);
void memory_free(clusim_sim *s);

/* Rare cases of memory_access: work that does not fit 64 bits, or that leaves the ranges. */
void memory_charge_long(clusim_sim *s, endpoint_id endpoint, uint64_t x256);
void memory_beyond(clusim_sim *s, endpoint_id endpoint);

/* mem(E, x) of the contract: the time at which memory accepts x/256 bytes offered now.
 *
 * x256 is below 2^60 (a packet represents at most 2^28 bytes, a factor is below 2^32). The clock
 * may pass the end of time by the charge until the next access: below 2^40 ps. */
static inline int64_t memory_access(clusim_sim *s, endpoint_id endpoint, uint64_t x256) {
    endpoint_state *e = endpoint_at(s, endpoint);
    if (e->memory.ps < s->scheduler.now_ps) {
        e->memory = (clock16){s->scheduler.now_ps, 0};
    } else if (UNLIKELY(e->memory.ps >= RANGE_TIME_END - 1)) {
        memory_beyond(s, endpoint);
    }
    int64_t at_ps = clock_read(&e->memory);
    uint64_t work;
    if (LIKELY(!__builtin_mul_overflow(x256, e->mem_cost16, &work))) {
        work = (work >> 8) + e->memory.fraction16;
        e->memory.ps += (int64_t)(work >> 16);
        e->memory.fraction16 = (uint32_t)work & 65535;
    } else {
        memory_charge_long(s, endpoint, x256);
    }
    bool wrapped = __builtin_add_overflow(e->mem_bytes_256, x256, &e->mem_bytes_256);
    if (UNLIKELY(wrapped)) scheduler_beyond(s, CLUSIM_BEYOND_ENDPOINT, endpoint.i);
    return at_ps;
}

/* Process an endpoint's memory accesses in a window, sorted by time. Accesses of delivered packets
 * remain in the list, with the times at which memory accepts them; returns their number. */
uint32_t memory_work_off(clusim_sim *s, endpoint_id endpoint, window_arrival *all, uint32_t count);

/* Sample the endpoint's traffic at the times of the turn, before that is done. */
void memory_sample(clusim_sim *s, endpoint_id endpoint, const window_arrival *all, uint32_t count);

static inline void memory_inject(clusim_sim *s, endpoint_id endpoint, uint64_t payload) {
    memory_access(s, endpoint, payload * s->model->image.endpoints[endpoint.i].inject_256);
}

STATUS memory_start_kernel(clusim_sim *s, task_id task);
STATUS memory_kernel_event(clusim_sim *s, task_id task); /* a kernel's end, unless it moved */
STATUS memory_epoch_event(clusim_sim *s, endpoint_id endpoint);
STATUS memory_mark_dirty(clusim_sim *s, endpoint_id endpoint);
STATUS memory_settle(clusim_sim *s); /* phase A, step 6 */

#endif
