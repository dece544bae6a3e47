/* model_check_sizes.c - products of legal numbers that the engine computes: they fit in its types,
 * and what the image makes the engine allocate or walk through has an end.
 */
#include "model.h"
#include "ranges.h"

#define NEED(cond, what)                                                                           \
    if (!(cond)) return what

enum {
    MOST_BURST = 1 << 28,        /* payload of a burst */
    MOST_WIRE_BYTES = 1 << 29,   /* of a burst; an event carries fewer */
    MOST_VERTEX_SLOTS = 1 << 26, /* of all vertices */
    MOST_CANDIDATES = 1 << 21,   /* of one wire */
    MOST_STEPS_LEFT = 4096       /* of a byte counter, by one packet */
};
#define MOST_VOQS (UINT64_C(1) << 28)

/* ---- packets -----------------------------------------------------------------------------------
 */

typedef struct packet_size {
    uint64_t packet, burst;
} packet_size;

/* Greatest occupancy of a burst on a wire of a format, of all kinds; 0 if one is too large. */
static uint64_t occupancy_of(const clusim_format *f, packet_size size) {
    uint64_t most = 0, payload = size.packet * size.burst;
    for (uint32_t kind = 0; kind < NUM_KINDS; kind++) {
        uint64_t limit = base_umin(size.packet, f->limit_bytes[kind]);
        uint64_t exact = base_ceil_div(payload, limit);
        uint64_t bare = exact * model_up(f, f->header_bytes[kind]);
        uint64_t last = payload - (exact - 1) * limit;
        uint64_t full = (exact - 1) * model_up(f, f->header_bytes[kind] + limit) +
                        model_up(f, f->header_bytes[kind] + last);
        uint64_t bytes = (KINDS_BARE >> kind) & 1 ? bare : full;
        if (bytes >= MOST_WIRE_BYTES || exact * f->control_256[kind] / 256 >= MOST_WIRE_BYTES)
            return 0;
        most = base_umax(most, (bytes * f->service_1024[kind] + 1023) >> 10);
    }
    return most < UINT32_MAX ? most : 0;
}

/* Take a packet size into the greatest occupancy of every format. */
static const char *note_size(const clusim_image *im, packet_size size, uint64_t *most) {
    NEED(size.packet * size.burst <= MOST_BURST, "burst is too large");
    for (uint64_t f = 0; f < im->num_formats; f++) {
        uint64_t occupancy = occupancy_of(&im->formats[f], size);
        NEED(occupancy, "a burst has too many bytes on a wire");
        most[f] = base_umax(most[f], occupancy);
    }
    return NULL;
}

static int check_packets(const clusim_image *im, clusim_error *e, uint64_t *most) {
    packet_size last = {0, 0}; /* neighbours are mostly alike */
    for (uint64_t row = 0; row < im->num_conns; row++) {
        const clusim_conn *c = &im->conns[row];
        if (c->kind == 2 || (c->packet_bytes == last.packet && c->burst == last.burst)) continue;
        last = (packet_size){c->packet_bytes, c->burst};
        const char *wrong = note_size(im, last, most);
        if (wrong) return model_refuse(e, row, "conns", wrong);
    }
    for (uint64_t row = 0; row < im->num_sources; row++) {
        const clusim_source *s = &im->sources[row];
        if (s->packet_bytes == last.packet && s->burst == last.burst) continue;
        last = (packet_size){s->packet_bytes, s->burst};
        const char *wrong = note_size(im, last, most);
        if (wrong) return model_refuse(e, row, "sources", wrong);
    }
    return CLUSIM_OK;
}

/* A packet's time on a wire is a duration like a latency. */
static bool is_slow(uint64_t occupancy, uint64_t num, uint64_t den) {
    return occupancy * den / num >= (uint64_t)RANGE_LATENCY_END;
}

static int check_rates(const clusim_image *im, clusim_error *e, const uint64_t *most) {
    for (uint64_t row = 0; row < im->num_wires; row++) {
        const clusim_wire *w = &im->wires[row];
        if (is_slow(most[w->format], w->rate_num, w->rate_den))
            return model_refuse(e, row, "wires", "a packet takes 2^56 ps or more");
    }
    for (uint64_t row = 0; row < im->num_faults; row++) {
        const clusim_fault *f = &im->faults[row];
        if (f->kind == 0 && f->num && is_slow(most[im->wires[f->index].format], f->num, f->den))
            return model_refuse(e, row, "faults", "a packet takes 2^56 ps or more");
    }
    return CLUSIM_OK;
}

/* ---- rate control ------------------------------------------------------------------------------
 */

static bool outruns(const clusim_image *im, uint32_t control, uint64_t burst_bytes) {
    return control != NONE && burst_bytes / im->controls[control].byte_counter > MOST_STEPS_LEFT;
}

static const char *wrong_conn(const clusim_image *im, uint64_t row) {
    const clusim_conn *c = &im->conns[row];
    NEED(!outruns(im, c->control, (uint64_t)c->packet_bytes * c->burst),
         "a packet is more than 4096 times its byte_counter");
    return NULL;
}

/* ---- programs ----------------------------------------------------------------------------------
 */

