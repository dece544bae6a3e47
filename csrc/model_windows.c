/* model_windows.c - which nodes work in windows (window.h), and how long these may be. */
#include "model.h"

/* True if forwarding nodes may work in windows: no component looks at their queues or acts on their
 * wires within a timestamp, no in-switch trees reduce, and no time or owed byte count of a wire can
 * approach its range while the run is in the first half of time. */
static bool may_window(const clusim_model *m) {
    const clusim_image *im = &m->image;
    uint64_t largest = m->sizes.largest;
    bool may = !m->has_congestion && im->num_schedules == 0;
    for (uint32_t r = 0; r < im->num_spreads; r++) /* all nodes choose */
        may &= !m->has_choice || im->spreads[r].detour_lo >= im->spreads[r].detour_hi;
    for (uint32_t f = 0; f < im->num_faults; f++)
        may &= im->faults[f].kind != CLUSIM_FAULT_KIND_RATE;
    for (uint32_t c = 0; c < im->num_conns; c++)
        may &= im->conns[c].kind != CLUSIM_CONN_KIND_AGGREGATION;
    for (uint32_t w = 0; w < im->num_wires; w++)
        may &= im->wires[w].rate_den >> 20 <= im->wires[w].rate_num;
    for (uint32_t f = 0; f < im->num_formats; f++) {
        for (uint32_t kind = 0; kind < CLUSIM_SIZE_KINDS; kind++) {
            uint64_t exact = largest / base_umax(1, im->formats[f].limit_bytes[kind]) + 1;
            may &= exact < (UINT64_C(1) << 32) / (im->formats[f].control_256[kind] + UINT64_C(1));
        }
    }
    return may;
}

#define LONGEST_PS (INT64_C(1) << 32) /* windows of more are of no use */
enum { USUAL_PS = 100000 };           /* the latency of a link inside a machine, about */

/* Of a node that could work in windows. */
typedef struct window_node {
    int64_t least_ps; /* minimum delay until its actions affect other nodes, and vice versa */
    int64_t sends_ps; /* minimum time of a packet to leave it */
    uint64_t wires;   /* outgoing */
    bool used;        /* an endpoint that sends or receives */
} window_node;

static int by_latency(const void *a, const void *b) {
    int64_t x = ((const window_node *)a)->least_ps, y = ((const window_node *)b)->least_ps;
    return (x > y) - (x < y);
}

static bool may_be_plain(const clusim_model *m, node_id node) {
    if (m->chooses && m->chooses[node.i]) return false;
    return m->image.nodes[node.i].endpoint == NONE;
}

/* Mark the nodes whose packets compare several wires: routes with several wires, and dimensions
 * with minimal paths. */
static STATUS find_choices(clusim_model *m) {
    const clusim_image *im = &m->image;
    bool minimal = false;
    if (!m->has_choice) return CLUSIM_OK;
    m->chooses = calloc(im->num_nodes + 1, 1);
    if (m->chooses == NULL) return CLUSIM_ERR_NO_MEMORY;
    for (uint32_t g = 0; g < m->num_groups; g++)
        if (m->ways[g].count > 1) m->chooses[m->wires[m->ways[g].first.i].src.i] = 1;
    for (uint32_t r = 0; r < im->num_spreads; r++) minimal |= im->spreads[r].minimal_vc > 0;
    for (uint32_t w = 0; w < im->num_wires && minimal; w++)
        if (im->wires[w].dim) m->chooses[im->wires[w].src] = 1;
    return CLUSIM_OK;
}

static bool multimem(const clusim_image *im) {
    for (uint32_t c = 0; c < im->num_conns; c++)
        if (im->conns[c].kind == CLUSIM_CONN_KIND_MULTIMEM) return true;
    return false;
}

enum { ROOM_BITS = 60 }; /* of 2^61: limit on the advance of a clock or count in one window */

/* True if a unit's reduction in a window stays far below the range of its clock; `largest` is the
 * largest packet. */
