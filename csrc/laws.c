#include "laws.h"

#include <string.h>

#include "parts/congestion.h"
#include "parts/endpoints.h"
#include "parts/laws.h"
#include "parts/programs.h"
#include "parts/results.h"
#include "parts/scheduler.h"
#include "parts/sources.h"
#include "parts/tasks.h"
#include "parts/units.h"
#include "parts/wires.h"
#include "verify.h"

/* Bytes per 2^30 ps, rounded up; rates are below 2^30 bytes per ps. */
static uint64_t rate30(uint64_t num, uint64_t den) { return base_ceil_div(num << 30, den); }

static uint32_t least_service(const clusim_format *f) {
    uint32_t least = 1024;
    for (uint32_t kind = 0; kind < CLUSIM_SIZE_KINDS; kind++)
        least = f->service_1024[kind] < least ? f->service_1024[kind] : least;
    return least;
}

/* ---- quantities known before the run --------------------------------------------------------- */

/* The rate of a wire, in payload per 2^30 ps. */
static uint64_t payload_rate30(const clusim_sim *s, wire_id wire) {
    const clusim_image *im = &s->model->image;
    const clusim_wire *w = &im->wires[wire.i];
    base_u128 rate = rate30(w->rate_num, w->rate_den);
    rate = rate * 1024 / least_service(&im->formats[w->format]) + 1;
    return rate < UINT64_MAX / 2 ? (uint64_t)rate : UINT64_MAX / 2;
}

static void add_wire(clusim_sim *s, wire_id wire) {
    const clusim_image *im = &s->model->image;
    const clusim_wire *w = &im->wires[wire.i];
    uint32_t ends[] = {im->nodes[w->src].endpoint, im->nodes[w->dst].endpoint};
    uint64_t rate = payload_rate30(s, wire);
    for (uint32_t in = 0; in < 2; in++) {
        if (ends[in] == NONE) continue;
        law_end *end = &s->laws.ends[2 * (uint64_t)ends[in] + in];
        if (__builtin_add_overflow(end->rate30, rate, &end->rate30)) end->rate30 = UINT64_MAX;
        if (end->least_ps == 0 || w->latency_ps < end->least_ps) end->least_ps = w->latency_ps;
    }
}

/* Most wires that a packet may cross: three legs that pass every node once, or its explicit path.
 */
static int64_t longest_way(const clusim_image *im) {
    uint64_t longest = 3 * im->num_nodes;
    for (uint64_t p = 0; p + 1 < im->num_path_off; p++)
        longest = base_umax(longest, im->path_off[p + 1] - im->path_off[p]);
    return (int64_t)longest;
}

STATUS laws_init(clusim_sim *s) {
    const clusim_image *im = &s->model->image;
    ZEROED(s->laws.wires, im->num_wires);
    ZEROED(s->laws.ends, 2 * im->num_endpoints);
    for (uint64_t f = 0; f < im->num_faults; f++)
        s->laws.changes |= im->faults[f].kind == CLUSIM_FAULT_KIND_RATE && im->faults[f].num != 0;
    s->laws.slack_ps = longest_way(im);
    for (uint32_t w = 0; w < im->num_wires; w++) add_wire(s, ID(wire, w));
    return CLUSIM_OK;
}

void laws_free(clusim_sim *s) {
    free(s->laws.wires);
    free(s->laws.ends);
}

/* ---- during the run -------------------------------------------------------------------------- */

/* Only the first violation is reported, at the end of the run. */
static void note_break(clusim_sim *s, const char *what, endpoint_id endpoint, base_u128 found,
                       base_u128 expected) {
    if (s->laws.broken.what) return;
    s->laws.broken = (law_break){what, endpoint, (uint64_t)found, (uint64_t)expected};
}

static law_end *end_of(clusim_sim *s, endpoint_id endpoint, bool in) {
    return &s->laws.ends[2 * (uint64_t)endpoint.i + in];
}

/* True if the data of a transfer arrive at the requesting endpoint, over its wires. */
static bool fetches(const xfer *x) {
    return x->type == XFER_READ || x->type == XFER_REDUCE || x->type == XFER_REDUCE_MCAST;
}

