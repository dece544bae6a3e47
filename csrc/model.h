/* model.h - immutable part of a run: a checked copy of the image, and data derived from it. */
#ifndef CLUSIM_MODEL_H
#define CLUSIM_MODEL_H

#include "base.h"
#include "ids.h"

/* Properties common to wires of one rate and one packet format; small, so that it stays in
 * cache. */
/* Packets of a kind at a rate. */
typedef struct rate_kind {
    int64_t header_ps;    /* est(up(header)) */
    uint64_t full_ps;     /* exact time of a full packet: one of `full_bytes` on the wire */
    uint32_t full_bytes;  /* of the image's largest packets; 0 if their time has a remainder */
    uint32_t control_256; /* owed for one, in 1/256 byte */
} rate_kind;

typedef struct rate_class {
    uint64_t num, den; /* bytes per ps, reduced */
    int64_t flit_ps;   /* est(flit) */
    uint64_t flit_256; /* a flit in 1/256 byte */
    int64_t least_ps;  /* minimum time of a packet of this image on a wire */
    const clusim_format *format;
    uint32_t format_index;
    rate_kind kinds[CLUSIM_SIZE_KINDS];
} rate_class;

/* Properties of a wire that arbitration needs, derived from the image. */
typedef struct wire_info {
    int64_t latency_ps;
    int64_t credit_ps;
    node_id src, dst;
    wire_id reverse;
    uint32_t ordinal;
    uint32_t rate;            /* rate class in the image */
    uint32_t in_local;        /* index among the incoming wires of dst */
    endpoint_id dst_endpoint; /* of node dst, or NONE */
    unit_id dst_unit;         /* likewise */
    int64_t dst_latency_ps;
    uint32_t voq_base;  /* first VOQ of this wire (as an output) */
    uint32_t num_voqs;  /* (n_in + 1) * nvc */
    uint32_t flow_base; /* first flow cursor; endpoints only */
    uint32_t num_candidates;
    uint32_t word_base, num_words; /* candidate bitmap */
    uint16_t dim, dateline;
    uint16_t traits;
    int64_t window_bytes; /* between a pair: maximum bytes sent in a window ... */
    int64_t lacking_ps;   /* ... and the longest window without credit for that */
} wire_info;

/* Opcodes that use their send connection, and the subset that multicasts or reduces. */
enum {
    MODEL_OPS_MULTIMEM = CLUSIM_OP_MCAST | CLUSIM_OP_REDUCE,
    MODEL_OPS_SENDING = CLUSIM_OP_SEND | MODEL_OPS_MULTIMEM | CLUSIM_OP_AGGREGATE
};

/* Traits of a wire: deviations from the common case. */
enum {
    HAS_ERRORS = 1,    /* replays packets, TELLS, SHARES, TIMED or LATE: one test in the hot path */
    STORE_FORWARD = 2, /* the far node receives packets in full before it forwards them */
    PLAIN_CUT = 4,     /* no wire out of the far node is faster or of another format */
    BRIDGE = 8,        /* the far node is a NIC */
    PAUSES = 16,       /* stopped by its receiver instead of by credit */
    MARKS = 32,        /* marks or drops packets that find a long queue */
    FROM_PLAIN = 64,   /* leaves a node that works in windows */
    TO_PLAIN = 128,    /* leads to one */
    CROSSES = 256,     /* leads to one of another thread (partition.h) */
    RANKED = 512,      /* SCHEDULED, or of a switch, with a dimension: its queues have ranks */
    TELLS = 1024,      /* of a switch: packets record its queue and bytes for policies of senders */
    SHARES = 2048,     /* drops packets by the shared memory of its node, or queues headers */
    SCHEDULED = 4096,  /* its classes have a schedule */
    TIMED = 8192,      /* ... of a policy: packets have times, classes bytes */
    LATE = 16384       /* marks packets that leave a long queue */
};

/* A route group: number of wires, and the first one. */
typedef struct model_way {
    wire_id first;
    uint32_t count;
} model_way;

/* Payload of the smallest and the largest packets in use. */
typedef struct model_sizes {
    uint64_t smallest, largest;
    uint32_t limit; /* of the exact packets that the largest represent */
} model_sizes;

