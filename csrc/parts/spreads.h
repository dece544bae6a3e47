/* parts/spreads.h - flowlets in switches, credit promised to packets, receivers in order. */
#ifndef CLUSIM_PARTS_SPREADS_H
#define CLUSIM_PARTS_SPREADS_H

#include "base.h"
#include "ids.h"

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
    bool refused; /* a refusal is on its way to the sender */
    bool lost;    /* a packet was dropped after the last refusal had reached it */
} order_pair;

/* Transfers of one queue pair, or of several over which the packets of each alternate. */
typedef struct order_line {
    uint64_t next;           /* number of the next transfer's first packet */
    xfer_id oldest, newest;  /* transfers that a queue pair may still need, or NONE */
    pair_id pair;            /* the first */
    uint32_t pairs, repeats; /* number; packets that wait to be sent again */
} order_line;

/* Queue pairs of all connections and sources with receivers in order. */
typedef struct orders_part {
    clusim_order_counters *counters; /* owned; per target, or NULL */
    uint64_t *kept;                  /* owned; bytes kept now, per target, or NULL */
    order_line *lines;               /* owned, as all below */
    order_pair *pairs;
    line_id *of_conn, *of_message; /* the first of a connection; NONE without order */
    uint32_t *turn;                /* of a connection: its next line */
    uint32_t num_lines, num_pairs;
} orders_part;

typedef struct spreads_part {
    orders_part orders;
    int64_t *promised; /* owned; credit of packets on minimal paths, [wire * nvc + vc], or NULL */
    flowlet *all;      /* owned; a hash table with open addressing, of 2^n entries */
    uint32_t size, used;
    bool failed; /* no memory for an entry */
} spreads_part;

#endif
