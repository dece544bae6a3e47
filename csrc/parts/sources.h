/* parts/sources.h - synthetic traffic. */
#ifndef CLUSIM_PARTS_SOURCES_H
#define CLUSIM_PARTS_SOURCES_H

#include "ids.h"

typedef struct source_state {
    message_id next_message;
    uint32_t slot;
    uint8_t injecting, in_flight; /* of the last message started */
} source_state;

typedef struct sources_part {
    source_state *all;    /* owned */
    int64_t *message_end; /* owned */
    uint64_t messages_left;
} sources_part;

#endif
