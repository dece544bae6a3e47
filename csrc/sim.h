/* sim.h - the mutable side of a run, and the small functions every part of the engine uses.
 *
 * Who owns what: clusim_sim owns all arrays. Packets and transfers live in pools and are named by
 * index; a packet's `next` links it into exactly one list (a VOQ, a unit's waiting line, the pool's
 * free list). See ARCHITECTURE.md for the life of a packet by function name.
 */
#ifndef CLUSIM_SIM_H
#define CLUSIM_SIM_H

#include "clock.h"
#include "event_queue.h"
#include "list.h"
#include "model.h"

/* Event classes: phase A handles them in this order; WAKE only leads to phase B. */
enum event_class {
    EV_FAULT,
    EV_ARRIVE,
    EV_RESPOND,
    EV_RESULT,
    EV_FREE,
    EV_PAUSE,
    EV_NOTIFY,
    EV_COMPLETE,
    EV_TAIL,
    EV_HEAD,
    EV_READY,
    EV_KERNEL,
    EV_EPOCH,
    EV_DELAY,
    EV_SOURCE,
    EV_START,
    EV_LAUNCH,
    EV_WAKE /* at most 32 classes */
};

typedef struct packet {
    packet_id next;
    xfer_id xfer;
    uint32_t key;        /* route key */
    uint32_t wire_bytes; /* on the wire `out` */
    uint32_t payload;    /* bytes it stands for */
    uint32_t exact;      /* exact packets it stands for */
    wire_id out;         /* wire it waits for or travels on */
    wire_id held_wire;   /* wire whose receive buffer it occupies, or NONE */
    uint32_t held_bytes;
    target_id dst; /* present target, or none if a unit consumes it */
    union {
        packet_id op;     /* RED_FETCH, RED_DATA: the operation */
        buffer_id shared; /* copies: the input buffer they hold together, or none */
    };
    uint32_t path_pos; /* next index into path_wires, or NONE */
    union {
        wire_id first_wire; /* of its injection, for the window */
        vertex_id vertex;   /* AGG_UP: that it comes from; AGG_DOWN: that it goes to */
    };
    uint8_t kind, vc, held_vc, first_vc;
    uint8_t copy;                              /* MCAST behind its fan-out, AGG_DOWN behind one */
    uint8_t adaptive : 1, marked : 1, leg : 2; /* leg: which target `dst` is, LEG_LAST the last */
    uint16_t members;                          /* operations: responses still missing */
    wire_id in_wire;                           /* operations: wire on which the request came */
} packet;

enum { LEG_FIRST, LEG_SECOND, LEG_LAST };

_Static_assert(sizeof(packet) == 64, "a packet fills one cache line");

typedef struct credit_return {
    int64_t at_ps;
    int64_t bytes;
} credit_return;

/* Credit of one (wire, VC): what may be sent now, and what is on its way back, by time. */
typedef struct credit_pool {
    int64_t available;
    credit_return *ring; /* owned */
    uint32_t head, len, size;
} credit_pool;

typedef struct voq {
    packet_id head, tail; /* head none when empty */
} voq;

/* Everything a grant or an arrival touches of a wire, in four cache lines; what comes from the
 * model is copied here for that reason. */
typedef struct wire_state {
    int64_t free_at;
    int64_t wake_at; /* time of the valid WAKE event, or NEVER */
    const rate_class *rate;
    uint64_t rem;
    uint64_t owed_256;
    int64_t drained_at;
    uint64_t *ready; /* candidates that are ready, a bitmap */
    voq *queues;

    credit_pool *credits; /* per VC */
    int64_t latency_ps;
    int64_t far_latency_ps; /* of the far node */
    uint32_t next_candidate;
    uint32_t num_voqs, num_candidates;
    uint32_t in_queue;        /* first candidate of packets from here, at the far node */
    endpoint_id far_endpoint; /* endpoint at the far end, or none */
    wire_id reverse;
    uint8_t down;
    uint8_t contended; /* stall_arbitration counted up to free_at */
    uint8_t listed;    /* in the list for phase B */
    uint8_t traits;
    uint16_t pad;
    uint16_t num_words; /* of the bitmaps */
    uint32_t num_ready; /* bits set in `ready` */
    node_id far_node;

    uint64_t packets, grants, bytes, payload;
    int64_t busy_ps, stall_arbitration_ps;
    uint64_t queued_bytes, queued_max;

    int64_t stall_credit_ps;
    int64_t stall_since; /* start of the present credit stall, or -1 */
    uint64_t control_bytes, replays;
    int64_t credit_ps;
    uint64_t *waits; /* flows that wait for their pace, a bitmap */
    struct flow_cursor *flows;
    int64_t soonest; /* when the next flow in `waits` becomes available, or NEVER */
} wire_state;

