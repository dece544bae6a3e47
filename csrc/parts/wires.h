/* parts/wires.h - wires, their credit and queues, and the flows that send on them. */
#ifndef CLUSIM_PARTS_WIRES_H
#define CLUSIM_PARTS_WIRES_H

#include "model.h"

typedef struct credit_return {
    int64_t at_ps;
    int64_t bytes;
} credit_return;

/* Credit of one (wire, VC): available bytes and pending returns, in one cache line. A credit return
 * touches no other part of the wire. */
typedef struct credit_pool {
    int64_t available;
    int64_t credit_ps;      /* of the wire */
    credit_return *pending; /* owned; from head to end, and one before in time */
    uint32_t head, end, size;
    uint32_t look;    /* the end at which returns are to be counted */
    uint16_t traits;  /* of the wire */
    uint8_t unsorted; /* those pending are not by time */
    uint8_t stalled;  /* the wire is stalled and looks at these returns */
    uint32_t pad[5];
} credit_pool;

_Static_assert(sizeof(credit_pool) == 64, "a credit pool fills one cache line");

typedef struct voq {
    packet_id head, tail; /* head is NONE if empty; the tail's link is undefined */
} voq;

/* All state of a wire that a grant or an arrival touches, in four cache lines; it includes copies
 * of model data for that reason. Grants change the first line; switches use the last one only if
 * credit is short. */
typedef struct wire_state {
    int64_t free_at;
    const rate_class *rate;
    uint64_t rem;
    uint64_t owed_256;
    int64_t drained_at;
    uint64_t *ready; /* candidates that are ready, a bitmap */
    voq *queues;
    uint32_t num_ready; /* bits set in `ready` */
    uint32_t next_candidate;

    credit_pool *credits; /* per VC */
    int64_t latency_ps;
    int64_t far_latency_ps; /* of the far node */
    uint32_t num_voqs, num_candidates;
    endpoint_id far_endpoint; /* endpoint at the far end, or NONE */
    uint16_t traits;
    uint16_t num_words; /* of the bitmaps */
    uint8_t down : 1;
    uint8_t listed : 1;  /* in the list for phase B */
    uint8_t stalled : 1; /* since `stall_since` */
    uint8_t owes : 1;    /* arrivals over the reverse wire in this window are acknowledged */
    uint8_t active;      /* in its node's list for the window */
    uint8_t contended;   /* stall_arbitration counted up to free_at */
    uint8_t unsorted;    /* the arrivals of this window */
    uint16_t num_waits, first_wait;       /* in `waits` */
    uint32_t num_arrivals, first_arrival; /* of this window, on the scratch (windows.h) */
    uint32_t room;                        /* for them */
    wire_id next_active;

    uint64_t packets, grants, bytes, payload;
    int64_t busy_ps, stall_arbitration_ps;
    uint64_t queued_bytes, queued_max;

    int64_t wake_at; /* time of the valid WAKE event, or NEVER */
    int64_t stall_credit_ps;
    int64_t stall_since; /* start of the present credit stall */
    uint64_t control_bytes, replays;
    struct flow_wait *waits; /* flows that wait for their pace, by time */
    struct flow_cursor *flows;
    int64_t soonest; /* time at which the first of `waits` becomes available, or NEVER */
} wire_state;

_Static_assert(sizeof(wire_state) == 256, "a wire fills four cache lines");

/* All that an arrival reads of the far end of a wire. */
typedef struct wire_end {
    node_id node;
    uint32_t in_queue; /* first candidate of packets from this wire, there */
    uint32_t ordinal;  /* among the wires beside it */
    wire_id reverse;
} wire_end;

/* Ranks of candidates of a wire with a dimension; lower ranks are granted first. */
enum wire_rank { RANK_STRAIGHT, RANK_TURNING, RANK_ENTERING };

/* Remaining packets of one flow on one wire. */
typedef struct flow_cursor {
    int64_t avail;
    uint32_t next; /* packet number */
    xfer_id xfer;
    uint32_t payload, exact, wire_bytes; /* of the next packet */
    uint32_t full_bytes;                 /* on the wire, of a full packet */
    uint32_t outstanding;
    uint8_t window_closed;
    uint8_t waits; /* it is one of its wire's `waits` */
    uint16_t vc;
} flow_cursor;

/* Time at which a flow's next packet becomes available. */
typedef struct flow_wait {
    int64_t at_ps;
    uint32_t slot;
    uint32_t pad;
} flow_wait;

/* Schedule of a wire: state of its classes. */
typedef struct class_state {
    uint64_t deficit[CLUSIM_SIZE_CLASSES];
    uint32_t next[CLUSIM_SIZE_CLASSES]; /* first candidate in round robin */
    uint32_t turn[CLUSIM_SIZE_CLASSES]; /* of each priority: a class */
} class_state;

typedef struct wires_part {
    wire_state *all;       /* owned, as the arrays below */
    const wire_info *info; /* of the model */
    credit_pool *credits;  /* [wire * nvc + vc] */
    voq *voqs;
    uint8_t *ranks;          /* of the queues of ranked wires (wire_rank) */
    class_state *classes;    /* of wires with a schedule, or or NULL */
    int64_t **schedules;     /* records of policies of schedules, per wire; or NULL */
    uint64_t *class_bytes;   /* bytes in VOQs, [wire * nvc + vc], likewise */
    int64_t *entered;        /* time at which a packet entered its VOQ, likewise */
    uint32_t num_entered;    /* packets with room for it */
    uint64_t *ready_bits;    /* candidates that are ready, per wire */
    struct flow_wait *waits; /* flows that wait for their pace */
    flow_cursor *flows;
    uint32_t nvc;
    int64_t **paths;        /* records of policies of paths, per node; or NULL */
    clusim_output *outputs; /* rows for such a policy */
    uint32_t down;          /* now */
    bool any_down;          /* at any time, as below */
    bool any_choice;        /* wires were down, or switches have policies of paths */
    bool rates_changed;
} wires_part;

#endif