static bool unit_bounded(const clusim_model *m, const clusim_unit *u, uint64_t largest) {
    uint64_t bytes = largest * m->image.num_endpoints;
    base_u128 all = (base_u128)bytes * ((base_u128)model_part_size(m->in_off, u->node) *
                                        (uint64_t)(u->latency_ps + 1));
    return all >> ROOM_BITS == 0 && (all * u->cost16) >> 16 >> ROOM_BITS == 0;
}

/* Results of a reduction in a window must belong to operations that began before it. */
static void look_at_units(const clusim_model *m, window_node *nodes) {
    if (!multimem(&m->image)) return;
    uint64_t largest = m->sizes.largest;
    for (uint32_t u = 0; u < m->image.num_units; u++) {
        const clusim_unit *unit = &m->image.units[u];
        int64_t least = unit_bounded(m, unit, largest) ? unit->latency_ps : 0;
        nodes[unit->node].least_ps = base_min(nodes[unit->node].least_ps, least);
    }
}

/* The smallest payload of a packet: slices are cut anyhow. */
static uint32_t least_payload(const clusim_image *im) {
    uint64_t least = im->num_messages ? UINT32_MAX : 1;
    for (uint32_t c = 0; c < im->num_conns; c++)
        if (im->conns[c].kind != CLUSIM_CONN_KIND_FLAG) return 1;
    for (uint32_t k = 0; k < im->num_sources; k++) {
        const clusim_source *source = &im->sources[k];
        uint64_t full = source->packet_bytes * source->burst;
        for (uint32_t x = source->msg_lo; x < source->msg_hi; x++)
            least = base_umin(least, (im->messages[x].bytes - 1) % full + 1);
    }
    return (uint32_t)least;
}

/* Minimum time of any packet on a wire of each rate. */
static void look_at_packets(clusim_model *m) {
    uint32_t payload = least_payload(&m->image);
    for (uint32_t r = 0; r < m->num_rates; r++) {
        rate_class *rate = &m->rates[r];
        const clusim_format *f = rate->format;
        rate->least_ps = NEVER;
        for (uint32_t kind = 0; kind < CLUSIM_SIZE_KINDS; kind++) {
            uint32_t bytes = model_wire_bytes(f, kind, payload, 1, payload);
            int64_t packet_ps = model_est(rate, model_occupancy(f, kind, bytes));
            rate->least_ps = base_min(rate->least_ps, packet_ps - (rate->num > 1));
        }
    }
}

/* Minimum delay until a packet sent over a wire, or credit returned for it, matters at the other
 * end. */
static int64_t wire_least_ps(const clusim_model *m, const window_node *nodes, uint32_t wire) {
    const wire_info *info = &m->wires[wire];
    bool to = may_be_plain(m, info->dst) && unit_none(info->dst_unit);
    bool whole = !endpoint_none(info->dst_endpoint) || (info->traits & STORE_FORWARD);
    int64_t packet_ps = info->latency_ps + (to ? info->dst_latency_ps : 0);
    if (whole) packet_ps += m->rates[info->rate].least_ps;
    return base_min(packet_ps, info->credit_ps + (to ? nodes[info->dst.i].sends_ps : 0));
}

static void look_at_wires(const clusim_model *m, window_node *nodes) {
    for (uint32_t w = 0; w < m->image.num_wires; w++) {
        const wire_info *info = &m->wires[w];
        window_node *src = &nodes[info->src.i];
        src->sends_ps = base_min(src->sends_ps, m->rates[info->rate].least_ps);
    }
    for (uint32_t w = 0; w < m->image.num_wires; w++) {
        const wire_info *info = &m->wires[w];
        window_node *src = &nodes[info->src.i], *dst = &nodes[info->dst.i];
        if (model_inside(m, info)) continue;
        int64_t least = wire_least_ps(m, nodes, w);
        src->least_ps = base_min(src->least_ps, least);
        dst->least_ps = base_min(dst->least_ps, least);
        src->wires += may_be_plain(m, info->src);
    }
}

/* Nodes at short wires would shorten windows for all: they should work with events. Weigh the
 * number of wires in windows against their work per window. */
