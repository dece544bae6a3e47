/* parts/scheduler.h - present time, event queue, and limits of a run. */
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
    EV_ALARM,
    EV_REPEAT,
    EV_TIMEOUT,
    EV_RESEND,
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
 * The contract orders a timestamp by class, and arrivals by wire. Most of that order is
 * unobservable: only arrivals at one endpoint or unit interact (node_settle sorts those by wire),
 * and arrivals, responses and wakes touch different queues unless GPUs relay. Events are therefore
 * sorted by rank only: faults, then packets, then the rest. With adaptive routing and with
 * congestion marks, an arrival looks at a queue that others enter, so the full key counts. The
 * number is a wire or unit, or a small value that a timer carries. */
enum { RANK_SHIFT = 30, CLASS_SHIFT = 25, NUMBER_MASK = (1 << CLASS_SHIFT) - 1 };

enum { BEYOND_NOTHING = CLUSIM_BEYOND_SWITCH + 1 }; /* all is inside the ranges */

typedef struct scheduler_part {
    int64_t now_ps;
    event_queue events;
    uint64_t event_count;
    wire_list phase_b, phase_b_pass; /* wires to arbitrate; wires of the current pass */
    node_list deferred;              /* nodes at which packets have arrived that end there */
    uint32_t beyond, beyond_index;   /* a clusim_beyond, or BEYOND_NOTHING */
} scheduler_part;

#endif