static void add_members(clusim_sim *s, const xfer *x) {
    const clusim_image *im = &s->model->image;
    model_span span = model_members(im, x->mgroup);
    for (uint32_t k = span.lo; k < span.hi; k++) {
        endpoint_id member = ID(endpoint, im->mgroup_members[k]);
        if (fetches(x)) end_of(s, member, false)->payload += x->bytes;
        if (x->type != XFER_REDUCE) end_of(s, member, true)->payload += x->bytes;
    }
}

/* Add the payload of a complete transfer to the wires of its ends. */
static void add_payload(clusim_sim *s, const xfer *x) {
    bool gets = fetches(x) || x->type == XFER_AGGREGATE;
    bool puts = !fetches(x) || x->type == XFER_REDUCE_MCAST;
    if (gets) end_of(s, x->endpoint, true)->payload += x->bytes;
    if (puts) end_of(s, x->endpoint, false)->payload += x->bytes;
    if (x->type == XFER_WRITE || x->type == XFER_READ) {
        end_of(s, model_endpoint(x->dst), x->type == XFER_WRITE)->payload += x->bytes;
    } else if (x->type != XFER_AGGREGATE) {
        add_members(s, x);
    }
}

static uint64_t copies_of(const clusim_sim *s, const xfer *x) {
    const clusim_image *im = &s->model->image;
    if (x->type != XFER_MCAST && x->type != XFER_REDUCE_MCAST) return 1;
    model_span span = model_members(im, x->mgroup);
    return span.hi - span.lo;
}

void laws_transfer(clusim_sim *s, const xfer *x) {
    base_u128 asked = (base_u128)x->bytes * copies_of(s, x);
    if (UNLIKELY(x->delivered != asked))
        note_break(s, "bytes delivered of a transfer of endpoint", x->endpoint, x->delivered,
                   asked);
    const law_end *end = end_of(s, x->endpoint, fetches(x));
    /* Rounding may advance each wire of its route by up to 1 ps. A cut-through node assumes the
     * present rate: if that rises before the packet leaves, its tail is early. */
    int64_t took = s->scheduler.now_ps - x->start_ps - end->least_ps;
    base_u128 room = (base_u128)(uint64_t)base_max(0, took + 1 + s->laws.slack_ps) * end->rate30;
    if (UNLIKELY(took < 0 || (!s->laws.changes && room < (base_u128)x->bytes << 30)))
        note_break(s, "bytes faster than its wires allow to or from endpoint", x->endpoint,
                   x->bytes, room >> 30);
    add_payload(s, x);
}

static uint64_t due_ps(const clusim_sim *s, wire_id wire) {
    const wire_state *w = wire_at(s, wire);
    base_u128 work = (base_u128)(w->bytes - s->laws.wires[wire.i].bytes) * w->rate->den;
    return (uint64_t)(work * least_service(w->rate->format) / 1024 / w->rate->num);
}

void laws_rate_changes(clusim_sim *s, wire_id wire) {
    s->laws.wires[wire.i].due_ps += due_ps(s, wire);
    s->laws.wires[wire.i].bytes = wire_at(s, wire)->bytes;
}

/* ---- at the end ------------------------------------------------------------------------------ */

static STATUS broken(clusim_error *e, uint64_t index, const char *what, base_u128 found,
                     base_u128 bound) {
    e->status = CLUSIM_ERR_CONSERVATION;
    e->index = (uint32_t)index;
    snprintf(e->message, sizeof e->message, "%s %llu: %llu against %llu", what,
             (unsigned long long)index, (unsigned long long)found, (unsigned long long)bound);
    return CLUSIM_ERR_CONSERVATION;
}

#define LAW(cond, index, what, found, bound)                                                       \
    if (UNLIKELY(!(cond))) return broken(e, index, what, (base_u128)(found), (base_u128)(bound))

/* No wire above 100 % of its rate: packets follow each other, each with its serialisation time. */
static STATUS check_wires(const clusim_sim *s, int64_t end_ps, clusim_error *e) {
    for (uint32_t i = 0; i < s->model->image.num_wires; i++) {
        const wire_state *w = &s->wires.all[i];
        const clusim_wire_counters *c = &s->results.final[i];
        uint64_t due = s->laws.wires[i].due_ps + due_ps(s, ID(wire, i));
        LAW(w->busy_ps >= 0 && due <= (uint64_t)w->busy_ps, i, "busy time for the bytes of wire",
            w->busy_ps, due);
        LAW(w->busy_ps <= w->free_at, i, "busy time of wire", w->busy_ps, w->free_at);
        LAW(c->busy_ps + c->stall_credit_ps <= end_ps, i, "busy and waiting time of wire",
            c->busy_ps + c->stall_credit_ps, end_ps);
        LAW(c->stall_arbitration_ps <= c->busy_ps, i, "contended time of wire",
            c->stall_arbitration_ps, c->busy_ps);
    }
    return CLUSIM_OK;
}

