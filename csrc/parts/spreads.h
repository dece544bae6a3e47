/* parts/spreads.h - flowlets in switches, credit promised to packets, receivers in order. */
#ifndef CLUSIM_PARTS_SPREADS_H
#define CLUSIM_PARTS_SPREADS_H

#include "base.h"
#include "ids.h"

/* Numbers of packets that a receiver misses, on the way to the sender. */
typedef struct order_span {
    uint64_t from, to; /* without `to` */
} order_span;

/* First in, first out; `first` moves up to `len`, where both return to 0. */
typedef struct span_list {
    order_span *items; /* owned */
    uint32_t first, len, size;
} span_list;

/* A packet that is to be sent again. */
typedef struct backlog_item {
    xfer_id xfer;
    pair_id pair;
    uint32_t number; /* in its transfer */
} backlog_item;

typedef struct backlog_list {
    backlog_item *items; /* owned */
    uint32_t first, len, size;
} backlog_list;

/* The last choice of a node for a flow and target. */
typedef struct flowlet {
    node_id node; /* NONE: empty */
    target_id target;
    flow_id flow;
    wire_id wire;
    int64_t last_ps; /* of its packets there */
} flowlet;

/* A queue pair whose packets are accepted in order only; packets have numbers in its line. */
typedef struct order_pair {
    uint64_t expected;   /* number of the next packet to be accepted, or above all numbers */
    uint64_t refused_at; /* the same at the last refusal, or above all numbers */
    uint64_t kept_bytes;
    packet_id kept;     /* early packets, by number */
    xfer_id present;    /* of the expected packet, or NONE */
    xfer_id refused_in; /* of the packet last refused */
    line_id line;
    span_list missing;   /* selective: refusals on their way */
    uint64_t seen;       /* selective: one more than the highest number that arrived */
    int64_t progress_ps; /* last time at which a packet was accepted or repeated */
    uint32_t tries;      /* timeouts since a packet was accepted */
    flow_id flow;
    bool timing;  /* a timeout is scheduled */
    bool refused; /* a refusal is on its way to the sender */
    bool lost;    /* a packet was dropped after the last refusal had reached it */
} order_pair;

/* Transfers of one queue pair, or of several over which the packets of each alternate. */
typedef struct order_line {
    uint64_t next;           /* number of the next transfer's first packet */
    xfer_id oldest, newest;  /* transfers that a queue pair may still need, or NONE */
    pair_id pair;            /* the first */
    int64_t timeout_ps;      /* of retransmission, or 0 */
    uint32_t pairs, repeats; /* number; packets that wait to be sent again */
    backlog_list backlog;    /* with retransmission: packets outside of queues */
    line_id next_blocked;    /* of its flow, or NONE */
    bool busy;               /* a repeat is in a queue or on its wire, or waits for a time */
    bool blocked;            /* ... or for a window */
} order_line;

/* Queue pairs of all connections and sources with receivers in order. */
typedef struct orders_part {
    clusim_order_counters *counters; /* owned; per target, or NULL */
    uint64_t *kept;                  /* owned; bytes kept now, per target, or NULL */
    int64_t *timeout_at;             /* owned; the last timeout, likewise */
    order_line *lines;               /* owned, as all below */
    order_pair *pairs;
    line_id *of_conn, *of_message; /* the first of a connection; NONE without order */
    uint32_t *turn;                /* of a connection: its next line */
    xfer_id *starting;             /* of a flow: its last transfer; maybe freed */
    uint32_t num_lines, num_pairs;
    uint64_t begun_bytes, arrived_bytes; /* payload of transfers; and of packets that arrived */
    uint64_t repeated_bytes, dropped_bytes, trimmed_bytes;
} orders_part;

typedef struct spreads_part {
    orders_part orders;
    int64_t *promised; /* owned; credit of packets on minimal paths, [wire * nvc + vc], or NULL */
    flowlet *all;      /* owned; a hash table with open addressing, of 2^n entries */
    uint32_t size, used;
    bool failed; /* no memory for an entry */
} spreads_part;

#endif