static int64_t choose_window(const clusim_model *m, const window_node *nodes, window_node *sorted) {
    uint32_t count = (uint32_t)m->image.num_nodes;
    uint64_t wires = 0;
    double best = 0;
    int64_t window_ps = 0;
    for (uint32_t n = 0; n < count; n++) sorted[n] = nodes[n];
    qsort(sorted, count, sizeof *sorted, by_latency);
    for (uint32_t n = count; n-- > 0;) {
        wires += sorted[n].wires;
        double least = (double)sorted[n].least_ps;
        double worth = (double)wires * least / (least + USUAL_PS);
        if (sorted[n].wires == 0 || worth < best) continue;
        best = worth;
        window_ps = sorted[n].least_ps;
    }
    return window_ps;
}

/* True if wires have work in most windows; otherwise looking at all of them costs more than the
 * events saved. */
static bool windows_pay(const clusim_model *m) {
    uint64_t largest = m->sizes.largest;
    double wires = 0, packets_ps = 0;
    for (uint32_t w = 0; w < m->image.num_wires; w++) {
        if (!(m->wires[w].traits & FROM_PLAIN)) continue;
        wires += 1;
        packets_ps += (double)model_est(&m->rates[m->wires[w].rate], largest);
    }
    return packets_ps < 2 * wires * (double)m->window_ps;
}

/* ---- endpoints ---------------------------------------------------------------------------------
 */

/* Endpoints act within a window on remote input in these cases: relays; flows that share packets or
 * repeat them; kernels, which look at
 * memory requests; messages that wait for each other; rate control; a slice that fetches and then
 * writes; and sources over more than one wire. */
static bool ends_may_window(const clusim_model *m) {
    const clusim_image *im = &m->image;
    bool may = !m->has_relays && !m->has_adaptive;
    for (uint32_t c = 0; c < im->num_conns; c++) may &= im->conns[c].control == NONE;
    for (uint32_t t = 0; t < im->num_tasks; t++)
        may &= im->tasks[t].kind != CLUSIM_TASK_KIND_KERNEL;
    for (uint32_t k = 0; k < im->num_sources; k++) {
        uint32_t node = im->endpoints[im->sources[k].endpoint].node;
        may &= !(im->sources[k].flags & CLUSIM_SOURCE_FLAG_SERIAL) &&
               im->sources[k].control == NONE && model_part_size(m->out_off, node) == 1;
    }
    return may;
}

static bool pulls(const clusim_conn *c) {
    return c->kind == CLUSIM_CONN_KIND_READ || c->stage != NONE;
}

/* True if slices of an instance fetch and then write. */
static bool does_both(const clusim_image *im, const clusim_instance *x) {
    const clusim_template *t = &im->templates[x->template];
    for (uint32_t p = t->prim_lo; p < t->prim_hi; p++) {
        const clusim_prim *prim = &im->prims[p];
        uint32_t flags = im->op_flags[prim->opcode];
        if (!(flags & CLUSIM_OP_RECV) || !(flags & CLUSIM_OP_SEND)) continue;
        const uint32_t *conns = im->inst_conns + x->conn_off;
        if (pulls(&im->conns[conns[prim->recv]]) &&
            im->conns[conns[prim->send]].kind == CLUSIM_CONN_KIND_WRITE)
            return true;
    }
    return false;
}

/* The shortest time between the gate of a slice and its first packet; 0 if a slice does both. */
static int64_t least_fixed_ps(const clusim_image *im) {
    uint64_t slow_1024 = UINT32_MAX;
    int64_t fixed_ps = LONGEST_PS;
    bool reads = false, writes = false;
    for (uint32_t e = 0; e < im->num_endpoints; e++)
        slow_1024 = base_umin(slow_1024, im->endpoints[e].slow_1024);
    for (uint32_t f = 0; f < im->num_faults; f++)
        slow_1024 = base_umin(slow_1024, im->faults[f].num);
    for (uint32_t c = 0; c < im->num_conns; c++) {
        reads |= pulls(&im->conns[c]);
        writes |= im->conns[c].kind == CLUSIM_CONN_KIND_WRITE;
    }
    for (uint32_t i = 0; i < im->num_instances; i++) {
        fixed_ps = base_min(fixed_ps, im->costs[im->instances[i].cost].fixed_ps);
        if (reads && writes && does_both(im, &im->instances[i])) return 0;
    }
    return base_min((int64_t)(((uint64_t)fixed_ps * slow_1024) >> 10), LONGEST_PS);
}

