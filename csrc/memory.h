/* memory.h - each endpoint's memory, shared by communication and kernels; kernels' progress.
 *
 * Hardware  HBM behind an L2; copies by communication and the traffic of kernels share its rate.
 * Model     Contract, sections 8 and 9: a clock that each access advances; kernels take in epochs
 *           what communication left, and leave communication at least its weighted share.
 * Not modelled  Banks, refresh, read/write turnaround, the L2's replacement.
 */
#ifndef CLUSIM_MEMORY_H
#define CLUSIM_MEMORY_H

#include "sim.h"

/* mem(E, x) of the contract: the time at which memory accepts x/256 bytes offered now. */
static inline int64_t memory_access(clusim_sim *s, uint32_t endpoint, uint64_t x256) {
    endpoint_state *e = &s->endpoints[endpoint];
    int64_t at16 = base_max(e->mem16, (int64_t)((uint64_t)s->now_ps << 16));
    e->mem16 = at16 + (int64_t)((x256 * e->mem_cost16) >> 8);
    e->mem_bytes_256 += x256;
    return (at16 + 65535) >> 16;
}

static inline void memory_inject(clusim_sim *s, uint32_t endpoint, uint64_t payload) {
    memory_access(s, endpoint, payload * s->model->image.endpoints[endpoint].inject_256);
}

void memory_start_kernel(clusim_sim *s, uint32_t task);
void memory_kernel_event(clusim_sim *s, uint32_t task); /* a kernel's end, unless it moved */
void memory_epoch_event(clusim_sim *s, uint32_t endpoint);
void memory_mark_dirty(clusim_sim *s, uint32_t endpoint);
void memory_settle(clusim_sim *s); /* phase A, step 6 */

#endif
