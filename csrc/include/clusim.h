/* clusim.h - the public header of the clusim engine and, with clusim_image.h, the only definition
 * of its interface.
 *
 * cffi reads the text between the `cdef` markers of both, except CLUSIM_CHECKED.
 * clusim/engine/abi.py derives Python enums and NumPy layouts from it; its import fails if a name
 * is missing. Structs have no padding. docs/model/contract.md defines the fields. Units: times in
 * [ps], sizes in [bytes], costs in [2^-16 ps per byte]. */
#ifndef CLUSIM_H
#define CLUSIM_H
#include <stddef.h>
#include <stdint.h>

#include "clusim_image.h"

/* The caller must check the result. */
#define CLUSIM_CHECKED __attribute__((warn_unused_result))

/* cdef: begin */

typedef struct clusim_model clusim_model; /* immutable; may be shared between threads */
typedef struct clusim_sim clusim_sim;     /* all mutable state of one run */

enum clusim_status {
    CLUSIM_OK = 0,
    CLUSIM_ERR_NO_MEMORY = -1,
    CLUSIM_ERR_BAD_IMAGE = -2,
    CLUSIM_ERR_CONSERVATION = -3, /* something is left, or a law of physics was broken */
    CLUSIM_ERR_RANGE = -4,        /* the run would leave the ranges: see clusim_sim_beyond */
};

/* Why clusim_sim_run() returned. */
enum clusim_stop {
    CLUSIM_STOP_DONE = 0,     /* all tasks and messages are complete */
    CLUSIM_STOP_TIME = 1,     /* everything up to and including `until_ps` has happened */
    CLUSIM_STOP_EVENTS = 2,   /* `max_events` reached; call again to continue */
    CLUSIM_STOP_RECORDS = 3,  /* the record buffer is nearly full; drain it and call again */
    CLUSIM_STOP_DEADLOCK = 4, /* no event is possible, but tasks or messages remain */
};

/* Activity of an instance. */
enum clusim_state {
    CLUSIM_STATE_NOT_STARTED = 0,
    CLUSIM_STATE_WAIT_CTA_SLOT = 1,
    CLUSIM_STATE_WAIT_RECV = 2, /* blocked on `conn`: its tail */
    CLUSIM_STATE_WAIT_SEND = 3, /* blocked on `conn`: its head */
    CLUSIM_STATE_BUSY = 4,
    CLUSIM_STATE_DONE = 5,
};

/* The last thing that kept a slice from passing its gate. */
enum clusim_cause {
    CLUSIM_CAUSE_NONE = 0, /* did not wait: the gate was already open */
    CLUSIM_CAUSE_RECV = 1, /* the data: the tail of its recv connection */
    CLUSIM_CAUSE_SEND = 2, /* room: the head of its send connection */
};

/* Owner of a time or number that left the ranges (contract, section 1), in order of precedence. */
enum clusim_beyond {
    CLUSIM_BEYOND_WIRE = 0,
    CLUSIM_BEYOND_ENDPOINT = 1,
    CLUSIM_BEYOND_UNIT = 2,
    CLUSIM_BEYOND_CONNECTION = 3,
    CLUSIM_BEYOND_SOURCE = 4,
    CLUSIM_BEYOND_INSTANCE = 5,
    CLUSIM_BEYOND_TASK = 6,
    CLUSIM_BEYOND_VERTEX = 7, /* an aggregation that does not add up (section 6) */
    CLUSIM_BEYOND_SWITCH = 8, /* an illegal answer of its policy: a node */
};

/* Functions of a sender policy (contract, section 5). */
enum clusim_sender_call {
    CLUSIM_SENDER_CALL_START = 0,
    CLUSIM_SENDER_CALL_SENT = 1,
    CLUSIM_SENDER_CALL_ACKED = 2,
    CLUSIM_SENDER_CALL_NOTIFIED = 3,
    CLUSIM_SENDER_CALL_TIMER = 4,
    CLUSIM_SENDER_CALL_LOST = 5,
    CLUSIM_SENDER_CALL_ENQUEUE = 6,   /* of the queues of a wire */
    CLUSIM_SENDER_CALL_REQUESTED = 7, /* of a receiver, as START and TIMER */
    CLUSIM_SENDER_CALL_ARRIVED = 8,
    CLUSIM_SENDER_CALL_NEXT = 9,    /* of the classes of a wire */
    CLUSIM_SENDER_CALL_CHOOSE = 10, /* of the paths of a switch */
};

