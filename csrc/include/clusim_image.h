/* clusim_image.h - the input of the clusim engine: an image, tables of plain numbers.
 *
 * A part of clusim.h, which includes it. docs/model/contract.md defines the fields.
 * Units: times in [ps], sizes in [bytes], costs in [2^-16 ps per byte]. */
#ifndef CLUSIM_IMAGE_H
#define CLUSIM_IMAGE_H
#include <stdint.h>

/* cdef: begin */

#define CLUSIM_NONE 0xFFFFFFFFu /* marks an absent index */

/* Packet kinds (section 3): the index of the tables of a format. */
enum clusim_kind {
    CLUSIM_KIND_WRITE = 0,
    CLUSIM_KIND_READ_REQ = 1,
    CLUSIM_KIND_READ_RESP = 2,
    CLUSIM_KIND_MCAST = 3,      /* multicast write */
    CLUSIM_KIND_RED_REQ = 4,    /* reduce-read request, requester to unit */
    CLUSIM_KIND_RED_FETCH = 5,  /* unit to member */
    CLUSIM_KIND_RED_DATA = 6,   /* member to unit */
    CLUSIM_KIND_RED_RESULT = 7, /* unit to requester */
    CLUSIM_KIND_FETCH = 8,      /* data that a NIC reads from memory, on the way to it */
    CLUSIM_KIND_AGG_UP = 9,     /* towards the root of an aggregation tree */
    CLUSIM_KIND_AGG_DOWN = 10,  /* from it */
    CLUSIM_KIND_TRIMMED = 11,   /* a header without its payload */
};

enum clusim_size {
    CLUSIM_SIZE_KINDS = 12,
    CLUSIM_SIZE_OPCODES = 20, /* entries of a cost table; maximum entries of op_flags */
    CLUSIM_SIZE_CALLS = 11,   /* functions of a policy */
    CLUSIM_SIZE_WORDS = 8,    /* first words of a flow's record: clusim_word */
    CLUSIM_SIZE_HOPS = 8,     /* hops with telemetry per packet */
    CLUSIM_SIZE_CLASSES = 8,  /* of a schedule: virtual channels */
};

/* Control of the rate of a flow. */
enum clusim_sender_mode {
    CLUSIM_SENDER_MODE_DCQCN = 0,
    CLUSIM_SENDER_MODE_POLICY = 1,    /* clusim_sim_use_sender */
    CLUSIM_SENDER_MODE_TELEMETRY = 2, /* the same, and it receives the hops of packets */
    CLUSIM_SENDER_MODE_QUEUE = 3,     /* of no flow: a policy of the queues of wires */
    CLUSIM_SENDER_MODE_RECEIVER = 4,  /* of the receivers of its flows, which grant credit */
    CLUSIM_SENDER_MODE_SCHEDULE = 5,  /* of no flow: a policy of the classes of wires */
    CLUSIM_SENDER_MODE_PATH = 6,      /* of no flow: a policy of the paths of switches */
};

/* Actions of an opcode: bits. */
enum clusim_op {
    CLUSIM_OP_RECV = 1,
    CLUSIM_OP_SEND = 2,
    CLUSIM_OP_MCAST = 4,
    CLUSIM_OP_REDUCE = 8,
    CLUSIM_OP_AGGREGATE = 16,
};

enum clusim_node_kind {
    CLUSIM_NODE_KIND_ENDPOINT = 0,
    CLUSIM_NODE_KIND_SWITCH = 1,
};

enum clusim_node_flag { /* bits */
                        CLUSIM_NODE_FLAG_STORE_FORWARD = 1,
                        CLUSIM_NODE_FLAG_BRIDGE = 2, /* a NIC: FETCH becomes WRITE */
};

enum clusim_conn_kind {
    CLUSIM_CONN_KIND_WRITE = 0,
    CLUSIM_CONN_KIND_READ = 1,
    CLUSIM_CONN_KIND_FLAG = 2, /* no data */
    CLUSIM_CONN_KIND_MULTIMEM = 3,
    CLUSIM_CONN_KIND_AGGREGATION = 4,
};

