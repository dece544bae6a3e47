/* parts/packets.h - packets, and input buffers shared by copies of a packet.
 *
 * A packet is identified by its pool index. The `next` link, used by exactly one list at a time (a
 * VOQ, a unit's waiting line), is stored in a separate array: list traversal runs ahead of the
 * packets, which are prefetched by then. */
#ifndef CLUSIM_PARTS_PACKETS_H
#define CLUSIM_PARTS_PACKETS_H

#include "ids.h"

enum {
    BATCH_OPS = 9,
    PACKET_BITS = 28 /* of a packet_id; the others are for members of batches (batch.h) */
};

/* The first 28 bytes are common to all packets of a batch (batch.h); a batch stores operations in
 * the other 36. */
typedef struct packet {
    uint32_t wire_bytes; /* on the wire `out` */
    uint32_t payload;    /* bytes represented */
    uint32_t exact;      /* number of exact packets represented */
    wire_id out;         /* wire it waits for or travels on */
    target_id dst;       /* present target; NONE if a unit consumes it */
    uint8_t kind, vc;
    uint8_t held_vc; /* batches: the first of `ops` that is queued */
    uint8_t first_vc;
    uint8_t copy : 1;                  /* MCAST after its fan-out, AGG_DOWN after one */
    uint8_t away : 1;                  /* LEG_FREE: on a detour, not before its choice */
    uint8_t after : 2;                 /* LEG_FREE: its leg without the detour */
    uint8_t ordered : 1, repeated : 1; /* in-order receiver; sent again */
    uint8_t : 0;
    uint8_t adaptive : 1, marked : 1, batch : 1;
    uint8_t acknowledged : 1; /* the sender's policy learns of its delivery */
    uint8_t promised : 1;     /* waits with credit on a minimal path */
    uint8_t leg : 2;          /* which target `dst` is, LEG_LAST the last */
    union {
        uint16_t members; /* operations: responses still missing */
        struct {
            uint8_t num_ops, num_over; /* batches: `ops`, and those not needed any more */
        };
    };
    union {
        struct {
            xfer_id xfer;
            uint32_t key;      /* route key */
            wire_id held_wire; /* wire with the occupied receive buffer, or NONE */
            uint32_t held_bytes;
            union {
                packet_id op;     /* RED_FETCH, RED_DATA: the operation */
                buffer_id shared; /* copies: common input buffer, or NONE */
            };
            uint32_t path_pos; /* next index into path_wires, or NONE */
            union {
                wire_id first_wire; /* of its injection, for the window */
                vertex_id vertex;   /* AGG_UP: source; AGG_DOWN: destination */
            };
            wire_id in_wire; /* operations: wire of the request */
            uint32_t number; /* in its transfer */
        };
        packet_id ops[BATCH_OPS]; /* batches: operations, in order of the queue */
    };
} packet;

enum { LEG_FIRST, LEG_SECOND, LEG_LAST, LEG_FREE /* before or on a detour */ };

_Static_assert(sizeof(packet) == 64, "a packet fills one cache line");

typedef struct shared_buffer {
    int64_t max_end;
    wire_id wire;
    uint32_t copies, bytes;
    uint32_t vc;
} shared_buffer;

/* The last of the free packets is the next to be used: it was freed a short time ago and is in a
 * near cache. A thread keeps some, the simulation itself has room for all. */
enum { SPARE_PACKETS = 2048, SPARE_AHEAD = 2 };

typedef struct packets_part {
    void *block; /* owned; in which they are */
    packet *all;
    packet_id *next;  /* owned; successor of each in its list (state.h) */
    packet_id *spare; /* owned; begins SPARE_AHEAD packets earlier, which are prefetched in vain */
    uint32_t num_spare, room;
    uint32_t fresh; /* from here on packets were never used, and are not listed */
    uint32_t size, live;
} packets_part;

typedef struct buffers_part {
    shared_buffer *all; /* owned */
    buffer_id free;
    uint32_t size, live;
} buffers_part;

#endif