/* First words of the record of a flow with a sender policy; further words are the policy's. */
enum clusim_word {
    CLUSIM_WORD_RATE = 0,      /* bytes per 2^30 ps */
    CLUSIM_WORD_WINDOW = 1,    /* most bytes in flight */
    CLUSIM_WORD_TIMER_PS = 2,  /* next call of the timer, or 0 */
    CLUSIM_WORD_PATH = 3,      /* path of the next packet; 0: path of the flow */
    CLUSIM_WORD_IN_FLIGHT = 4, /* bytes; set before each call */
    CLUSIM_WORD_LINE_RATE = 5,
    CLUSIM_WORD_MIN_RATE = 6,
    CLUSIM_WORD_KEY = 7, /* a hash of the flow */
};

/* Words of a receiver's record in place of those of a flow; the others are equal. */
enum clusim_receiver_word {
    CLUSIM_RECEIVER_WORD_CREDIT = 1, /* granted to a flow, bytes; 0 before each call */
    CLUSIM_RECEIVER_WORD_FLOW = 3,   /* number of this flow */
    CLUSIM_RECEIVER_WORD_FLOWS = 4,  /* number of flows */
};

/* Telemetry of an output `wire`, at the grant of a packet (contract, section 5). */
typedef struct clusim_hop {
    int64_t time_ps;
    int64_t queue_bytes; /* without the packet */
    int64_t sent_bytes;  /* on the wire, before the packet */
    int64_t rate;        /* bytes per 2^30 ps */
    int64_t wire;
} clusim_hop;

/* First packet of a class of an output, for a policy of schedules (contract, section 4). */
typedef struct clusim_head {
    int64_t size_bytes; /* on the wire; 0 without a packet that may leave */
    int64_t age_ps;     /* since it entered its queue */
    int64_t queue_bytes;
} clusim_head;

/* One of several wires, for a policy of paths (contract, section 6). */
typedef struct clusim_output {
    int64_t queue_bytes;
    int64_t credit_bytes; /* of all its virtual channels */
    int64_t rate;         /* bytes per 2^30 ps */
    int64_t wire;
} clusim_output;

typedef struct clusim_error {
    int32_t status;
    uint32_t index; /* row of the offending array */
    char message[248];
} clusim_error;

typedef struct clusim_wire_counters {
    uint64_t packets; /* exact packets */
    uint64_t grants;  /* packets or bursts put on the wire */
    uint64_t bytes;   /* headers included, control bytes not */
    uint64_t payload;
    uint64_t control_bytes;
    int64_t busy_ps;
    int64_t stall_credit_ps;
    int64_t stall_arbitration_ps;
    uint64_t queued_bytes;
    uint64_t queued_max;
    uint64_t replays;
    uint64_t overflows; /* packets that arrived at a full buffer of a wire that pauses */
    uint64_t pauses;
    uint64_t marks;
    uint64_t held_max; /* most bytes one VC's receive buffer ever held, on a wire that pauses */
    uint64_t drops;    /* packets or bursts dropped before its queues */
    uint64_t dropped_bytes; /* their payload */
    uint64_t trims;         /* packets or bursts that lost their payload */
    uint64_t trimmed_bytes;
} clusim_wire_counters;

/* Packets of receivers that accept them in order only, of one target: NIC, or endpoint without. */
typedef struct clusim_order_counters {
    uint64_t packets;        /* that arrived for it */
    uint64_t early;          /* that were not the expected one: kept or dropped */
    uint64_t repeats;        /* that it sent again */
    uint64_t kept_max;       /* most payload kept at a time */
    uint64_t repeated_bytes; /* payload that it sent again */
    uint64_t timeouts;       /* of its queue pairs, after which it repeated packets */
    int64_t timeout_ps;      /* in which one waited for such a timeout */
    uint64_t trimmed;        /* headers that arrived for it without payload */
} clusim_order_counters;