_Static_assert(sizeof(wire_state) == 256, "a wire fills four cache lines");

/* What one flow still has to send over one wire. */
typedef struct flow_cursor {
    int64_t avail;
    uint32_t next; /* packet number */
    xfer_id xfer;
    uint32_t wire_bytes; /* of the next packet */
    uint32_t full_bytes; /* of a full packet */
    uint32_t outstanding;
    uint16_t window_closed;
    uint16_t vc;
} flow_cursor;

enum xfer_type {
    XFER_WRITE,
    XFER_READ,
    XFER_MCAST,
    XFER_REDUCE,
    XFER_REDUCE_MCAST,
    XFER_AGGREGATE
};
enum { OWNER_INSTANCE, OWNER_SOURCE };

typedef struct xfer {
    int64_t start_ps;
    int64_t pace_ps; /* earliest end of the data phase */
    int64_t max_end; /* greatest end of its granted packets */
    int64_t visible; /* greatest visible time of its packets */
    uint64_t bytes;
    uint64_t remaining; /* deliveries missing */
    uint64_t delivered; /* bytes, of all copies */
    uint32_t count;     /* packets */
    uint32_t ungranted;
    uint32_t limit; /* P0 */
    uint32_t full;  /* P0*k */
    uint64_t cost16;
    uint32_t stripe; /* b: stripe number of packet 0, or the pinned key */
    uint32_t group_size;
    uint32_t window; /* packets per first wire (adaptive: in all), 0 = unlimited */
    uint32_t adaptive_next;
    uint32_t outstanding;  /* adaptive windows */
    const uint32_t *group; /* first-hop wires; points into the model or to own_group */
    uint32_t *own_group;   /* owned; only while wires are down */
    union {                /* by owner_kind */
        inst_id inst;
        source_id source;
    };
    union {
        conn_id conn;
        message_id message;
    };
    uint32_t slot;
    endpoint_id endpoint; /* the requesting end, to which responses go */
    target_id dst;        /* where requests or data go; none for multimem and aggregation */
    target_id via_first, via_last; /* on the way, or none */
    flow_id flow;                  /* rate-controlled flow, or none */
    path_id path, path_back;
    mgroup_id mgroup;
    vertex_id vertex;
    uint32_t ordinal;
    wire_id last_wire; /* of the packet of max_end (writes) or of visible (reads) */
    uint8_t type, kind, policy, vc, vc_response, owner_kind;
    xfer_id next_free;
} xfer;

typedef struct conn_state {
    uint64_t tail_visible, consumed, issued, head_visible;
    uint64_t sends, posted;             /* slices started and posted by the sender */
    uint32_t stripe, stripe_read;       /* packet counts; the second of READs from a stage */
    inst_id recv_waiters, send_waiters; /* lists */
    uint8_t missing[64];                /* per unposted slice: what it still waits for */
    uint8_t width[64];                  /* ... and the slots it takes */
} conn_state;

enum inst_phase { PH_NEW, PH_QUEUED, PH_GATE, PH_FIXED, PH_READ, PH_DATA, PH_DONE };

typedef struct inst_state {
    uint64_t loop, loops;
    uint64_t piece;      /* bytes of the present piece */
    uint64_t slice_size; /* nominal */
    uint64_t slice_at;   /* offset of the present slice in the piece */
    uint32_t prim, repeat, seq, slot;
    uint32_t send_ordinal;
    inst_id next_waiter;
    conn_id wait_conn;
    uint32_t slow_1024;                       /* of the endpoint when the slice passed its gate */
    uint8_t phase, due, wait_side, has_slice; /* wait_side: a clusim_cause */
    int64_t queued_ps;                        /* when its task started */
    int64_t gate_ps;                          /* when the present slice passed its gate */
    wire_id wire;                             /* the present slice's last data, or NONE */
    uint32_t cause;                           /* clusim_cause: what it was blocked on last */
} inst_state;

typedef struct endpoint_state {
    clock16 memory;
    uint64_t mem_cost16;
    uint64_t mem_bytes_256;
    uint32_t slow_1024;
    uint64_t slots[4]; /* CTA slots in use */
    uint32_t busy_sms;
    uint32_t kernels;     /* running */
    task_id first_kernel; /* list */
    packet_id deferred;   /* packets that arrive now, by wire id */
    int64_t epoch_at;
    uint64_t epoch_mem, epoch_avail;
    uint32_t settled_sms; /* busy_sms when speeds were last set */
    uint8_t dirty, epoch_due, set_changed;
} endpoint_state;

typedef struct task_state {
    int64_t start_ps, end_ps;
    uint32_t deps_left, instances_left;
    task_id next_kernel;
    /* kernels */
    uint64_t done, speed;
    int64_t since, end_at, event_at; /* event_at: of the earliest event that is under way */
} task_state;

