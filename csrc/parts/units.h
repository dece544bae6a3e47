/* parts/units.h - reduction units of switches and their trees. */
#ifndef CLUSIM_PARTS_UNITS_H
#define CLUSIM_PARTS_UNITS_H

#include "clock.h"
#include "ids.h"

typedef struct unit_state {
    clock16 clock;
    uint64_t in_use;
    uint64_t reduced_bytes; /* operand bytes processed so far */
    packet_id wait_head, wait_tail;
    packet_id deferred; /* packets that arrive now, by wire id */
} unit_state;

/* An inner vertex of an aggregation tree. */
typedef struct vertex_state {
    uint32_t base;      /* operations finished */
    uint32_t head;      /* place of operation `base` in `counts` */
    uint16_t *counts;   /* owned by the sim; children admitted, per open operation */
    uint32_t *payloads; /* likewise; payloads of their packets */
    packet_id wait_head, wait_tail;
    xfer_id xfer;     /* member: its present transfer */
    vertex_id member; /* a member below, whose transfer represents all */
} vertex_state;

typedef struct units_part {
    unit_state *all; /* owned */
} units_part;

typedef struct trees_part {
    vertex_state *all;  /* owned */
    uint16_t *counts;   /* owned; slots of all vertices */
    uint32_t *payloads; /* owned; likewise */
} trees_part;

#endif