/* Spreading of a transfer over parallel wires (section 5). */
enum clusim_policy {
    CLUSIM_POLICY_STRIPE = 0,
    CLUSIM_POLICY_PINNED = 1,
    CLUSIM_POLICY_ADAPTIVE = 2,
};

/* Load of a wire, for packets that choose by load (section 6). */
enum clusim_load {
    CLUSIM_LOAD_QUEUE = 0,  /* bytes in its queues */
    CLUSIM_LOAD_CREDIT = 1, /* also bytes in the far buffer */
};

enum clusim_prim_flag {                            /* bits */
                        CLUSIM_PRIM_FLAG_SYNC = 1, /* one slice of 0 bytes */
};

/* Layout of a template's chunks in a buffer (section 7). */
enum clusim_mode {
    CLUSIM_MODE_INTERLEAVED = 0,
    CLUSIM_MODE_BLOCKED = 1,
};

enum clusim_task_kind {
    CLUSIM_TASK_KIND_PROGRAM = 0,
    CLUSIM_TASK_KIND_KERNEL = 1,
    CLUSIM_TASK_KIND_DELAY = 2,
    CLUSIM_TASK_KIND_MARKER = 3,
};

enum clusim_source_flag { /* bits */
                          CLUSIM_SOURCE_FLAG_SERIAL =
                              1, /* a message starts when the one before is complete */
};

enum clusim_fault_kind {
    CLUSIM_FAULT_KIND_RATE = 0, /* of wire `index`: num/den, or down if num is 0 */
    CLUSIM_FAULT_KIND_SLOW = 1, /* of endpoint `index`: slow_1024 becomes num */
};

typedef struct clusim_node {
    int64_t latency_ps;   /* forwarding latency */
    uint64_t route_lo;    /* into routes: groups by a target's local column */
    uint64_t wide_lo;     /* into routes: groups by a target's wide column, if wide_stride */
    uint32_t kind;        /* clusim_node_kind */
    uint32_t flags;       /* clusim_node_flag */
    uint32_t endpoint;    /* index into endpoints, or NONE */
    uint32_t unit;        /* index into units, or NONE */
    uint32_t zone;        /* targets of the same zone are found by their local column */
    uint32_t wide_stride; /* 1: one group per wide column; 0: one common group */
    uint64_t
        shared_bytes; /* memory that the queues of its wires with `queue_bytes` share; 0: any */
    uint32_t policy;  /* chooses among its wires: one more than its row in controls, or 0 */
    uint32_t pad;
} clusim_node;

typedef struct clusim_endpoint {
    int64_t write_latency_ps;    /* accepted by memory -> visible */
    int64_t read_latency_ps;     /* request accepted -> response ready */
    int64_t response_latency_ps; /* response accepted -> in registers */
    int64_t mem_quantum_ps;
    uint32_t node;
    uint32_t sms;
    uint32_t cta_slots;   /* concurrent flows (instances + sources), 1..256 */
    uint32_t slow_1024;   /* 1024 = nominal speed of CTAs and kernels */
    uint32_t mem_cost16;  /* 2^-16 ps per byte */
    uint32_t deliver_256; /* memory bytes per delivered payload byte, /256 */
    uint32_t read_256;    /* ... per byte read for a remote request */
    uint32_t inject_256;  /* ... per byte injected by a write */
} clusim_endpoint;

typedef struct clusim_format {
    uint32_t flit_bytes;
    uint32_t pad;
    uint32_t header_bytes[CLUSIM_SIZE_KINDS];
    uint32_t control_256[CLUSIM_SIZE_KINDS];  /* owed to the reverse wire per exact packet */
    uint32_t service_1024[CLUSIM_SIZE_KINDS]; /* occupancy factor, 1024 = 1 */
    uint32_t limit_bytes[CLUSIM_SIZE_KINDS];  /* largest payload of an exact packet, or NONE */
} clusim_format;

