/* clusim.h - the one public header of the clusim engine.
 *
 * Everything between the `cdef` markers is plain C with no preprocessor directives: the Python
 * binding hands that text to cffi verbatim, so the interface is written down only here. The meaning
 * of every field is fixed in docs/model/contract.md; Python's mirror is clusim/image.py, whose
 * layout is compared with the compiler's when the binding is imported.
 *
 * Units: times in [ps], sizes in [bytes], costs in [2^-16 ps per byte]. 0xFFFFFFFF means "none".
 */
#ifndef CLUSIM_H
#define CLUSIM_H

#include <stddef.h>
#include <stdint.h>

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
    CLUSIM_STOP_DONE = 0,
    CLUSIM_STOP_TIME = 1,
    CLUSIM_STOP_EVENTS = 2,
    CLUSIM_STOP_RECORDS = 3,
    CLUSIM_STOP_DEADLOCK = 4,
};

typedef struct clusim_error {
    int32_t status;
    uint32_t index; /* row of the offending array */
    char message[248];
} clusim_error;

typedef struct clusim_node {
    int64_t latency_ps;
    uint64_t route_lo;
    uint64_t wide_lo;
    uint32_t kind;
    uint32_t flags;
    uint32_t endpoint;
    uint32_t unit;
    uint32_t zone;
    uint32_t wide_stride;
} clusim_node;

typedef struct clusim_endpoint {
    int64_t write_latency_ps;
    int64_t read_latency_ps;
    int64_t response_latency_ps;
    int64_t mem_quantum_ps;
    uint32_t node;
    uint32_t sms;
    uint32_t cta_slots;
    uint32_t slow_1024;
    uint32_t mem_cost16;
    uint32_t deliver_256;
    uint32_t read_256;
    uint32_t inject_256;
} clusim_endpoint;

typedef struct clusim_format {
    uint32_t flit_bytes;
    uint32_t pad;
    uint32_t header_bytes[11];
    uint32_t control_256[11];
    uint32_t service_1024[11];
    uint32_t limit_bytes[11];
} clusim_format;

typedef struct clusim_wire {
    uint64_t rate_num;
    uint64_t rate_den;
    int64_t latency_ps;
    uint64_t buffer_bytes;
    int64_t replay_ps;
    uint64_t xoff_bytes;
    uint64_t xon_bytes;
    uint64_t ecn_min_bytes;
    uint64_t ecn_max_bytes;
    uint32_t src;
    uint32_t dst;
    uint32_t reverse;
    uint32_t format;
    uint32_t ordinal;
    uint32_t error_threshold;
    uint16_t dim;
    uint16_t dateline;
    uint32_t ecn_threshold;
} clusim_wire;

typedef struct clusim_target {
    uint32_t node;
    uint32_t zone;
    uint32_t local;
    uint32_t wide;
} clusim_target;

typedef struct clusim_unit {
    int64_t latency_ps;
    uint64_t capacity_bytes;
    uint32_t node;
    uint32_t cost16;
} clusim_unit;

typedef struct clusim_vertex {
    uint32_t parent;
    uint32_t unit;
    uint32_t endpoint;
    uint32_t path_up;
    uint32_t path_down;
    uint32_t child_lo;
    uint32_t child_hi;
    uint32_t slots;
} clusim_vertex;

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
} clusim_control;

typedef struct clusim_conn {
    int64_t tail_ps;
    int64_t head_ps;
    uint32_t src;
    uint32_t dst;
    uint32_t kind;
    uint32_t policy;
    uint32_t first_group;
    uint32_t path;
    uint32_t path_back;
    uint32_t key;
    uint32_t mgroup;
    uint32_t packet_bytes;
    uint32_t burst;
    uint32_t vc;
    uint32_t vc_response;
    uint32_t slots;
    uint32_t expand_120;
    uint32_t window_bytes;
    uint32_t via_first;
    uint32_t via_last;
    uint32_t stage;
    uint32_t control;
    uint32_t vertex;
    uint32_t pad;
} clusim_conn;

typedef struct clusim_cost {
    int64_t fixed_ps;
    uint32_t op_cost16[18];
} clusim_cost;

typedef struct clusim_prim {
    uint32_t opcode;
    uint32_t recv;
    uint32_t send;
    uint32_t flags;
    int32_t base;
    int32_t coef;
    int32_t step;
    uint32_t repeat;
} clusim_prim;

typedef struct clusim_template {
    uint32_t prim_lo;
    uint32_t prim_hi;
    uint32_t nchunks;
    uint32_t mode;
} clusim_template;

typedef struct clusim_instance {
    int64_t start_ps;
    uint64_t offset;
    uint64_t length;
    uint64_t chunk_bytes;
    uint64_t stride;
    uint64_t limit;
    uint64_t slice_min;
    uint32_t task;
    uint32_t endpoint;
    uint32_t template_;
    int32_t rotation;
    uint32_t conn_off;
    uint32_t align;
    uint32_t slices;
    uint32_t slots_per_slice;
    uint32_t cost;
    uint32_t sm;
} clusim_instance;

