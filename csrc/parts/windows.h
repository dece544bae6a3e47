/* parts/windows.h - packets in flight to nodes that work in windows, and arrivals of a window at
 * their wires and endpoints. */
#ifndef CLUSIM_PARTS_WINDOWS_H
#define CLUSIM_PARTS_WINDOWS_H

#include "list.h"
#include "parts/wires.h"

struct clusim_sim;
struct partition;
struct thread_pool;

/* From 2^61 ps on there are only events, which mind the end of time. */
enum { WINDOW_LAST_BITS = 61 };

/* A packet that enters VOQ `candidate` of a wire. Without a packet: a response to the flow that is
 * this candidate, which reduces its outstanding packets by one.
 *
 * At the memory of an endpoint: a delivered packet, or none for a granted one, and its payload,
 * with the access kind in the highest bits. */
typedef struct window_arrival {
    int64_t at_ps;
    packet_id packet;
    uint32_t candidate; /* or payload */
} window_arrival;

/* Memory access kinds; the payload of a packet has fewer than ACCESS_SHIFT bits. */
enum window_access { ACCESS_INJECT, ACCESS_DELIVER, ACCESS_READ, ACCESS_KINDS, ACCESS_SHIFT = 30 };

/* A packet on its way to a node, or an answer that an endpoint has ready. */
typedef struct window_packet {
    int64_t at_ps; /* arrival time */
    packet_id packet;
    uint32_t control_256; /* that the reverse wire owes from then on */
} window_packet;

/* By time. */
typedef struct window_ring {
    window_packet *all; /* owned; the capacity is a power of two */
    int64_t last_ps;    /* the latest that ever was in it */
    uint32_t head, end; /* counted on: the place of one is its number modulo the size */
    uint32_t size;
    uint32_t full; /* an end up to which there is room */
} window_ring;

/* A wire as the node at its far end sees it: one that works in windows, but for `end`. */
typedef struct window_in {
    window_ring under_way;
    uint32_t taken; /* entries from here to the head arrived in this window */
    wire_id next;   /* in the list of its node */
    bool listed;
    wire_end end;
} window_in;

_Static_assert(sizeof(window_in) == 64, "a way in fills a cache line");

/* Lists of the wires of a node. */
enum window_list {
    INBOXES, /* incoming, with packets in flight */
    ACTIVE,  /* outgoing, with pending work */
    WINDOW_LISTS
};

/* On which a thread works off one node after the other, so that it stays in the fastest cache. */
typedef struct window_scratch {
    window_arrival *queued; /* owned, as the arrays below: arrivals for the node's wires, each with
                             * some adjacent entries */
    uint32_t num_queued, size_queued;
    window_arrival *work;  /* arrivals at the node's reduction unit or memory */
    window_arrival *sent;  /* of a host during its router's turn: its memory accesses */
    window_arrival *spare; /* to sort in */
    uint32_t num_work, size_work, num_sent, size_sent, size_spare;
} window_scratch;

/* State of a node; its wires are processed together while they are in the fastest cache. */
typedef struct window_node {
    wire_id first[WINDOW_LISTS];
    endpoint_id endpoint; /* NONE: it is a switch or NIC */
    node_id turn;         /* node in whose turn it is processed: itself or its router */
    node_id end;          /* of a router: the endpoint processed with it, or NONE */
    uint8_t listed;
    uint8_t part;        /* thread that processes it */
    window_ring results; /* of its reduction unit */
} window_node;

enum window_cause {
    START_SLICE, /* data of an instance that has passed its gate begin to move */
    START_AFTER, /* all of a source's message has left */
    START_NEXT   /* a source's next message may start */
};

/* Something that begins to send at an endpoint. */
typedef struct window_start {
    int64_t at_ps;
    uint32_t id; /* instance or source */
    uint32_t cause;
} window_start;

/* Of an endpoint. */
typedef struct window_endpoint {
    window_start *starts; /* owned; from `first_start` to `end_start`, by time, then id */
    uint32_t first_start, end_start, size_starts;
    window_ring replies[2]; /* longer latency first, so that each ring is sorted by time */
} window_endpoint;

/* Messages of a thread to nodes of another thread, or of several, after its window. */
enum window_news { NEWS_PACKET, NEWS_CREDIT, NEWS_DELIVERY };

typedef struct window_message {
    int64_t at_ps;
    wire_id wire;
    uint32_t id;    /* packet or transfer */
    uint32_t bytes; /* of credit or payload */
    uint8_t news, vc;
} window_message;

typedef struct window_outbox {
    window_message *all; /* owned */
    uint32_t len, size;
} window_outbox;

/* Of a thread, at work on its nodes in a view of the sim (partition.h). */
typedef struct window_thread {
    struct clusim_sim *whole; /* the sim itself */
    struct thread_pool *thread_pool;
    uint32_t number;
    window_outbox *to;        /* owned by the partition: for the nodes of each thread */
    window_outbox deliveries; /* for the sim */
} window_thread;

typedef struct windows_part {
    struct partition *partition; /* owned; the threads, or NULL in a single-threaded run */
    window_thread *thread;       /* thread of this view of the sim; NULL: the sim itself */
    window_in *ins;              /* owned */
    window_node *nodes;          /* owned; NULL if windows are not possible */
    window_endpoint *ends;       /* owned; NULL if endpoints do not work in windows */
    node_list busy;              /* nodes that have something to do */
    window_scratch scratch;
    inst_id witness; /* instance last seen to keep the run active */
    bool on;
    bool leading;             /* on, and endpoints work in windows */
    bool near_end;            /* of a range: close soon */
    uint64_t undelivered;     /* packets of messages, and packets awaited by instances */
    int64_t due_ps;           /* lower bound on the next action of such a node; or NEVER */
    int64_t begin_ps, end_ps; /* of the current window */
    int64_t done_ps;          /* before this, they have done everything */
} windows_part;

#endif