static void use_end(const clusim_image *im, window_node *nodes, uint32_t endpoint) {
    if (endpoint != NONE) nodes[im->endpoints[endpoint].node].used = true;
}

/* Mark the nodes of endpoints that send or receive. */
static void find_ends(const clusim_image *im, window_node *nodes) {
    for (uint32_t c = 0; c < im->num_conns; c++) {
        use_end(im, nodes, im->conns[c].src);
        use_end(im, nodes, im->conns[c].dst);
        use_end(im, nodes, im->conns[c].stage);
    }
    for (uint32_t i = 0; i < im->num_instances; i++) use_end(im, nodes, im->instances[i].endpoint);
    for (uint32_t k = 0; k < im->num_sources; k++) use_end(im, nodes, im->sources[k].endpoint);
    for (uint32_t k = 0; k < im->num_messages; k++) use_end(im, nodes, im->messages[k].dst);
    for (uint32_t k = 0; k < im->num_mgroup_members; k++) use_end(im, nodes, im->mgroup_members[k]);
}

/* True if memory requests of a window, in packets of at most `bytes`, stay far below the range of
 * the counters. */
static bool memory_bounded(const clusim_model *m, const clusim_endpoint *e, int64_t window_ps,
                           uint64_t bytes) {
    uint64_t wires = model_part_size(m->in_off, e->node) + model_part_size(m->out_off, e->node);
    uint64_t most = base_umax(base_umax(e->inject_256, e->deliver_256), e->read_256);
    base_u128 all = (base_u128)(bytes * most) * ((base_u128)wires * (uint64_t)(window_ps + 1));
    return all >> ROOM_BITS == 0 && (all * e->mem_cost16) >> 24 >> ROOM_BITS == 0;
}

/* ---- a host and its router --------------------------------------------------------------------
 *
 * The two are processed in turn (host sends, router, host receives), so that short wires between
 * them do not limit windows. Therefore arrivals at the host must not cause sends within a window,
 * and credit between the two must last for one; if it may not, the pair's windows are short
 * (window.c). */

static bool owes_nothing(const clusim_model *m, uint32_t wire) {
    const clusim_format *f = m->rates[m->wires[wire].rate].format;
    bool nothing = true;
    for (uint32_t kind = 0; kind < CLUSIM_SIZE_KINDS; kind++) nothing &= f->control_256[kind] == 0;
    return nothing;
}

/* The shortest latency of the wires out of a node, but for one. */
static int64_t other_latency_ps(const clusim_model *m, node_id node, uint32_t but) {
    int64_t least_ps = NEVER;
    for (uint32_t k = m->out_off[node.i]; k < m->out_off[node.i + 1]; k++)
        if (m->out_wires[k] != but)
            least_ps = base_min(least_ps, m->wires[m->out_wires[k]].latency_ps);
    return least_ps;
}

/* Bytes of a full packet of `burst` with `limit` of payload, on a wire. */
static uint64_t burst_bytes(const clusim_format *f, uint32_t limit, uint32_t burst) {
    uint32_t payload = limit * burst;
    uint64_t most = 0;
    const uint32_t kinds[] = {CLUSIM_KIND_WRITE, CLUSIM_KIND_FETCH};
    for (uint32_t k = 0; k < 2; k++) {
        uint32_t exact = model_exact(f, kinds[k], payload, limit);
        most = base_umax(most, model_wire_bytes(f, kinds[k], payload, exact, limit));
    }
    return most;
}

