/* parts/programs.h - connections, and the instances that run programs over them. */
#ifndef CLUSIM_PARTS_PROGRAMS_H
#define CLUSIM_PARTS_PROGRAMS_H

#include "list.h"

typedef struct conn_state {
    uint64_t tail_visible, consumed, issued, head_visible;
    uint64_t sends, posted;             /* slices started and posted by the sender */
    uint32_t stripe, stripe_read;       /* packet counts; the second of READs from a stage */
    uint32_t turn;                      /* index of the queue pair of the next write */
    inst_id recv_waiters, send_waiters; /* lists */
    uint8_t missing[64];                /* per unposted slice: number of conditions still missing */
    uint8_t width[64];                  /* ... and its number of slots */
} conn_state;

enum inst_phase { PH_NEW, PH_QUEUED, PH_GATE, PH_FIXED, PH_READ, PH_DATA, PH_FENCE, PH_DONE };

typedef struct inst_state {
    uint64_t loop, loops;
    uint64_t piece;       /* bytes of the present piece */
    uint64_t slice_size;  /* nominal */
    uint64_t slice_at;    /* offset of the present slice in the piece */
    uint32_t slices_left; /* of the piece, the present one included */
    uint32_t prim, repeat, seq, slot;
    uint32_t send_ordinal;
    inst_id next_waiter;
    conn_id wait_conn;
    uint32_t slow_1024;                       /* of the endpoint when the slice passed its gate */
    uint8_t phase, due, wait_side, has_slice; /* wait_side: a clusim_cause */
    int64_t queued_ps;                        /* start of its task */
    int64_t gate_ps;                          /* time at which the present slice passed its gate */
    int64_t start_ps;                         /* start of its data movement */
    xfer_id xfer;                             /* its last transfer after that, or NONE */
    xfer_id fence;                            /* last multicast, done and incomplete, or NONE */
    uint32_t held;                            /* first slice sent after the fence, or NONE */
    wire_id wire;                             /* the present slice's last data, or NONE */
    uint32_t cause;                           /* clusim_cause: its last reason for blocking */
} inst_state;

typedef struct held_slice { /* posts at the end of a fence */
    conn_id conn;
    uint32_t ordinal;
    uint32_t next; /* of the instance or of the free list, NONE at the end */
} held_slice;

typedef struct programs_part {
    conn_state *conns;      /* owned */
    inst_state *insts;      /* owned */
    inst_list due, current; /* runnable now; of the current delta cycle */
    held_slice *held;       /* owned */
    uint32_t held_size, held_free;
} programs_part;

#endif
