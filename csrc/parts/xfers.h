/* parts/xfers.h - transfers in flight: data that a slice or a message sends or fetches. */
#ifndef CLUSIM_PARTS_XFERS_H
#define CLUSIM_PARTS_XFERS_H

#include "parts/packets.h"

enum xfer_type {
    XFER_WRITE,
    XFER_READ,
    XFER_MCAST,
    XFER_REDUCE,
    XFER_REDUCE_MCAST,
    XFER_AGGREGATE
};
enum { OWNER_INSTANCE, OWNER_SOURCE };

/* In lines by use: the first two serve grants, the third answers and deliveries. */
typedef struct xfer {
    int64_t start_ps;
    int64_t max_end; /* greatest end of its granted packets */
    uint64_t cost16;
    uint32_t count; /* packets */
    uint32_t ungranted;
    uint32_t full;   /* P0*k */
    uint32_t stripe; /* b: stripe number of packet 0, or the pinned key */
    uint32_t group_size;
    uint32_t window;   /* packets per first wire (adaptive: in all), 0 = unlimited */
    wire_id last_wire; /* of the packet of max_end (writes) or of visible (reads) */
    flow_id flow;      /* rate-controlled flow, or NONE */
    uint32_t repeats;  /* of its line; its flow waits for them */
    uint8_t kind, policy;
    uint16_t pad;

    packet made; /* common fields of its packets */

    int64_t visible;    /* greatest visible time of its packets; written on arrival, as below */
    uint64_t remaining; /* deliveries missing */
    uint64_t delivered; /* bytes, of all copies */
    uint32_t limit;     /* P0 */
    uint32_t slot;
    endpoint_id endpoint; /* requesting endpoint: destination of responses */
    target_id dst;        /* destination of requests or data; NONE for multimem and aggregation */
    target_id via_first, via_last; /* intermediate targets, or NONE */
    path_id path, path_back;
    mgroup_id mgroup;
    uint8_t type, owner_kind, vc, vc_response;

    uint64_t bytes;
    int64_t pace_ps;        /* earliest end of the data phase */
    const uint32_t *queues; /* into the model */
    const uint32_t *group;  /* first-hop wires; points into the model or to own_group */
    uint32_t *own_group;    /* owned; only while wires are down */
    uint32_t num_queues;    /* keys over which its packets alternate, 0 = `stripe` only */
    uint32_t adaptive_next;
    uint32_t outstanding; /* adaptive windows */
    union {               /* by owner_kind */
        inst_id inst;
        source_id source;
    };
    union {
        conn_id conn;
        message_id message;
    };
    uint32_t spread; /* row, or NONE */

    /* Of receivers that accept packets in order only: */
    line_id line;
    xfer_id later;   /* next transfer of the line, or NONE */
    uint64_t first;  /* number of its packet 0 in the line */
    uint32_t refers; /* packets and repeats in flight or still to be sent, and the line */
    bool complete;
    vertex_id vertex;
    uint32_t ordinal;
    xfer_id next_free;
    uint32_t pad2[7];
} xfer;

_Static_assert(sizeof(xfer) == 320, "a transfer fills five cache lines");

/* True if the owner is done only when everything is delivered. */
static inline bool xfer_awaited(const xfer *x) {
    return x->owner_kind == OWNER_SOURCE || x->type == XFER_READ || x->type == XFER_REDUCE ||
           x->type == XFER_REDUCE_MCAST;
}

/* True if the slice is done when the last packet has left. */
static inline bool xfer_stores(const xfer *x) {
    return x->type == XFER_WRITE || x->type == XFER_MCAST;
}

typedef struct xfers_part {
    void *block; /* owned; in which they are */
    xfer *all;
    xfer_id free;
    uint32_t size, live;
} xfers_part;

#endif
