/* parts/samples.h - counters at given times of a run. */
#ifndef CLUSIM_PARTS_SAMPLES_H
#define CLUSIM_PARTS_SAMPLES_H

#include "base.h"
#include "ids.h"

/* Nodes in windows and events pass a time separately. */
enum samples_side { SAMPLES_EVENTS, SAMPLES_WINDOWS, SAMPLES_SIDES };

typedef struct samples_part {
    clusim_wire_sample *wires; /* owned; [time * wires + wire] */
    uint64_t *mem_bytes_256;   /* owned; [time * endpoints + endpoint] */
    clusim_flow_sample *flows; /* owned; [time * num_flows + place in flow_ids] */
    flow_id *flow_ids;         /* owned; flows that are sampled */
    int64_t first_ps, width_ps;
    uint32_t count, num_flows;    /* times; flows */
    uint32_t next[SAMPLES_SIDES]; /* first time that is not passed */
    uint32_t turn;                /* first time in the turn of a node in its window */
    bool any[SAMPLES_SIDES];      /* the side has wires or endpoints */
} samples_part;

#endif