/* No memory and no unit above its rate; each access may gain up to 2^-16 ps by rounding. */
static STATUS check_servers(const clusim_sim *s, clusim_error *e) {
    const clusim_image *im = &s->model->image;
    uint64_t grants = 0;
    for (uint32_t w = 0; w < im->num_wires; w++) grants += s->wires.all[w].grants;
    for (uint32_t k = 0; k < im->num_endpoints; k++) {
        const endpoint_state *p = &s->endpoints.all[k];
        base_u128 due = ((base_u128)p->mem_bytes_256 * im->endpoints[k].mem_cost16) >> 24;
        LAW(due <= (base_u128)(uint64_t)p->memory.ps + (grants >> 15) + 1, k,
            "time for the memory traffic of endpoint", p->memory.ps, due);
        LAW(p->busy_sms == 0 && p->kernels == 0, k, "SMs in use at the end of endpoint",
            p->busy_sms + p->kernels, 0);
    }
    for (uint32_t k = 0; k < im->num_units; k++) {
        const unit_state *u = &s->units.all[k];
        base_u128 due = ((base_u128)u->reduced_bytes * im->units[k].cost16) >> 16;
        LAW(due <= (base_u128)(uint64_t)u->clock.ps + 1, k, "time for the operands of unit",
            u->clock.ps, due);
    }
    return CLUSIM_OK;
}

/* True if the number of packets may change in a node: copies and reductions. */
static bool makes_packets(const clusim_image *im, const uint8_t *copies, uint32_t node) {
    return im->nodes[node].unit != NONE || copies[node];
}

static void mark_copying(const clusim_image *im, uint8_t *copies) {
    for (uint32_t i = 0; i < im->num_conns; i++) {
        const clusim_conn *c = &im->conns[i];
        if (c->kind != CLUSIM_CONN_KIND_MULTIMEM) continue;
        for (uint32_t k = im->group_off[c->first_group]; k < im->group_off[c->first_group + 1]; k++)
            copies[im->wires[im->group_wires[k]].dst] = 1;
    }
}

/* Payload over the wires of each node: at endpoints the requested payload (and relayed payload, if
 * GPUs relay), elsewhere the received payload, sent on, dropped or trimmed. */
static STATUS check_node(const clusim_sim *s, const uint64_t *flow, uint32_t node, bool copies,
                         clusim_error *e) {
    uint64_t out = flow[2 * (uint64_t)node], in = flow[2 * (uint64_t)node + 1];
    uint32_t endpoint = s->model->image.nodes[node].endpoint;
    if (endpoint == NONE) {
        LAW(copies || out == in, node, "payload out of and into node", out, in);
        return CLUSIM_OK;
    }
    uint64_t sent = s->laws.ends[2 * (uint64_t)endpoint].payload;
    uint64_t taken = s->laws.ends[2 * (uint64_t)endpoint + 1].payload;
    bool exact = !s->model->has_relays && !s->model->has_order; /* or packets are repeated */
    LAW(exact ? out == sent : out >= sent, endpoint, "payload sent by endpoint", out, sent);
    LAW(exact ? in == taken : in >= taken, endpoint, "payload received by endpoint", in, taken);
    return CLUSIM_OK;
}

