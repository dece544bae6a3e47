/* model.c - tables derived from a checked image: rates, adjacency, flows, groups. */
#include "model.h"

#include <string.h>

#include "event_queue.h"

/* ---- derived tables ------------------------------------------------------------------------ */

int64_t model_est_long(const rate_class *r, uint64_t bytes) {
    base_u128 ps = ((base_u128)bytes * r->den + r->num - 1) / r->num;
    return ps < (base_u128)INT64_MAX ? (int64_t)ps : INT64_MAX;
}

static rate_kind of_kind(const rate_class *r, uint32_t kind, model_sizes sizes) {
    const clusim_format *f = r->format;
    uint32_t payload = (uint32_t)sizes.largest;
    uint32_t exact = model_exact(f, kind, payload, sizes.limit);
    uint32_t bytes = model_wire_bytes(f, kind, payload, exact, sizes.limit);
    uint64_t time_ps = 0;
    bool whole = r->num == 1 && payload &&
                 !__builtin_mul_overflow(model_occupancy(f, kind, bytes), r->den, &time_ps) &&
                 time_ps < (uint64_t)RANGE_TIME_END;
    return (rate_kind){.header_ps = model_est(r, model_up(f, f->header_bytes[kind])),
                       .full_ps = time_ps,
                       .full_bytes = whole ? bytes : 0,
                       .control_256 = f->control_256[kind]};
}

static uint32_t rate_class_of(clusim_model *m, uint64_t num, uint64_t den, uint32_t format) {
    for (uint32_t i = 0; i < m->num_rates; i++) {
        const rate_class *r = &m->rates[i];
        if (r->num == num && r->den == den && r->format_index == format) return i;
    }
    rate_class *r = &m->rates[m->num_rates];
    *r = (rate_class){.num = num, .den = den, .format_index = format};
    r->format = &m->image.formats[format];
    r->flit_ps = model_est(r, r->format->flit_bytes);
    r->flit_256 = (uint64_t)r->format->flit_bytes * 256;
    for (uint32_t kind = 0; kind < CLUSIM_SIZE_KINDS; kind++)
        r->kinds[kind] = of_kind(r, kind, m->sizes);
    return m->num_rates++;
}

static bool faster(const rate_class *a, const rate_class *b) {
    return (base_u128)a->num * b->den > (base_u128)b->num * a->den;
}

static STATUS derive_rates(clusim_model *m) {
    const clusim_image *im = &m->image;
    m->rates = calloc(im->num_wires + im->num_faults + 1, sizeof *m->rates);
    m->fault_rate = malloc((im->num_faults + 1) * sizeof *m->fault_rate);
    m->sizes = model_packets(im);
    if (m->rates == NULL || m->fault_rate == NULL) return CLUSIM_ERR_NO_MEMORY;
    for (uint32_t w = 0; w < im->num_wires; w++) {
        const clusim_wire *x = &im->wires[w];
        m->wires[w].rate = rate_class_of(m, x->rate_num, x->rate_den, x->format);
    }
    for (uint32_t f = 0; f < im->num_faults; f++) {
        const clusim_fault *x = &im->faults[f];
        bool rate = x->kind == CLUSIM_FAULT_KIND_RATE && x->num != 0;
        m->fault_rate[f] =
            rate ? rate_class_of(m, x->num, x->den, im->wires[x->index].format) : NONE;
    }
    return CLUSIM_OK;
}

static STATUS derive_adjacency(clusim_model *m) {
    const clusim_image *im = &m->image;
    m->out_off = calloc(im->num_nodes + 2, sizeof *m->out_off);
    m->out_wires = calloc(im->num_wires + 1, sizeof *m->out_wires);
    m->in_off = calloc(im->num_nodes + 2, sizeof *m->in_off);
    m->in_wires = calloc(im->num_wires + 1, sizeof *m->in_wires);
    if (m->out_off == NULL || m->out_wires == NULL || m->in_off == NULL || m->in_wires == NULL)
        return CLUSIM_ERR_NO_MEMORY;
    for (uint32_t w = 0; w < im->num_wires; w++) {
        m->wires[w].in_local = m->in_off[im->wires[w].dst + 2]++;
        m->out_off[im->wires[w].src + 2]++;
    }
    for (uint32_t n = 0; n < im->num_nodes; n++) {
        m->out_off[n + 2] += m->out_off[n + 1];
        m->in_off[n + 2] += m->in_off[n + 1];
    }
    for (uint32_t w = 0; w < im->num_wires; w++) {
        m->out_wires[m->out_off[im->wires[w].src + 1]++] = w;
        m->in_wires[m->in_off[im->wires[w].dst + 1]++] = w;
    }
    return CLUSIM_OK;
}