struct clusim_model {
    clusim_image image; /* arrays owned by the model */
    wire_info *wires;
    rate_class *rates;
    uint32_t num_rates;
    model_sizes sizes;
    uint32_t *fault_rate;          /* per fault: rate class, or NONE for "down" and other kinds */
    wire_id *group_fastest;        /* per route group: fastest wire at image rates */
    model_way *ways;               /* per route group */
    uint32_t *most_flows;          /* per endpoint: CTA slots that may be in use at once */
    uint32_t *out_off, *out_wires; /* per node: outgoing wires */
    uint32_t *in_off, *in_wires;   /* the same, incoming */
    uint64_t num_voqs, num_flows, num_words;
    uint32_t num_groups;
    bool has_dims;
    bool has_formats;  /* wires of several packet formats */
    bool has_choice;   /* packets choose by load, and flows share their next packet */
    bool has_adaptive; /* the same, or flows wait for repeated packets or share a pace: phase B is
                          ordered */
    bool is_ordered;   /* arrivals must be handled in the contract's order, one by one */
    bool has_congestion;
    bool has_trims;
    bool has_controls;
    bool has_senders;     /* sender policies */
    bool has_telemetry;   /* some policies receive the hops of packets */
    bool has_order;       /* some receivers accept packets in order only */
    bool has_relays;      /* some packets pass through endpoints */
    int32_t bucket_shift; /* of the event queue */
    int64_t window_ps;    /* longest window; 0: events only */
    bool ends_window;     /* so do endpoints */
    bool windows_pay;     /* true if they save time */
    uint8_t *chooses;     /* per node: packets choose by load among its wires; or NULL */
    node_id *pairs;       /* per node: the partner with which it is processed as a pair; or NONE */
    bool has_pairs;
};

/* Refuse images that would break the engine, in this order: each check relies on the previous
 * ones. */
STATUS model_check_ranges(const clusim_image *image, clusim_error *error); /* single numbers */
STATUS model_check_fabric(const clusim_image *image,
                          clusim_error *error); /* nodes, wires, groups */
STATUS model_check_routes(const clusim_image *image, clusim_error *error, bool *has_relays);
STATUS model_check_work(const clusim_image *image, clusim_error *error);   /* programs, traffic */
STATUS model_check_sizes(const clusim_image *image, clusim_error *error);  /* counted quantities */
STATUS model_check_bounds(const clusim_image *image, clusim_error *error); /* time and memory */
STATUS model_check_ways(const clusim_image *image, clusim_error *error, bool *has_relays);

typedef const char *(*model_row_check)(const clusim_image *im, uint64_t row);
typedef struct model_table {
    const char *name;
    uint64_t rows;
    model_row_check check;
} model_table;

/* Check all rows of some tables, in an order in which each may trust those before it. */
STATUS model_check_tables(const clusim_image *im, const model_table *tables, size_t count,
                          clusim_error *e);
model_sizes model_packets(const clusim_image *im);

static inline bool model_inside(const clusim_model *m, const wire_info *w) {
    return node_is(m->pairs[w->src.i], w->dst);
}

/* Derive the tables of a copied image. */
STATUS model_derive(clusim_model *m);

/* Choose the nodes that work in windows, and how long these are. */
STATUS model_windows(clusim_model *m);

/* Bucket width of the event queue, for the events that windows leave: a power of two [ps]. */
int32_t model_bucket_shift(const clusim_model *m);

STATUS model_refuse(clusim_error *error, uint64_t row, const char *table, const char *what);
STATUS model_no_memory(clusim_error *error);

/* Route of the packets of a connection or message: over up to two targets to an endpoint. */
typedef struct model_legs {
    uint32_t targets[3];
    uint32_t count;
} model_legs;

static inline model_legs model_legs_of(uint32_t via_first, uint32_t via_last, uint32_t to) {
    model_legs legs = {.count = 0};
    if (via_first != NONE) legs.targets[legs.count++] = via_first;
    if (via_last != NONE) legs.targets[legs.count++] = via_last;
    legs.targets[legs.count++] = to;
    return legs;
}

