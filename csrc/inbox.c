#include "inbox.h"

void inbox_put_late(clusim_sim *s, window_wire *x, packet_id index) {
    packet_id *link = &x->head;
    while (packet_at(s, *link)->at_ps <= packet_at(s, index)->at_ps)
        link = &packet_at(s, *link)->next;
    packet_at(s, index)->next = *link;
    *link = index;
}