/* Queues of endpoints are served in turn: GPUs that relay share their links with what they send. */
static bool is_ranked(const clusim_model *m, const clusim_wire *x) {
    return x->dim && m->image.nodes[x->src].endpoint == NONE;
}

/* Outputs of network switches record their queues for policies of senders. */
static bool tells(const clusim_model *m, const clusim_wire *x) {
    const clusim_node *src = &m->image.nodes[x->src];
    return m->has_telemetry && (x->xoff_bytes || x->ecn_max_bytes) && src->endpoint == NONE &&
           !(src->flags & CLUSIM_NODE_FLAG_BRIDGE);
}

/* A policy chooses the class. */
static bool is_timed(const clusim_model *m, const clusim_wire *x) {
    return x->schedule && m->image.schedules[x->schedule - 1].policy;
}

/* Traits of a wire as an output of its switch that need work at the start of a packet. */
static uint32_t traits_at_start(const clusim_model *m, const clusim_wire *x) {
    bool shares = x->queue_bytes && (m->image.nodes[x->src].shared_bytes || m->has_trims);
    bool late = x->ecn_departure && x->ecn_max_bytes && !x->policy;
    uint32_t traits = (is_timed(m, x) ? TIMED : 0) | (tells(m, x) ? TELLS : 0) |
                      (shares ? SHARES : 0) | (late ? LATE : 0);
    return traits ? traits | HAS_ERRORS : 0;
}

/* Traits of a wire as an output of its switch. */
static uint32_t traits_as_output(const clusim_model *m, const clusim_wire *x) {
    return (x->ecn_max_bytes || x->queue_bytes || x->policy ? MARKS : 0) |
           (is_ranked(m, x) || x->schedule ? RANKED : 0) | (x->schedule ? SCHEDULED : 0) |
           traits_at_start(m, x);
}

static uint16_t traits_of(const clusim_model *m, uint32_t w) {
    const clusim_wire *x = &m->image.wires[w];
    const clusim_node *dst = &m->image.nodes[x->dst];
    const rate_class *in = &m->rates[m->wires[w].rate];
    uint32_t traits = traits_as_output(m, x) | (x->error_threshold ? HAS_ERRORS : 0);
    if ((dst->flags & CLUSIM_NODE_FLAG_STORE_FORWARD) || dst->endpoint != NONE)
        traits |= STORE_FORWARD;
    if (dst->flags & CLUSIM_NODE_FLAG_BRIDGE) traits |= BRIDGE;
    if (x->xoff_bytes) traits |= PAUSES;
    for (uint32_t i = m->out_off[x->dst]; i < m->out_off[x->dst + 1]; i++) {
        const rate_class *out = &m->rates[m->wires[m->out_wires[i]].rate];
        if (faster(out, in) || out->format != in->format) return (uint16_t)traits;
    }
    return (uint16_t)(traits | (traits & BRIDGE ? 0 : PLAIN_CUT));
}

/* CTA slots of an endpoint are allocated lowest first, so it never uses more slots than it has
 * sources and instances: flow state is stored for those only, in adjacent memory. */
static STATUS derive_flows(clusim_model *m) {
    const clusim_image *im = &m->image;
    m->most_flows = calloc(im->num_endpoints + 1, sizeof *m->most_flows);
    if (m->most_flows == NULL) return CLUSIM_ERR_NO_MEMORY;
    for (uint32_t k = 0; k < im->num_sources; k++) m->most_flows[im->sources[k].endpoint]++;
    for (uint32_t k = 0; k < im->num_instances; k++) m->most_flows[im->instances[k].endpoint]++;
    for (uint32_t e = 0; e < im->num_endpoints; e++)
        m->most_flows[e] = (uint32_t)base_umin(m->most_flows[e], im->endpoints[e].cta_slots);
    return CLUSIM_OK;
}