/* Counters of a wire at a time during a run; as of clusim_wire_counters. */
typedef struct clusim_wire_sample {
    uint64_t bytes;
    int64_t busy_ps;
    int64_t stall_credit_ps;
    int64_t stall_arbitration_ps;
    uint64_t queued_bytes;
} clusim_wire_sample;

/* State of a flow with rate control at a time during a run. */
typedef struct clusim_flow_sample {
    uint64_t sent_bytes;   /* payload granted */
    uint64_t marked_bytes; /* payload delivered with a mark */
    int64_t rate;          /* bytes per 2^30 ps, as set at its last packet or notice */
    int64_t window;        /* most bytes in flight; 2^62 is unlimited */
    int64_t in_flight;     /* bytes; 0 if its policy reads no notices */
    int64_t rtt_ps;        /* of the last notice; 0 before the first, and without notices */
} clusim_flow_sample;

typedef struct clusim_record {
    int64_t time_ps;
    int64_t gate_ps; /* time at which its gate opened */
    uint32_t instance;
    uint32_t seq;
    uint32_t wire;  /* last wire that carried its data, or NONE */
    uint32_t cause; /* clusim_cause */
} clusim_record;

typedef struct clusim_instance_state {
    uint32_t state; /* clusim_state */
    uint32_t prim;  /* row of the image's prims */
    uint32_t conn;  /* row of its conns, or NONE */
    uint32_t seq;
    uint64_t loop;
} clusim_instance_state;

/* Addresses of the functions of a sender policy, or 0, and the record of a flow at its start. A
 * function is void (*)(int64_t *record, int64_t now_ps, int64_t bytes, int64_t rtt_ps,
 * int64_t marked, int64_t path, void *rows, int64_t num_rows). Rows are hops (clusim_hop), heads of
 * classes (clusim_head), wires (clusim_output), or the records of a receiver's flows; a receiver
 * has the flow's number in `path`; `marked` is 1 if payload was lost, of an arrival 1 with a mark
 * and 2 for a header. CHOOSE has the packet's key in `rtt_ps`, its flow in `marked` and the hash in
 * `path`.
 */
typedef struct clusim_sender {
    uint64_t functions[CLUSIM_SIZE_CALLS]; /* by clusim_sender_call */
    const int64_t *words;                  /* copied */
    uint64_t num_words;
    const int64_t *flow_words; /* of a receiver: of each of its flows; copied */
    uint64_t num_flow_words;
} clusim_sender;

/* An illegal answer of a sender policy. */
typedef struct clusim_sender_fault {
    int64_t time_ps;
    int64_t value;
    uint32_t flow;     /* connections, then sources; or a wire or node */
    uint32_t call;     /* clusim_sender_call */
    uint32_t word;     /* clusim_word */
    uint32_t receiver; /* 1: of the policy of receivers */
} clusim_sender_fault;

const char *clusim_version(void);

/* Check and copy an image. On failure *out is NULL and *error names the wrong row and the
 * reason. */
CLUSIM_CHECKED int clusim_model_create(const clusim_image *image, clusim_model **out,
                                       clusim_error *error);
void clusim_model_destroy(clusim_model *model);

/* `model` is borrowed and must outlive the sim. `keep_records`: 0 keeps only the fingerprint. */
CLUSIM_CHECKED int clusim_sim_create(const clusim_model *model, int keep_records, clusim_sim **out);
void clusim_sim_destroy(clusim_sim *sim);

/* Choose between time windows, if the image allows them (1), and one event per packet (0); by
 * default, or with -1, the faster one. Results are the same. Call before the first run. Returns the
 * nodes that work in windows: no nodes (0), switches and NICs (1), also endpoints (2), also pairs
 * (3). */
int clusim_sim_use_windows(clusim_sim *sim, int use);