typedef struct clusim_wire {
    uint64_t rate_num; /* bytes */
    uint64_t rate_den; /* per this many ps */
    int64_t latency_ps;
    uint64_t buffer_bytes; /* receive buffer per VC */
    int64_t replay_ps;
    uint64_t xoff_bytes;    /* pause threshold of the receive buffer; 0 = credits */
    uint64_t xon_bytes;     /* resume threshold */
    uint64_t ecn_min_bytes; /* marks: queue from which packets may be marked */
    uint64_t ecn_max_bytes; /* ... and from which all are; 0 = never */
    uint64_t queue_bytes;   /* drops: most bytes in its queues; 0 = packets are never dropped */
    uint32_t src;
    uint32_t dst;
    uint32_t reverse; /* the other direction, or NONE */
    uint32_t format;
    uint32_t ordinal;         /* index among wires with the same src and dst, by wire id */
    uint32_t error_threshold; /* replay probability of a packet, times 2^32 */
    uint16_t dim;
    uint16_t dateline;
    uint32_t ecn_threshold; /* mark probability at ecn_max_bytes, times 2^32 */
    uint32_t alpha_1024;    /* drops: its queues, relative to free shared memory; 0 = no bound */
    uint32_t red;           /* drops: 1: packets that would be marked are dropped */
    uint32_t trim_vc;       /* drops: VC of headers of packets that are trimmed instead; 0 = none */
    uint32_t schedule;      /* one more than its row in schedules; 0 = round robin */
    uint32_t policy;        /* of its queues: one more than its row in controls; 0 = none */
    uint32_t ecn_departure; /* marks: 1: packets that leave a long queue; 0: that enter one */
} clusim_wire;

/* Order of the classes of an output's candidates: the least priority, by deficit. */
typedef struct clusim_schedule {
    uint32_t priority[CLUSIM_SIZE_CLASSES];
    uint32_t quantum[CLUSIM_SIZE_CLASSES]; /* bytes */
    uint32_t policy; /* chooses the class: one more than its row in controls, or 0 */
    uint32_t pad;
} clusim_schedule;

/* Targets of packet routing: endpoints, then NICs. */
typedef struct clusim_target {
    uint32_t node;
    uint32_t zone;
    uint32_t local; /* column at nodes of the same zone */
    uint32_t wide;  /* column at other nodes */
} clusim_target;

typedef struct clusim_unit {
    int64_t latency_ps;
    uint64_t capacity_bytes;
    uint32_t node;
    uint32_t cost16; /* 2^-16 ps per operand byte */
} clusim_unit;

/* Of an aggregation tree. */
typedef struct clusim_vertex {
    uint32_t parent;    /* vertex, or NONE at the root */
    uint32_t unit;      /* reduction unit, or NONE for a member */
    uint32_t endpoint;  /* of a member, or NONE */
    uint32_t path_up;   /* path to the parent's node, or NONE at the root */
    uint32_t path_down; /* path from the parent's node */
    uint32_t child_lo;  /* children are consecutive vertices */
    uint32_t child_hi;
    uint32_t slots; /* packets that a unit's vertex can hold open */
} clusim_vertex;

/* DCQCN; rates in bytes per 2^30 ps. */
typedef struct clusim_control {
    int64_t alpha_timer_ps;
    int64_t increase_timer_ps;
    int64_t cnp_interval_ps;
    int64_t cnp_delay_ps;
    uint64_t byte_counter;
    uint64_t line_rate;
    uint64_t min_rate;
    uint64_t additive;
    uint64_t hyper;
    uint32_t g_65536;
    uint32_t fast_recovery;
    uint32_t kept_65536; /* least share of the rate that a notification leaves */
    uint32_t clamp;      /* each notification lowers the target, not only the first after a rise */
    uint32_t sender;     /* clusim_sender_mode */
    uint32_t receiver;   /* policy of its receivers as well: one more than its row, or 0 */
} clusim_control;