static void derive_wire(clusim_model *m, uint32_t w) {
    const clusim_image *im = &m->image;
    const clusim_wire *x = &im->wires[w];
    const clusim_node *src = &im->nodes[x->src], *dst = &im->nodes[x->dst];
    wire_info *info = &m->wires[w];
    info->latency_ps = x->latency_ps;
    info->credit_ps = x->reverse == NONE ? x->latency_ps : im->wires[x->reverse].latency_ps;
    info->src = ID(node, x->src);
    info->dst = ID(node, x->dst);
    info->reverse = ID(wire, x->reverse);
    info->ordinal = x->ordinal;
    info->dim = x->dim;
    info->dateline = x->dateline;
    info->dst_endpoint = ID(endpoint, dst->endpoint);
    info->dst_unit = ID(unit, dst->unit);
    info->dst_latency_ps = dst->latency_ps;
    info->traits = traits_of(m, w);
    if (info->traits & (PAUSES | MARKS)) m->has_congestion = true;
    info->num_voqs = (model_part_size(m->in_off, x->src) + 1) * im->nvc;
    info->num_candidates =
        info->num_voqs + (src->endpoint == NONE ? 0 : m->most_flows[src->endpoint]);
    info->num_words = (info->num_candidates + 63) / 64;
    info->voq_base = (uint32_t)m->num_voqs;
    info->flow_base = (uint32_t)m->num_flows;
    info->word_base = (uint32_t)m->num_words;
    m->num_voqs += info->num_voqs;
    m->num_flows += info->num_candidates - info->num_voqs;
    m->num_words += info->num_words;
    if (x->dim || x->dateline) m->has_dims = true;
    if (x->format != im->wires[0].format) m->has_formats = true;
}

static STATUS derive_groups(clusim_model *m) {
    m->num_groups = (uint32_t)m->image.num_group_off - 1;
    m->group_fastest = malloc((m->num_groups + 1) * sizeof *m->group_fastest);
    m->ways = malloc((m->num_groups + 1) * sizeof *m->ways);
    if (m->group_fastest == NULL || m->ways == NULL) return CLUSIM_ERR_NO_MEMORY;
    for (uint32_t g = 0; g < m->num_groups; g++) {
        const uint32_t *wires = model_group(m, ID(group, g));
        uint32_t best = wires[0];
        for (uint32_t i = 1; i < model_group_size(m, ID(group, g)); i++) {
            const rate_class *a = &m->rates[m->wires[wires[i]].rate];
            const rate_class *b = &m->rates[m->wires[best].rate];
            if (faster(a, b) || (!faster(b, a) && wires[i] < best)) best = wires[i];
        }
        m->group_fastest[g] = ID(wire, best);
        m->ways[g] = (model_way){ID(wire, wires[0]), model_group_size(m, ID(group, g))};
    }
    return CLUSIM_OK;
}

enum { LONG_PS = 1 << 30 }; /* longer serialisations do not make buckets wider */

static void note_size(model_sizes *sizes, uint32_t packet, uint64_t burst) {
    uint64_t bytes = packet * burst;
    sizes->smallest = base_umin(sizes->smallest, bytes);
    if (bytes <= sizes->largest) return;
    sizes->largest = bytes;
    sizes->limit = packet;
}

model_sizes model_packets(const clusim_image *im) {
    model_sizes sizes = {.smallest = UINT32_MAX, .largest = 0};
    for (uint32_t i = 0; i < im->num_conns; i++) {
        if (im->conns[i].kind == CLUSIM_CONN_KIND_FLAG) continue;
        note_size(&sizes, im->conns[i].packet_bytes, im->conns[i].burst);
    }
    for (uint32_t i = 0; i < im->num_sources; i++)
        note_size(&sizes, im->sources[i].packet_bytes, im->sources[i].burst);
    return sizes;
}

enum { PER_BUCKET = 12 }; /* packets: fewer than half arrive if wires are not always busy */

/* Bucket width: so that a few events are in each if wires send packets of the smallest kind in use
 * as fast as they can. */
