/* model_check_sizes.c - counts and sizes that follow from several rows of an image: packets of a
 * transfer, bytes of a packet on a wire, places in a buffer, slices of an instance (contract,
 * section 1). The single rows were checked before.
 */
#include "model.h"

typedef unsigned long long ull;

static STATUS refuse(clusim_error *e, const char *table, uint64_t row, const char *what) {
    return model_refuse(e, row, table, what);
}

static STATUS refuse_packets(clusim_error *e, const char *table, uint64_t row, uint64_t packets) {
    char what[96];
    snprintf(what, sizeof what, "%llu packets; at most 2^32-1: larger packets or bursts",
             (ull)packets);
    return refuse(e, table, row, what);
}

/* ---- packets on wires ------------------------------------------------------------------------ */

/* As model_wire_bytes, for any result. */
static uint64_t wire_bytes(const clusim_format *f, uint32_t kind, uint64_t payload,
                           uint32_t packet_bytes) {
    uint64_t limit = base_umin(packet_bytes, f->limit_bytes[kind]);
    uint64_t exact = base_ceil_div(payload, limit), header = f->header_bytes[kind];
    if ((KINDS_BARE >> kind) & 1) return exact * model_up(f, header); /* below 2^28 * 2^33 */
    uint64_t rest = payload - (exact - 1) * limit;
    return (exact - 1) * model_up(f, header + limit) + model_up(f, header + rest);
}

static bool packet_ok(const clusim_image *im, uint32_t packet_bytes, uint32_t burst) {
    uint64_t full = (uint64_t)packet_bytes * burst;
    for (uint64_t f = 0; f < im->num_formats; f++) {
        for (uint32_t kind = 0; kind < CLUSIM_SIZE_KINDS; kind++) {
            if (wire_bytes(&im->formats[f], kind, full, packet_bytes) >= RANGE_WIRE_BYTES_END)
                return false;
        }
    }
    return true;
}

#define TOO_LARGE                                                                                  \
    "a burst of 2^29 bytes or more on a wire, headers included: a smaller burst, or larger "       \
    "packets"

/* Neighbours mostly have the same packets, so one look serves many rows. */
static STATUS check_packets(const clusim_image *im, clusim_error *e) {
    uint32_t packet = 0, burst = 0;
    for (uint64_t i = 0; i < im->num_conns; i++) {
        const clusim_conn *c = &im->conns[i];
        if (c->kind == CLUSIM_CONN_KIND_FLAG || (c->packet_bytes == packet && c->burst == burst))
            continue;
        packet = c->packet_bytes;
        burst = c->burst;
        if (!packet_ok(im, packet, burst)) return refuse(e, "conns", i, TOO_LARGE);
    }
    for (uint64_t i = 0; i < im->num_sources; i++) {
        const clusim_source *s = &im->sources[i];
        if (s->packet_bytes == packet && s->burst == burst) continue;
        packet = s->packet_bytes;
        burst = s->burst;
        if (!packet_ok(im, packet, burst)) return refuse(e, "sources", i, TOO_LARGE);
    }
    return CLUSIM_OK;
}

/* ---- rates -------------------------------------------------------------------------------------
 */

/* Least occupancy of a wire by a packet of a format, of all kinds and payloads. */
static uint64_t least_occupancy(const clusim_format *f) {
    uint64_t least = UINT64_MAX;
    for (uint32_t kind = 0; kind < CLUSIM_SIZE_KINDS; kind++) {
        uint64_t bytes = wire_bytes(f, kind, 1, 1); /* below 2^34 */
        least = base_umin(least, (bytes * f->service_1024[kind] + 1023) >> 10);
    }
    return least;
}

static bool rate_ok(const clusim_image *im, uint64_t wire, uint64_t num, uint64_t den) {
    return least_occupancy(&im->formats[im->wires[wire].format]) * den >= num;
}

#define TOO_FAST "a packet would last less than 1 ps; a lower rate"

static STATUS check_rates(const clusim_image *im, clusim_error *e) {
    for (uint64_t i = 0; i < im->num_wires; i++) {
        if (!rate_ok(im, i, im->wires[i].rate_num, im->wires[i].rate_den))
            return refuse(e, "wires", i, TOO_FAST);
    }
    for (uint64_t i = 0; i < im->num_faults; i++) {
        const clusim_fault *f = &im->faults[i];
        if (f->kind == CLUSIM_FAULT_KIND_RATE && !rate_ok(im, f->index, f->num, f->den))
            return refuse(e, "faults", i, TOO_FAST);
    }
    return CLUSIM_OK;
}