/* Spreading of packets of writes over paths, and order at their receiver. */
typedef struct clusim_spread {
    int64_t gap_ps;         /* flowlets: shortest pause before a new choice, or 0 */
    int64_t nak_ps;         /* packet refused -> the sender repeats */
    int64_t timeout_ps;     /* retransmission: time without progress after a loss; 0: off */
    uint64_t reorder_bytes; /* early packets that an ordered receiver keeps, per queue pair */
    uint32_t ordered;       /* 1: packets are accepted in order only */
    uint32_t estimate;      /* clusim_load */
    uint32_t detour_lo;     /* targets near which detours turn; an empty range is shortest paths */
    uint32_t detour_hi;
    uint32_t detour_vcs; /* added to the first VC at the end of a detour */
    uint32_t bias_bytes; /* advantage of the shortest path */
    uint32_t minimal_vc; /* VC of packets on any minimal path, or 0 */
    uint32_t selective;  /* retransmission of missing packets only */
    uint32_t retries;    /* timeouts of one packet after which the run ends */
    uint32_t trimmed;    /* 1: switches may trim packets; the receiver refuses these */
} clusim_spread;

typedef struct clusim_conn {
    int64_t tail_ps;       /* posted -> visible to the receiver */
    int64_t head_ps;       /* released -> visible to the sender */
    uint32_t src;          /* endpoint */
    uint32_t dst;          /* endpoint; for kind 3 unused (0) */
    uint32_t kind;         /* clusim_conn_kind */
    uint32_t policy;       /* clusim_policy */
    uint32_t first_group;  /* route group at the requesting end, or NONE */
    uint32_t path;         /* explicit path in the direction of requests, or NONE */
    uint32_t path_back;    /* ... of responses, or NONE */
    uint32_t key;          /* stripe offset or pinned hash */
    uint32_t mgroup;       /* kind 3: multicast group */
    uint32_t packet_bytes; /* P0 */
    uint32_t burst;        /* k */
    uint32_t vc;
    uint32_t vc_response;
    uint32_t slots;
    uint32_t expand_120;   /* wire payload = ceil(bytes*this/120) */
    uint32_t window_bytes; /* 0 = unlimited */
    uint32_t via_first;    /* targets its packets are steered over, or NONE */
    uint32_t via_last;
    uint32_t stage;    /* endpoint that holds the data in between, or NONE */
    uint32_t control;  /* rate control, or NONE */
    uint32_t vertex;   /* kind 4: the member */
    uint32_t queue_lo; /* into queue_keys; an empty range is one queue pair with `key` */
    uint32_t queue_hi;
    uint32_t split;  /* 1: packets alternate over the queue pairs; 0: transfers */
    uint32_t spread; /* or NONE */
    uint32_t pad;
} clusim_conn;

typedef struct clusim_cost {
    int64_t fixed_ps;
    int64_t after_ps; /* time for which a thread stays busy after it has passed a slice on */
    uint32_t op_cost16[CLUSIM_SIZE_OPCODES]; /* 2^-16 ps per byte */
} clusim_cost;

typedef struct clusim_prim {
    uint32_t opcode;
    uint32_t recv; /* index into the instance's connections, or NONE */
    uint32_t send;
    uint32_t flags; /* clusim_prim_flag */
    int32_t base;
    int32_t coef;
    int32_t step;
    uint32_t repeat;
} clusim_prim;

typedef struct clusim_template {
    uint32_t prim_lo;
    uint32_t prim_hi;
    uint32_t nchunks;
    uint32_t mode; /* clusim_mode */
} clusim_template;

