/* parts/endpoints.h - endpoints: their memory, CTA slots and kernels. */
#ifndef CLUSIM_PARTS_ENDPOINTS_H
#define CLUSIM_PARTS_ENDPOINTS_H

#include "clock.h"
#include "list.h"

typedef struct endpoint_state {
    clock16 memory;
    int64_t thread_free_ps; /* when its proxy thread accepts the next slice */
    uint64_t mem_cost16;
    uint64_t mem_bytes_256;
    uint32_t slow_1024;
    uint64_t slots[4]; /* CTA slots in use */
    uint32_t busy_sms;
    uint32_t kernels;     /* running */
    task_id first_kernel; /* list */
    packet_id deferred;   /* packets that arrive now, by wire id */
    int64_t epoch_at;
    uint64_t epoch_mem, epoch_avail;
    uint32_t settled_sms; /* busy_sms when speeds were last set */
    uint8_t dirty, epoch_due, set_changed;
} endpoint_state;

typedef struct endpoints_part {
    endpoint_state *all; /* owned */
    endpoint_list dirty; /* endpoints with changed kernels or busy SMs at this time */
} endpoints_part;

#endif