int32_t model_bucket_shift(const clusim_model *m) {
    const clusim_image *im = &m->image;
    model_sizes sizes = m->sizes;
    uint64_t packets = 1; /* of all wires in 2^40 ps */
    int64_t longest = 1;
    for (uint32_t w = 0; w < im->num_wires; w++) {
        const rate_class *rate = &m->rates[m->wires[w].rate];
        int64_t latency_ps = m->wires[w].latency_ps + m->wires[w].dst_latency_ps;
        packets += (UINT64_C(1) << 40) / (uint64_t)base_max(model_est(rate, sizes.smallest), 1);
        longest = base_max(longest, base_min(model_est(rate, sizes.largest), LONG_PS) + latency_ps);
    }
    for (uint32_t e = 0; e < im->num_endpoints; e++) {
        longest = base_max(longest, im->endpoints[e].read_latency_ps);
    }
    for (uint32_t c = 0; c < im->num_costs && m->windows_pay && m->ends_window; c++) {
        /* packets of endpoints have no events then, and programs wait longer */
        longest = base_max(longest, base_min(im->costs[c].fixed_ps, LONG_PS));
    }
    uint64_t width = ((uint64_t)PER_BUCKET << 40) / packets;
    int32_t shift = 2;
    while (shift < 24 && (UINT64_C(2) << shift) <= width) shift++;
    /* The ring spans the longest way of a packet, its serialisation included, or the heap would do
     * the work. */
    while (shift < 40 && ((int64_t)EVENT_QUEUE_BUCKETS << shift) < longest) shift++;
    return shift;
}

/* True if several wires share the pace of a flow: the first one that grants delays the others. */
static bool shares_pace(const clusim_image *im) {
    bool shares = false;
    for (uint32_t i = 0; i < im->num_conns; i++)
        shares |= im->conns[i].policy == CLUSIM_POLICY_STRIPE && im->conns[i].control != NONE;
    for (uint32_t i = 0; i < im->num_sources; i++)
        shares |= im->sources[i].policy == CLUSIM_POLICY_STRIPE && im->sources[i].control != NONE;
    return shares;
}

/* True if flows share their next packet, or switches have policies of paths. */
static bool has_choice(const clusim_image *im) {
    bool chooses = false;
    for (uint32_t i = 0; i < im->num_conns; i++)
        chooses |= im->conns[i].policy == CLUSIM_POLICY_ADAPTIVE;
    for (uint32_t i = 0; i < im->num_sources; i++)
        chooses |= im->sources[i].policy == CLUSIM_POLICY_ADAPTIVE;
    for (uint32_t n = 0; n < im->num_nodes; n++) chooses |= im->nodes[n].policy > 0;
    return chooses;
}

STATUS model_derive(clusim_model *m) {
    const clusim_image *im = &m->image;
    m->wires = calloc(im->num_wires + 1, sizeof *m->wires);
    if (m->wires == NULL) return CLUSIM_ERR_NO_MEMORY;
    TRY(derive_rates(m));
    TRY(derive_adjacency(m));
    TRY(derive_flows(m));
    for (uint32_t i = 0; i < im->num_controls; i++) {
        m->has_senders |= im->controls[i].sender != CLUSIM_SENDER_MODE_DCQCN;
        m->has_telemetry |= im->controls[i].sender == CLUSIM_SENDER_MODE_TELEMETRY;
    }
    for (uint32_t w = 0; w < im->num_wires; w++) m->has_trims |= im->wires[w].trim_vc > 0;
    for (uint32_t w = 0; w < im->num_wires; w++) derive_wire(m, w);
    m->has_choice = has_choice(im);
    m->has_controls = im->num_controls > 0;
    for (uint32_t i = 0; i < im->num_spreads; i++) {
        m->has_order |= im->spreads[i].ordered != 0;
        m->has_choice |= im->spreads[i].gap_ps > 0;
    }
    m->has_adaptive = m->has_choice || im->num_spreads > 0 || shares_pace(im);
    m->is_ordered = m->has_adaptive || m->has_senders;
    for (uint32_t w = 0; w < im->num_wires; w++) m->is_ordered |= (m->wires[w].traits & MARKS) != 0;
    TRY(derive_groups(m));
    return CLUSIM_OK;
}
