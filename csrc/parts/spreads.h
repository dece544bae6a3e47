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

typedef struct spreads_part {
    int64_t *promised; /* owned; credit of packets on minimal paths, [wire * nvc + vc], or NULL */
    flowlet *all;      /* owned; a hash table with open addressing, of 2^n entries */
    clusim_order_counters *orders; /* owned; per target, or NULL */
    uint64_t *kept;                /* owned; bytes kept now, per target, or NULL */
    uint32_t size, used;
    bool failed; /* no memory for an entry */
} spreads_part;

#endif