typedef struct clusim_task {
    int64_t delay_ps;
    int64_t compute_ps;
    uint64_t mem_bytes;
    uint32_t kind;
    uint32_t endpoint;
    uint32_t sms;
    uint32_t num_deps;
    uint32_t inst_lo;
    uint32_t inst_hi;
    uint32_t succ_lo;
    uint32_t succ_hi;
} clusim_task;

typedef struct clusim_source {
    uint32_t endpoint;
    uint32_t msg_lo;
    uint32_t msg_hi;
    uint32_t packet_bytes;
    uint32_t burst;
    uint32_t policy;
    uint32_t vc;
    uint32_t flags;
    uint32_t control;
    uint32_t pad;
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
    uint32_t kind;
    uint32_t index;
} clusim_fault;

/* The input. Arrays are borrowed during clusim_model_create() and copied. */
typedef struct clusim_image {
    uint64_t seed;
    uint32_t nvc;
    uint32_t num_opcodes;     /* length of op_flags, at most 18 */
    const uint32_t *op_flags; /* 1 recv, 2 send, 4 multicast, 8 reduce-read, 16 aggregate */
    const clusim_node *nodes;
    const clusim_endpoint *endpoints;
    const clusim_format *formats;
    const clusim_wire *wires;
    const clusim_target *targets;
    const uint32_t *routes;
    const uint32_t *group_off;
    const uint32_t *group_wires;
    const uint32_t *path_off;
    const uint32_t *path_wires;
    const clusim_unit *units;
    const uint32_t *mgroup_off;
    const uint32_t *mgroup_members;
    const clusim_vertex *vertices;
    const clusim_control *controls;
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
    uint64_t num_nodes, num_endpoints, num_formats, num_wires, num_targets, num_routes;
    uint64_t num_group_off, num_group_wires, num_path_off, num_path_wires;
    uint64_t num_units, num_mgroup_off, num_mgroup_members, num_vertices, num_controls;
    uint64_t num_conns, num_costs;
    uint64_t num_prims, num_templates, num_instances, num_inst_conns, num_tasks, num_succ;
    uint64_t num_sources, num_messages, num_faults;
} clusim_image;

typedef struct clusim_wire_counters {
    uint64_t packets;
    uint64_t grants;
    uint64_t bytes;
    uint64_t payload;
    uint64_t control_bytes;
    int64_t busy_ps;
    int64_t stall_credit_ps;
    int64_t stall_arbitration_ps;
    uint64_t queued_bytes;
    uint64_t queued_max;
    uint64_t replays;
    uint64_t overflows;
    uint64_t pauses;
    uint64_t marks;
    uint64_t held_max;
} clusim_wire_counters;

typedef struct clusim_record {
    int64_t time_ps;
    int64_t gate_ps; /* when its gate was open */
    uint32_t instance;
    uint32_t seq;
    uint32_t wire;  /* over which its data came or went last, or none */
    uint32_t cause; /* side whose opening it waited for last: 1 recv, 2 send; 0 did not wait */
} clusim_record;

typedef struct clusim_instance_state {
    uint32_t state; /* as clusim.outcome.State */
    uint32_t prim;
    uint32_t conn;
    uint32_t seq;
    uint64_t loop;
} clusim_instance_state;

const char *clusim_version(void);

/* Check and copy an image. On failure *out is NULL and *error says which row is wrong and why. */
int clusim_model_create(const clusim_image *image, clusim_model **out, clusim_error *error);
void clusim_model_destroy(clusim_model *model);

/* `model` is borrowed and must outlive the sim. `keep_records`: 0 keeps only the fingerprint. */
int clusim_sim_create(const clusim_model *model, int keep_records, clusim_sim **out);
void clusim_sim_destroy(clusim_sim *sim);

/* Advance; returns a clusim_stop, or a negative clusim_status. Stops only between timestamps. */
int clusim_sim_run(clusim_sim *sim, int64_t until_ps, uint64_t max_events);

/* After CLUSIM_ERR_RANGE: whose time or number is too large (as clusim.outcome.Beyond) and its
 * index. */
void clusim_sim_beyond(const clusim_sim *sim, uint32_t *what, uint32_t *index);
int64_t clusim_sim_now_ps(const clusim_sim *sim);
uint64_t clusim_sim_num_events(const clusim_sim *sim);
uint64_t clusim_sim_fingerprint(const clusim_sim *sim);

/* Copy state out; arrays have one element per wire, task, message, instance or endpoint. */
void clusim_sim_read_wires(const clusim_sim *sim, clusim_wire_counters *out);
void clusim_sim_read_tasks(const clusim_sim *sim, int64_t *start_ps, int64_t *end_ps);
void clusim_sim_read_messages(const clusim_sim *sim, int64_t *end_ps);
void clusim_sim_read_instances(const clusim_sim *sim, clusim_instance_state *out);
void clusim_sim_read_mem_bytes_256(const clusim_sim *sim, uint64_t *out);

/* Move up to `capacity` of the oldest records to `out`; returns how many. */
size_t clusim_sim_take_records(clusim_sim *sim, clusim_record *out, size_t capacity);
size_t clusim_sim_num_records(const clusim_sim *sim);

/* After DONE: drain what is under way and check that packets, credits and slots balance. */
int clusim_sim_check(clusim_sim *sim, clusim_error *error);

/* cdef: end */

#endif /* CLUSIM_H */