/* Primitives of a template, with their repeats. */
static uint64_t steps_of(const clusim_image *im, const clusim_template *t) {
    uint64_t steps = 0;
    for (uint32_t p = t->prim_lo; p < t->prim_hi; p++) steps += im->prims[p].repeat;
    return steps;
}

static const char *wrong_template(const clusim_image *im, uint64_t row) {
    NEED(steps_of(im, &im->templates[row]) <= UINT32_MAX, "more than 2^32 steps");
    return NULL;
}

/* Slices are numbered in 32 bits. */
static const char *wrong_length(const clusim_image *im, const clusim_instance *x) {
    const clusim_template *t = &im->templates[x->template_];
    uint64_t loop = t->mode == 0 ? t->nchunks * x->chunk_bytes : x->chunk_bytes;
    uint64_t loops = base_ceil_div(x->length, loop) + 1; /* at least one where primitives sync */
    uint64_t slices = base_ceil_div(x->chunk_bytes, base_umax(x->slice_min, 16));
    base_u128 all = (base_u128)loops * steps_of(im, t) * base_umin(slices, x->slices);
    NEED(all <= (base_u128)UINT32_MAX + 1, "more than 2^32 slices");
    if (t->mode == 0) return NULL;
    base_u128 end = (base_u128)(t->nchunks - 1) * x->stride + x->offset;
    NEED(end < (base_u128)RANGE_TIME_END, "its chunks end beyond 2^62 bytes");
    return NULL;
}

static bool fits(const clusim_conn *c, uint64_t bytes) {
    uint64_t payload = base_ceil_div(bytes * c->expand_120, 120);
    return base_ceil_div(payload, (uint64_t)c->packet_bytes * c->burst) < RANGE_PACKETS_END;
}

static const char *wrong_instance(const clusim_image *im, uint64_t row) {
    const clusim_instance *x = &im->instances[row];
    const clusim_template *t = &im->templates[x->template_];
    uint64_t bytes = base_umin(x->chunk_bytes, x->length);
    for (uint32_t k = t->prim_lo; k < t->prim_hi; k++) {
        const clusim_prim *p = &im->prims[k];
        uint32_t ends[] = {im->op_flags[p->opcode] & 1 ? p->recv : NONE,
                           im->op_flags[p->opcode] & 30 ? p->send : NONE};
        for (uint32_t side = 0; side < 2; side++) {
            if (ends[side] == NONE) continue;
            const clusim_conn *c = &im->conns[im->inst_conns[x->conn_off + ends[side]]];
            NEED(c->kind == 2 || fits(c, bytes), "a slice may have 2^32 packets");
        }
    }
    return wrong_length(im, x);
}

static const char *wrong_source(const clusim_image *im, uint64_t row) {
    const clusim_source *s = &im->sources[row];
    uint64_t full = (uint64_t)s->packet_bytes * s->burst;
    NEED(!outruns(im, s->control, full), "a packet is more than 4096 times its byte_counter");
    for (uint32_t k = s->msg_lo; k < s->msg_hi; k++) {
        NEED(base_ceil_div(im->messages[k].bytes, full) < RANGE_PACKETS_END,
             "a message has 2^32 packets or more");
    }
    return NULL;
}

/* ---- memory ------------------------------------------------------------------------------------
 */

static int check_queues(const clusim_image *im, clusim_error *e, uint64_t *incoming) {
    for (uint64_t w = 0; w < im->num_wires; w++) incoming[im->wires[w].dst]++;
    uint64_t queues = 0;
    for (uint64_t w = 0; w < im->num_wires; w++) {
        uint64_t here = (incoming[im->wires[w].src] + 1) * im->nvc;
        queues += here;
        if (here > MOST_CANDIDATES || queues > MOST_VOQS)
            return model_refuse(e, w, "wires", "too many queues; use fewer wires per node");
    }
    return CLUSIM_OK;
}

static int check_memory(const clusim_image *im, clusim_error *e) {
    uint64_t slots = 0;
    for (uint64_t v = 0; v < im->num_vertices; v++) {
        slots += im->vertices[v].slots;
        if (slots > MOST_VERTEX_SLOTS)
            return model_refuse(e, v, "vertices", "more than 2^26 slots in all");
    }
    uint64_t *incoming = calloc(im->num_nodes + 1, sizeof *incoming);
    if (incoming == NULL) return model_no_memory(e);
    int status = check_queues(im, e, incoming);
    free(incoming);
    return status;
}

int model_check_sizes(const clusim_image *im, clusim_error *e) {
    const model_table tables[] = {
        {"conns", im->num_conns, wrong_conn},
        {"templates", im->num_templates, wrong_template},
        {"instances", im->num_instances, wrong_instance},
        {"sources", im->num_sources, wrong_source},
    };
    uint64_t *most = calloc(im->num_formats + 1, sizeof *most);
    if (most == NULL) return model_no_memory(e);
    int status = check_packets(im, e, most);
    if (status == CLUSIM_OK) status = check_rates(im, e, most);
    free(most);
    if (status == CLUSIM_OK)
        status = model_check_tables(im, tables, sizeof tables / sizeof *tables, e);
    return status == CLUSIM_OK ? check_memory(im, e) : status;
}
