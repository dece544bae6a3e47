#include "inbox.h"

#include <string.h>

static STATUS grow_ring(window_ring *ring) {
    uint32_t bigger = ring->size ? 2 * ring->size : 8, len = inbox_len(ring);
    window_packet *all = malloc(bigger * sizeof *all);
    if (all == NULL) return CLUSIM_ERR_NO_MEMORY;
    for (uint32_t i = 0; i < len; i++) all[i] = *inbox_entry(ring, i);
    free(ring->all);
    ring->all = all;
    ring->head = 0;
    ring->end = len;
    ring->size = bigger;
    return CLUSIM_OK;
}

STATUS inbox_insert(window_ring *ring, window_packet p) {
    if (inbox_len(ring) == ring->size) TRY(grow_ring(ring));
    inbox_removed(ring);
    uint32_t k = inbox_len(ring);
    ring->end++;
    for (; k > 0 && inbox_entry(ring, k - 1)->at_ps > p.at_ps; k--)
        *inbox_entry(ring, k) = *inbox_entry(ring, k - 1);
    *inbox_entry(ring, k) = p;
    ring->last_ps = base_max(ring->last_ps, p.at_ps);
    return CLUSIM_OK;
}

void inbox_free(window_scratch *scratch) {
    free(scratch->queued);
    free(scratch->work);
    free(scratch->sent);
    free(scratch->spare);
}

enum { FIRST_ROOM = 30, ENDS = 2 };

STATUS inbox_more_room(window_scratch *scratch, wire_state *w) {
    uint32_t room = w->room ? 2 * w->room : FIRST_ROOM, at = scratch->num_queued + 1;
    while (scratch->size_queued - scratch->num_queued < room + ENDS)
        GROW(scratch->queued, scratch->size_queued);
    scratch->num_queued += room + ENDS;
    scratch->queued[at - 1] = (window_arrival){.at_ps = -1};
    for (uint32_t k = 0; k < w->num_arrivals; k++)
        scratch->queued[at + k] = scratch->queued[w->first_arrival + k];
    w->room = room;
    w->first_arrival = at;
    return CLUSIM_OK;
}

/* The list ascends: packets that arrive at one time are handled by wire. */
STATUS inbox_list(clusim_sim *s, wire_id wire) {
    node_id node = info_at(s, wire)->dst;
    wire_id *link = &s->windows.nodes[node.i].first[INBOXES];
    while (!wire_none(*link) && link->i < wire.i) link = &s->windows.ins[link->i].next;
    s->windows.ins[wire.i].next = *link;
    s->windows.ins[wire.i].listed = true;
    *link = wire;
    return inbox_busy(s, node);
}

static node_id node_of(const clusim_sim *s, endpoint_id endpoint) {
    return ID(node, s->model->image.endpoints[endpoint.i].node);
}

STATUS inbox_reply(clusim_sim *s, endpoint_id endpoint, window_packet taken, int64_t latency_ps) {
    const clusim_endpoint *e = &s->model->image.endpoints[endpoint.i];
    bool longer = latency_ps >= base_max(e->read_latency_ps, e->response_latency_ps);
    taken.at_ps += latency_ps;
    inbox_due(s, taken.at_ps);
    TRY(inbox_busy(s, node_of(s, endpoint)));
    return inbox_append(&s->windows.ends[endpoint.i].replies[!longer], taken);
}

STATUS inbox_result(clusim_sim *s, wire_id from, packet_id op, int64_t at_ps) {
    node_id node = info_at(s, from)->dst;
    inbox_due(s, at_ps);
    TRY(inbox_busy(s, node));
    return inbox_append(&s->windows.nodes[node.i].results, (window_packet){at_ps, op, 0});
}

static bool before(const window_start *a, const window_start *b) {
    return a->at_ps < b->at_ps || (a->at_ps == b->at_ps && a->id < b->id);
}

/* Starts move to the front if they fill at most half of the array; otherwise it grows. */
static STATUS room_for_start(window_endpoint *e) {
    uint32_t count = e->end_start - e->first_start;
    if (count > e->size_starts / 2 || e->size_starts == 0) {
        GROW(e->starts, e->size_starts);
        return CLUSIM_OK;
    }
    memmove(e->starts, e->starts + e->first_start, count * sizeof *e->starts);
    e->first_start = 0;
    e->end_start = count;
    return CLUSIM_OK;
}

STATUS inbox_start(clusim_sim *s, endpoint_id endpoint, window_start start) {
    window_endpoint *e = &s->windows.ends[endpoint.i];
    if (e->first_start == e->end_start) e->first_start = e->end_start = 0;
    if (e->end_start == e->size_starts) TRY(room_for_start(e));
    uint32_t k = e->end_start++;
    for (; k > e->first_start && before(&start, &e->starts[k - 1]); k--)
        e->starts[k] = e->starts[k - 1];
    e->starts[k] = start;
    inbox_due(s, start.at_ps);
    return inbox_busy(s, node_of(s, endpoint));
}

/* ---- for nodes of other threads ----------------------------------------------------------------
 */

static STATUS tell(window_outbox *to, window_message message) {
    if (UNLIKELY(to->len == to->size)) GROW(to->all, to->size);
    to->all[to->len++] = message;
    return CLUSIM_OK;
}

static window_outbox *outbox(const clusim_sim *s, node_id node) {
    return &s->windows.thread->to[s->windows.nodes[node.i].part];
}

STATUS inbox_cross(clusim_sim *s, wire_id wire, packet_id index, int64_t at_ps) {
    if (s->windows.thread == NULL) return inbox_put(s, wire, index, at_ps);
    window_message message = {.at_ps = at_ps, .wire = wire, .id = index.i, .news = NEWS_PACKET};
    inbox_due(s, at_ps);
    return tell(outbox(s, info_at(s, wire)->dst), message);
}

STATUS inbox_credit(clusim_sim *s, wire_id wire, uint32_t vc, uint32_t bytes, int64_t free_ps) {
    window_message message = {
        .at_ps = free_ps, .wire = wire, .bytes = bytes, .news = NEWS_CREDIT, .vc = (uint8_t)vc};
    inbox_due(s, free_ps + info_at(s, wire)->credit_ps); /* the wire may be stalled */
    return tell(outbox(s, info_at(s, wire)->src), message);
}

STATUS inbox_delivery(clusim_sim *s, wire_id wire, xfer_id x, uint32_t payload, int64_t visible) {
    window_message message = {
        .at_ps = visible, .wire = wire, .id = x.i, .bytes = payload, .news = NEWS_DELIVERY};
    return tell(&s->windows.thread->deliveries, message);
}