/* ---- messages and slices --------------------------------------------------------------------- */

static STATUS check_messages(const clusim_image *im, clusim_error *e) {
    for (uint64_t i = 0; i < im->num_sources; i++) {
        const clusim_source *s = &im->sources[i];
        uint64_t full = (uint64_t)s->packet_bytes * s->burst;
        for (uint32_t m = s->msg_lo; m < s->msg_hi; m++) {
            uint64_t packets = base_ceil_div(im->messages[m].bytes, full);
            if (packets >= RANGE_PACKETS_END) return refuse_packets(e, "messages", m, packets);
        }
    }
    return CLUSIM_OK;
}

/* Bytes of the largest slice an instance can have. */
static uint64_t largest_slice(const clusim_instance *x) {
    uint64_t piece = base_umin(x->chunk_bytes, x->length);
    uint64_t even = base_ceil_div(base_ceil_div(piece, x->slices), 16) * 16;
    return base_umin(piece, base_umax(even, x->slice_min));
}

/* Most packets that a transfer over one of the connections of a primitive has. */
static uint64_t most_packets(const clusim_image *im, const clusim_instance *x,
                             const clusim_prim *p) {
    uint32_t flags = im->op_flags[p->opcode], locals[2] = {p->recv, p->send};
    bool used[2] = {(flags & CLUSIM_OP_RECV) != 0, (flags & MODEL_OPS_SENDING) != 0};
    uint64_t most = 0;
    for (int k = 0; k < 2; k++) {
        if (!used[k]) continue;
        const clusim_conn *c = &im->conns[im->inst_conns[(uint64_t)x->conn_off + locals[k]]];
        if (c->kind == CLUSIM_CONN_KIND_FLAG) continue;
        uint64_t bytes = base_ceil_div(largest_slice(x) * c->expand_120, 120);
        most = base_umax(most, base_ceil_div(bytes, (uint64_t)c->packet_bytes * c->burst));
    }
    return most;
}

/* True if every chunk offset is below the end of offsets. */
static bool places_ok(const clusim_instance *x, const clusim_template *t) {
    uint64_t step = t->mode == CLUSIM_MODE_INTERLEAVED ? x->chunk_bytes : x->stride;
    base_u128 last = (base_u128)t->nchunks * step;
    if (t->mode == CLUSIM_MODE_BLOCKED) last += (base_u128)x->offset + x->length + x->chunk_bytes;
    return last < RANGE_OFFSET_END;
}

static STATUS check_instance(const clusim_image *im, uint64_t row, clusim_error *e) {
    const clusim_instance *x = &im->instances[row];
    const clusim_template *t = &im->templates[x->template];
    if (!places_ok(x, t)) return refuse(e, "instances", row, "chunks at or beyond 2^62 bytes");
    uint64_t span =
        t->mode == CLUSIM_MODE_INTERLEAVED ? t->nchunks * x->chunk_bytes : x->chunk_bytes;
    base_u128 slices = 0;
    for (uint32_t k = t->prim_lo; k < t->prim_hi; k++) {
        uint64_t packets = most_packets(im, x, &im->prims[k]);
        if (packets >= RANGE_PACKETS_END) return refuse_packets(e, "instances", row, packets);
        slices += im->prims[k].repeat;
    }
    /* A slice is at least 16 bytes, but for the last of a piece. */
    uint64_t piece = base_umin(x->chunk_bytes, x->length);
    slices *= base_umax(1, base_ceil_div(x->length, span)); /* below 2^64 * 2^52 */
    bool many = slices >= RANGE_SLICES_END;
    many = many || slices * base_umin(x->slices, piece / 16 + 1) >= RANGE_SLICES_END;
    return many ? refuse(e, "instances", row, "2^32 slices or more; larger chunks") : CLUSIM_OK;
}

STATUS model_check_sizes(const clusim_image *im, clusim_error *e) {
    enum clusim_status status = check_packets(im, e);
    if (status == CLUSIM_OK) status = check_rates(im, e);
    if (status == CLUSIM_OK) status = check_messages(im, e);
    for (uint64_t i = 0; status == CLUSIM_OK && i < im->num_instances; i++)
        status = check_instance(im, i, e);
    return status;
}