typedef struct clusim_instance {
    int64_t start_ps; /* after the start of its task */
    uint64_t offset;
    uint64_t length;
    uint64_t chunk_bytes;
    uint64_t stride;
    uint64_t limit;
    uint64_t slice_min;
    uint32_t task;
    uint32_t endpoint;
    uint32_t template;
    int32_t rotation;
    uint32_t conn_off; /* into inst_conns */
    uint32_t align;
    uint32_t slices;
    uint32_t slots_per_slice;
    uint32_t cost;
    uint32_t sm;     /* SMs held */
    uint32_t thread; /* endpoint whose proxy thread executes it, or NONE */
    uint32_t pad;
} clusim_instance;

typedef struct clusim_task {
    int64_t delay_ps;
    int64_t compute_ps;
    uint64_t mem_bytes;
    uint32_t kind; /* clusim_task_kind */
    uint32_t endpoint;
    uint32_t sms;
    uint32_t num_deps;
    uint32_t inst_lo;
    uint32_t inst_hi;
    uint32_t succ_lo; /* into succ */
    uint32_t succ_hi;
} clusim_task;

typedef struct clusim_source {
    uint32_t endpoint;
    uint32_t msg_lo;
    uint32_t msg_hi;
    uint32_t packet_bytes;
    uint32_t burst;
    uint32_t policy; /* clusim_policy */
    uint32_t vc;
    uint32_t flags;   /* clusim_source_flag */
    uint32_t control; /* rate control, or NONE */
    uint32_t spread;  /* or NONE */
} clusim_source;

typedef struct clusim_message {
    int64_t start_ps;
    uint64_t bytes;
    uint32_t dst;
    uint32_t key;
    uint32_t via_first;
    uint32_t via_last;
} clusim_message;

typedef struct clusim_fault {
    int64_t time_ps;
    uint64_t num;
    uint64_t den;
    uint32_t kind; /* clusim_fault_kind */
    uint32_t index;
} clusim_fault;

/* The input. Arrays are borrowed during clusim_model_create() and copied. */
typedef struct clusim_image {
    uint64_t seed;
    uint32_t nvc;
    const uint32_t *op_flags; /* clusim_op, by opcode */
    const clusim_node *nodes;
    const clusim_endpoint *endpoints;
    const clusim_format *formats;
    const clusim_wire *wires;
    const clusim_schedule *schedules;
    const clusim_target *targets;
    const uint32_t *routes;    /* rows of nodes: column -> group, or NONE */
    const uint32_t *group_off; /* [groups + 1] */
    const uint32_t *group_wires;
    const uint32_t *path_off; /* [paths + 1]; explicit paths, as wires */
    const uint32_t *path_wires;
    const clusim_unit *units;
    const uint32_t *mgroup_off;     /* [multicast groups + 1] */
    const uint32_t *mgroup_members; /* endpoints */
    const clusim_vertex *vertices;
    const clusim_control *controls;
    const clusim_spread *spreads;
    const uint32_t *queue_keys; /* keys of the queue pairs of connections */
    const clusim_conn *conns;
    const clusim_cost *costs;
    const clusim_prim *prims;
    const clusim_template *templates;
    const clusim_instance *instances;
    const uint32_t *inst_conns;
    const clusim_task *tasks;
    const uint32_t *succ;
    const clusim_source *sources;
    const clusim_message *messages;
    const clusim_fault *faults;
    uint64_t num_op_flags, num_nodes, num_endpoints, num_formats, num_wires, num_schedules,
        num_targets, num_routes;
    uint64_t num_group_off, num_group_wires, num_path_off, num_path_wires;
    uint64_t num_units, num_mgroup_off, num_mgroup_members, num_vertices, num_controls;
    uint64_t num_spreads, num_queue_keys, num_conns, num_costs;
    uint64_t num_prims, num_templates, num_instances, num_inst_conns, num_tasks, num_succ;
    uint64_t num_sources, num_messages, num_faults;
} clusim_image;

/* cdef: end */

#endif /* CLUSIM_IMAGE_H */