/* An endpoint that has one wire, and that one to a switch that is nearer to it than to others. */
static void find_pair(clusim_model *m, node_id end) {
    if (model_part_size(m->in_off, end.i) != 1 || model_part_size(m->out_off, end.i) != 1) return;
    uint32_t wire = m->out_wires[m->out_off[end.i]];
    const wire_info *info = &m->wires[wire];
    node_id router = info->dst;
    if (wire_none(info->reverse) || !may_be_plain(m, router) || !unit_none(info->dst_unit)) return;
    int64_t latency_ps = base_max(info->latency_ps, info->credit_ps);
    if (!node_none(m->pairs[router.i]) || !owes_nothing(m, wire) ||
        !owes_nothing(m, info->reverse.i) ||
        latency_ps >= other_latency_ps(m, router, info->reverse.i))
        return;
    m->pairs[end.i] = router;
    m->pairs[router.i] = end;
    m->has_pairs = true;
}

static void part_pairs(clusim_model *m) {
    for (uint64_t n = 0; n < m->image.num_nodes; n++) m->pairs[n] = NO(node);
    m->has_pairs = false;
}

/* Only if all transfers write: reads have responses, and responses permit further requests. */
static void find_pairs(clusim_model *m) {
    const clusim_image *im = &m->image;
    if (multimem(im)) return;
    for (uint32_t c = 0; c < im->num_conns; c++)
        if (pulls(&im->conns[c])) return;
    for (uint32_t e = 0; e < im->num_endpoints; e++) find_pair(m, ID(node, im->endpoints[e].node));
}

/* Bytes of the largest packet that is written, on wires of any format. */
static uint64_t largest_written(const clusim_image *im) {
    uint64_t largest = 0;
    for (uint32_t f = 0; f < im->num_formats; f++) {
        for (uint32_t c = 0; c < im->num_conns; c++)
            if (im->conns[c].kind != CLUSIM_CONN_KIND_FLAG)
                largest = base_umax(largest, burst_bytes(&im->formats[f], im->conns[c].packet_bytes,
                                                         im->conns[c].burst));
        for (uint32_t k = 0; k < im->num_sources; k++)
            largest = base_umax(largest, burst_bytes(&im->formats[f], im->sources[k].packet_bytes,
                                                     im->sources[k].burst));
    }
    return largest;
}

static uint32_t least_service_1024(const clusim_format *f) {
    return (uint32_t)base_umin(f->service_1024[CLUSIM_KIND_WRITE],
                               f->service_1024[CLUSIM_KIND_FETCH]);
}

/* Longest time in which a wire cannot send more than half of its receiver's buffer. */
static int64_t half_ps(const clusim_model *m, uint32_t wire, uint64_t largest) {
    const rate_class *r = &m->rates[m->wires[wire].rate];
    uint64_t half = m->image.wires[wire].buffer_bytes / 2;
    if (half <= largest + 2) return 0;
    base_u128 ps = (base_u128)(half - largest - 2) * r->den / r->num;
    ps = ps * least_service_1024(r->format) >> 10;
    return ps > LONGEST_PS ? LONGEST_PS : (int64_t)(uint64_t)ps;
}

/* Maximum bytes that a wire sends in a window. */
static int64_t sent_bytes(const clusim_model *m, const wire_info *w, uint64_t largest) {
    const rate_class *r = &m->rates[w->rate];
    base_u128 bytes = (base_u128)(uint64_t)m->window_ps * r->num / r->den + 1;
    return (int64_t)(uint64_t)(bytes * 1024 / least_service_1024(r->format) + 1 + largest);
}

static void look_at_pairs(const clusim_model *m, window_node *nodes) {
    uint64_t largest = largest_written(&m->image);
    for (uint32_t w = 0; w < m->image.num_wires; w++) {
        const wire_info *info = &m->wires[w];
        if (!model_inside(m, info)) continue;
        window_node *src = &nodes[info->src.i];
        src->least_ps = base_min(src->least_ps, half_ps(m, w, largest));
    }
}

/* ---- the choice ---------------------------------------------------------------------------------
 */

