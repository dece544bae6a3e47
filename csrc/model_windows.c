/* model_windows.c - which nodes work in windows (window.h), and how long these may be. */
#include "model.h"

/* Whether nodes that only forward may work in windows: nothing looks at their queues or acts on
 * their wires within a timestamp, they neither reduce nor copy, and no time or owed byte of a wire
 * can come near its range while the run is in the first half of time. */
static bool may_window(const clusim_model *m) {
    const clusim_image *im = &m->image;
    uint64_t largest = model_packets(im).largest;
    bool may = !m->is_ordered && !m->has_congestion;
    for (uint32_t f = 0; f < im->num_faults; f++)
        may &= im->faults[f].kind != CLUSIM_FAULT_KIND_RATE;
    for (uint32_t c = 0; c < im->num_conns; c++)
        may &= im->conns[c].kind != CLUSIM_CONN_KIND_MULTIMEM &&
               im->conns[c].kind != CLUSIM_CONN_KIND_AGGREGATION;
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

enum { USUAL_PS = 100000 }; /* the latency of a link inside a machine, about */

/* Of a node that could work in windows. */
typedef struct window_node {
    int64_t least_ps; /* after which what happens there matters elsewhere, and the other way */
    uint64_t wires;   /* out of it */
} window_node;

static int by_latency(const void *a, const void *b) {
    int64_t x = ((const window_node *)a)->least_ps, y = ((const window_node *)b)->least_ps;
    return (x > y) - (x < y);
}

static bool may_be_plain(const clusim_model *m, node_id node) {
    return m->image.nodes[node.i].endpoint == NONE;
}

static void look_at_wires(const clusim_model *m, window_node *nodes) {
    for (uint32_t w = 0; w < m->image.num_wires; w++) {
        const wire_info *info = &m->wires[w];
        bool to = may_be_plain(m, info->dst);
        int64_t least =
            base_min(info->credit_ps, info->latency_ps + (to ? info->dst_latency_ps : 0));
        window_node *src = &nodes[info->src.i], *dst = &nodes[info->dst.i];
        src->least_ps = base_min(src->least_ps, least);
        dst->least_ps = base_min(dst->least_ps, least);
        src->wires += may_be_plain(m, info->src);
    }
}

/* Nodes at short wires would make windows short for all: better they work with events. Weigh how
 * many wires work in windows against how much they find to do in one. */
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

/* Whether a wire finds something to do in most windows, or looking at all of them costs more than
 * the events that it saves. */
static bool windows_pay(const clusim_model *m) {
    uint64_t largest = model_packets(&m->image).largest;
    double wires = 0, packets_ps = 0;
    for (uint32_t w = 0; w < m->image.num_wires; w++) {
        if (!(m->wires[w].traits & FROM_PLAIN)) continue;
        wires += 1;
        packets_ps += (double)model_est(&m->rates[m->wires[w].rate], largest);
    }
    return packets_ps < 2 * wires * (double)m->window_ps;
}

STATUS model_windows(clusim_model *m) {
    if (!may_window(m)) return CLUSIM_OK;
    uint64_t count = m->image.num_nodes;
    window_node *nodes = malloc((2 * count + 1) * sizeof *nodes);
    if (nodes == NULL) return CLUSIM_ERR_NO_MEMORY;
    for (uint64_t n = 0; n < count; n++) nodes[n] = (window_node){.least_ps = NEVER};
    look_at_wires(m, nodes);
    m->window_ps = choose_window(m, nodes, nodes + count);
    for (uint32_t w = 0; w < m->image.num_wires && m->window_ps; w++) {
        wire_info *info = &m->wires[w];
        bool from = may_be_plain(m, info->src) && nodes[info->src.i].least_ps >= m->window_ps;
        bool to = may_be_plain(m, info->dst) && nodes[info->dst.i].least_ps >= m->window_ps;
        info->traits |= (uint8_t)((from ? FROM_PLAIN : 0) | (to ? TO_PLAIN : 0));
    }
    free(nodes);
    m->windows_pay = windows_pay(m);
    return CLUSIM_OK;
}
