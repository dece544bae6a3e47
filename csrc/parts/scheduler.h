/* parts/scheduler.h - what time it is, what happens next, and whether it may. */
#ifndef CLUSIM_PARTS_SCHEDULER_H
#define CLUSIM_PARTS_SCHEDULER_H

#include "event_queue.h"
#include "list.h"

/* Event classes: phase A handles them in this order; WAKE only leads to phase B. */
enum event_class {
    EV_FAULT,
    EV_ARRIVE,
    EV_RESPOND,
    EV_RESULT,
    EV_FREE,
    EV_PAUSE,
    EV_NOTIFY,
    EV_COMPLETE,
    EV_TAIL,
    EV_HEAD,
    EV_READY,
    EV_KERNEL,
    EV_EPOCH,
    EV_DELAY,
    EV_SOURCE,
    EV_START,
    EV_LAUNCH,
    EV_WAKE /* at most 32 classes */
};

/* The key of an event: its rank in phase A, its class, and a number.
 *
 * The contract orders a timestamp by class, and arrivals by wire. Most of that order cannot be
 * seen: only arrivals at one endpoint or unit meet (node_settle takes those by wire), and arrivals,
 * responses and wakes touch different queues unless GPUs relay. So events are sorted by rank alone:
 * faults, then what travels, then the rest. With adaptive routing and with congestion marks, where
 * an arrival looks at a queue others enter, the whole key counts. The number is a wire or unit, or
 * something small that a timer carries. */
enum { RANK_SHIFT = 30, CLASS_SHIFT = 25, NUMBER_MASK = (1 << CLASS_SHIFT) - 1 };

enum { BEYOND_NOTHING = CLUSIM_BEYOND_VERTEX + 1 }; /* all is inside the ranges */

typedef struct scheduler_part {
    int64_t now_ps;
    event_queue events;
    uint64_t event_count;
    wire_list phase_b, phase_b_pass; /* to arbitrate; those of the pass under way */
    node_list deferred;              /* nodes at which packets have arrived that end there */
    uint32_t beyond, beyond_index;   /* a clusim_beyond, or BEYOND_NOTHING */
} scheduler_part;

#endif