typedef struct source_state {
    message_id next_message;
    uint32_t slot;
    uint8_t injecting, in_flight; /* of the last message started */
} source_state;

typedef struct unit_state {
    clock16 clock;
    uint64_t in_use;
    uint64_t reduced_bytes; /* operands worked off so far */
    packet_id wait_head, wait_tail;
    packet_id deferred; /* packets that arrive now, by wire id */
} unit_state;

/* An inner vertex of an aggregation tree. */
typedef struct vertex_state {
    uint32_t base;      /* operations finished */
    uint32_t head;      /* place of operation `base` in `counts` */
    uint16_t *counts;   /* owned by the sim; children admitted, per open operation */
    uint32_t *payloads; /* likewise; what their packets stand for */
    packet_id wait_head, wait_tail;
    xfer_id xfer;     /* member: its present transfer */
    vertex_id member; /* a member below, whose transfer stands for all */
} vertex_state;

/* Receiver and sender side of one (wire, VC) that is paused instead of given credit. */
typedef struct pause_state {
    uint64_t held;
    uint32_t asked;
    int32_t stopped; /* PAUSEs less RESUMEs that took effect */
} pause_state;

typedef struct congestion_counters { /* of one wire */
    uint64_t overflows, pauses, marks, held_max;
    uint64_t entered; /* packets that could have been marked */
} congestion_counters;

/* DCQCN state of one flow; rates in bytes per 2^30 ps. */
typedef struct flow_control {
    uint64_t rate, target, sent;
    int64_t next_at;               /* earliest start of the next packet */
    int64_t alpha_at, increase_at; /* next timers, or NEVER */
    int64_t notified_at;           /* last notification sent, or -1 */
    uint64_t timer_count, byte_count;
    uint32_t alpha;
} flow_control;

typedef struct shared_buffer {
    int64_t max_end;
    wire_id wire;
    uint32_t copies, bytes;
    uint32_t vc;
} shared_buffer;

/* What the laws of laws.c need to remember: of a wire, ... */
typedef struct law_wire {
    uint64_t due_ps; /* what its bytes take, up to the last change of its rate */
    uint64_t bytes;  /* counted in due_ps */
} law_wire;

/* ... and of the wires out of an endpoint, and into it. */
typedef struct law_end {
    uint64_t rate30;  /* their rates together, in payload per 2^30 ps */
    int64_t least_ps; /* shortest latency */
    uint64_t payload; /* what complete transfers moved over them */
} law_end;

typedef struct law_break { /* the first broken law of a transfer */
    const char *what;      /* NULL: none */
    endpoint_id endpoint;
    uint64_t found, expected;
} law_break;

enum { BEYOND_NOTHING = CLUSIM_BEYOND_VERTEX + 1 }; /* all is inside the ranges */

struct clusim_sim {
    const clusim_model *model;
    int64_t now_ps;
    event_queue events;
    wire_state *wires;
    const wire_info *info;
    credit_pool *credits; /* [wire * nvc + vc] */
    voq *voqs;
    uint64_t *ready_bits; /* candidates that are ready, per wire */
    uint64_t *wait_bits;  /* flows that wait for their pace */
    flow_cursor *flows;
    packet *packets;
    packet_id packet_free;
    uint32_t packet_size, packets_live;
    xfer *xfers;
    xfer_id xfer_free;
    uint32_t xfer_size, xfers_live;
    shared_buffer *buffers;
    buffer_id buffer_free;
    uint32_t buffer_size, buffers_live;
    conn_state *conns;
    inst_state *insts;
    endpoint_state *endpoints;
    task_state *tasks;
    source_state *sources;
    unit_state *units;
    vertex_state *vertices;
    uint16_t *vertex_counts;
    uint32_t *vertex_payloads;
    pause_state *pauses;             /* [wire * nvc + vc], if any wire is paused or marks */
    congestion_counters *congestion; /* per wire, likewise */
    flow_control *controls;          /* connections, then sources, if any is controlled */
    int64_t *message_end;
    wire_list phase_b, phase_b_pass; /* to arbitrate; those of the pass under way */
    node_list deferred;              /* nodes with deferred packets */
    task_list due_tasks, task_wave;  /* due; those of the wave under way */
    inst_list due_starts, due_insts, inst_wave, slot_queue;
    endpoint_list dirty_endpoints;
    clusim_record *records;
    size_t num_records, record_size;
    bool keep_records, slot_freed;
    bool any_down, rates_changed; /* at any time */
    uint32_t wires_down;          /* now */
    bool finished, draining;
    enum clusim_status ended;      /* not CLUSIM_OK: the run failed with it, and cannot go on */
    uint32_t beyond, beyond_index; /* a clusim_beyond, or BEYOND_NOTHING */
    uint32_t nvc;
    uint64_t tasks_left, messages_left;
    uint64_t event_count, fingerprint;
    clusim_wire_counters *final; /* counters at the end of the run */
    uint64_t *final_mem_256;     /* likewise */
    law_wire *law_wires;
    law_end *law_ends; /* [2 * endpoint]: out of it, [2 * endpoint + 1]: into it */
    int64_t law_slack_ps;
    bool law_changes; /* faults change rates */
    law_break broken;
};

