/* parts/spreads.h - flowlets in switches, and credit promised to packets. */
#ifndef CLUSIM_PARTS_SPREADS_H
#define CLUSIM_PARTS_SPREADS_H

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
    uint32_t size, used;
    bool failed; /* no memory for an entry */
} spreads_part;

#endif
