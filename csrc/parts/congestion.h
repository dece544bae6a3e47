/* parts/congestion.h - pauses, marks and rate control; of fabrics that have them. */
#ifndef CLUSIM_PARTS_CONGESTION_H
#define CLUSIM_PARTS_CONGESTION_H

#include "ids.h"

/* Receiver and sender side of one (wire, VC) that is paused instead of given credit. */
typedef struct pause_state {
    uint64_t held;
    uint32_t asked;
    int32_t stopped; /* PAUSEs minus RESUMEs in effect */
} pause_state;

typedef struct congestion_counters { /* of one wire */
    uint64_t overflows, pauses, marks, held_max;
    uint64_t entered; /* packets that could have been marked */
    uint64_t drops, dropped_bytes, trims, trimmed_bytes;
    uint64_t header_bytes; /* of trimmed packets in its queues */
    bool whole;            /* its policy drops the packet at hand, and does not trim it */
} congestion_counters;

/* DCQCN state of one flow; rates in bytes per 2^30 ps. */
typedef struct flow_control {
    uint64_t rate, target, sent;
    uint64_t sent_bytes, marked_bytes; /* of the run, for samples */
    int64_t next_at;                   /* earliest start of the next packet */
    int64_t alpha_at, increase_at;     /* next timers, or NEVER */
    int64_t notified_at;               /* last notification sent, or -1 */
    uint64_t timer_count, byte_count;
    uint32_t alpha;
} flow_control;

typedef struct congestion_part {
    pause_state *pauses;           /* owned; [wire * nvc + vc], if any wire is paused or marks */
    congestion_counters *counters; /* owned; per wire, likewise */
    uint64_t *shared;              /* owned; per node: bytes in its shared memory, or NULL */
    int64_t **records;             /* owned, and each; of policies of queues, per wire, or NULL */
    flow_control *controls;        /* owned; connections, then sources, if any is controlled */
} congestion_part;

#endif
