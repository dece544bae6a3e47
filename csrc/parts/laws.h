/* parts/laws.h - state that the checks of laws.c keep. */
#ifndef CLUSIM_PARTS_LAWS_H
#define CLUSIM_PARTS_LAWS_H

#include "ids.h"

/* Of a wire. */
typedef struct law_wire {
    uint64_t due_ps; /* time of its bytes, up to the last change of its rate */
    uint64_t bytes;  /* counted in due_ps */
} law_wire;

/* Of the wires out of an endpoint, or into it. */
typedef struct law_end {
    uint64_t rate30;  /* their rates together, in payload per 2^30 ps */
    int64_t least_ps; /* shortest latency */
    uint64_t payload; /* payload that complete transfers moved over them */
} law_end;

typedef struct law_break { /* the first broken law of a transfer */
    const char *what;      /* NULL if no law is violated */
    endpoint_id endpoint;
    uint64_t found, expected;
} law_break;

typedef struct laws_part {
    law_wire *wires; /* owned */
    law_end *ends;   /* owned; [2 * endpoint]: outgoing, [2 * endpoint + 1]: incoming */
    int64_t slack_ps;
    bool changes; /* faults change rates */
    law_break broken;
} laws_part;

#endif