/* Let up to `threads` threads, including the caller's, process nodes in windows of at least
 * `pays` events (CLUSIM_NONE: default); the other threads sleep in between. Results are the
 * same. Call once, after clusim_sim_use_windows and before the first run. Returns the number of
 * threads, or a negative clusim_status. */
CLUSIM_CHECKED int clusim_sim_use_threads(clusim_sim *sim, uint32_t threads, uint32_t pays);

/* Use a sender policy for the flows of a row of `controls` with `sender`. Call once for each,
 * before the first run. Returns a clusim_status. */
CLUSIM_CHECKED int clusim_sim_use_sender(clusim_sim *sim, uint32_t control,
                                         const clusim_sender *sender);

/* After CLUSIM_ERR_RANGE: 1 after an illegal answer of a sender policy, described by *out. */
int clusim_sim_sender_fault(const clusim_sim *sim, clusim_sender_fault *out);

/* Advance; returns a clusim_stop, or a negative clusim_status, after which the sim can only be
 * destroyed. Stops only between timestamps. */
CLUSIM_CHECKED int clusim_sim_run(clusim_sim *sim, int64_t until_ps, uint64_t max_events);

/* Times of samples: `first_ps`, in the future, and then every `width_ps`, below 2^62. */
typedef struct clusim_sample_times {
    int64_t first_ps;
    int64_t width_ps;
    uint32_t count;
    uint32_t num_flows; /* of the array given with it */
} clusim_sample_times;

/* Record samples in the course of later runs, which do not pause there: of all wires and endpoints,
 * and of `flows` (connections, then sources) with rate control. Replaces former samples. Returns a
 * clusim_status. */
CLUSIM_CHECKED int clusim_sim_sample(clusim_sim *sim, const clusim_sample_times *times,
                                     const uint32_t *flows);

/* Copy samples of the times passed, [time * num_wires + wire], [time * num_endpoints + endpoint]
 * and [time * num_flows + flow]; returns their number. The end of a run is not sampled. */
uint32_t clusim_sim_read_samples(const clusim_sim *sim, clusim_wire_sample *wires,
                                 uint64_t *mem_bytes_256, clusim_flow_sample *flows);

/* Copy the present state of the flows of the last clusim_sim_sample. */
void clusim_sim_read_flows(const clusim_sim *sim, clusim_flow_sample *out);

/* After CLUSIM_ERR_RANGE: kind (clusim_beyond) and index of the owner of the excessive time or
 * number. */
void clusim_sim_beyond(const clusim_sim *sim, uint32_t *what, uint32_t *index);
int64_t clusim_sim_now_ps(const clusim_sim *sim);
uint64_t clusim_sim_num_events(const clusim_sim *sim);
/* Allocated packets: less than twice the maximum number in flight at one time. */
uint64_t clusim_sim_packet_slots(const clusim_sim *sim);
uint64_t clusim_sim_fingerprint(const clusim_sim *sim);

/* Copy state out; arrays have one element per wire, task, message, instance or endpoint. */
void clusim_sim_read_wires(const clusim_sim *sim, clusim_wire_counters *out);
void clusim_sim_read_orders(const clusim_sim *sim, clusim_order_counters *out);
void clusim_sim_read_tasks(const clusim_sim *sim, int64_t *start_ps, int64_t *end_ps);
void clusim_sim_read_messages(const clusim_sim *sim, int64_t *end_ps);
void clusim_sim_read_instances(const clusim_sim *sim, clusim_instance_state *out);
void clusim_sim_read_mem_bytes_256(const clusim_sim *sim, uint64_t *out);

/* Move up to `capacity` of the oldest records to `out`; returns their number. */
size_t clusim_sim_take_records(clusim_sim *sim, clusim_record *out, size_t capacity);
size_t clusim_sim_num_records(const clusim_sim *sim);

/* After DONE: drain packets in flight and check that packets, credits and slots balance. */
CLUSIM_CHECKED int clusim_sim_check(clusim_sim *sim, clusim_error *error);

/* cdef: end */

#endif /* CLUSIM_H */
