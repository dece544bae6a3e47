/* model_check_bounds.c - bounds on the numbers that an image makes the engine compute, on its loops
 * at one time, and on its allocations. Counts and sizes were checked in model_check_sizes.c. */
#include "model.h"
#include "ranges.h"

#define NEED(cond, what)                                                                           \
    if (!(cond)) return what

enum {
    MOST_VERTEX_SLOTS = 1 << 26,              /* of all vertices */
    MOST_CANDIDATES = 1 << 21,                /* of one wire */
    MOST_STEPS_LEFT = 4096,                   /* of a byte counter, by one packet */
    MOST_STEPS = 1 << 24,                     /* of a template */
    MOST_FREE_SLICES = 1 << 22,               /* of an instance, without time cost */
    LONGEST_FREE_PS = 1024 / RANGE_SLOW_LEAST /* cheaper ones may be free on fast endpoints */
};
#define MOST_VOQS (UINT64_C(1) << 28)

/* ---- packets -----------------------------------------------------------------------------------
 */

/* Greatest occupancy of a burst on a wire of a format, of all kinds; 0 if it owes too much back. */
static uint64_t occupancy_of(const clusim_format *f, uint32_t packet, uint32_t burst) {
    uint64_t most = 0;
    uint32_t payload = packet * burst;
    for (uint32_t kind = 0; kind < CLUSIM_SIZE_KINDS; kind++) {
        uint32_t exact = model_exact(f, kind, payload, packet);
        uint32_t bytes = model_wire_bytes(f, kind, payload, exact, packet);
        if ((uint64_t)exact * f->control_256[kind] / 256 >= RANGE_WIRE_BYTES_END) return 0;
        most = base_umax(most, ((uint64_t)bytes * f->service_1024[kind] + 1023) >> 10);
    }
    return most < UINT32_MAX ? most : 0;
}

typedef struct packet_size {
    uint32_t packet, burst;
} packet_size;

/* Include a packet size in the greatest occupancy of every format. */
static const char *note_size(const clusim_image *im, packet_size size, uint64_t *most) {
    for (uint64_t f = 0; f < im->num_formats; f++) {
        uint64_t occupancy = occupancy_of(&im->formats[f], size.packet, size.burst);
        NEED(occupancy, "a burst occupies a wire, or is acknowledged, by 2^29 bytes or more");
        most[f] = base_umax(most[f], occupancy);
    }
    return NULL;
}

