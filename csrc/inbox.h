/* inbox.h - packets on their way to plain nodes: lists by time, one for each wire, and no events.
 */
#ifndef CLUSIM_INBOX_H
#define CLUSIM_INBOX_H

#include "parts/packets.h"
#include "parts/windows.h"
#include "state.h"

/* Something is to be done at a plain node. */
static inline void inbox_due(clusim_sim *s, int64_t at_ps) {
    s->windows.due_ps = base_min(s->windows.due_ps, at_ps);
}

/* The uncommon case of inbox_put: a packet that overtakes others on its wire. */
void inbox_put_late(clusim_sim *s, window_wire *x, packet_id index);

/* A packet reaches the plain node at the end of its wire at `at_ps`. */
static inline STATUS inbox_put(clusim_sim *s, packet_id index, int64_t at_ps) {
    packet *p = packet_at(s, index);
    window_wire *x = &s->windows.wires[p->out.i];
    p->at_ps = at_ps;
    p->next = NO(packet);
    if (packet_none(x->head)) {
        x->head = x->tail = index;
        inbox_due(s, at_ps);
        if (x->inbox) return CLUSIM_OK;
        x->inbox = 1;
        return wire_push(&s->windows.inboxes, p->out);
    }
    packet *last = packet_at(s, x->tail);
    if (UNLIKELY(last->at_ps > at_ps)) {
        inbox_put_late(s, x, index);
        inbox_due(s, at_ps);
        return CLUSIM_OK;
    }
    last->next = index;
    x->tail = index;
    return CLUSIM_OK;
}

#endif
