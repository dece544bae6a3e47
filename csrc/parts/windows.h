/* parts/windows.h - packets on their way to plain nodes, and what a window brings to their wires.
 */
#ifndef CLUSIM_PARTS_WINDOWS_H
#define CLUSIM_PARTS_WINDOWS_H

#include "list.h"

/* A packet that enters VOQ `candidate` of a wire. */
typedef struct window_arrival {
    int64_t at_ps;
    packet_id packet;
    uint32_t candidate;
} window_arrival;

/* Control bytes that a wire owes from a time on. */
typedef struct window_owed {
    int64_t at_ps;
    uint64_t control_256;
} window_owed;

/* A packet on its way to a plain node. */
typedef struct window_packet {
    int64_t at_ps; /* when it is there */
    packet_id packet;
    uint32_t pad;
} window_packet;

/* Of one wire: as the way into a plain node, and as the way out of one. */
typedef struct window_wire {
    window_packet *under_way; /* owned; a ring, by time */
    uint32_t head, len, size;
    wire_id next_inbox; /* of those into its far node with packets under way */

    wire_id next_active;      /* of those out of its near node with something to do */
    window_arrival *arrivals; /* owned; of this window */
    window_owed *owed;        /* owned; likewise, by time */
    uint32_t num_arrivals, size_arrivals;
    uint32_t num_owed, size_owed;
    uint8_t inbox, active; /* in these lists */
    uint8_t unsorted;      /* the arrivals, by time */
} window_wire;

/* Of a plain node; its wires are worked off together, while they are in the fastest cache. */
typedef struct window_node {
    wire_id inboxes; /* list of wires with packets under way to it */
    wire_id active;  /* list of wires out of it that have something to do */
    uint32_t listed;
} window_node;

typedef struct windows_part {
    window_wire *wires;    /* owned; none where windows are not possible, as the nodes */
    window_node *nodes;    /* owned */
    node_list busy;        /* nodes whose lists are not empty */
    window_arrival *spare; /* owned; to sort arrivals in */
    uint32_t size_spare;
    bool on;
    int64_t due_ps; /* when a plain node next has something to do, at the earliest; or NEVER */
} windows_part;

#endif
