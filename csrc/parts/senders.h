/* parts/senders.h - sender policies of queue pairs; of runs that have them. */
#ifndef CLUSIM_PARTS_SENDERS_H
#define CLUSIM_PARTS_SENDERS_H

#include "clusim.h"
#include "ids.h"

/* A function of a policy; it ignores arguments that it does not need. */
typedef void sender_function(int64_t *record, int64_t now_ps, int64_t bytes, int64_t rtt_ps,
                             int64_t marked, int64_t path, void *rows, int64_t num_rows);

typedef struct sender_policy { /* of one row of `controls` */
    sender_function *functions[CLUSIM_SIZE_CALLS];
    bool present;
} sender_policy;

typedef struct sent_packet { /* granted, not yet delivered */
    int64_t at_ps;
    xfer_id xfer; /* NONE: delivered before an older one */
    uint32_t number, path;
} sent_packet;

typedef struct delivery_notice { /* on its way to the sender */
    int64_t rtt_ps, lost_bytes;
    uint32_t bytes, path;
    uint8_t marked, notifies, acknowledges, num_hops;
    uint8_t credit; /* instead: a message of the flow's credit */
} delivery_notice;

/* First in, first out; `first` moves up to `len`, where both return to 0. */
typedef struct sent_list {
    sent_packet *items; /* owned */
    uint32_t first, len, size;
} sent_list;

typedef struct notice_list {
    delivery_notice *items; /* owned */
    uint32_t first, len, size;
} notice_list;

typedef struct hop_list { /* of the notices, one after another */
    clusim_hop *items;    /* owned */
    uint32_t first, len, size;
} hop_list;

enum { CREDIT_GRANTED, CREDIT_REQUESTED, CREDIT_LOST };

/* A request of a flow on its way to a receiver, or credit on its way back. */
typedef struct credit_message {
    int64_t bytes;
    link_id link;
    uint32_t kind; /* CREDIT_GRANTED, ... */
} credit_message;

typedef struct credit_list {
    credit_message *items; /* owned */
    uint32_t first, len, size;
} credit_list;

/* A flow and one of its receivers. */
typedef struct credit_link {
    int64_t credit; /* at the sender; below 1 it waits */
    flow_id flow;
    receiver_id receiver;
} credit_link;

typedef struct receiver_state { /* of one row of `controls` at one target */
    int64_t *record;            /* owned; NULL without a policy */
    int64_t *flows;             /* owned; records of its flows, one after another */
    const sender_policy *policy;
    int64_t alarm_ps; /* of the earliest event of its timer, or NEVER */
    link_id first;    /* its links are consecutive */
    uint32_t count;   /* flows */
    uint32_t control; /* row */
    uint32_t target;
    bool failed;
} receiver_state;

typedef struct receivers_part {
    receiver_state *all; /* owned; by row and target */
    credit_link *links;  /* owned; by receiver and flow */
    link_id *of;         /* owned; connections, then messages; NULL without a receiver */
    uint32_t count, num_links;
    uint32_t drained; /* timers after the end of the run */
} receivers_part;

/* Telemetry of one packet; without hops unless it is on its way. */
typedef struct packet_hops {
    clusim_hop all[CLUSIM_SIZE_HOPS];
    uint64_t count;
} packet_hops;

typedef struct sender_state { /* of one flow */
    int64_t *record;          /* owned; NULL without a policy */
    const sender_policy *policy;
    int64_t in_flight; /* bytes granted, without arrived notices; 0 without notices */
    int64_t pace_ps;   /* earliest start of the next packet at the rate */
    int64_t rtt_ps;    /* of the last notice, or 0 */
    int64_t alarm_ps;  /* of the earliest event of its timer, or NEVER */
    xfer_id xfer;      /* being injected, or NONE */
    line_id blocked;   /* the first line with repeats that wait for the window, or NONE */
    line_id blocked_last;
    uint32_t path; /* of the next packet */
    link_id link;  /* of its last transfer, or NONE */
    bool started, failed;
    credit_list credits;
    sent_list sent;
    notice_list notices;
    hop_list hops;
} sender_state;

typedef struct senders_part {
    sender_policy *policies; /* owned; per row of `controls`, if one has a policy */
    sender_state *all;       /* owned; connections, then sources */
    packet_hops *hops;       /* owned; per packet, if a policy has telemetry */
    uint32_t num_hops;       /* packets with room for them */
    receivers_part receivers;
    clusim_sender_fault fault;
    bool failed;
    uint64_t last_alarm; /* number of the last event that was an ALARM */
    uint32_t alarms;     /* that followed each other without another event */
} senders_part;

#endif