/* What an id names. */
#define AT(name, type, array)                                                                      \
    static inline type *name##_at(const clusim_sim *s, name##_id id) { return &s->array[id.i]; }
AT(wire, wire_state, wires)
AT(packet, packet, packets)
AT(xfer, xfer, xfers)
AT(buffer, shared_buffer, buffers)
AT(conn, conn_state, conns)
AT(inst, inst_state, insts)
AT(endpoint, endpoint_state, endpoints)
AT(task, task_state, tasks)
AT(source, source_state, sources)
AT(unit, unit_state, units)
AT(vertex, vertex_state, vertices)
AT(flow, flow_control, controls)
#undef AT

static inline const wire_info *info_at(const clusim_sim *s, wire_id id) { return &s->info[id.i]; }

static inline wire_id wire_of(const clusim_sim *s, const wire_state *w) {
    return ID(wire, (uint32_t)(w - s->wires));
}

/* The key of an event: its rank in phase A, its class, and a number.
 *
 * The contract orders a timestamp by class, and arrivals by wire. Most of that order cannot be
 * seen: only arrivals at one endpoint or unit meet (node_defer sorts those), and arrivals,
 * responses and wakes touch different queues unless GPUs relay. So events are sorted by rank alone:
 * faults, then what travels, then the rest. With adaptive routing and
 * with congestion marks, where an arrival looks at a queue others enter, the whole key counts. The
 * number is a wire or unit, or something small that a timer carries. */
enum { RANK_SHIFT = 30, CLASS_SHIFT = 25, NUMBER_MASK = (1 << CLASS_SHIFT) - 1 };

static inline uint32_t sim_class(uint32_t key) { return key >> CLASS_SHIFT & 31; }

static inline uint32_t sim_key(const clusim_sim *s, uint32_t class, uint32_t number) {
    uint32_t rank = class == EV_FAULT ? 0 : class == EV_ARRIVE || class == EV_WAKE ? 1 : 3;
    if (class == EV_RESPOND) rank = s->model->has_relays ? 2 : 1;
    return rank << RANK_SHIFT | class << CLASS_SHIFT | (number & NUMBER_MASK);
}

/* Something of the run left the ranges: it ends with this timestamp. */
void sim_beyond(clusim_sim *s, uint32_t what, uint32_t index);
void sim_flow_beyond(clusim_sim *s, flow_id flow);
void sim_event_beyond(clusim_sim *s, uint32_t class, uint32_t order, uint32_t payload);

/* A sum of a time and durations may have wrapped around 2^63 in `at`, but not around 2^64. */
ALWAYS_INLINE STATUS sim_event(clusim_sim *s, int64_t at, uint32_t class, uint32_t order,
                               uint32_t payload) {
    enum clusim_status pushed = event_queue_push(&s->events, at, sim_key(s, class, order), payload);
    if (LIKELY(pushed != CLUSIM_ERR_RANGE)) return pushed;
    sim_event_beyond(s, class, order, payload);
    return CLUSIM_OK;
}

/* pools and lists: sim_pool.c */
STATUS sim_pool_more_packets(clusim_sim *s);
STATUS sim_pool_xfer(clusim_sim *s, xfer_id *out);
STATUS sim_pool_buffer(clusim_sim *s, buffer_id *out);
void sim_pool_free_xfer(clusim_sim *s, xfer_id x);

static inline STATUS sim_pool_packet(clusim_sim *s, packet_id *out) {
    if (UNLIKELY(packet_none(s->packet_free))) TRY(sim_pool_more_packets(s));
    *out = s->packet_free;
    s->packet_free = packet_at(s, *out)->next;
    s->packets_live++;
    return CLUSIM_OK;
}

static inline void sim_free_packet(clusim_sim *s, packet_id p) {
    packet_at(s, p)->next = s->packet_free;
    s->packet_free = p;
    s->packets_live--;
}

/* Ask for arbitration of a wire in phase B of the present timestamp. */
static inline STATUS sim_arbitrate(clusim_sim *s, wire_id wire) {
    if (wire_at(s, wire)->listed) return CLUSIM_OK;
    wire_at(s, wire)->listed = 1;
    return wire_push(&s->phase_b, wire);
    return CLUSIM_OK;
}

static inline void sim_hash(clusim_sim *s, uint64_t what, int64_t time, uint64_t who,
                            uint64_t which) {
    s->fingerprint += base_mix(base_mix(base_mix(what, (uint64_t)time), who), which);
}

#endif