static STATUS check_payload(const clusim_sim *s, clusim_error *e) {
    const clusim_image *im = &s->model->image;
    uint64_t *flow = calloc(2 * im->num_nodes + 1, sizeof *flow);
    uint8_t *copies = calloc(im->num_nodes + 1, 1);
    enum clusim_status status = flow && copies ? CLUSIM_OK : CLUSIM_ERR_NO_MEMORY;
    if (status == CLUSIM_OK) {
        mark_copying(im, copies);
        for (uint32_t w = 0; w < im->num_wires; w++) {
            flow[2 * (uint64_t)im->wires[w].src] += s->wires.all[w].payload;
            if (im->wires[w].queue_bytes)
                flow[2 * (uint64_t)im->wires[w].src] += s->congestion.counters[w].dropped_bytes +
                                                        s->congestion.counters[w].trimmed_bytes;
            flow[2 * (uint64_t)im->wires[w].dst + 1] += s->wires.all[w].payload;
        }
    }
    for (uint32_t n = 0; status == CLUSIM_OK && n < im->num_nodes; n++)
        status = check_node(s, flow, n, makes_packets(im, copies, n), e);
    free(flow);
    free(copies);
    return status;
}

/* The lowest speed factor an endpoint ever has. */
static uint64_t least_slow(const clusim_image *im, uint32_t endpoint) {
    uint64_t least = im->endpoints[endpoint].slow_1024;
    for (uint64_t f = 0; f < im->num_faults; f++) {
        const clusim_fault *x = &im->faults[f];
        if (x->kind == CLUSIM_FAULT_KIND_SLOW && x->index == endpoint)
            least = base_umin(least, x->num);
    }
    return least;
}

static uint64_t shortest_ps(const clusim_image *im, const clusim_task *t) {
    if (t->kind == CLUSIM_TASK_KIND_DELAY) return (uint64_t)t->delay_ps;
    if (t->kind != CLUSIM_TASK_KIND_KERNEL) return 0;
    base_u128 compute = (base_u128)(uint64_t)t->compute_ps * least_slow(im, t->endpoint) >> 10;
    base_u128 memory = (base_u128)t->mem_bytes * im->endpoints[t->endpoint].mem_cost16 >> 16;
    return (uint64_t)(compute > memory ? compute : memory);
}

/* No task ends before its cause plus its minimum time. */
static STATUS check_tasks(const clusim_sim *s, clusim_error *e) {
    const clusim_image *im = &s->model->image;
    for (uint32_t i = 0; i < im->num_tasks; i++) {
        const task_state *t = &s->tasks.all[i];
        uint64_t least = shortest_ps(im, &im->tasks[i]);
        LAW(t->start_ps >= 0 && t->end_ps >= t->start_ps, i, "end of task", t->end_ps, t->start_ps);
        LAW((uint64_t)(t->end_ps - t->start_ps) >= least, i, "duration of task",
            t->end_ps - t->start_ps, least);
        for (uint32_t k = im->tasks[i].succ_lo; k < im->tasks[i].succ_hi; k++) {
            int64_t start = s->tasks.all[im->succ[k]].start_ps;
            LAW(start >= t->end_ps, im->succ[k], "start of task", start, t->end_ps);
        }
    }
    for (uint32_t m = 0; m < im->num_messages; m++) {
        LAW(s->sources.message_end[m] > im->messages[m].start_ps, m, "end of message",
            s->sources.message_end[m], im->messages[m].start_ps);
    }
    return CLUSIM_OK;
}

/* Every slice posted, every slot back with its sender. */
static STATUS check_slots(const clusim_sim *s, clusim_error *e) {
    for (uint32_t i = 0; i < s->model->image.num_conns; i++) {
        const conn_state *c = &s->programs.conns[i];
        LAW(c->posted == c->sends, i, "slices posted of connection", c->posted, c->sends);
        LAW(c->tail_visible == c->issued, i, "slots shown of connection", c->tail_visible,
            c->issued);
        LAW(c->head_visible == c->consumed, i, "slots back of connection", c->head_visible,
            c->consumed);
    }
    return CLUSIM_OK;
}

STATUS laws_check(const clusim_sim *s, int64_t end_ps, clusim_error *e) {
    memset(e, 0, sizeof *e);
    if (s->laws.broken.what)
        return broken(e, s->laws.broken.endpoint.i, s->laws.broken.what, s->laws.broken.found,
                      s->laws.broken.expected);
    enum clusim_status status = check_wires(s, end_ps, e);
    if (status == CLUSIM_OK) status = check_servers(s, e);
    if (status == CLUSIM_OK) status = check_tasks(s, e);
    if (status != CLUSIM_OK || verify_may_wait(s)) return status; /* it was not delivered */
    status = check_slots(s, e);
    return status == CLUSIM_OK ? check_payload(s, e) : status;
}