static STATUS check_packets(const clusim_image *im, clusim_error *e, uint64_t *most) {
    packet_size last = {0, 0}; /* neighbours mostly have equal sizes */
    for (uint64_t row = 0; row < im->num_conns; row++) {
        const clusim_conn *c = &im->conns[row];
        if (c->kind == CLUSIM_CONN_KIND_FLAG ||
            (c->packet_bytes == last.packet && c->burst == last.burst))
            continue;
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
static const char *wrong_rate(uint64_t most, const uint64_t rate[2]) {
    NEED(most * rate[1] / rate[0] < (uint64_t)RANGE_LATENCY_END,
         "a packet takes 2^56 ps (20 hours) or more; smaller packets or bursts");
    return NULL;
}

static STATUS check_rates(const clusim_image *im, clusim_error *e, const uint64_t *most) {
    for (uint64_t row = 0; row < im->num_wires; row++) {
        const clusim_wire *w = &im->wires[row];
        uint64_t rate[2] = {w->rate_num, w->rate_den};
        const char *wrong = wrong_rate(most[w->format], rate);
        if (wrong) return model_refuse(e, row, "wires", wrong);
    }
    for (uint64_t row = 0; row < im->num_faults; row++) {
        const clusim_fault *f = &im->faults[row];
        if (f->kind != CLUSIM_FAULT_KIND_RATE || f->num == 0) continue;
        uint32_t format = im->wires[f->index].format;
        uint64_t rate[2] = {f->num, f->den};
        const char *wrong = wrong_rate(most[format], rate);
        if (wrong) return model_refuse(e, row, "faults", wrong);
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
    NEED(steps_of(im, &im->templates[row]) <= MOST_STEPS, "more than 2^24 steps");
    return NULL;
}

/* Most slices of one pass through some steps of the template, and of all passes. */
static base_u128 slices_of(const clusim_instance *x, const clusim_template *t, uint64_t steps) {
    uint64_t loop =
        t->mode == CLUSIM_MODE_INTERLEAVED ? t->nchunks * x->chunk_bytes : x->chunk_bytes;
    uint64_t loops = base_ceil_div(x->length, loop) + 1; /* at least one where primitives sync */
    uint64_t slices = base_ceil_div(x->chunk_bytes, base_umax(x->slice_min, 16));
    return (base_u128)loops * steps * base_umin(slices, x->slices);
}

static const clusim_conn *conn_of(const clusim_image *im, const clusim_instance *x, uint32_t at) {
    return &im->conns[im->inst_conns[x->conn_off + at]];
}

/* True if the slices of a primitive may need no time: no data movement and no charge. */
static bool is_free(const clusim_image *im, const clusim_instance *x, const clusim_prim *p) {
    uint32_t flags = im->op_flags[p->opcode];
    if (im->costs[x->cost].fixed_ps >= LONGEST_FREE_PS) return false;
    if (p->flags & CLUSIM_PRIM_FLAG_SYNC) return true;
    if (flags & ~(uint32_t)(CLUSIM_OP_RECV | CLUSIM_OP_SEND)) return false;
    if (flags & CLUSIM_OP_SEND && conn_of(im, x, p->send)->kind == CLUSIM_CONN_KIND_WRITE)
        return false;
    return !(flags & CLUSIM_OP_RECV) || (conn_of(im, x, p->recv)->kind != CLUSIM_CONN_KIND_READ &&
                                         conn_of(im, x, p->recv)->stage == NONE);
}

/* With many slices that need no time, the run could not stop. */
static const char *wrong_instance(const clusim_image *im, uint64_t row) {
    const clusim_instance *x = &im->instances[row];
    const clusim_template *t = &im->templates[x->template];
    uint64_t free_steps = 0;
    for (uint32_t p = t->prim_lo; p < t->prim_hi; p++) {
        if (is_free(im, x, &im->prims[p])) free_steps += im->prims[p].repeat;
    }
    NEED(slices_of(x, t, free_steps) <= MOST_FREE_SLICES,
         "more than 2^22 slices that take no time");
    return NULL;
}

static const char *wrong_source(const clusim_image *im, uint64_t row) {
    const clusim_source *s = &im->sources[row];
    uint64_t full = (uint64_t)s->packet_bytes * s->burst;
    NEED(!outruns(im, s->control, full), "a packet is more than 4096 times its byte_counter");
    NEED(!model_sends_in_order(im, s->control, s->spread),
         "a sender policy excludes receivers in order");
    return NULL;
}

/* ---- memory ------------------------------------------------------------------------------------
 */

static STATUS check_queues(const clusim_image *im, clusim_error *e, uint64_t *incoming) {
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

static STATUS check_memory(const clusim_image *im, clusim_error *e) {
    uint64_t slots = 0;
    for (uint64_t v = 0; v < im->num_vertices; v++) {
        slots += im->vertices[v].slots;
        if (slots > MOST_VERTEX_SLOTS)
            return model_refuse(e, v, "vertices", "more than 2^26 slots in all");
    }
    uint64_t *incoming = calloc(im->num_nodes + 1, sizeof *incoming);
    if (incoming == NULL) return model_no_memory(e);
    enum clusim_status status = check_queues(im, e, incoming);
    free(incoming);
    return status;
}

STATUS model_check_bounds(const clusim_image *im, clusim_error *e) {
    const model_table tables[] = {
        {"conns", im->num_conns, wrong_conn},
        {"templates", im->num_templates, wrong_template},
        {"instances", im->num_instances, wrong_instance},
        {"sources", im->num_sources, wrong_source},
    };
    uint64_t *most = calloc(im->num_formats + 1, sizeof *most);
    if (most == NULL) return model_no_memory(e);
    enum clusim_status status = check_packets(im, e, most);
    if (status == CLUSIM_OK) status = check_rates(im, e, most);
    free(most);
    if (status == CLUSIM_OK)
        status = model_check_tables(im, tables, sizeof tables / sizeof *tables, e);
    return status == CLUSIM_OK ? check_memory(im, e) : status;
}
