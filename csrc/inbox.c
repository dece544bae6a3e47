#include "inbox.h"

#include "parts/wires.h"

STATUS inbox_put_first(clusim_sim *s, wire_id wire) {
    window_wire *x = &s->windows.wires[wire.i];
    node_id node = info_at(s, wire)->dst;
    window_node *n = &s->windows.nodes[node.i];
    x->inbox = 1;
    x->next_inbox = n->inboxes;
    n->inboxes = wire;
    return inbox_busy(s, node);
}

STATUS inbox_put_late(clusim_sim *s, wire_id wire, window_packet p) {
    window_wire *x = &s->windows.wires[wire.i];
    uint32_t k = x->len++;
    for (; k > 0 && inbox_entry(x, k - 1)->at_ps > p.at_ps; k--)
        *inbox_entry(x, k) = *inbox_entry(x, k - 1);
    *inbox_entry(x, k) = p;
    inbox_due(s, p.at_ps);
    return CLUSIM_OK;
}

STATUS inbox_grow(window_wire *x) {
    uint32_t bigger = x->size ? 2 * x->size : 8;
    window_packet *ring = malloc(bigger * sizeof *ring);
    if (ring == NULL) return CLUSIM_ERR_NO_MEMORY;
    for (uint32_t i = 0; i < x->len; i++) ring[i] = *inbox_entry(x, i);
    free(x->under_way);
    x->under_way = ring;
    x->head = 0;
    x->size = bigger;
    return CLUSIM_OK;
}
