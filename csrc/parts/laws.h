/* parts/laws.h - what the laws of laws.c need to remember. */
#ifndef CLUSIM_PARTS_LAWS_H
#define CLUSIM_PARTS_LAWS_H

#include "ids.h"

/* Of a wire. */
typedef struct law_wire {
    uint64_t due_ps; /* what its bytes take, up to the last change of its rate */
    uint64_t bytes;  /* counted in due_ps */
} law_wire;

/* Of the wires out of an endpoint, or into it. */
typedef struct law_end {
    uint64_t rate30;  /* their rates together, in payload per 2^30 ps */
    int64_t least_ps; /* shortest latency */
    uint64_t payload; /* what complete transfers moved over them */
} law_end;

typedef struct law_break { /* the first broken law of a transfer */
    const char *what;      /* NULL: none */
    endpoint_id endpoint;
    uint64_t found, expected;
} law_break;

typedef struct laws_part {
    law_wire *wires; /* owned */
    law_end *ends;   /* owned; [2 * endpoint]: out of it, [2 * endpoint + 1]: into it */
    int64_t slack_ps;
    bool changes; /* faults change rates */
    law_break broken;
} laws_part;

#endif
