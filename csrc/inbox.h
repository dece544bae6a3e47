/* inbox.h - packets on their way to plain nodes: rings by time, one for each wire, and no events.
 */
#ifndef CLUSIM_INBOX_H
#define CLUSIM_INBOX_H

#include "parts/windows.h"
#include "state.h"

/* Something is to be done at a plain node. */
static inline void inbox_due(clusim_sim *s, int64_t at_ps) {
    s->windows.due_ps = base_min(s->windows.due_ps, at_ps);
}

/* A plain node has packets under way to it or wires with something to do. */
static inline STATUS inbox_busy(clusim_sim *s, node_id node) {
    window_node *n = &s->windows.nodes[node.i];
    if (n->listed) return CLUSIM_OK;
    n->listed = 1;
    return node_push(&s->windows.busy, node);
}

static inline window_packet *inbox_entry(const window_wire *x, uint32_t number) {
    return &x->under_way[(x->head + number) & (x->size - 1)];
}

/* The uncommon cases of inbox_put: the first packet under way, one that overtakes others, no room.
 */
STATUS inbox_put_first(clusim_sim *s, wire_id wire);
STATUS inbox_put_late(clusim_sim *s, wire_id wire, window_packet p);
STATUS inbox_grow(window_wire *x);

/* A packet reaches the plain node at the end of its wire at `at_ps`. */
static inline STATUS inbox_put(clusim_sim *s, wire_id wire, packet_id index, int64_t at_ps) {
    window_wire *x = &s->windows.wires[wire.i];
    window_packet p = {at_ps, index, 0};
    if (UNLIKELY(x->len == x->size)) TRY(inbox_grow(x));
    if (x->len == 0) {
        inbox_due(s, at_ps);
        if (!x->inbox) TRY(inbox_put_first(s, wire));
    } else if (UNLIKELY(inbox_entry(x, x->len - 1)->at_ps > at_ps)) {
        return inbox_put_late(s, wire, p);
    }
    *inbox_entry(x, x->len++) = p;
    return CLUSIM_OK;
}

#endif
