/* parts/packets.h - packets, and the input buffers that copies of one share.
 *
 * A packet is named by its place in the pool. What is `next` to it in exactly one list (a VOQ, a
 * unit's waiting line, the pool's free list) lies apart: lists are followed ahead of the packets,
 * which are fetched by then.
 */
#ifndef CLUSIM_PARTS_PACKETS_H
#define CLUSIM_PARTS_PACKETS_H

#include "ids.h"

typedef struct packet {
    xfer_id xfer;
    uint32_t key;        /* route key */
    uint32_t wire_bytes; /* on the wire `out` */
    uint32_t payload;    /* bytes it stands for */
    uint32_t exact;      /* exact packets it stands for */
    wire_id out;         /* wire it waits for or travels on */
    wire_id held_wire;   /* wire whose receive buffer it occupies, or NONE */
    uint32_t held_bytes;
    target_id dst; /* present target, or none if a unit consumes it */
    union {
        packet_id op;     /* RED_FETCH, RED_DATA: the operation */
        buffer_id shared; /* copies: the input buffer they hold together, or none */
    };
    uint32_t path_pos; /* next index into path_wires, or NONE */
    union {
        wire_id first_wire; /* of its injection, for the window */
        vertex_id vertex;   /* AGG_UP: that it comes from; AGG_DOWN: that it goes to */
    };
    uint8_t kind, vc, held_vc, first_vc;
    uint8_t copy;                              /* MCAST behind its fan-out, AGG_DOWN behind one */
    uint8_t adaptive : 1, marked : 1, leg : 2; /* leg: which target `dst` is, LEG_LAST the last */
    uint16_t members;                          /* operations: responses still missing */
    wire_id in_wire;                           /* operations: wire on which the request came */
    uint32_t pad;
} packet;

enum { LEG_FIRST, LEG_SECOND, LEG_LAST };

_Static_assert(sizeof(packet) == 64, "a packet fills one cache line");

typedef struct shared_buffer {
    int64_t max_end;
    wire_id wire;
    uint32_t copies, bytes;
    uint32_t vc;
} shared_buffer;

typedef struct packets_part {
    void *block; /* owned; in which they are */
    packet *all;
    packet_id *next; /* owned; what comes after each in its list (state.h) */
    packet_id free;
    packet_id chains; /* lists of free packets that threads have left over, linked by `op` */
    uint32_t size, live;
} packets_part;

typedef struct buffers_part {
    shared_buffer *all; /* owned */
    buffer_id free;
    uint32_t size, live;
} buffers_part;

#endif