/* The longest window in which endpoints can work, or 0. */
static int64_t ends_window(const clusim_model *m, window_node *nodes) {
    const clusim_image *im = &m->image;
    if (!ends_may_window(m)) return 0;
    find_ends(im, nodes);
    int64_t least_ps = least_fixed_ps(im);
    uint64_t largest = m->sizes.largest;
    bool reduces = multimem(im), reads = reduces;
    for (uint32_t c = 0; c < im->num_conns; c++) reads |= pulls(&im->conns[c]);
    for (uint32_t e = 0; e < im->num_endpoints; e++) {
        const window_node *node = &nodes[im->endpoints[e].node];
        if (!node->used) continue;
        least_ps = base_min(least_ps, node->least_ps);
        if (reads) least_ps = base_min(least_ps, im->endpoints[e].read_latency_ps);
        if (reduces) least_ps = base_min(least_ps, im->endpoints[e].response_latency_ps);
        if (!memory_bounded(m, &im->endpoints[e], least_ps, largest)) return 0;
    }
    return least_ps;
}

static bool works(const clusim_model *m, const window_node *nodes, node_id node) {
    if (nodes[node.i].least_ps < m->window_ps) return false;
    return may_be_plain(m, node) || (m->ends_window && nodes[node.i].used);
}

/* True if both nodes of every pair work in windows; then records the credit that suffices. */
static bool join_pairs(clusim_model *m, const window_node *nodes) {
    bool work = m->ends_window;
    uint64_t largest = largest_written(&m->image);
    for (uint32_t w = 0; w < m->image.num_wires && work; w++) {
        wire_info *info = &m->wires[w];
        if (!model_inside(m, info)) continue;
        work = nodes[info->src.i].least_ps >= m->window_ps;
        info->window_bytes = sent_bytes(m, info, largest);
        info->lacking_ps = info->credit_ps;
        if (may_be_plain(m, info->dst)) info->lacking_ps += nodes[info->dst.i].sends_ps;
    }
    return work;
}

enum { LEAST_ENDS_PS = 20000 }; /* shorter windows of endpoints alone find too little work */

static void choose(clusim_model *m, window_node *nodes) {
    uint64_t count = m->image.num_nodes;
    for (uint64_t n = 0; n < count; n++)
        nodes[n] = (window_node){.least_ps = NEVER, .sends_ps = LONGEST_PS};
    look_at_wires(m, nodes);
    look_at_units(m, nodes);
    if (m->has_pairs) look_at_pairs(m, nodes);
    m->window_ps = choose_window(m, nodes, nodes + count);
    int64_t ends_ps = ends_window(m, nodes);
    m->ends_window = ends_ps > 0 && 2 * ends_ps >= m->window_ps;
    if (m->window_ps == 0) m->ends_window = ends_ps >= LEAST_ENDS_PS;
    if (m->ends_window) m->window_ps = m->window_ps ? base_min(m->window_ps, ends_ps) : ends_ps;
}

STATUS model_windows(clusim_model *m) {
    uint64_t count = m->image.num_nodes;
    m->pairs = malloc((count + 1) * sizeof *m->pairs);
    if (m->pairs == NULL) return CLUSIM_ERR_NO_MEMORY;
    for (uint64_t n = 0; n < count; n++) m->pairs[n] = NO(node);
    if (!may_window(m)) return CLUSIM_OK;
    TRY(find_choices(m));
    window_node *nodes = malloc((2 * count + 1) * sizeof *nodes);
    if (nodes == NULL) return CLUSIM_ERR_NO_MEMORY;
    look_at_packets(m);
    find_pairs(m);
    choose(m, nodes);
    if (m->has_pairs && !join_pairs(m, nodes)) {
        part_pairs(m);
        choose(m, nodes);
    }
    for (uint32_t w = 0; w < m->image.num_wires && m->window_ps; w++) {
        wire_info *info = &m->wires[w];
        bool from = works(m, nodes, info->src), to = works(m, nodes, info->dst);
        info->traits |= (uint16_t)((from ? FROM_PLAIN : 0) | (to ? TO_PLAIN : 0));
    }
    free(nodes);
    m->windows_pay = windows_pay(m);
    return CLUSIM_OK;
}
