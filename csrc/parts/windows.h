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

/* Of one wire: as the way into a plain node, and as the way out of one. */
typedef struct window_wire {
    packet_id head, tail;     /* under way to a plain node, by time; head none when empty */
    window_arrival *arrivals; /* owned; of this window */
    window_owed *owed;        /* owned; likewise, by time */
    uint32_t num_arrivals, size_arrivals;
    uint32_t num_owed, size_owed;
    uint8_t inbox;    /* in the list of those with packets under way */
    uint8_t active;   /* in the list of those with something to do */
    uint8_t unsorted; /* the arrivals, by time */
} window_wire;

typedef struct windows_part {
    window_wire *wires;    /* owned; none where windows are not possible */
    wire_list inboxes;     /* wires with packets under way to plain nodes */
    wire_list active;      /* wires out of plain nodes that have something to do */
    window_arrival *spare; /* owned; to sort arrivals in */
    uint32_t size_spare;
    bool on;
    int64_t due_ps; /* when a plain node next has something to do, at the earliest; or NEVER */
} windows_part;

#endif