/* est(b) if b*den has more than 63 bits; INT64_MAX represents all longer times. */
int64_t model_est_long(const rate_class *r, uint64_t bytes);

/* est(b) of the contract: ceil(b*den/num). */
static inline int64_t model_est(const rate_class *r, uint64_t bytes) {
    uint64_t work;
    if (UNLIKELY(__builtin_mul_overflow(bytes, r->den, &work) || work >> 63))
        return model_est_long(r, bytes);
    if (LIKELY(r->num == 1)) return (int64_t)work;
    return (int64_t)base_ceil_div(work, r->num);
}

static inline uint64_t model_up(const clusim_format *f, uint64_t bytes) {
    uint32_t flit = f->flit_bytes;
    if (LIKELY((flit & (flit - 1)) == 0)) return (bytes + flit - 1) & ~(uint64_t)(flit - 1);
    return (bytes + flit - 1) / flit * flit;
}

/* Number of packets on a wire of this format for `payload` bytes in packets of `limit` bytes. */
static inline uint32_t model_exact(const clusim_format *f, uint32_t kind, uint32_t payload,
                                   uint32_t limit) {
    limit = (uint32_t)base_umin(limit, f->limit_bytes[kind]);
    return LIKELY(payload <= limit) ? 1 : (payload + limit - 1) / limit;
}

/* Wire bytes of a packet standing for `payload` bytes in `exact` packets of at most `limit` bytes.
 */
static inline uint32_t model_wire_bytes(const clusim_format *f, uint32_t kind, uint32_t payload,
                                        uint32_t exact, uint32_t limit) {
    uint64_t header = f->header_bytes[kind];
    if ((KINDS_BARE >> kind) & 1) return (uint32_t)(exact * model_up(f, header));
    if (LIKELY(exact == 1)) return (uint32_t)model_up(f, header + payload);
    limit = (uint32_t)base_umin(limit, f->limit_bytes[kind]);
    uint64_t rest = payload - (uint64_t)(exact - 1) * limit;
    return (uint32_t)((exact - 1) * model_up(f, header + limit) + model_up(f, header + rest));
}

static inline uint64_t model_occupancy(const clusim_format *f, uint32_t kind, uint32_t wire_bytes) {
    return ((uint64_t)wire_bytes * f->service_1024[kind] + 1023) >> 10;
}

static inline uint32_t model_part_size(const uint32_t *off, uint32_t part) {
    return off[part + 1] - off[part];
}

static inline uint32_t model_group_size(const clusim_model *m, group_id group) {
    return model_part_size(m->image.group_off, group.i);
}

/* The wires of a group, as rows of the image. */
static inline const uint32_t *model_group(const clusim_model *m, group_id group) {
    return m->image.group_wires + m->image.group_off[group.i];
}

/* Rows of `mgroup_members` that a multicast group has. */
typedef struct model_span {
    uint32_t lo, hi;
} model_span;

static inline model_span model_members(const clusim_image *im, mgroup_id group) {
    return (model_span){im->mgroup_off[group.i], im->mgroup_off[group.i + 1]};
}

/* True if a sender policy would need notices of packets that a receiver in order drops. */
static inline bool model_sends_in_order(const clusim_image *im, uint32_t control, uint32_t spread) {
    return control != NONE && spread != NONE && im->controls[control].sender &&
           im->spreads[spread].ordered && im->spreads[spread].timeout_ps == 0;
}

/* Endpoints are the first targets. */
static inline target_id model_target(endpoint_id endpoint) { return ID(target, endpoint.i); }
static inline endpoint_id model_endpoint(target_id target) { return ID(endpoint, target.i); }

/* The route group from a node towards a target, or NONE. */
static inline uint32_t model_route_in(const clusim_image *im, uint32_t node, uint32_t target) {
    const clusim_node *n = &im->nodes[node];
    const clusim_target *t = &im->targets[target];
    if (LIKELY(n->zone == t->zone)) return im->routes[n->route_lo + t->local];
    return im->routes[n->wide_lo + (uint64_t)t->wide * n->wide_stride];
}

static inline group_id model_route(const clusim_model *m, node_id node, target_id target) {
    return ID(group, model_route_in(&m->image, node.i, target.i));
}

#endif
